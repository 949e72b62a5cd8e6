"""A JSON object as one text: arguments of a tool call, and results that an API wants as an object.

What replaces an object is an object too, with the placeholder under one key. Where the object held one
string and nothing else, that string is the text and its key stays; else the text is the object's JSON.
"""

from __future__ import annotations

import json
from typing import Any

# The form of an item whose text is the JSON of the value, not a string inside it.
WHOLE = '"json"'


class JsonObject:
    """An object, as one or as the string of its JSON.

    Args:
        key: what a placeholder stands under, where the object held more than one string.
    """

    def __init__(self, key: str = "offloaded") -> None:
        self._key = key

    def read(self, value: Any) -> tuple[str, str | None] | None:
        """Return the text of `value` and its form, or None if it could not be given back equal."""
        lone = _lone_string(value)
        if lone is not None:
            return lone[1], None
        if isinstance(value, str):
            return value, WHOLE
        text = faithful_json(value) if isinstance(value, dict) else None
        return None if text is None else (text, WHOLE)

    def replace(self, value: Any, text: str) -> Any:
        """Return what stands for `value`: an object with `text` in it, as JSON if `value` is JSON."""
        lone = _lone_string(value)
        stand_in = {self._key if lone is None else lone[0]: text}
        return _dump(stand_in) if isinstance(value, str) else stand_in

    def restore(self, value: Any, text: str, form: str | None) -> Any:
        """Return what was there before `value`, the inverse of `replace`."""
        if form is None:
            return self.replace(value, text)
        return text if isinstance(value, str) else json.loads(text)


class PlainText:
    """A field that is one string."""

    def replace(self, _value: Any, text: str) -> str:
        """Return what stands for the string."""
        return text

    def restore(self, _value: Any, text: str, _form: str | None) -> str:
        """Return the string."""
        return text


PLAIN = PlainText()
ARGUMENTS = JsonObject()


def faithful_json(value: Any) -> str | None:
    """Return the JSON of `value`, None if it would read back as something else."""
    try:
        text = _dump(value)
        return text if json.loads(text) == value else None
    except (TypeError, ValueError, RecursionError):
        return None


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _lone_string(value: Any) -> tuple[str, str] | None:
    """Return the key and the string of an object that holds one string and nothing else."""
    fields = _parsed(value) if isinstance(value, str) else value
    if not isinstance(fields, dict) or len(fields) != 1:
        return None
    [(key, text)] = fields.items()
    return (key, text) if isinstance(key, str) and isinstance(text, str) else None


def _parsed(text: str) -> Any:
    """Return the object that `text` is the JSON of; None if it would be written in another way here."""
    if not text.startswith('{"'):
        return None
    try:
        value = json.loads(text)
        return value if _dump(value) == text else None
    except (ValueError, RecursionError):
        return None
