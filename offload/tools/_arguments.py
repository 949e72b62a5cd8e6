"""Checking a model's arguments against a tool's schema, with errors that the model can act on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from offload.errors import ConfigError
from offload.tools._definitions import schema, tool_names

# A petabyte; also, Python refuses to print integers of thousands of digits.
_MAX_INTEGER = 10**15
_TYPES: dict[str, Any] = {"string": str, "integer": int, "boolean": bool}


def check_arguments(name: str, arguments: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return the arguments of a call of the tool `name`; nulls count as not given.

    Args:
        name: the tool's name.
        arguments: a mapping, or the JSON text of one, as OpenAI hands it over.

    Raises:
        ConfigError: an unknown tool, or arguments that its schema does not allow; says which are right.
    """
    if name not in tool_names():
        raise ConfigError(f"no tool {name!r}; there are {', '.join(tool_names())}")
    given = _parse(arguments)
    wanted = schema(name)
    unknown = given.keys() - wanted["properties"].keys()
    if unknown:
        allowed = ", ".join(wanted["properties"])
        raise ConfigError(f"{name} has no argument {', '.join(sorted(unknown))}; it has {allowed}")
    given = {k: v for k, v in given.items() if v is not None}
    missing = [k for k in wanted["required"] if k not in given]
    if missing:
        raise ConfigError(f"{name} needs {', '.join(missing)}")
    for key, value in given.items():
        _check(key, value, wanted["properties"][key])
    return given


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
    return {str(k): v for k, v in arguments.items()}


def _check(key: str, value: Any, rule: dict[str, Any]) -> None:
    if "enum" in rule:
        if value not in rule["enum"]:
            raise ConfigError(f"{key} is one of {', '.join(rule['enum'])}, not {value!r:.60}")
        return
    # A bool is an int to Python.
    if type(value) is not _TYPES[rule["type"]]:
        raise ConfigError(f"{key} is of type {rule['type']}, not {value!r:.60}")
    if rule["type"] == "integer" and value > _MAX_INTEGER:
        raise ConfigError(f"{key} is at most {_MAX_INTEGER}")
    if rule["type"] == "integer" and value < rule["minimum"]:
        raise ConfigError(f"{key} is at least {rule['minimum']}, not {max(value, -_MAX_INTEGER)}")
