"""Tables of records in SQLite, in memory: loaded when a query names them, and kept for later queries."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from offload.errors import ConfigError
from offload.locks import Lock
from offload.tables._columns import encodable
from offload.tables._form import MAX_CELL_CHARS, Form, NoTableError, Remarks, lines_of
from offload.tables._forms import HEAD_CHARS, PART_CHARS, form_of
from offload.tables._survey import ChangedError, Field, Survey, batches, quoted, survey_of

_MAX_BYTES = 128 * 1024 * 1024
_PAGE_BYTES = 4096


@dataclass
class Table:
    """A loaded table.

    Attributes:
        columns: names of its columns with their types.
        declared: names of the loaded columns with their types in SQLite.
        remarks: what it does not show of the text, as lines.
        notes: for a column, what an answer from it says.
    """

    columns: dict[str, str]
    declared: dict[str, str]
    rows: int
    remarks: list[str]
    form: Form | None = None
    notes: dict[str, str] = field(default_factory=dict)


class Database:
    """The tables of one record, `t` and `lines`, or of several: `t1`, `lines1`, `t2` and so on.

    Only the holder of `lock` may use the open `connection`.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        self.connection.execute("PRAGMA temp_store = MEMORY")
        # Their first use declares them, which the authorizer of a query would refuse.
        self.connection.execute("SELECT 1 FROM json_each('[]'), json_tree('[]')")
        self.connection.execute(f"PRAGMA max_page_count = {_MAX_BYTES // _PAGE_BYTES}")
        self.tables: dict[str, Table] = {}

    def __del__(self) -> None:
        # Python 3.13 and later warn of a connection that nobody closed.
        self.connection.close()

    @property
    def bytes(self) -> int:
        """The memory that the tables take."""
        return int(self.connection.execute("PRAGMA page_count").fetchone()[0]) * _PAGE_BYTES

    def fill(self, name: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> int:
        """Create a table and insert its rows; return their number. Raises `ConfigError` if memory is full."""
        self.connection.execute("BEGIN")
        try:
            count = self._inserted(name, columns, rows)
        except BaseException as error:
            # If the memory is full, SQLite has already rolled back.
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            if not isinstance(error, sqlite3.Error):
                raise
            raise ConfigError(
                f"{error}: the rows may take at most {_MAX_BYTES // 1024**2} MiB; name only the columns that "
                "you need, not *, or use context_grep"
            ) from None
        self.connection.execute("COMMIT")
        return count

    def _inserted(self, name: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]]) -> int:
        declared = ", ".join(f"{quoted(column, always=True)} {kind}" for column, kind in columns.items())
        self.connection.execute(f"CREATE TABLE {name} ({declared})")
        insert = f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 # its names are quoted
        count = 0
        for batch in batches(rows):
            try:
                self.connection.executemany(insert, batch)
            except UnicodeEncodeError:
                self.connection.execute(f"DELETE FROM {name} WHERE rowid > {count}")  # noqa: S608 # a number
                self.connection.executemany(insert, encodable(batch))
            count += len(batch)
        return count

    def copy(self, name: str, other: Database, table: str) -> None:
        self.tables[name] = copied = other.tables[table]
        self.fill(name, copied.declared, other.connection.execute(f"SELECT * FROM {table}"))  # noqa: S608

    def load_lines(self, name: str, chunks: Iterable[str]) -> None:
        remarks = Remarks()
        lines = enumerate((line.removesuffix("\r") for line in lines_of(chunks, remarks)), 1)
        declared = {"n": "INTEGER PRIMARY KEY", "text": "TEXT"}
        count = self.fill(name, declared, lines)
        self.tables[name] = Table({"n": "integer", "text": "text"}, declared, count, remarks.texts())

    def load_table(self, name: str, chunks: Iterable[str], wanted: set[str] | None = None) -> None:
        """Load the table in a text, or its `wanted` columns, in lower case. Raises `NoTableError`."""
        form = _form_in(chunks)
        survey = Survey(form)
        for batch in islice(batches(form.rows(chunks, Remarks())), 1):
            survey.add(batch)
        if not survey.types:
            raise NoTableError(f"its {form.name} has no columns")
        try:
            self.tables[name] = self._load(name, survey, chunks, wanted, counted=Survey(form))
        except ChangedError:
            self.tables[name] = self._load(name, survey_of(form, chunks), chunks, wanted)

    def _load(
        self,
        name: str,
        survey: Survey,
        chunks: Iterable[str],
        wanted: set[str] | None,
        counted: Survey | None = None,
    ) -> Table:
        remarks = Remarks()
        fields = survey.fields
        loaded = [field for field in fields if wanted is None or field.name.lower() in wanted] or fields[:1]
        declared = {field.name: field.affinity for field in loaded}
        count = self.fill(name, declared, _rows(survey, counted, chunks, loaded, remarks))
        columns = {field.name: field.shown for field in fields}
        return Table(columns, declared, count, remarks.texts(), survey.form, (counted or survey).notes)


def _form_in(chunks: Iterable[str]) -> Form:
    beginning, is_whole = "", True
    for chunk in chunks:
        if len(beginning) > HEAD_CHARS:
            is_whole = False
            break
        beginning += chunk
    form = form_of(beginning, is_whole=is_whole, later=_parts(chunks) if len(beginning) > HEAD_CHARS else ())
    if form is None:
        raise NoTableError("its text is no table")
    return form


def _parts(chunks: Iterable[str]) -> Iterator[str]:
    """Yield what `parts_of` returns for the text."""
    chars, end = 0, ""
    for chunk in chunks:
        chars += len(chunk)
        end = (end + chunk)[-PART_CHARS:]
    start, middle = chars // 2, ""
    for chunk in chunks:
        middle += chunk[max(start, 0) : start + PART_CHARS]
        start -= len(chunk)
        if len(middle) >= PART_CHARS:
            break
    yield from (middle[:PART_CHARS], end)


def _rows(
    survey: Survey,
    counted: Survey | None,
    chunks: Iterable[str],
    fields: Sequence[Field],
    remarks: Remarks,
) -> Iterator[Sequence[Any]]:
    """Yield the rows of a table as SQLite stores them.

    The survey is one of the whole text; or one of its first rows, and all rows are added to `counted`. Raises
    `ChangedError` if that of the first rows does not fit.
    """
    form = survey.form
    ways = {key: kind.stored_as for key, kind in survey.types.items()}
    row = 1
    for batch in batches(form.rows(chunks, remarks)):
        cells = counted.add(batch) if counted else survey.cells(batch)
        if (
            counted
            and {key: survey.joined(key, kind).stored_as for key, kind in counted.types.items()} != ways
        ):
            raise ChangedError
        columns = (field.stored(cells[field.place], is_typed=form.is_typed) for field in fields)
        yield from zip(*(_cut(column, remarks, row) for column in columns), strict=True)
        row += len(batch)
    if counted and {key: kind.stored_as for key, kind in counted.types.items()} != ways:
        raise ChangedError


def _cut(cells: Iterable[Any], remarks: Remarks, row: int) -> Iterable[Any]:
    """Return the cells of a column from a row on, of which long texts are cut."""
    held = [*cells]
    if max((len(cell) for cell in held if type(cell) is str), default=0) <= MAX_CELL_CHARS:
        return held
    for at, cell in enumerate(held):
        if type(cell) is str and len(cell) > MAX_CELL_CHARS:
            remarks.add(f"values cut to {MAX_CELL_CHARS:,} characters", row + at, "row")
            held[at] = cell[:MAX_CELL_CHARS]
    return held
