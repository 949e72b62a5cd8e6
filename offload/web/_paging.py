"""A part of a long list, and the numbers in a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

_ROWS = 50
_MOST_DIGITS = 15


class Slice(NamedTuple, Generic[T]):
    """A part of a list.

    Attributes:
        items: what is shown.
        number: which part it is, from 1.
        last: the number of the last part.
        total: how many items there are in all.
    """

    items: Sequence[T]
    number: int
    last: int
    total: int


def sliced(items: Sequence[T], query: Mapping[str, str]) -> Slice[T]:
    """Return the part of `items` that the parameter `page` names; the nearest, if there is none."""
    last = max(1, -(-len(items) // _ROWS))
    number = min(number_in(query, "page", 1), last)
    return Slice(items[(number - 1) * _ROWS : number * _ROWS], number, last, len(items))


def number_in(query: Mapping[str, str], name: str, least: int) -> int:
    """Return a parameter as a number, `least` where it is none or smaller."""
    text = query.get(name, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return max(least, int(text)) if is_number else least
