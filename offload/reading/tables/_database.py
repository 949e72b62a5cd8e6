"""Tables of records in a process that runs SQL: loaded when a query names them, and kept for later ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from offload.errors import ConfigError
from offload.reading.tables._columns import spelled
from offload.reading.tables._form import MAX_CELL_CHARS, Form, NoTableError, Remarks, lines_of
from offload.reading.tables._forms import form_of
from offload.reading.tables._process import Worker, WorkerError
from offload.reading.tables._survey import ChangedError, Field, Survey, batches, survey_of

_MAX_BYTES = 128 * 1024 * 1024
_TOTAL = re.compile(r"\W*(?:(?:grand |sub)?totals?|overall|sum|all files)\W*", re.IGNORECASE)


@dataclass
class Table:
    """A table.

    Attributes:
        columns: names of its columns with their types.
        declared: names of its columns with their types in SQLite.
        remarks: what it does not show of the text, as lines.
        notes: for a column, what an answer from it says.
        empty_notes: for a column, what an answer says that looks for NULL in it.
    """

    columns: dict[str, str]
    declared: dict[str, str]
    rows: int = 0
    remarks: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    empty_notes: dict[str, str] = field(default_factory=dict)


class Database:
    """The tables of one record, `t` and `lines`, or of several: `t1`, `lines1`, `t2` and so on.

    Only the holder of its worker may use it.
    """

    def __init__(self, worker: Worker[Database]) -> None:
        self.worker = worker
        self.tables: dict[str, Table] = {}
        self.bytes = 0
        self._number = worker.new_base()
        worker.ask("open", self._number, _MAX_BYTES)

    def drop(self) -> None:
        self.worker.ask("drop", self._number)

    def query(self, sql: str, max_chars: int, seconds: float) -> dict[str, Any]:
        """Return the rows of a statement from outside. Raises `WorkerError`, `LateError`."""
        return self.worker.ask("query", self._number, sql, max_chars, seconds)

    def ask(self, sql: str) -> list[list[Any]]:
        """Return the rows of a statement of the library."""
        rows: list[list[Any]] = self.worker.ask("ask", self._number, sql)["rows"]
        return rows

    def fill(self, name: str, table: Table, rows: Iterable[Sequence[Any]]) -> None:
        """Create a table and insert its rows. Raises `ConfigError` if memory is full."""
        try:
            self.worker.post("create", self._number, name, [*table.declared.items()])
            for batch in batches(rows):
                self.worker.post("insert", self._number, name, batch, table.rows + 1)
                table.rows += len(batch)
            self.bytes = self.worker.ask("commit", self._number)["bytes"]
        except BaseException as error:
            if self.worker.is_alive:
                self.worker.settle()
                self.worker.ask("undo", self._number, name)
            if not isinstance(error, WorkerError):
                raise
            raise ConfigError(
                f"{_said(error)}: the rows may take at most {_MAX_BYTES // 1024**2} MiB; use context_grep"
            ) from None
        self.tables[name] = table

    def load_lines(self, name: str, chunks: Iterable[str]) -> None:
        remarks = Remarks()
        lines = enumerate((line.removesuffix("\r") for line in lines_of(chunks, remarks)), 1)
        declared = {"n": "INTEGER PRIMARY KEY", "text": "TEXT"}
        table = Table({"n": "integer", "text": "text"}, declared)
        self.fill(name, table, lines)
        table.remarks = remarks.texts()

    def load_table(self, name: str, chunks: Iterable[str]) -> None:
        """Load the table in a text. Raises `NoTableError`."""
        survey = _survey_in(chunks)
        try:
            self._load(name, survey, chunks, counted=Survey(survey.form))
        except ChangedError:
            self._load(name, survey_of(survey.form, chunks), chunks)

    def _load(self, name: str, survey: Survey, chunks: Iterable[str], counted: Survey | None = None) -> None:
        remarks, fields = Remarks(), survey.fields
        shown = {each.name: each.shown for each in fields}
        table = Table(shown, {each.name: each.affinity for each in fields})
        self.fill(name, table, _rows(survey, counted, chunks, fields, remarks))
        table.remarks = [*remarks.texts(), *self._totals(name, table)]
        counted = counted or survey
        table.notes = counted.notes
        table.empty_notes = {
            each.name: note
            for each in counted.fields
            if not each.has_texts and (note := each.type.empty_note)
        }

    def _totals(self, name: str, table: Table) -> Iterator[str]:
        """Yield a remark on each end of a table of numbers that is named as the total of its other rows."""
        if {*table.declared.values()} & {"INTEGER", "REAL"} and table.rows > 1:
            for place in (1, table.rows):
                [row] = self.ask(f"SELECT * FROM {name} WHERE rowid = {place}")  # noqa: S608 # a name of the library
                if word := next((cell for cell in row if type(cell) is str and _TOTAL.fullmatch(cell)), ""):
                    yield f"row {place:,} is named {word!r}: a sum of all rows counts it too"


class WrittenTable(NamedTuple):
    """The cells of a table as its text has them, and the values by which its columns sort."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    values: list[tuple[Any, ...]]
    notes: list[str]

    @classmethod
    def of(cls, chunks: Iterable[str]) -> WrittenTable:
        """Read the table in a text. Raises `NoTableError`."""
        form, remarks = _form_in(chunks), Remarks()
        survey = Survey(form)
        cells = survey.add([*form.rows(chunks, remarks)])
        fields = [each for each in survey.fields if not each.has_texts]
        stored = (each.stored(cells[each.place], is_typed=form.is_typed) for each in fields)
        return cls(
            tuple(each.name for each in fields),
            [*zip(*(spelled(cells[each.place]) for each in fields), strict=True)],
            [*zip(*stored, strict=True)],
            remarks.texts(),
        )


def _said(failure: WorkerError) -> str:
    return str(failure.details[0]) if failure.kind == "sqlite" else "out of memory"


def _survey_in(chunks: Iterable[str]) -> Survey:
    """Return the survey of the first rows of the table in a text. Raises `NoTableError`."""
    form = _form_in(chunks)
    survey = Survey(form)
    for batch in islice(batches(form.rows(chunks, Remarks())), 1):
        survey.add(batch)
    if not survey.types:
        raise NoTableError(f"its {form.name} has no columns")
    return survey


def _form_in(chunks: Iterable[str]) -> Form:
    form = form_of(chunks)
    if form is None:
        raise NoTableError("its text is not a table")
    return form


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
        columns = ((field, field.stored(cells[field.place], is_typed=form.is_typed)) for field in fields)
        yield from zip(
            *(
                _cut(column, remarks, row) if field.affinity == "TEXT" else column
                for field, column in columns
            ),
            strict=True,
        )
        row += len(batch)
    if counted and {key: kind.stored_as for key, kind in counted.types.items()} != ways:
        raise ChangedError


def _cut(cells: Iterable[Any], remarks: Remarks, row: int) -> Iterable[Any]:
    """Return the cells of a column of texts from a row on, of which long ones are cut."""
    held = [*cells]
    if max(map(len, filter(None, held)), default=0) <= MAX_CELL_CHARS:
        return held
    for at, cell in enumerate(held):
        if cell is not None and len(cell) > MAX_CELL_CHARS:
            remarks.add(f"values cut to {MAX_CELL_CHARS:,} characters", row + at, "row")
            held[at] = cell[:MAX_CELL_CHARS]
    return held
