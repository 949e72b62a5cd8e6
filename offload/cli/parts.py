"""Answers about records as data for programs: a part of a text, matches, the rows of a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from offload import Offloader
from offload.codec.content import StoredContent
from offload.errors import CorruptError, NotFoundError
from offload.session.reader import SessionReader
from offload.tools._query import Queries
from offload.tools.search import Pattern, Search

# A longer line is cut to the characters around its first match.
_BEFORE, _LINE_CHARS = 160, 400
_ROWS_CHARS = 1_000_000

Json = dict[str, Any]


def part_of(off: Offloader, ref: str, start: int, end: int) -> Json:
    """Return the characters from `start` to `end` of a record, with its title and its size."""
    record = _reader(off).read(ref)
    content, end = record.content, min(end, record.counts.chars)
    return {
        "store": off.store.url,
        "session": off.session,
        "ref": ref,
        "title": record.title,
        "chars": record.counts.chars,
        "lines": record.counts.lines,
        "start": start,
        "end": end,
        "start_line": content.line_at(start),
        "text": content.text(start, end),
    }


def last_lines(off: Offloader, ref: str, lines: int) -> Json:
    """Return the last lines of a record as `part_of` does."""
    record = _reader(off).read(ref)
    start = record.content.line_start(max(1, record.counts.lines - lines + 1))
    return part_of(off, ref, start, record.counts.chars)


def matches_in(off: Offloader, refs: Sequence[str], pattern: Pattern, context: int = 0) -> Iterator[Json]:
    """Yield the lines with a match; a record that cannot be read is one entry with its `error`.

    With `context` each has that many lines `before` and `after` it.
    """
    reader = _reader(off)
    for ref in refs:
        place = {"session": off.session, "ref": ref}
        try:
            record = reader.read(ref)
            for match in _lines(record.content, record.counts.lines, pattern, context):
                yield {**place, **match}
        except (CorruptError, NotFoundError) as error:
            yield {**place, "error": str(error)}


def _lines(content: StoredContent, lines: int, pattern: Pattern, context: int) -> Iterator[Json]:
    shown = 0
    offset, chunks = content.chunks_from(0)
    for span in Search(pattern).find(chunks, offset=offset):
        char = content.char_at(span.start)
        line = content.line_at(char)
        if line > shown:
            shown, start = line, max(content.line_start(line), char - _BEFORE)
            match: Json = {"line": line, "character": char, "text": _line(content, line, start)}
            if context:
                match["before"] = [_line(content, n) for n in range(max(1, line - context), line)]
                match["after"] = [_line(content, n) for n in range(line + 1, min(line + context, lines) + 1)]
            yield match


def _line(content: StoredContent, line: int, start: int | None = None) -> str:
    """Return a line from a character of it, cut to a number of characters."""
    start = content.line_start(line) if start is None else start
    return content.text(start, min(content.line_start(line + 1), start + _LINE_CHARS)).removesuffix("\n")


def rows_of(off: Offloader, refs: Sequence[str], sql: str) -> Json:
    """Return the columns and rows of a query; a row is a list of values."""
    reader = _reader(off)
    result = Queries(_ROWS_CHARS).result([reader.read(ref) for ref in refs], sql)
    return {
        "store": off.store.url,
        "session": off.session,
        "refs": list(refs),
        "columns": result.columns,
        "rows": result.rows,
        "total": result.total,
        "is_more": result.is_more or len(result.rows) < result.total,
        "notes": result.notes,
    }


def _reader(off: Offloader) -> SessionReader:
    return SessionReader(off.store, off.session)
