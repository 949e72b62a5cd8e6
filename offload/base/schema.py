"""Frozen settings models, and the files and environment variables that fill them."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from offload.base.threads.locks import NO_FORK, cached
from offload.errors import ConfigError, needs_extra

_DURATION = re.compile(r"(\d+)\s*([smhd]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_SECONDS = 10**9
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmgt]?)(i?)b?", re.ASCII | re.IGNORECASE)
_PREFIXES = ("", "k", "m", "g", "t")
# With aliases, a few hundred characters of YAML can expand to millions.
_MAX_ALIASED_CHARS = 1024 * 1024


def seconds_of(text: str) -> int:
    """Return the seconds of a text such as "90s", "15m", "2h" or "7d". Raises `ValueError` for another."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'a duration must be seconds or a text like "90s", "15m", "2h", "7d", got {text!r}')
    return int(match[1]) * _UNITS[match[2]]


def seconds_or_value(value: object) -> object:
    """Convert a `timedelta` or a text to seconds; return other values for pydantic to check."""
    if isinstance(value, timedelta):
        return int(value.total_seconds())
    return seconds_of(value) if isinstance(value, str) else value


def _bytes(value: object) -> object:
    """Convert a text such as "20MB" to bytes; return other values for pydantic to check."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise ValueError(f'a size must be bytes or a text like "500kB", "20MB", "10G", "1GiB", got {value!r}')
    return round(float(match[1]) * (1024 if match[3] else 1000) ** _PREFIXES.index(match[2].lower()))


Duration = int | str | timedelta
Seconds = Annotated[int, BeforeValidator(seconds_or_value), Field(strict=True, ge=0, le=_MAX_SECONDS)]
Size = Annotated[int, Field(strict=True, gt=0)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(strict=True, gt=0)]
Count = Annotated[int, Field(strict=True, ge=0)]
Flag = Annotated[bool, Field(strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1)]


if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass as _Metaclass
else:

    class _Metaclass(type(BaseModel)):
        """Raises errors of the library from constructors; nested models are built without this call."""

        def __call__(cls, **data: Any) -> Any:
            try:
                return super().__call__(**data)
            except ValidationError as error:
                raise cls._error(_describe(cls, error)) from None


class SettingsModel(BaseModel, metaclass=_Metaclass):
    """A frozen model that raises `ConfigError` for a wrong value and names the value by its path."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached,))
    _error: ClassVar[type[ConfigError]] = ConfigError
    # Whether users know the name of the class, so that it begins the path of a wrong value.
    _is_named: ClassVar[bool] = True

    @classmethod
    def model_validate(cls, *args: Any, **options: Any) -> Self:
        """Return the model that `data` describes. Raises `ConfigError` as the constructor does."""
        try:
            return super().model_validate(*args, **options)
        except ValidationError as error:
            raise cls._error(_describe(cls, error)) from None


class LoadableSettings(SettingsModel):
    """Settings that have a table in files and a variable in the environment."""

    _table: ClassVar[Sequence[str]]
    _variable: ClassVar[str]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Load a TOML, YAML or JSON file.

        The fields are at its top level, or in the table `tool.offload.policy` or `tool.offload.agent`.

        Raises:
            ConfigError: the file cannot be read or has an invalid value; `PolicyError` for one of a policy.
            MissingExtraError: a YAML file, and PyYAML is not installed.
        """
        return cls.model_validate(read_file(path, cls._table))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Load environment variables, by default those of the process.

        `OFFLOAD_POLICY` and `OFFLOAD_AGENT` name a file; the first also names a policy. A longer name such as
        `OFFLOAD_POLICY__TYPES__TOOL_RESULT__MIN_TOKENS=3000` sets one field; its value is JSON or a text.
        Errors are those of `load`.
        """
        variables = os.environ if environ is None else environ
        return cls.model_validate(read_environment(variables, cls._variable, cls._table))


