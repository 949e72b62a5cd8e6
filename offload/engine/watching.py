"""Snapshots of messages that reveal edits in place; containers are copied, texts are shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import ModuleType
from typing import Any

# Deeper parts, and those after so many containers, are compared without being copied.
_MAX_DEPTH, _MAX_CONTAINERS = 40, 20_000
# An artifact is read by code, not by the model, and may have any size: only its identity is compared.
_NOT_LOOKED_INTO = "artifact"
_PLAIN = (str, int, float, bytes, type(None), type, ModuleType)
_PLAIN_KINDS = frozenset({str, int, float, bool, bytes, type(None)})


@dataclass(frozen=True, slots=True, eq=False)
class _Object:
    """A snapshot of an object, which equals another snapshot but never the object."""

    kind: type
    fields: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Object) and self.kind is other.kind and self.fields == other.fields

    __hash__ = object.__hash__


def look(message: Any) -> Any:
    """Return a snapshot of `message` for `edited`; texts and other values are shared, not copied.

    Fields of objects, such as SDK objects and dataclasses, are copied like containers. A message with fields
    that cannot be read is known by its identity.
    """
    try:
        return _copied(message, 0, set())
    except Exception:  # noqa: BLE001 # a message object may raise anything
        return message


def edited(seen: Sequence[Any], messages: Sequence[Any], part: slice[int, int]) -> Iterator[int]:
    """Yield the indexes in `part` of the messages that were changed since `look` returned `seen` for them."""
    before, now = seen[part], messages[part]
    with suppress(Exception):  # A value inside a message may not support comparison.
        # Messages of plain values equal their snapshots, so one comparison of the lists is enough.
        if before == now:
            return
    for index, (snapshot, message) in enumerate(zip(before, now, strict=True), part.start):
        if not is_same(snapshot, message):
            yield index


def is_same(seen: Any, message: Any) -> bool:
    """Return whether `message` looks as it did when `look` returned `seen`."""
    try:
        # A message of plain values equals its snapshot, so it need not be copied.
        return bool(seen is message or seen == message or seen == look(message))
    except Exception:  # noqa: BLE001 # a value inside a message may not support comparison
        return False


def _copied(thing: Any, depth: int, met: set[int]) -> Any:
    kind = type(thing)
    if kind in _PLAIN_KINDS or isinstance(thing, _PLAIN):
        return thing
    if depth > _MAX_DEPTH or id(thing) in met or len(met) >= _MAX_CONTAINERS:
        return thing
    met.add(id(thing))
    if isinstance(thing, list | tuple):
        parts = [_copied(value, depth + 1, met) for value in thing]
        return parts if isinstance(thing, list) else tuple(parts)
    fields = thing if isinstance(thing, dict) else _fields(thing)
    if fields is None:
        return thing
    copy = {k: v if k == _NOT_LOOKED_INTO else _copied(v, depth + 1, met) for k, v in fields.items()}
    return copy if isinstance(thing, dict) else _Object(kind, copy)


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of an object by name; None if it has none that could be edited."""
    kind: Any = type(value)
    kept, slots = getattr(value, "__dict__", None), _slots_of(kind)
    if kept is None and not slots:
        return None
    return {**(kept or {}), **{name: getattr(value, name, None) for name in slots}}


@cache
def _slots_of(kind: Any) -> tuple[str, ...]:
    """Return the names of the slots of a class."""
    declared = (base.__dict__.get("__slots__", ()) for base in kind.__mro__)
    names = chain.from_iterable([names] if isinstance(names, str) else names for names in declared)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
