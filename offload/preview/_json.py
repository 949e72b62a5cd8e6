"""The shape of a JSON text: its keys and lengths."""

from __future__ import annotations

import json
import operator
from itertools import islice
from typing import Any

_PARSED_CHARS = 64 * 1024
_DEPTH = 3
_MAX_KEYS = 12
_KEY_CHARS = 40


def json_shape(text: str, max_chars: int) -> str:
    """Return the shape of a JSON text in at most `max_chars` characters, "" if it is unknown.

    A list too long to parse gets the shape of its first item.
    """
    try:
        prefix, value = ("", json.loads(text)) if len(text) <= _PARSED_CHARS else _first_item(text)
    except (ValueError, RecursionError):
        return ""
    shapes = (prefix + _shape(value, depth) for depth in range(_DEPTH, -1, -1))
    return next((shape for shape in shapes if len(shape) <= max_chars), "")


def _first_item(text: str) -> tuple[str, Any]:
    head = text[:_PARSED_CHARS].lstrip()
    if not head.startswith("["):
        raise ValueError
    return "list of items like ", json.JSONDecoder().raw_decode(head[1:].lstrip())[0]


def _shape(value: Any, depth: int) -> str:
    if isinstance(value, dict):
        return _object(value, depth) if depth else f"object of {len(value)} keys"
    if isinstance(value, list):
        first = value[0] if value and depth else None
        is_deep = isinstance(first, dict | list)
        return f"list of {len(value)}" + (f", each like {_shape(first, depth - 1)}" if is_deep else "")
    return "one value"


def _object(value: dict[str, Any], depth: int) -> str:
    names = [" ".join(key[:_KEY_CHARS].split()) for key in islice(value, _MAX_KEYS)]
    shapes = (f": {_shape(x, depth - 1)}" if isinstance(x, dict | list) else "" for x in value.values())
    more = f", and {len(value) - _MAX_KEYS} more" if len(value) > _MAX_KEYS else ""
    return f"{{{', '.join(map(operator.add, names, shapes))}{more}}}"