def _describe(model: type[SettingsModel], error: ValidationError) -> str:
    """Return every fault, each with the path of its value."""
    faults = []
    for fault in error.errors(include_url=False):
        parts = [model.__name__] * model._is_named  # noqa: SLF001 # of this module's class
        path = ".".join([*parts, *(str(part) for part in fault["loc"] if part != "[key]")])
        if fault["type"] == "value_error":
            reason = fault["msg"].removeprefix("Value error, ")
            faults.append(f"{path}: {reason}" if path else reason)
        elif fault["type"] == "extra_forbidden":
            known = ", ".join(_model_at(model, fault["loc"][:-1]).model_fields)
            faults.append(f"{path}: no such field, got {fault['input']!r:.60}; known fields: {known}")
        else:
            faults.append(f"{path}: {fault['msg']}, got {fault['input']!r:.60}")
    return "; ".join(faults)


def _model_at(model: type[SettingsModel], path: Sequence[int | str]) -> type[SettingsModel]:
    """Return the model at `path` in `model`; keys of a table between them count for nothing."""
    for part in path:
        if part in model.model_fields:
            model = _nested_model(model.model_fields[str(part)].annotation) or model
    return model


def _nested_model(annotation: Any) -> type[SettingsModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, SettingsModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _nested_model(each))), None)


def read_file(path: str | os.PathLike[str], table: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields in a TOML, YAML or JSON file, in `table` if the file has the first part of its path.

    Raises `ConfigError`.
    """
    file = expand_path(path)
    parse = _PARSERS.get(file.suffix.lower())
    if parse is None:
        raise ConfigError(f"{file}: a settings file must have the suffix {', '.join(sorted(_PARSERS))}")
    try:
        data = parse(file.read_text(encoding="utf-8"))
    except PermissionError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}; make it readable for this user, or move it away"
        ) from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    for name in table if isinstance(data, dict) and data.keys() & {*table[:1]} else ():
        data = data.get(name) if isinstance(data, dict) else None
    if not isinstance(data, dict):
        raise ConfigError(f"{file} has no table of settings")
    return data


def read_environment(environ: Mapping[str, str], variable: str, table: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields that environment variables set. Raises `ConfigError`.

    `variable` names a file or a policy; with two underscores, it is the prefix of variables for one field.
    """
    source = environ.get(variable, "")
    data: dict[str, Any] = {}
    if source:
        data = read_file(source, table) if Path(source).suffix else {"preset": source}
    prefix = f"{variable}__"
    for name, text in sorted(environ.items()):
        if name.upper().startswith(prefix):
            _set(data, name[len(prefix) :].lower().split("__"), parse_value(text), name)
    return data


def expand_path(path: str | os.PathLike[str]) -> Path:
    """Return `path` with `~` replaced by a home folder. Raises `ConfigError` if there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from error


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes`; tables in both are merged."""
    both = {
        name: merge(base[name], value)
        for name, value in changes.items()
        if isinstance(value, Mapping) and isinstance(base.get(name), Mapping)
    }
    return {**base, **changes, **both}


def parse_value(text: str) -> Any:
    """Return the value of a variable: its JSON, or the text if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _set(data: dict[str, Any], path: list[str], value: Any, variable: str) -> None:
    for name in path[:-1]:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{variable}: {name} has no fields")
    data[path[-1]] = value


def _parse_yaml(text: str) -> Any:
    with needs_extra("yaml"), NO_FORK:
        import yaml  # noqa: PLC0415 # an extra
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if _expanded_chars(root, {}) > 2 * len(text) + _MAX_ALIASED_CHARS:
            raise ValueError("its aliases (*name) expand to too much text; write out the values")
        # YAML has keys and values of other types, such as dates; settings are plain data.
        return json.loads(json.dumps(root and loader.construct_document(root), default=str))
    except (yaml.YAMLError, TypeError) as error:
        raise ValueError(str(error)) from error
    finally:
        loader.dispose()


def _expanded_chars(node: Any, known: dict[int, float]) -> float:
    """Estimate the characters of a YAML node with its aliases expanded; visit each node once."""
    if node is None or isinstance(node.value, str):
        return 1 + len(node.value if node else "")
    if id(node) not in known:
        known[id(node)] = inf  # a node inside itself expands without end
        parts = chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in node.value)
        known[id(node)] = 1 + sum(_expanded_chars(part, known) for part in parts)
    return known[id(node)]


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".json": json.loads,
}
