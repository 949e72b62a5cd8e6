"""context_grep: matches of a pattern over records, each with the lines around it, within a budget."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from offload.codec import StoredContent
from offload.errors import ConfigError, CorruptError, NotFoundError
from offload.placeholder import defuse
from offload.record import RecordInfo, encodable
from offload.search import Mode, Search, Span, compile_pattern

# One call's work: then the answer says so and how to go on.
MAX_SECONDS = 10.0
MAX_BYTES = 1024 * 1024 * 1024
_BUDGET = "1 GiB or 10 seconds"
# A longer line is shown as a window around the match.
_LINE_CHARS = 400
_WINDOW_CHARS = 160
# Lines before and after a match take at most this much each.
_CONTEXT_CHARS = 2000

_CURSOR = re.compile(r"[a-z]{10,20}:\d{1,15}", re.ASCII)


class Cursor(NamedTuple):
    """Where a search goes on: a record and the byte offset in it; an empty ref is the beginning."""

    ref: str
    byte: int


class _Stopped(Exception):  # noqa: N818 # not an error: the budget of one call is spent
    """Ends a search; says why and at which byte of the record the next one goes on."""

    def __init__(self, reason: str, byte: int) -> None:
        super().__init__(reason)
        self.byte = byte


class _Spent(Exception):  # noqa: N818 # the same, raised where the byte is not known
    """Ends the reading of chunks."""


def parse_cursor(cursor: str | None) -> Cursor:
    """Return the place that `cursor` names. Raises `ConfigError` if it is not of an answer's form."""
    if cursor is None:
        return Cursor("", 0)
    ref, _, byte = cursor.partition(":")
    if not _CURSOR.fullmatch(cursor):
        raise ConfigError(f"cursor {cursor[:40]!r} is not of an answer's form; leave it out to start over")
    return Cursor(ref, int(byte))


class Grep:
    """One search.

    Args:
        pattern: what to find.
        mode: "literal" or "regex".
        ignore_case: whether case makes no difference.
        context_lines: lines to show before and after each match.
        max_matches: matches to show.
        room: characters that the matches may take in the answer.
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
        self._deadline = time.monotonic() + MAX_SECONDS
        self._bytes = MAX_BYTES
        self._found: list[str] = []

    def run(
        self, infos: Sequence[RecordInfo], open_content: Callable[[RecordInfo], StoredContent], cursor: Cursor
    ) -> str:
        """Return the answer for a search through the records `infos`, from `cursor` on."""
        refs = [info.ref for info in infos]
        if cursor.ref and cursor.ref not in refs:
            raise ConfigError(f"the cursor is of {cursor.ref}, which is not among what is searched here")
        first = refs.index(cursor.ref) if cursor.ref else 0
        matches, last = 0, "[no more matches]"
        for info in infos[first:]:
            start = cursor.byte if info.ref == cursor.ref else 0
            try:
                for shown in self._search(info.ref, open_content(info), start):
                    self._found.append(shown)
                    matches += 1
            except (CorruptError, NotFoundError) as error:
                if len(infos) == 1:
                    raise
                self._found.append(f"{info.ref} cannot be searched: {error}"[:300])
                self._room -= 301
            except _Stopped as stopped:
                last = f'[{stopped}; go on with cursor="{info.ref}:{stopped.byte}"]'
                break
        head = (
            f"[{matches} match{'es' * (matches != 1)} shown, in {len(infos)} item{'s' * (len(infos) != 1)}]"
        )
        return "\n".join([head, *self._found, last])

    def _search(self, ref: str, content: StoredContent, start: int) -> Iterator[str]:
        """Yield each match as it is shown. Raises `_Stopped` where the budget of the call ends."""
        shown_to = -1
        offset, chunks = content.chunks_from(start)
        search = Search(self._pattern, start)
        try:
            for span in search.find(self._metered(chunks), offset=offset):
                place = content.char_at(span.start)
                if place < shown_to:
                    continue  # It stands in the lines that the match before it showed.
                if self._left == 0:
                    raise _Stopped("more matches follow", span.start)
                text, shown_to = self._show(ref, content, span, place)
                # One match is shown whatever it takes, or no answer would ever get past it.
                text = text if self._found else text[: self._room - 1]
                if len(text) + 1 > self._room:
                    raise _Stopped("the answer is full", span.start)
                self._left -= 1
                self._room -= len(text) + 1
                yield text
        except _Spent:
            raise _Stopped(f"stopped: a call searches {_BUDGET}", search.searched_to) from None

    def _metered(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._bytes -= len(chunk)
            if self._bytes < 0 or time.monotonic() > self._deadline:
                raise _Spent
            yield chunk

    def _show(self, ref: str, content: StoredContent, span: Span, place: int) -> tuple[str, int]:
        line = content.line_at(place)
        start, end = content.line_start(line), content.line_start(line + 1)
        head = f"{ref} line {line}, character {place}:"
        if end - start > _LINE_CHARS:
            stop = min(end, content.char_at(span.end) + _WINDOW_CHARS)
            stop = min(stop, place + _LINE_CHARS)
            begin = max(start, place - _WINDOW_CHARS)
            text = content.text(begin, stop).rstrip("\n")
            return f"{head}\n{'…' * (begin > start)}{_visible(text)}{'…' * (stop < end)}", stop
        first, last = max(1, line - self._context), line + self._context
        stop = min(content.line_start(last + 1), end + _CONTEXT_CHARS)
        rows = content.text(max(content.line_start(first), start - _CONTEXT_CHARS), stop)
        return f"{head}\n{_visible(rows.removesuffix(chr(10)))}", stop


def _visible(text: str) -> str:
    return defuse(encodable(text))
