"""Matches of a pattern in one record, with their context."""

from __future__ import annotations

from typing import NamedTuple

from offload.codec import StoredContent
from offload.tools import Budget, BudgetExceeded
from offload.tools.search import Pattern, Search, Span
from offload.web._paging import page_at

_SHOWN = 50
_BEFORE_CHARS = 100
_MATCH_CHARS = 200
_AFTER_CHARS = 160


class Match(NamedTuple):
    """A match, the rest of its line on both sides (each part shortened), and the page that shows it."""

    line: int
    page: int
    before: str
    text: str
    after: str


class SearchResult(NamedTuple):
    """Matches in order, the byte to continue from if any, and whether the budget of a request ended it."""

    matches: list[Match]
    next_byte: int | None
    is_stopped: bool


def find(content: StoredContent, pattern: Pattern, start: int) -> SearchResult:
    """Search `content` from byte `start` until enough matches are found or the budget of a call is spent."""
    budget = Budget()
    matches: list[Match] = []
    offset, chunks = content.chunks_from(start)
    search = Search(pattern, start, budget.check)
    try:
        for span in search.find(budget.metered(chunks), offset=offset):
            if len(matches) == _SHOWN:
                return SearchResult(matches, span.start, is_stopped=False)
            matches.append(_match(content, span))
    except BudgetExceeded:
        return SearchResult(matches, search.searched_to, is_stopped=True)
    return SearchResult(matches, None, is_stopped=False)


def _match(content: StoredContent, span: Span) -> Match:
    start, end = content.char_at(span.start), content.char_at(span.end)
    before = content.text(start - _BEFORE_CHARS, start).rpartition("\n")[2]
    after = content.text(end, end + _AFTER_CHARS).partition("\n")[0]
    text = content.text(start, min(end, start + _MATCH_CHARS))
    return Match(content.line_at(start), page_at(content, start), before, text, after)
