"""Shapes of a text in a message: a plain string, a JSON object; how a placeholder takes its place.

A JSON object is replaced by an object with the placeholder under one key. If the object has one string
field and nothing else, that string is the text and its key is kept; else the text is the object's JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from offload.messages.access import Path, are_same

# The form of an item whose text is the JSON of the value, not a string inside it.
WHOLE = '"json"'


class ItemText(NamedTuple):
    """The text in a value, and what `restore` needs besides.

    Attributes:
        form: JSON of the other parts, with sorted fields; None if the value is one string.
        order: the same with the fields in their order, empty if sorted ones are restored in it; None without
            a form.
        marked: the same with the marks of the cache too, which the others do not have; None if the marks of
            its placeholder are restored in their places without it.
    """

    text: str
    form: str | None = None
    order: str | None = None
    marked: str | None = None


class Shape:
    """The place of a text in a value of a message: the value itself, which is one string.

    Subclasses have it in blocks, or in a field of an object. Images and documents among the blocks have the
    shape `tool_media`.
    """

    media: Shape | None = None

    def read(self, value: Any, _where: str, /) -> ItemText | None:
        """Return the text in `value`; the second argument is its place, for errors.

        None for a value without a text that can be restored exactly.
        """
        return ItemText(value) if isinstance(value, str) else None

    def places(self, _value: Any, /) -> Iterable[Path]:
        """Return the paths in a value to what its text holds."""
        return ((),)

    def replace(self, _value: Any, text: str, /) -> Any:
        """Return a value with `text` in place of its own text."""
        return text

    def restore(self, _value: Any, text: str, _form: str | None, /) -> Any:
        """Return the value before `replace`, from its text and its form."""
        return text

    def restored(self, value: Any, text: str, form: str | None, marked: str | None) -> Any:
        """Return the value before `replace`, with the marks of the cache that it has now in their places.

        `marked` has the places of the marks that it had when it was stored.
        """
        if marked is not None:
            restored = self.restore(value, text, marked)
            if self.replace(restored, "") == self.replace(value, ""):
                return restored
        return self.restore(value, text, form)

    def proven(self, value: Any, text: str, form: Callable[..., Any], bare: Any) -> ItemText | None:
        """Return `text` and the JSON of its form, None unless both exist and restore `value`.

        `form(value, is_ordered=True)` has the fields in order, so that it restores that too. `bare` is the
        value without marks of the cache, or the value itself.
        """
        try:
            found = self._proven(bare, text, form)
            if found is None or bare is value:
                return found
            if are_same(self.restore(self.replace(value, ""), text, found.order or found.form), value):
                return found
            marked = json.dumps(form(value, is_ordered=True), separators=(",", ":"))
            is_restored = self.restored(self.replace(value, ""), text, found.form, marked) == value
        except Exception:  # noqa: BLE001 # an SDK object may refuse in its own way: then it is kept
            return None
        return found._replace(marked=marked) if is_restored else None

    def _proven(self, value: Any, text: str, form: Callable[..., Any]) -> ItemText | None:
        sorted_form = json.dumps(form(value, is_ordered=False), sort_keys=True, separators=(",", ":"))
        restored = self.restore(self.replace(value, ""), text, sorted_form)
        if are_same(restored, value):
            return ItemText(text, sorted_form, "")
        order = json.dumps(form(value, is_ordered=True), separators=(",", ":"))
        if are_same(self.restore(self.replace(value, ""), text, order), value):
            return ItemText(text, sorted_form, order)
        return ItemText(text, sorted_form, "") if restored == value else None


class JsonObject(Shape):
    """An object, as such or as a string of JSON; a placeholder is under `key`, or that of a lone string."""

    def __init__(self, key: str = "offloaded") -> None:
        self._key = key

    def read(self, value: Any, _where: str = "") -> ItemText | None:
        """Return the text of `value` and its form, or None if it could not be restored exactly."""
        lone = _lone_string(value)
        if lone is not None:
            return ItemText(lone[1])
        if isinstance(value, str):
            return ItemText(value, WHOLE)
        text = faithful_json(value) if isinstance(value, dict) else None
        return None if text is None else ItemText(text, WHOLE)

    def replace(self, value: Any, text: str) -> Any:
        """Return an object with `text` in it, as JSON if `value` is JSON."""
        lone = _lone_string(value)
        fields = {self._key if lone is None else lone[0]: text}
        return _dump(fields) if isinstance(value, str) else fields

    def restore(self, value: Any, text: str, form: str | None) -> Any:
        if form is None:
            return self.replace(value, text)
        return text if isinstance(value, str) else json.loads(text)


PLAIN = Shape()
ARGUMENTS = JsonObject()


def faithful_json(value: Any) -> str | None:
    """Return the JSON of `value`, None if it would not be read back equal."""
    try:
        text = _dump(value)
        return text if json.loads(text) == value else None
    except (TypeError, ValueError, RecursionError):
        return None


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _lone_string(value: Any) -> tuple[str, str] | None:
    """Return the key and the string of an object with one string field and nothing else."""
    fields = _parsed(value) if isinstance(value, str) else value
    if not isinstance(fields, dict) or len(fields) != 1:
        return None
    [(key, text)] = fields.items()
    return (key, text) if isinstance(key, str) and isinstance(text, str) else None


def _parsed(text: str) -> Any:
    """Return the object in a JSON text; None if `_dump` would write it differently."""
    if not text.startswith('{"'):
        return None
    try:
        value = json.loads(text)
        return value if _dump(value) == text else None
    except (ValueError, RecursionError):
        return None
