"""Comparison of messages and lists of them, which may be objects that raise anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two messages or lists of them are equal; False if they cannot be compared."""
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 # a message may be an object that raises anything
        return False


def begins_with(messages: Sequence[Any], known: list[Any]) -> bool:
    """Return whether the first of `messages` are equal to all `known` ones.

    One comparison of lists compares by identity first, and copies nothing.
    """
    length = len(known)
    known.extend(messages[length:])
    try:
        return are_equal(messages, known)
    finally:
        del known[length:]


def are_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and have their fields in the same order."""
    if one is other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(are_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and type(one) is type(other) and all(map(are_same, one, other))
    return bool(one == other)
