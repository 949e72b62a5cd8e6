"""The matches of a pattern in one record, each with what stands around it."""

from __future__ import annotations

from typing import NamedTuple

from offload.codec import StoredContent
from offload.tools import Budget, Spent
from offload.tools.search import Pattern, Search, Span
from offload.web._content import page_at

_SHOWN = 50
_BEFORE_CHARS = 100
_MATCH_CHARS = 200
_AFTER_CHARS = 160


class Match(NamedTuple):
    """A match, and where it stands.

    Attributes:
        line: the number of its line, from 1.
        page: the number of the page that shows it.
        before: what stands before it on its line; the end of that, where it is long.
        text: the match; the begin of it, where it is long.
        after: what follows on its line.
    """

    line: int
    page: int
    before: str
    text: str
    after: str


class Found(NamedTuple):
    """What a search found.

    Attributes:
        matches: the matches, in order.
        next_byte: where to go on; None at the end of the content.
        is_stopped: whether it ended because one request looks through no more.
    """

    matches: list[Match]
    next_byte: int | None
    is_stopped: bool


def find(content: StoredContent, pattern: Pattern, start: int) -> Found:
    """Search `content` from the byte `start` on: until enough is found, or the budget of a call is spent."""
    budget = Budget()
    matches: list[Match] = []
    offset, chunks = content.chunks_from(start)
    search = Search(pattern, start, budget.check)
    try:
        for span in search.find(budget.metered(chunks), offset=offset):
            if len(matches) == _SHOWN:
                return Found(matches, span.start, is_stopped=False)
            matches.append(_match(content, span))
    except Spent:
        return Found(matches, search.searched_to, is_stopped=True)
    return Found(matches, None, is_stopped=False)


def _match(content: StoredContent, span: Span) -> Match:
    start, end = content.char_at(span.start), content.char_at(span.end)
    before = content.text(start - _BEFORE_CHARS, start).rpartition("\n")[2]
    after = content.text(end, end + _AFTER_CHARS).partition("\n")[0]
    text = content.text(start, min(end, start + _MATCH_CHARS))
    return Match(content.line_at(start), page_at(content, start), before, text, after)
