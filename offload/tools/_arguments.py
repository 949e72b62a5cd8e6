"""Checking a model's arguments against a tool's schema, with errors that the model can act on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from offload.errors import ConfigError
from offload.policy import TOOL_NAMES
from offload.tools._definitions import schema

# A petabyte; also, Python refuses to print integers of thousands of digits.
_MAX_INTEGER = 10**15
_TYPES: dict[str, Any] = {"string": str, "integer": int, "boolean": bool}
_SHOWN_CHARS = 60


def check_arguments(
    name: str, arguments: Mapping[str, Any] | str | None, offered: Sequence[str] = TOOL_NAMES
) -> dict[str, Any]:
    """Return the arguments of a call of the tool `name`; nulls count as not given.

    Args:
        name: the tool's name.
        arguments: a mapping, or the JSON text of one, as OpenAI hands it over.
        offered: the tools that there are.

    Raises:
        ConfigError: an unknown tool, or arguments that its schema does not allow; says which are right.
    """
    if name not in offered:
        raise ConfigError(f"no tool {_shown(name)}; there {_are(offered)}")
    given = _parse(arguments)
    wanted = schema(name)
    unknown = sorted(given.keys() - wanted["properties"].keys())
    if unknown:
        names = ", ".join(_shown(key) for key in unknown[:5])
        raise ConfigError(f"{name} has no argument {names}; it has {', '.join(wanted['properties'])}")
    given = {k: _plain(v) for k, v in given.items() if v is not None}
    missing = [k for k in wanted["required"] if k not in given]
    if missing:
        raise ConfigError(f"{name} needs {', '.join(missing)}")
    for key, value in given.items():
        _check(key, value, wanted["properties"][key])
    return given


def _are(names: Sequence[str]) -> str:
    return f"{'is' if len(names) == 1 else 'are'} {', '.join(names)}"


def _parse(arguments: Mapping[str, Any] | str | None) -> dict[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"the arguments are no JSON: {error}") from None
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise ConfigError(f"the arguments are an object, not {type(arguments).__name__}")
    if not all(isinstance(key, str) for key in arguments):
        raise ConfigError("the names of arguments are texts")
    return dict(arguments)


def _plain(value: Any) -> Any:
    """Return 5 for 5.0, which is an integer to JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check(key: str, value: Any, rule: dict[str, Any]) -> None:
    # A bool is an int to Python.
    if type(value) is not _TYPES[rule["type"]]:
        raise ConfigError(f"{key} is of type {rule['type']}, not {_shown(value)}")
    if "enum" in rule and value not in rule["enum"]:
        raise ConfigError(f"{key} is one of {', '.join(rule['enum'])}, not {_shown(value)}")
    if rule["type"] == "integer" and value > _MAX_INTEGER:
        raise ConfigError(f"{key} is at most {_MAX_INTEGER}")
    if rule["type"] == "integer" and value < rule["minimum"]:
        raise ConfigError(f"{key} is at least {rule['minimum']}, not {max(value, -_MAX_INTEGER)}")


def _shown(value: Any) -> str:
    """Return a value as an error shows it; what is deep or has thousands of digits cannot be printed."""
    if isinstance(value, str):
        return repr(value[:_SHOWN_CHARS])
    if isinstance(value, bool | float):
        return repr(value)
    return type(value).__name__
