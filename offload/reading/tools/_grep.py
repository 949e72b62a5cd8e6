"""context_grep: matches of a pattern over records, each with the lines around it, within a budget."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple
from unicodedata import is_normalized

from offload.base.binary import is_binary
from offload.engine.placeholder.default import safe_for_model
from offload.errors import ConfigError, CorruptError, EncryptionError, NotFoundError, check_texts
from offload.reading.tools._listing import label
from offload.reading.tools.answers import REDACTED, decoding, read_error
from offload.reading.tools.budget import BUDGET, Budget, BudgetExceeded
from offload.reading.tools.search import Pattern, Search, Span
from offload.records.codec.base import StoredRecord
from offload.records.codec.content import StoredContent
from offload.storage.layout import REF_PATTERN

# A longer line is cut to a window around the match.
_LINE_CHARS = 400
_WINDOW_CHARS = 160
# The share of a call's budget that counting matches takes, and the matches that are counted in a record.
_RANKING_SHARE, _MAX_HITS = 0.25, 1000
# Lines before and after a match take at most this much each.
_CONTEXT_CHARS = 2000

_OTHER_FORM = "[The text or the pattern has accents as characters of their own: copy names from the text]"
_HAS_NULS = "[Some text has NULs (shown as ␀), which no pattern crosses]"

_CURSOR = re.compile(rf"{REF_PATTERN}:\d{{1,15}}", re.ASCII)


class Cursor(NamedTuple):
    """The place to resume a search: a record and a byte offset in it; an empty ref is the beginning."""

    ref: str
    byte: int


class Ranking(NamedTuple):
    """The records of a search, most matches first: their refs, and the matches of those that were counted.

    Counted records without a match are left out. Those that were not counted, or cannot be read, are last.
    The `notes` are lines on the counted ones, as keys.
    """

    refs: tuple[str, ...]
    hits: Mapping[str, int]
    notes: Mapping[str, None] = MappingProxyType({})


def ranking(read: Callable[[str], StoredRecord], pattern: Pattern, refs: Sequence[str]) -> Ranking:
    """Count the matches of a pattern in records, within a share of a call's budget."""
    budget, hits, notes = Budget(_RANKING_SHARE), dict[str, int](), dict[str, None]()
    try:
        for ref in refs:
            with suppress(CorruptError, EncryptionError, NotFoundError):
                record = read(ref)
                notes |= {REDACTED: None} if record.is_redacted else {}
                offset, chunks = record.content.chunks_from(0)
                chunks = _noted(budget.metered(chunks), notes)
                matches = Search(pattern, check=budget.check).find(chunks, offset=offset)
                hits[ref] = sum(1 for _ in islice(matches, _MAX_HITS))
    except BudgetExceeded:
        pass
    counted = sorted((ref for ref in hits if hits[ref]), key=lambda ref: -hits[ref])
    return Ranking((*counted, *(ref for ref in refs if ref not in hits)), hits, notes)


def heading(hits: Mapping[str, int], record: StoredRecord) -> str:
    """Return the line before the first match of a record among several."""
    count = hits.get(record.ref)
    least = " or more" * (count == _MAX_HITS)
    matches = "" if count is None else f", {count}{least} match{'es' * (count != 1)}"
    return f"[{record.ref}{matches}: {label(record.title, record.header)}]\n"


def _noted(chunks: Iterator[bytes], notes: dict[str, None]) -> Iterator[bytes]:
    """Yield chunks; note if they have NULs."""
    for chunk in chunks:
        if b"\0" in chunk:
            notes[_HAS_NULS] = None
        yield chunk


class _Stopped(Exception):  # noqa: N818 # not an error: the call has reached a limit
    """The reason for the end of a search."""


def parse_cursor(cursor: str | None) -> Cursor:
    """Return the place of a cursor. Raises `ConfigError` for one that no answer has."""
    check_texts(cursor=cursor)
    if cursor is None:
        return Cursor("", 0)
    ref, _, byte = cursor.partition(":")
    if not _CURSOR.fullmatch(cursor):
        raise ConfigError(f"invalid cursor {cursor[:40]!r}; omit it to start over")
    return Cursor(ref, int(byte))


