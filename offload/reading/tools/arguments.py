"""Checking a model's arguments against those that a tool accepts, with errors that the model can act on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from offload.base.patterns import lazy_pattern
from offload.engine.placeholder.forms import known_refs
from offload.engine.policy.tool_names import RETRIEVAL_TOOLS
from offload.errors import ConfigError, check_texts
from offload.reading.tools._definitions import accepted_arguments
from offload.storage.layout import REF_PATTERN, is_ref

# A petabyte; also, Python refuses to print integers of thousands of digits.
_MAX_INTEGER = 10**15
_TYPES: dict[str, Any] = {"string": str, "integer": int, "boolean": bool, "array": list}
_A = {"string": "a string", "integer": "an integer", "boolean": "true or false", "array": "a list of strings"}
_FLAGS = {"true": True, "false": False}
_DIGITS = lazy_pattern(r"-?\d{1,15}", re.ASCII)
_SHOWN_CHARS = 60
_IDS = {"id", "old", "new"}
# An empty one is a mistake, not an option without a value.
_SEARCHED = {"pattern"}
# Characters that some models copy with an id.
_AROUND_ID = " \t\r\n\"'`[](),"
# Lines of an item, from 1, or its last ones.
_LINES = lazy_pattern(r"(?P<first>[1-9]\d*)(?P<to>-(?P<end>[1-9]\d*)?)?|-(?P<last>[1-9]\d*)", re.ASCII)
_MOST_DIGITS = 15
# A line of `context_refs`.
_LINE = lazy_pattern(rf"\bin context: ({REF_PATTERN})\b", re.ASCII | re.IGNORECASE)


def check_arguments(
    name: str, arguments: Mapping[str, Any] | str | None, offered: Sequence[str] = RETRIEVAL_TOOLS
) -> dict[str, Any]:
    """Check tool-call arguments, as `Tools.call` takes them, and return them without nulls and empty options.

    Raises `ConfigError` for a tool that is not `offered` or arguments that it does not accept; the error
    names the accepted ones.
    """
    if name not in offered:
        raise ConfigError(f"unknown tool {_shown(name)}; use {', '.join(offered)}")
    fields = parse_arguments(arguments)
    rules, required = accepted_arguments(name)
    unknown = sorted(fields.keys() - rules.keys())
    if unknown:
        names = ", ".join(_shown(key) for key in unknown[:5])
        raise ConfigError(f"unknown argument {names} for {name}; use {', '.join(rules)}")
    kept = {*required, *_SEARCHED}
    if isinstance(several := fields.get("id"), list) and all(isinstance(each, str) for each in several):
        fields["id"] = ",".join(several)
    fields = {k: _plain(v, rules[k]["type"]) for k, v in fields.items() if not _is_absent(v, k in kept)}
    fields |= {k: _id_in(fields[k]) for k in _IDS & fields.keys() if isinstance(fields[k], str)}
    if isinstance(fields.get("cursor"), str):
        fields["cursor"] = fields["cursor"].strip(_AROUND_ID)
    missing = [k for k in required if k not in fields]
    if missing:
        raise ConfigError(f"{name}: missing argument {', '.join(missing)}")
    for key, value in fields.items():
        _check(key, value, rules[key])
    return fields


class Part(NamedTuple):
    """A part of an item: lines from 1 to the last one, so many last lines, or the pointer of a value."""

    start_line: int | None = None
    end_line: int | None = None
    pointer: str | None = None
    last: int | None = None


def part_of(text: str) -> Part:
    """Return the part that a text names. Raises `ConfigError`."""
    check_texts(part=text)
    if text.startswith("/"):
        return Part(pointer=text)
    match = _LINES.fullmatch(text.strip())
    if match is None or any(len(number or "") > _MOST_DIGITS for number in match.groups()):
        forms = 'lines such as "10-40", the last ones such as "-20", or a JSON pointer such as "/items/0"'
        raise ConfigError(f"part must be {forms}, got {_shown(text)}")
    if match["last"]:
        return Part(last=int(match["last"]))
    first = int(match["first"])
    end = match["end"] if match["to"] else match["first"]
    return Part(first, int(end) if end else None)


def check_alone(name: str, **others: object) -> None:
    """Raise `ConfigError` if an argument is given with others that it excludes."""
    given = [other for other, value in others.items() if value is not None]
    if given:
        raise ConfigError(f"with {name}, leave out {', '.join(given)}")


def check_count(name: str, value: int, *, least: int = 1) -> None:
    """Raise `ConfigError` if a number is not an integer, or too small."""
    if type(value) is not int:
        raise ConfigError(f"{name} must be an integer, got {value!r:.60}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")


def check_range(
    offset: int | None, limit: int | None, start_line: int | None, end_line: int | None, pointer: str | None
) -> None:
    """Raise `ConfigError` for an invalid range, and for two ranges."""
    by_line = start_line is not None or end_line is not None
    if by_line and (offset is not None or limit is not None or pointer is not None):
        raise ConfigError("use offset/limit or lines, not both; with a JSON pointer, use offset")
    counts = {"offset": offset, "limit": limit, "start_line": start_line, "end_line": end_line}
    for name, value in counts.items():
        if value is not None:
            check_count(name, value, least=0 if name == "offset" else 1)
    check_texts(pointer=pointer)
    if end_line is not None and end_line < (start_line or 1):
        raise ConfigError(f"end_line {end_line} is before start_line {start_line or 1}")


def parse_arguments(arguments: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """Return tool-call arguments, which may be JSON text, as a dict. Raises `ConfigError`."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"arguments are not valid JSON: {error}") from None
    if arguments is None:
        return {}
    if not isinstance(arguments, Mapping):
        raise ConfigError(f"arguments must be an object, got {type(arguments).__name__}")
    if not all(isinstance(key, str) for key in arguments):
        raise ConfigError("argument names must be strings")
    return dict(arguments)


