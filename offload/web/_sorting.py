"""The order of a list by a column that the query names: `sort=tokens`, or `sort=-tokens` descending."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Order(NamedTuple):
    """The order that a query names, "" for that of the list itself."""

    name: str
    is_descending: bool

    @property
    def term(self) -> str:
        """The value of the query parameter."""
        return "-" * self.is_descending + self.name


def order_of(query: Mapping[str, str], keys: Mapping[str, Callable[[Any], Any]]) -> Order:
    """Return the order in a query; a name that is not among `keys` counts as none."""
    text = query.get("sort", "")
    name = text.removeprefix("-")
    return Order(name, text.startswith("-")) if name in keys else Order("", is_descending=False)


def in_order(items: Iterable[T], order: Order, keys: Mapping[str, Callable[[T], Any]]) -> list[T]:
    """Return items in an order; equal ones keep theirs."""
    if not order.name:
        return list(items)
    return sorted(items, key=keys[order.name], reverse=order.is_descending)
