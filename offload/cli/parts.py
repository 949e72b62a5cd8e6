"""Answers about records as data for programs: a part of a text, matches, the rows of a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from offload import Offloader
from offload.errors import CorruptError, EncryptionError, NotFoundError
from offload.reading.tools._query import Queries
from offload.reading.tools.search import Pattern, Search
from offload.records.codec.base import StoredRecord
from offload.records.codec.content import StoredContent
from offload.records.session.reader import SessionReader

# A longer line is cut to the characters around its first match.
_BEFORE, _LINE_CHARS = 160, 400
_ROWS_CHARS = 1_000_000

Json = dict[str, Any]


def part_of(off: Offloader, record: StoredRecord, start: int, end: int) -> Json:
    """Return the characters from `start` to `end` of a record, with its title and its size."""
    content = record.content
    return {
        "store": off.store.url,
        "session": off.session,
        "ref": record.ref,
        "title": record.title,
        "chars": content.chars,
        "lines": content.lines,
        "start": start,
        "end": min(end, content.chars),
        "start_line": content.line_at(start),
        "text": content.text(start, end),
    }


def matches_in(
    reader: SessionReader,
    refs: Sequence[str],
    pattern: Pattern,
    unsearched: dict[str, str],
    *,
    context: int = 0,
    most: int | None = None,
) -> Iterator[Json]:
    """Yield the lines with a match, at most so many of a record.

    With `context` each has that many lines `before` and `after` it. In `unsearched`, each record that cannot
    be read gets the reason, by its session and id.
    """
    for ref in refs:
        place = {"session": reader.name, "ref": ref}
        try:
            record = reader.read(ref)
            for match in islice(_lines(record.content, pattern, context), most):
                yield {**place, **match}
        except (CorruptError, EncryptionError, NotFoundError) as error:
            unsearched[f"{reader.name}:{ref}"] = str(error)


def _lines(content: StoredContent, pattern: Pattern, context: int) -> Iterator[Json]:
    shown = 0
    offset, chunks = content.chunks_from(0)
    for span in Search(pattern).find(chunks, offset=offset):
        char = content.char_at(span.start)
        line = content.line_at(char)
        if line > shown:
            shown, start = line, max(content.line_start(line), char - _BEFORE)
            match: Json = {"line": line, "character": char, "text": _line(content, line, start)}
            if context:
                last = min(line + context, content.lines)
                match["before"] = [_line(content, n) for n in range(max(1, line - context), line)]
                match["after"] = [_line(content, n) for n in range(line + 1, last + 1)]
            yield match


def _line(content: StoredContent, line: int, start: int | None = None) -> str:
    """Return a line from a character of it, cut to a number of characters."""
    start = content.line_start(line) if start is None else start
    return content.text(start, min(content.line_start(line + 1), start + _LINE_CHARS)).removesuffix("\n")


def rows_of(off: Offloader, refs: Sequence[str], sql: str) -> Json:
    """Return the columns and rows of a query; a row is a list of values."""
    reader = SessionReader(off.store, off.session)
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
