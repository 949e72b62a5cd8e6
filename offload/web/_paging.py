"""Pages of long lists and texts, the order of a list by a column, and the numbers in a query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from offload.records.codec.content import StoredContent

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


PAGE_CHARS = 16 * 1024
PAGE_ROWS = 50
_MAX_DIGITS = 15
# A text page is extended to the next line end within this many characters.
_REACH = 2000


def list_page(items: Sequence[Any], query: Mapping[str, str]) -> dict[str, Any]:
    """Return for a template the page of `items` in the query parameter `page`, or the nearest one."""
    last = max(1, -(-len(items) // PAGE_ROWS))
    number = min(number_in(query, "page", 1), last)
    shown = items[(number - 1) * PAGE_ROWS : number * PAGE_ROWS]
    return {"shown": shown, "number": number, "last": last, "total": len(items)}


def number_in(query: Mapping[str, str], name: str, least: int) -> int:
    """Return a query parameter as a number of at least `least`; malformed text counts as `least`."""
    text = query.get(name, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS
    return max(least, int(text)) if is_number else least


def text_page(content: StoredContent, number: int) -> dict[str, Any]:
    """Return for a template a page by its number, or the nearest existing one."""
    last = page_at(content, content.chars)
    number = min(max(number, 1), last)
    start, end = _border(content, number - 1), _border(content, number)
    text = content.text(start, end)
    before = content.text(start - 1, start) if start else "\n"
    lines = text.removesuffix("\n").split("\n") if text else []
    return {
        "number": number,
        "last": last,
        "first_line": content.line_at(start),
        "is_continued": before != "\n",
        "lines": lines,
    }


def page_at(content: StoredContent, char: int) -> int:
    """Return the number of the page that shows a character; the last page if it is past the end."""
    char = min(char, max(0, content.chars - 1))
    whole = char // PAGE_CHARS
    return whole + (char >= _border(content, whole))


def _border(content: StoredContent, page: int) -> int:
    """Return the offset at which a page ends: after a line end if one is near, which needs no index."""
    at = page * PAGE_CHARS
    if at <= 0 or at >= content.chars:
        return max(0, min(at, content.chars))
    line_end = content.text(at - 1, at + _REACH).find("\n")
    return at if line_end < 0 else at + line_end
