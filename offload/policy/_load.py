"""Policies from files and environment variables, as plain data."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from offload.errors import MissingExtraError, PolicyError

_VARIABLE = "OFFLOAD_POLICY"
_TABLE = ("tool", "offload", "policy")


def from_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields that a TOML, YAML or JSON file gives. Raises `PolicyError`."""
    file = Path(path).expanduser()
    parse = _PARSERS.get(file.suffix.lower())
    if parse is None:
        raise PolicyError(f"{file}: a policy is a file of suffix {', '.join(sorted(_PARSERS))}")
    try:
        data = parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyError(f"{file} cannot be read: {error}") from error
    for name in _TABLE if isinstance(data, dict) and _TABLE[0] in data else ():
        data = data.get(name) if isinstance(data, dict) else None
    if not isinstance(data, dict):
        raise PolicyError(f"{file} holds no table of a policy's fields")
    return data


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that variables give. Raises `PolicyError`."""
    named = environ.get(_VARIABLE, "")
    data: dict[str, Any] = {}
    if named:
        data = from_file(named) if Path(named).suffix else {"preset": named}
    prefix = f"{_VARIABLE}__"
    for variable, text in sorted(environ.items()):
        if variable.upper().startswith(prefix):
            _set(data, variable[len(prefix) :].lower().split("__"), _value(text), variable)
    return data


def _set(data: dict[str, Any], path: list[str], value: Any, variable: str) -> None:
    for name in path[:-1]:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise PolicyError(f"{variable}: {name} has no fields")
    data[path[-1]] = value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _yaml(text: str) -> Any:
    try:
        import yaml  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise MissingExtraError("a YAML policy needs PyYAML: pip install 'offload[yaml]'") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".yaml": _yaml,
    ".yml": _yaml,
    ".json": json.loads,
}
