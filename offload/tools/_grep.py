"""context_grep: matches of a pattern over records, each with the lines around it, within a budget."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from offload.codec import StoredContent, StoredRecord
from offload.errors import ConfigError, CorruptError, NotFoundError
from offload.layout import REF_PATTERN
from offload.placeholder import safe_for_model
from offload.record import RecordInfo
from offload.tools._answers import is_binary, read_error
from offload.tools._budget import BUDGET, Budget, BudgetExceeded
from offload.tools.search import Mode, Search, Span, compile_pattern

# A longer line is cut to a window around the match.
_LINE_CHARS = 400
_WINDOW_CHARS = 160
# Lines before and after a match take at most this much each.
_CONTEXT_CHARS = 2000

_CURSOR = re.compile(rf"{REF_PATTERN}:\d{{1,15}}", re.ASCII)


class Cursor(NamedTuple):
    """The place to resume a search: a record and a byte offset in it; an empty ref is the beginning."""

    ref: str
    byte: int


class _Stopped(Exception):  # noqa: N818 # not an error: the call has reached a limit
    """The end of a search: its reason, and the byte of the record to resume at."""

    def __init__(self, reason: str, byte: int) -> None:
        super().__init__(reason)
        self.byte = byte


def parse_cursor(cursor: str | None) -> Cursor:
    """Return the place of a cursor. Raises `ConfigError` for one that no answer has."""
    if cursor is None:
        return Cursor("", 0)
    ref, _, byte = cursor.partition(":")
    if not _CURSOR.fullmatch(cursor):
        raise ConfigError(f"invalid cursor {cursor[:40]!r}; omit it to start over")
    return Cursor(ref, int(byte))


class Grep:
    """One search.

    Args:
        pattern: the text or regular expression.
        mode: "literal" or "regex".
        ignore_case: whether to ignore case.
        context_lines: lines before and after each match.
        max_matches: the most matches of the answer.
        room: the most characters of the matches.

    Attributes:
        excerpts: the excerpt of each record, by ref.
        is_redacted: whether a searched record is redacted.
    """

    def __init__(
        self,
        pattern: str,
        mode: Mode,
        *,
        ignore_case: bool,
        context_lines: int,
        max_matches: int,
        room: int,
    ) -> None:
        self._pattern = compile_pattern(pattern, mode, ignore_case=ignore_case)
        self._context = context_lines
        self._left = max_matches
        self._room = room
        self._budget = Budget()
        self._rows: list[str] = []
        self.excerpts: dict[str, str] = {}
        self.is_redacted = False
        self._matches = 0

    def run(
        self, infos: Sequence[RecordInfo], open_record: Callable[[RecordInfo], StoredRecord], cursor: Cursor
    ) -> str:
        """Return the answer to a search of the records `infos` from `cursor`.

        Raises:
            ConfigError: the cursor is not of one of the records.
            CorruptError, NotFoundError: the only record cannot be read.
        """
        refs = [info.ref for info in infos]
        if cursor.ref and cursor.ref not in refs:
            raise ConfigError(f"this cursor belongs to item {cursor.ref}, which this call does not search")
        first = refs.index(cursor.ref) if cursor.ref else 0
        last = "[no more matches]"
        try:
            for info in infos[first:]:
                start = cursor.byte if info.ref == cursor.ref else 0
                self._search_one(info, open_record, start, is_alone=len(infos) == 1)
        except _Stopped as stopped:
            last = f'[{stopped}: repeat with cursor="{info.ref}:{stopped.byte}"]'
        else:
            if not self._rows:
                return f"[No {'more ' * bool(cursor.ref)}matches in {_items(len(infos))}]"
        head = f"[{self._matches} match{'es' * (self._matches != 1)} shown, in {_items(len(infos))}]"
        return "\n".join([head, *self._rows, last])

    def _search_one(
        self,
        info: RecordInfo,
        open_record: Callable[[RecordInfo], StoredRecord],
        start: int,
        *,
        is_alone: bool,
    ) -> None:
        """Add the matches of one record, or a note if it is one of several and cannot be read."""
        place = start
        try:
            record = open_record(info)
            self.is_redacted |= record.is_redacted
            for row, end in self._search(info.ref, record.content, start):
                self._rows.append(row)
                self.excerpts[info.ref] = self.excerpts.get(info.ref, "") + row
                self._matches += 1
                place = end
        except (CorruptError, NotFoundError) as error:
            if is_alone:
                raise
            note = f"{info.ref} could not be searched: {read_error(error, info.ref)}"
            if len(note) + 1 > self._room:
                raise _Stopped("answer full", place) from None
            self._rows.append(note)
            self._room -= len(note) + 1

    def _search(self, ref: str, content: StoredContent, start: int) -> Iterator[tuple[str, int]]:
        """Yield the row of each match and the byte offset of its end.

        Raises `_Stopped` if the answer is full or the call exceeds its budget.
        """
        shown_to = -1
        offset, chunks = content.chunks_from(start)
        search = Search(self._pattern, start, self._budget.check)
        try:
            for span in search.find(self._budget.metered(chunks), offset=offset):
                place = content.char_at(span.start)
                if place < shown_to:
                    continue  # The row before shows this match.
                if self._left == 0:
                    raise _Stopped("more matches", span.start)
                text, shown_to = self._show(ref, content, span, place)
                if len(text) + 1 > self._room and not self._rows:
                    # Show the first match in any case, or no answer would ever get past it.
                    text, shown_to = text[: self._room - 1], place + 1
                if len(text) + 1 > self._room:
                    raise _Stopped("answer full", span.start)
                self._left -= 1
                self._room -= len(text) + 1
                yield text, span.end
        except BudgetExceeded:
            raise _Stopped(f"stopped at {BUDGET}", search.searched_to) from None

    def _show(self, ref: str, content: StoredContent, span: Span, place: int) -> tuple[str, int]:
        """Return the row of a match, and the offset of the first character after its excerpt."""
        line = content.line_at(place)
        start, end = content.line_start(line), content.line_start(line + 1)
        if end - start > _LINE_CHARS:
            begin = max(start, place - _WINDOW_CHARS)
            stop = min(end, content.char_at(span.end) + _WINDOW_CHARS, place + _LINE_CHARS)
            marks = "…" * (begin > start), "…" * (stop < end)
        else:
            first, last = max(1, line - self._context), line + self._context
            begin = max(content.line_start(first), start - _CONTEXT_CHARS)
            stop = min(content.line_start(last + 1), end + _CONTEXT_CHARS)
            marks = "", ""
        head = f"{ref} line {line}, character {place}:"
        text = content.text(begin, stop)
        if is_binary(text):
            return f"{head}\n(binary content around the match not shown)", place + 1
        return f"{head}\n{marks[0]}{safe_for_model(text.removesuffix(chr(10)))}{marks[1]}", stop


def _items(count: int) -> str:
    return f"{count} item{'s' * (count != 1)}"
