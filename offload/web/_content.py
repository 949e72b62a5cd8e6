"""One page of a record's text, cut at the ends of lines where they are near."""

from __future__ import annotations

from typing import NamedTuple

from offload.codec import StoredContent

PAGE_CHARS = 16 * 1024
_REACH = 2000


class TextPage(NamedTuple):
    """A page of text.

    Attributes:
        number: which one it is, from 1.
        last: the number of the last one.
        first_line: the number of its first line, from 1.
        is_continued: whether that line begins on the page before.
        lines: its lines, without their ends.
    """

    number: int
    last: int
    first_line: int
    is_continued: bool
    lines: list[str]

    @property
    def last_line(self) -> int:
        """The number of its last line."""
        return self.first_line + max(0, len(self.lines) - 1)


def text_page(content: StoredContent, number: int) -> TextPage:
    """Return a page by its number; the nearest there is, if there is none of that number."""
    last = page_at(content, content.chars)
    number = min(max(number, 1), last)
    start, end = _border(content, number - 1), _border(content, number)
    text = content.text(start, end)
    before = content.text(start - 1, start) if start else "\n"
    lines = text.removesuffix("\n").split("\n") if text else []
    return TextPage(number, last, content.line_at(start), before != "\n", lines)


def page_at(content: StoredContent, char: int) -> int:
    """Return the number of the page that shows a character; the last one, if there is no such character."""
    char = min(char, max(0, content.chars - 1))
    whole = char // PAGE_CHARS
    return whole + (char >= _border(content, whole))


def _border(content: StoredContent, page: int) -> int:
    """Return where so many pages end: behind a line if one ends near, which needs no table of borders."""
    at = page * PAGE_CHARS
    if at <= 0 or at >= content.chars:
        return max(0, min(at, content.chars))
    found = content.text(at - 1, at + _REACH).find("\n")
    return at if found < 0 else at + found
