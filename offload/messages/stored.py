"""Messages as JSON, for records of whole messages: bytes are written as base64, tuples as marked lists."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Container, Iterator, Mapping
from itertools import chain, count
from typing import Any

from offload.base.patterns import lazy_pattern
from offload.errors import MessageError

_BYTES, _TUPLE, _FLOAT = "$bytes", "$tuple", "$float"
_RESERVED, _ESCAPED = (lazy_pattern(rf"{some}(?:bytes|tuple|float)") for some in (r"\$+", r"\$\$+"))
# The numbers that JSON lacks; NaN equals none.
_FLOATS = {1: math.inf, -1: -math.inf, 0: math.nan}

# The names that make a message: they quote nothing, and no hook changes them.
_STRUCTURE = frozenset(
    {
        "type", "role", "content", "text", "id", "name",
        "parts", "output", "thinking", "signature", "json", "input",
        "tool_use_id", "tool_calls", "tool_call_id", "function", "arguments", "call_id",
        "args", "functionCall", "functionResponse", "response", "toolUse", "toolResult",
        "toolUseId",
    }
)  # fmt: skip


def refuse(value: Any) -> Any:
    """Raise `MessageError` for a value that has no JSON."""
    raise MessageError(f"a message holds {type(value).__name__}, which has no JSON")


def as_data(value: Any) -> Any:
    """Return a message with each SDK object in it as data: dicts, lists, bytes and JSON values."""
    if hasattr(value, "model_dump"):
        data = value.model_dump(mode="json", exclude_unset=True, warnings=False)
        kind = getattr(value, "type", None)
        # LangChain's classes name the kind of a message by a default, which is not a field that was set.
        return {"type": kind, **data} if isinstance(kind, str) and isinstance(data, dict) else data
    if isinstance(value, Mapping):
        return {name: as_data(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(as_data(part) for part in value)
    return [as_data(part) for part in value] if isinstance(value, list) else value


def to_json(message: Any, fallback: Callable[[Any], Any] = refuse, *, is_exact: bool = False) -> Any:
    """Return `message` as a JSON value; `fallback` returns a replacement for a part that has no JSON.

    If it `is_exact`, `from_json` returns tuples, infinity and NaN too; else a tuple becomes a list.
    """
    return _encoded(as_data(message), fallback, is_exact=is_exact)


def without_json(value: Any, where: str) -> Iterator[str]:
    """Yield the place of each part of a message at `where` that has no JSON, with its type."""
    data = as_data(value)
    if isinstance(data, dict):
        for name, part in data.items():
            if isinstance(name, str):
                yield from without_json(part, f"{where}.{name}")
            else:
                yield f"{where}: the name of a field is {type(name).__name__}"
    elif isinstance(data, list | tuple):
        for index, part in enumerate(data):
            yield from without_json(part, f"{where}[{index}]")
    elif data is not None and not isinstance(data, str | int | float | bytes):
        yield f"{where}: {type(data).__name__} has no JSON"


def from_json(fields: dict[str, Any]) -> Any:
    """Decode an object that `to_json` wrote, as `object_hook=` of `json.loads`."""
    if fields.keys() == {_BYTES}:
        return base64.b64decode(fields[_BYTES])
    if fields.keys() == {_TUPLE}:
        return tuple(fields[_TUPLE])
    if fields.keys() == {_FLOAT}:
        return _FLOATS[fields[_FLOAT]]
    return {name[1:] if _ESCAPED.fullmatch(name) else name: part for name, part in fields.items()}


def map_texts(value: Any, edit: Callable[[str], str]) -> Any:
    """Return a JSON value with `edit` applied to each string in it, the names of fields too.

    Names that are equal then are numbered.
    """
    if isinstance(value, str):
        return edit(value)
    if isinstance(value, list):
        return [map_texts(part, edit) for part in value]
    if isinstance(value, dict):
        edited: dict[str, Any] = {}
        for name, part in value.items():
            edited[_unique(_edited(name, edit), edited)] = map_texts(part, edit)
        return edited
    return value


def _edited(name: str, edit: Callable[[str], str]) -> str:
    return name if name in _STRUCTURE or _RESERVED.fullmatch(name) else edit(name)


def _unique(name: str, taken: Container[str]) -> str:
    names = chain([name], (f"{name} {number}" for number in count(2)))
    return next(one for one in names if one not in taken)


def _encoded(value: Any, fallback: Callable[[Any], Any], *, is_exact: bool) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {_escaped(name): _encoded(part, fallback, is_exact=is_exact) for name, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_encoded(part, fallback, is_exact=is_exact) for part in value]
        return {_TUPLE: parts} if is_exact and isinstance(value, tuple) else parts
    if is_exact and isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: next(sign for sign, number in _FLOATS.items() if number == value or not sign)}
    if value is None or isinstance(value, str | int | float):
        return value
    return fallback(value)


def _escaped(name: Any) -> Any:
    """Return the name of a field, escaped if it could be confused with that of a mark."""
    return f"${name}" if isinstance(name, str) and _RESERVED.fullmatch(name) else name