def _id_in(text: str) -> str:
    """Return the id in an argument, or several with commas.

    One may be typed in capitals, and a model may pass its whole line.
    """
    line = _LINE.search(text)
    several = [line[1]] if line else [*filter(None, (part.strip(_AROUND_ID) for part in text.split(",")))]
    if all(is_ref(ref.lower()) for ref in several):
        return ",".join(several).lower()
    return next(known_refs(text.strip()), ",".join(several))


def _is_absent(value: Any, is_required: bool) -> bool:
    """Return whether a value is null, or an option without a value: some models send all of them."""
    is_empty = (isinstance(value, str) and not value.strip()) or (isinstance(value, list) and not any(value))
    return value is None or (is_empty and not is_required)


def _plain(value: Any, kind: str) -> Any:
    """Return an integer for 5.0, which is one in JSON, and the value of "5" or "true", which models send."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if kind == "array" and isinstance(value, str):
        # Some models send a list as its JSON, or with commas.
        return [part.strip(" '\"") for part in value.strip("[] ").split(",")]
    if kind == "boolean" and isinstance(value, str):
        return _FLAGS.get(value.lower(), value)
    is_number = kind == "integer" and isinstance(value, str) and _DIGITS.fullmatch(value)
    return int(value) if is_number else value


def _check(key: str, value: Any, rule: dict[str, Any]) -> None:
    # A bool is an int to Python.
    if type(value) is not _TYPES[rule["type"]]:
        raise ConfigError(f"{key} must be {_A[rule['type']]}, got {_shown(value)}")
    if rule["type"] == "array" and not all(isinstance(each, str) for each in value):
        raise ConfigError(f"{key} must be a list of strings")
    if rule["type"] == "integer" and abs(value) > _MAX_INTEGER:
        raise ConfigError(f"{key} must be 0 to {_MAX_INTEGER}")


def _shown(value: Any) -> str:
    """Return a value for an error; deep values and huge integers cannot be printed."""
    if isinstance(value, str):
        return repr(value[:_SHOWN_CHARS])
    if isinstance(value, bool | float):
        return repr(value)
    return type(value).__name__
