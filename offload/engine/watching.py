"""Snapshots of messages that reveal edits in place; containers are copied, texts are shared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple

# Deeper nesting is walked without recursion, which is slower.
_MAX_DEPTH = 40
_MAX_PARTS = 100_000
# An artifact is read by code, not by the model, and may have any size: only its identity is compared.
_NOT_LOOKED_INTO = "artifact"
_PLAIN = (str, int, float, bytes, type(None))
_PLAIN_KINDS = frozenset({*_PLAIN, bool})


class _Opaque(Exception):  # noqa: N818 # caught where it is raised
    """The message holds more than containers of plain values."""


class _Container(NamedTuple):
    """A container, and how many parts of it follow."""

    kind: type
    length: int


class _Parts(list[Any]):
    """A message as its containers and values, in order."""


def look(message: Any) -> Any:
    """Return a snapshot of `message` for `is_same`; texts and other values are shared, not copied.

    Fields of objects, such as SDK objects and dataclasses, are copied like containers.
    """
    try:
        return _copied(message, 0)
    except _Opaque:
        return _parts_of(message)


def is_same(seen: Any, message: Any) -> bool:
    """Return whether `message` is unchanged since `look` returned `seen`."""
    if type(seen) is _Parts:
        parts = _parts_of(message)
        return len(parts) == len(seen) and all(map(_is_alike, seen, parts))
    try:
        return bool(seen == message)
    except Exception:  # noqa: BLE001 # a value inside a message may not support comparison
        return False


def _copied(thing: Any, depth: int) -> Any:
    kind = type(thing)
    if kind in _PLAIN_KINDS or isinstance(thing, _PLAIN):
        return thing
    if depth > _MAX_DEPTH:
        raise _Opaque
    if kind is dict:
        return {k: v if k == _NOT_LOOKED_INTO else _copied(v, depth + 1) for k, v in thing.items()}
    if kind is list:
        return [_copied(value, depth + 1) for value in thing]
    raise _Opaque


def _parts_of(message: Any) -> _Parts:
    parts, left, met = _Parts(), [(message, True)], set[int]()
    while left and len(parts) < _MAX_PARTS:
        value, is_looked_into = left.pop()
        inner = _inner(value) if is_looked_into and id(value) not in met else None
        if inner is None:
            parts.append(value)
            continue
        met.add(id(value))
        parts.append(_Container(type(value), len(inner)))
        left.extend(reversed(inner))
    return parts


def _inner(value: Any) -> Sequence[tuple[Any, bool]] | None:
    """Return the parts of a container, each with whether it is looked into; None for a leaf."""
    if isinstance(value, (*_PLAIN, type, ModuleType)):
        return None
    if isinstance(value, list | tuple):
        return [(part, True) for part in value]
    fields = value if isinstance(value, dict) else _fields(value)
    if fields is None:
        return None
    return [part for k, v in fields.items() for part in ((k, False), (v, k != _NOT_LOOKED_INTO))]


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


def _is_alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, (*_PLAIN, _Container)) and bool(one == other)
