"""Views of a record: its outline (members of a JSON value or structural lines of a text), and matches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from offload.codec import StoredContent
from offload.errors import ConfigError
from offload.preview import END_CHARS, TROUBLE, Kind, SampledText, kind_of
from offload.tools import BUDGET, CONTAINERS, Budget, BudgetExceeded, JsonValue, PointerReader
from offload.tools.search import Pattern, Search, Span
from offload.web._paging import page_at

_SHOWN, _SHOWN_MATCHES = 200, 50
_LINE_CHARS = 200
_WINDOW_CHARS = 256 * 1024
_VALUE_CHARS = 4000
_BEFORE_CHARS = 100
_MATCH_CHARS = 200
_AFTER_CHARS = 160
# Lines of at least this worth are structural; a line with a name is worth 1.
_MIN_WORTH = 1.0
_JSON_KINDS = ("JSON", "JSON lines")


class Heading(NamedTuple):
    """A structural line: its number, text and page."""

    line: int
    text: str
    page: int


class TextOutline(NamedTuple):
    """The kind of a text, its structural lines, and the line to continue from, None at the end."""

    kind: str
    headings: list[Heading]
    next_line: int | None


class JsonOutline(NamedTuple):
    """A JSON value with pointer and description of its first members, or the beginning of a scalar's text.

    `page` is the page on which it begins; `size` counts its members, None if that takes too long.
    """

    value: JsonValue
    page: int
    members: list[tuple[str, str]]
    size: int | None
    text: str


def outline(content: StoredContent, pointer: str, line: int) -> TextOutline | JsonOutline:
    """Return the outline of the JSON value at `pointer`, or of any other text from `line`.

    Raises `ConfigError` if the pointer matches nothing, the JSON is malformed, or the value is too large.
    """
    left_out = max(0, content.chars - 2 * END_CHARS)
    ends = content.text(0, END_CHARS) + content.text(max(END_CHARS, content.chars - END_CHARS), content.chars)
    kind = kind_of(SampledText(ends, left_out=left_out).lines)
    if kind.name not in _JSON_KINDS:
        return _text_outline(content, kind, line)
    try:
        return _json_outline(content, pointer)
    except BudgetExceeded:
        raise ConfigError(f"value too large for one request ({BUDGET})") from None


def _json_outline(content: StoredContent, pointer: str) -> JsonOutline:
    reader = PointerReader(content)
    value = reader.find(pointer)
    page = page_at(content, value.start)
    if value.kind not in CONTAINERS:
        text = content.text(value.start, min(value.end, value.start + _VALUE_CHARS))
        return JsonOutline(value, page, [], None, text)
    members: list[tuple[str, str]] = []
    try:
        for member in islice(reader.outline(value), _SHOWN):
            members.append(member)  # noqa: PERF402 # keeps the members read before the budget is spent
        return JsonOutline(value, page, members, reader.count(value), "")
    except BudgetExceeded:
        return JsonOutline(value, page, members, None, "")


def _text_outline(content: StoredContent, kind: Kind, line: int) -> TextOutline:
    budget = Budget()
    headings: list[Heading] = []
    for number, char, text in _lines(content, line):
        try:
            budget.check()
        except BudgetExceeded:
            return TextOutline(kind.name, headings, number)
        if not _is_heading(kind, text):
            continue
        if len(headings) == _SHOWN:
            return TextOutline(kind.name, headings, number)
        headings.append(Heading(number, text[:_LINE_CHARS], page_at(content, char)))
    return TextOutline(kind.name, headings, None)


def _is_heading(kind: Kind, text: str) -> bool:
    if kind.worth(text) >= _MIN_WORTH:
        return True
    return bool(kind.trouble) and any(word in text for word in TROUBLE)


def _lines(content: StoredContent, number: int) -> Iterator[tuple[int, int, str]]:
    """Yield number, offset and beginning of each line from `number`, with one window of text in memory."""
    start = content.line_start(number)
    while start < content.chars:
        text = content.text(start, start + _WINDOW_CHARS)
        *whole, rest = text.split("\n")
        is_last = start + len(text) >= content.chars
        for line in [*whole, rest] if is_last else whole or [rest]:
            yield number, start, line[:_LINE_CHARS]
            start += len(line) + 1
            number += 1
        if not whole:  # the line ends after the window
            start = content.line_start(number)


# Search


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
            if len(matches) == _SHOWN_MATCHES:
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
