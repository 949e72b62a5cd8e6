"""The shape of a JSON text: its keys and lengths."""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator
from itertools import islice
from typing import Any

from offload.base.json_reader import JsonReader

_PARSED_CHARS = 64 * 1024
# Of a longer object so much is parsed.
_BEGUN_CHARS = 16 * 1024
_DEPTH = 3
_MAX_KEYS = 12
_KEY_CHARS = 40


class _BegunList(list[Any]):
    """The first item of a list that is not known to its end."""


class _BegunObject(dict[str, Any]):
    """The first members of an object that is not known to its end."""


def json_shape(text: str, max_chars: int) -> str:
    """Return the shape of a JSON text in at most `max_chars` characters, "" if it is unknown.

    A text too long to parse gets that of its first item, or of its first members.
    """
    try:
        value = json.loads(text) if len(text) <= _PARSED_CHARS else _begun(text[:_PARSED_CHARS], 0, _DEPTH)
    except (ValueError, RecursionError):
        return ""
    shapes = (_shape(value, depth) for depth in range(_DEPTH, -1, -1))
    return next((shape for shape in shapes if len(shape) <= max_chars), "")


def _begun(text: str, at: int, depth: int) -> _BegunList | _BegunObject:
    """Return the beginning of a list or object whose end is not in `text`. Raises `ValueError` for others."""
    reader = JsonReader(text, start=at, is_strict=True)
    begun: _BegunList | _BegunObject | None = None
    if reader.peek() == "[":
        items = islice(reader.members(), 1 if depth >= 0 else 0)
        begun = _BegunList(_value(text, reader, depth) for _ in items)
    elif reader.peek() == "{":
        text = text[: reader.place + _BEGUN_CHARS]
        begun = _BegunObject(_members(text, JsonReader(text, start=reader.place, is_strict=True), depth))
    if begun is None or (depth > 0 and not begun):
        raise ValueError
    return begun


def _members(text: str, reader: JsonReader, depth: int) -> Iterator[tuple[str, Any]]:
    for key in islice(reader.members(), _MAX_KEYS if depth > 0 else 0):
        yield str(key), _value(text, reader, depth)
        if reader.peek() != ",":
            return


def _value(text: str, reader: JsonReader, depth: int) -> Any:
    """Return the value here, or its beginning if the text ends within it."""
    try:
        return reader.value()
    except ValueError:
        return None if reader.peek() == '"' else _begun(text, reader.place, depth - 1)


def _shape(value: Any, depth: int) -> str:
    if isinstance(value, dict):
        count = "" if isinstance(value, _BegunObject) else f" of {len(value)} keys"
        return _object(value, depth) if depth else f"object{count}"
    if isinstance(value, _BegunList):
        return f"list of items like {_shape(value[0], depth)}" if value else "list"
    if isinstance(value, list):
        first = value[0] if value and depth else None
        is_deep = isinstance(first, dict | list)
        return f"list of {len(value)}" + (f", each like {_shape(first, depth - 1)}" if is_deep else "")
    return "one value"


def _object(value: dict[str, Any], depth: int) -> str:
    names = [" ".join(key[:_KEY_CHARS].split()) for key in islice(value, _MAX_KEYS)]
    shapes = (f": {_shape(x, depth - 1)}" if isinstance(x, dict | list) else "" for x in value.values())
    more = f", and {len(value) - _MAX_KEYS} more" if len(value) > _MAX_KEYS else ""
    if isinstance(value, _BegunObject):
        more = ", and more"
    return f"{{{', '.join(map(operator.add, names, shapes))}{more}}}"
