"""The limits of `Retention` as a person writes them: in options of commands, in fields of a form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from offload.base.schema import Bytes, Size
from offload.engine.policy import Retention

_UNITS = {86_400: "d", 3600: "h", 60: "m", 1: "s"}


class Limit(NamedTuple):
    """A field of `Retention`.

    Attributes:
        form: how it is written: a number, a size with a unit or a duration with a unit.
        default: as it is written; None for no limit.
    """

    name: str
    title: str
    about: str
    form: Literal["N", "SIZE", "TIME"]
    default: str | None


def limits() -> list[Limit]:
    """Return the limits in the order of the fields."""
    forms: dict[Any, Literal["N", "SIZE"]] = {Size | None: "N", Bytes | None: "SIZE"}
    return [
        Limit(
            name,
            field.title or name,
            field.description or "",
            forms.get(field.annotation, "TIME"),
            _text(field.default),
        )
        for name, field in Retention.model_fields.items()
    ]


def retention_of(texts: Mapping[str, str | None]) -> Retention:
    """Return the retention with the limits in texts, by name; an empty one is the default.

    Raises `PolicyError`.
    """
    fields = {
        limit.name: int(text) if limit.form != "TIME" and text.isdecimal() else text
        for limit in limits()
        if (text := texts.get(limit.name))
    }
    return Retention.model_validate(fields)


def _text(seconds: int | None) -> str | None:
    if not seconds:
        return None if seconds is None else "0s"
    size = next(size for size in _UNITS if seconds % size == 0)
    return f"{seconds // size}{_UNITS[size]}"
