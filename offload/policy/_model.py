"""Frozen models whose faults name each wrong value by its path, and the kinds of numbers they hold."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from offload.errors import PolicyError

_DURATION = re.compile(r"(\d+)\s*([smhd])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_SECONDS = 10**9


def _seconds(value: object) -> object:
    """Return whole seconds of a `timedelta` or a text like "90s"; anything else is left to pydantic."""
    if isinstance(value, timedelta):
        return int(value.total_seconds())
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            raise ValueError(f'a duration is seconds or a text like "90s", "15m", "2h", "7d", not {value!r}')
        return int(match[1]) * _UNITS[match[2]]
    return value


Seconds = Annotated[int, BeforeValidator(_seconds), Field(strict=True, ge=0, le=_MAX_SECONDS)]
Size = Annotated[int, Field(strict=True, gt=0)]
Count = Annotated[int, Field(strict=True, ge=0)]

_INNER = re.compile(r"(^|; )(?:OffloadPolicy|Rule|Retention|Sweep)(?=[.:])")


class Model(BaseModel):
    """A frozen model whose faults are errors of our tree, each value named by its path."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:  # The generated signature is what users should see.

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise PolicyError(_describe(type(self), error)) from None

        @classmethod
        def model_validate(cls, *args: Any, **options: Any) -> Self:
            """Return the model that data describes. Raises `PolicyError`."""
            try:
                return super().model_validate(*args, **options)
            except ValidationError as error:
                raise PolicyError(_describe(cls, error)) from None


def _describe(model: type[BaseModel], error: ValidationError) -> str:
    """Return what was wrong, each value by its path, and what would be right."""
    faults = []
    for fault in error.errors(include_url=False):
        path = ".".join([model.__name__, *(str(part) for part in fault["loc"] if part != "[key]")])
        if fault["type"] == "value_error":
            said = fault["msg"].removeprefix("Value error, ")
            # What a rule said of itself is said of its place in the policy.
            inner = _INNER.sub(rf"\1{path}", said)
            is_whole = inner != said or said.startswith(path)
            faults.append(inner if is_whole else f"{path}: {said}")
        elif fault["type"] == "extra_forbidden":
            known = ", ".join(model.model_fields)
            faults.append(f"{path}: no such field, got {fault['input']!r:.60}; there are {known}")
        else:
            faults.append(f"{path}: {fault['msg']}, got {fault['input']!r:.60}")
    return "; ".join(faults)
