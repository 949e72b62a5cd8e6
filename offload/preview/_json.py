"""The shape of a JSON text: its keys and lengths."""

from __future__ import annotations

import json
import operator
from itertools import islice
from typing import Any

from offload.patterns import lazy_pattern

_PARSED_CHARS = 64 * 1024
# Of a longer object so much is parsed.
_BEGUN_CHARS = 16 * 1024
_DEPTH = 3
_MAX_KEYS = 12
_KEY_CHARS = 40
_SPACE = lazy_pattern(r"\s*+")
_decode = json.JSONDecoder().raw_decode


class _BegunList(list[Any]):
    """The first item of a list that is not known to its end."""


class _BegunObject(dict[str, Any]):
    """The first members of an object that is not known to its end."""


def json_shape(text: str, max_chars: int) -> str:
    """Return the shape of a JSON text in at most `max_chars` characters, "" if it is unknown.

    A text too long to parse gets that of its first item, or of its first members.
    """
    try:
        value = json.loads(text) if len(text) <= _PARSED_CHARS else _begun(text[:_PARSED_CHARS])
    except (ValueError, RecursionError):
        return ""
    shapes = (_shape(value, depth) for depth in range(_DEPTH, -1, -1))
    return next((shape for shape in shapes if len(shape) <= max_chars), "")


def _begun(text: str, at: int = 0, depth: int = _DEPTH) -> _BegunList | _BegunObject:
    """Return the beginning of a list or object whose end is not in `text`. Raises `ValueError` for others."""
    at = _after_space(text, at)
    if text.startswith("[", at):
        return _BegunList([_value(text, at + 1, depth)[0]] if depth >= 0 else [])
    if not text.startswith("{", at):
        raise ValueError
    text, value = text[: at + _BEGUN_CHARS], _BegunObject()
    for _ in range(_MAX_KEYS if depth > 0 else 0):
        key, at = _decode(text, _after_space(text, at + 1))
        at = _after_space(text, at)
        if not (isinstance(key, str) and text.startswith(":", at)):
            raise ValueError
        value[key], at = _value(text, at + 1, depth)
        at = _after_space(text, at)
        if not text.startswith(",", at):
            break
    return value


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Return the value at a place, or its beginning if `text` ends within it, and the place after it."""
    at = _after_space(text, at)
    try:
        return _decode(text, at)
    except ValueError:
        return (None if text.startswith('"', at) else _begun(text, at, depth - 1)), len(text)


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


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