@dataclass
class Grep:
    """One search.

    Attributes:
        context_lines: lines before and after each match.
        room: the most characters of the matches, then those that are left.
        headings: returns the line before the first match of a record; None for a search of one.
        hint: advice after a search without a match.
        excerpts: the excerpt of each record, by ref.
        notes: the lines on what was searched, as keys.
    """

    read: Callable[[str], StoredRecord]
    pattern: Pattern
    context_lines: int
    max_matches: int
    room: int
    headings: Callable[[StoredRecord], str] | None = None
    hint: str = ""
    excerpts: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    _rows: list[str] = field(default_factory=list)
    _matches: int = 0
    _heading: str = ""
    # The byte of the current record to search from, and to resume at.
    _place: int = 0

    def run(self, refs: Sequence[str], cursor: Cursor, count: int) -> str:
        """Return the answer to a search of `count` records from `cursor`; those not in `refs` have no match.

        Raises `ConfigError` for a cursor of another search, and the error of the only record.
        """
        if cursor.ref and cursor.ref not in refs:
            reason = f"this cursor belongs to item {cursor.ref}, which this call does not search"
            raise ConfigError(f"{reason}; omit it to start over")
        first = refs.index(cursor.ref) if cursor.ref else 0
        last, budget = "[no more matches]", Budget()
        try:
            for ref in refs[first:]:
                self._place = cursor.byte if ref == cursor.ref else 0
                self._search_one(ref, budget, is_alone=count == 1)
        except _Stopped as stopped:
            last = f'[{stopped}: repeat with cursor="{ref}:{self._place}"]'
        else:
            if not self._rows:
                return f"[No {'more ' * bool(cursor.ref)}matches in {_items(count)}{self.hint}]"
        self.notes.pop(_HAS_NULS, None)
        head = f"[{self._matches} match{'es' * (self._matches != 1)} shown, in {_items(count)}]"
        return "\n".join([head, *self._rows, last])

    def _search_one(self, ref: str, budget: Budget, *, is_alone: bool) -> None:
        """Add the matches of one record, or a note if it is one of several and cannot be read."""
        try:
            record = self.read(ref)
            self.notes |= {REDACTED: None} if record.is_redacted else {}
            self._heading = self.headings(record) if self.headings else ""
            self._search(ref, record.content, budget)
        except (CorruptError, EncryptionError, NotFoundError) as error:
            if is_alone:
                raise
            self._add(f"{ref} could not be searched: {read_error(error, ref)}")

    def _search(self, ref: str, content: StoredContent, budget: Budget) -> None:
        if self._place > content.size:
            raise ConfigError(f"invalid cursor: past the end of item {ref}; omit it to start over")
        shown_to = -1
        offset, chunks = content.chunks_from(self.pattern.first_byte(self._place))
        search = Search(self.pattern, self._place, budget.check)
        try:
            for span in search.find(_noted(budget.metered(chunks), self.notes), offset=offset):
                char = content.char_at(span.start)
                if char < shown_to:
                    continue  # The row before shows this match.
                self._place = span.start
                self._note_form(content.text(char, content.char_at(span.end)))
                if self._matches == self.max_matches:
                    raise _Stopped("more matches")
                text, shown_to = self._show(ref, content, span, char)
                text = self._heading + text
                if len(text) + 1 > self.room and not self._rows:
                    # Show the first match in any case, or no answer would ever get past it.
                    text, shown_to = text[: self.room - 1], char + 1
                self._add(text)
                self._heading = ""
                self.excerpts[ref] = self.excerpts.get(ref, "") + text
                self._matches += 1
                self._place = span.end
        except BudgetExceeded:
            self._place = search.searched_to
            raise _Stopped(f"stopped at {BUDGET}") from None

    def _note_form(self, matched: str) -> None:
        form = self.pattern.form
        if form and not is_normalized(form, matched):
            self.notes[_OTHER_FORM] = None

    def _add(self, row: str) -> None:
        if len(row) + 1 > self.room:
            raise _Stopped("answer full")
        self._rows.append(row)
        self.room -= len(row) + 1

    def _show(self, ref: str, content: StoredContent, span: Span, place: int) -> tuple[str, int]:
        """Return the row of a match, and the offset of the first character after its excerpt."""
        line = content.line_at(place)
        start, end = content.line_start(line), content.line_start(line + 1)
        first, last = max(1, line - self.context_lines), line + self.context_lines
        begin = max(content.line_start(first), start - _CONTEXT_CHARS)
        stop = min(content.line_start(last + 1), end + _CONTEXT_CHARS)
        marks = "", ""
        if end - start > _LINE_CHARS or is_binary(content.text(begin, stop)):
            begin = max(start, place - _WINDOW_CHARS)
            stop = min(end, content.char_at(span.end) + _WINDOW_CHARS, place + _LINE_CHARS)
            marks = "…" * (begin > start), "…" * (stop < end)
        text = safe_for_model(content.text(begin, stop).removesuffix("\n"))
        head = f"{ref} line {line}, character {place}{decoding(content)}:"
        return f"{head}\n{marks[0]}{text}{marks[1]}", stop


def _items(count: int) -> str:
    return f"{count} item{'s' * (count != 1)}"
