"""Messages as JSON, for records of whole messages: bytes are written as base64."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from offload.errors import MessageError
from offload.patterns import lazy_pattern

_BYTES = "$bytes"
_RESERVED, _ESCAPED = lazy_pattern(r"\$+bytes"), lazy_pattern(r"\$\$+bytes")


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
    return [as_data(part) for part in value] if isinstance(value, list) else value


def to_json(message: Any, fallback: Callable[[Any], Any] = refuse) -> Any:
    """Return `message` as a JSON value; `fallback` returns a replacement for a part that has no JSON."""
    return _encoded(as_data(message), fallback)


def from_json(fields: dict[str, Any]) -> Any:
    """Decode an object that `to_json` wrote, as `object_hook=` of `json.loads`."""
    if fields.keys() == {_BYTES}:
        return base64.b64decode(fields[_BYTES])
    return {name[1:] if _ESCAPED.fullmatch(name) else name: part for name, part in fields.items()}


def map_texts(value: Any, edit: Callable[[str], str]) -> Any:
    """Return a JSON value with `edit` applied to each string in it, not to the names of fields."""
    if isinstance(value, str):
        return edit(value)
    if isinstance(value, list):
        return [map_texts(part, edit) for part in value]
    if isinstance(value, dict):
        return {name: map_texts(part, edit) for name, part in value.items()}
    return value


def _encoded(value: Any, fallback: Callable[[Any], Any]) -> Any:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {_escaped(name): _encoded(part, fallback) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(part, fallback) for part in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return fallback(value)


def _escaped(name: Any) -> Any:
    """Return the name of a field, escaped if it could be confused with the field for bytes."""
    return f"${name}" if isinstance(name, str) and _RESERVED.fullmatch(name) else name
