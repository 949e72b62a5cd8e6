"""context_query: the answer to a SELECT over records, as rows between bars."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offload.base.text import chunks_without_colors, decode_text, escape_surrogates
from offload.base.threads.locks import NO_FORK
from offload.engine.placeholder.default import safe_for_model
from offload.errors import ConfigError
from offload.reading.tools.answers import FRAME_CHARS, fitting_rows
from offload.reading.tools.budget import BUDGET, Budget, BudgetExceeded
from offload.records.codec.base import StoredRecord

if TYPE_CHECKING:
    from offload.reading.tables._query import QueryResult

MAX_SQL_CHARS = 10_000
MAX_IDS = 8
# A cell is cut to the first of these with which all rows fit, else to the last.
_CELL_CHARS = (20_000, 1000, 300)
_LEAST_CELL_CHARS = 40
_NOTES_CHARS = 800
# A cell that would not be read as it is.
_UNCLEAR = re.compile(r"[\x00-\x1f\x7f|]|^[\s\"]|\s$|^$|^NULL$")
_SURROGATE = b"\xed"


@dataclass(frozen=True)
class RecordChunks:
    """The text of a record by the chunk, without colors, within the budget of one call.

    It is read again at each iteration.
    """

    record: StoredRecord
    budget: Budget

    def __iter__(self) -> Iterator[str]:
        return chunks_without_colors(self._decoded())

    def _decoded(self) -> Iterator[str]:
        for data in self.budget.metered(self.record.content.chunks_from(0)[1]):
            text = decode_text(data)
            yield escape_surrogates(text) if _SURROGATE in data else text


class Queries:
    """Answers queries over the records of one session, in at most `max_chars` characters."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars

    def answer(self, records: Sequence[StoredRecord], sql: str, reserved: int = 0) -> str:
        """Return the answer to one SELECT; it has room for `reserved` characters more.

        Raises the errors of `result`.
        """
        result = self.result(records, sql)
        return self._shown(result, [record.ref for record in records], self._max_chars - reserved)

    def result(self, records: Sequence[StoredRecord], sql: str) -> QueryResult:
        """Return the columns of one SELECT, and as many rows as an answer may hold. Raises `ConfigError`."""
        with NO_FORK:
            from offload.reading.tables import _query as tables  # noqa: PLC0415 # SQLite, which few calls need

        budget = Budget()
        sources = [
            tables.Record((self, record.ref), record.counts.bytes, RecordChunks(record, budget), record.ref)
            for record in records
        ]
        try:
            return tables.query(sources, escape_surrogates(sql), self._max_chars)
        except BudgetExceeded:
            raise ConfigError(f"item too large for a query ({BUDGET}); use context_grep") from None

    def _shown(self, result: QueryResult, refs: Sequence[str], max_chars: int) -> str:
        sizes = "".join(f"; {name}: {_count(table.rows)}" for name, table in result.tables.items())
        many = f"more than {_count(result.total)}" if result.is_more else _count(result.total)
        first = f"[{', '.join(refs)}: {many}{sizes}]"
        notes = _notes(result.notes)
        names = "|".join(map(_cell, result.columns))[: max_chars // 4]
        room = max_chars - FRAME_CHARS - len(first) - len(names) - sum(len(note) + 1 for note in notes)
        rows, cut = _fitting(result, room)
        lines = [first, *[names] * bool(result.columns), *rows, *notes]
        if cut:
            lines.append(f"[values cut at {cut} characters; use substr(column, {cut + 1})]")
        if result.rows and not rows:
            lines.append("[a row does not fit; name fewer columns]")
        elif len(rows) < result.total:
            lines.append(f"[{len(rows)} rows shown; add LIMIT 100 OFFSET {len(rows)}, or filter]")
        else:
            lines.append("[end of rows]")
        return "\n".join(lines)


def _count(rows: int) -> str:
    return f"{rows:,} row{'s' * (rows != 1)}"


def _notes(notes: Sequence[str]) -> list[str]:
    """Return the notes that fit, each as a line."""
    shown, room = [], _NOTES_CHARS
    for note in notes:
        line = f"[{safe_for_model(' '.join(note.split()))}]"
        room -= len(line)
        if room >= 0:
            shown.append(line)
    return shown


def _fitting(result: QueryResult, room: int) -> tuple[list[str], int]:
    """Return the first rows that fit, as lines, and where values are cut, 0 if none is."""
    for most in _CELL_CHARS:
        rows = fitting_rows(("|".join(_cell(cell, most) for cell in row) for row in result.rows), room)
        if len(rows) == result.total:
            break
    if not rows:
        most = _LEAST_CELL_CHARS
        rows = fitting_rows(("|".join(_cell(cell, most) for cell in row) for row in result.rows), room)
    shown = result.rows[: len(rows)]
    is_cut = any(isinstance(cell, str | bytes) and len(cell) > most for row in shown for cell in row)
    return rows, most * is_cut


def _cell(cell: Any, most: int = _CELL_CHARS[0]) -> str:
    """Return a value as one word of a row: NULL, a number, a text, in quotes if it would be unclear."""
    if cell is None:
        return "NULL"
    if isinstance(cell, bytes):
        return f"x'{cell[:most].hex()}'"
    if not isinstance(cell, str):
        return repr(cell)
    text = cell if len(cell) <= most else cell[:most] + "…"
    shown = json.dumps(text, ensure_ascii=False) if _UNCLEAR.search(text) else text
    return safe_for_model(shown)
