"""The columns of a table and their types, and the line of a placeholder that names them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from offload.tables._columns import ColumnType, type_of_texts, type_of_values
from offload.tables._form import MAX_COLUMNS, Form, NoTableError, Remarks, Row, names_for
from offload.tables._forms import HEAD_CHARS, form_of

T = TypeVar("T")

_BATCH_ROWS = 2000
# Rows that are counted and typed for a placeholder, and those of a longer table.
_COUNTED_ROWS = 1000
_SAMPLED_ROWS = 100
_LEAST_ROWS = 2
_CHUNK_CHARS = 4096
_LINE_CHARS = 300
_POINTER_CHARS = 80
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# Words that SQLite takes as a name only in quotes.
_KEYWORDS = frozenset(
    (
        *("add", "all", "alter", "and", "as", "autoincrement", "between", "case", "check", "collate"),
        *("commit", "constraint", "create", "default", "deferrable", "delete", "distinct", "drop", "else"),
        *("escape", "except", "exists", "foreign", "from", "group", "having", "in", "index", "insert"),
        *("intersect", "into", "is", "isnull", "join", "limit", "not", "notnull", "null", "on", "or"),
        *("order", "primary", "references", "select", "set", "table", "then", "to", "transaction", "union"),
        *("unique", "update", "using", "values", "when", "where"),
    )
)


class ChangedError(Exception):
    """A batch has a column or a type that the survey does not have."""


@dataclass
class Survey:
    """The columns of a table, `types` by their key in the rows: the name in a row, or its place."""

    form: Form
    types: dict[Any, ColumnType] = field(default_factory=dict)
    rows: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each column in SQL."""
        return names_for(map(str, self.types)) if self.form.columns is None else self.form.columns

    @property
    def columns(self) -> dict[str, ColumnType]:
        return dict(zip(self.names, self.types.values(), strict=True))

    def add(self, batch: Sequence[Row]) -> list[Sequence[Any]]:
        """Take the rows of a batch into account; return their cells by column. Raises `NoTableError`."""
        cells = self._cells(batch)
        type_of = type_of_values if self.form.is_typed else type_of_texts
        for key, column in zip(self.types, cells, strict=True):
            self.types[key] = self.types[key].joined(type_of(column))
        self.rows += len(batch)
        return cells

    def _cells(self, batch: Sequence[Row]) -> list[Sequence[Any]]:
        if self.form.columns is not None:
            for place in range(len(self.form.columns) if not self.types else 0):
                self.types[place] = ColumnType("")
            return [*zip(*batch, strict=True)]
        for row in batch:
            if not row.keys() <= self.types.keys():  # type: ignore[union-attr] # rows without columns are dicts
                for key in row:
                    self.types.setdefault(key, ColumnType(""))
        if len(self.types) > MAX_COLUMNS:
            raise NoTableError(f"it has more than {MAX_COLUMNS:,} columns")
        return [[row.get(key) for row in batch] for key in self.types]  # type: ignore[union-attr] # see above


def batches(rows: Iterable[T]) -> Iterator[list[T]]:
    """Yield rows by the batch."""
    rows = iter(rows)
    while batch := [*islice(rows, _BATCH_ROWS)]:
        yield batch


def survey_of(form: Form, chunks: Iterable[str]) -> Survey:
    """Return the survey of a whole text. Raises `NoTableError`."""
    survey = Survey(form)
    for batch in batches(form.rows(chunks, Remarks())):
        survey.add(batch)
    return survey


def schema_line(text: str, *, is_whole: bool = True) -> str:
    """Return the line of a placeholder that names the columns of the table in a text, "" without a sure one.

    Pure and deterministic, and bounded: the beginning alone is examined. The number of rows is given only if
    it is known.
    """
    if "\0" in text[:HEAD_CHARS]:
        return ""
    is_whole = is_whole and len(text) <= HEAD_CHARS
    survey = Survey(form) if (form := _sure_form(text, is_whole=is_whole)) else None
    rows = [*_first_rows(form, text[:HEAD_CHARS], is_whole=is_whole)] if form else []
    if survey is None or len(rows) < _LEAST_ROWS:
        return ""
    is_counted = is_whole and len(rows) <= _COUNTED_ROWS
    try:
        survey.add(rows if is_counted else rows[:_SAMPLED_ROWS])
    except NoTableError:
        return ""
    if not survey.types:
        return ""
    count = f"{len(rows):,} row{'s' * (len(rows) != 1)}; " if is_counted else ""
    note = "" if is_counted else "; types by its first rows"
    where = f" {_label(survey.form.pointer)}" if survey.form.pointer else ""
    return f"[table{where}: {count}{_shown(survey)}{note}]"


def _sure_form(text: str, *, is_whole: bool) -> Form | None:
    try:
        form = form_of(text, is_whole=is_whole)
    except NoTableError:
        return None
    return form if form is not None and form.is_certain else None


def _first_rows(form: Form, text: str, *, is_whole: bool) -> Iterator[Row]:
    """Yield the first rows of a text of which the beginning is known; the last one there may be cut."""
    if not is_whole and (not form.is_typed or form.name == "JSON lines"):
        text = text[: text.rfind("\n") + 1]
    # No more is split into lines than the rows need.
    chunks = (text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS))
    rows = form.rows(chunks, Remarks()) if form.parsed is None else form.parsed
    try:
        yield from islice(rows, _COUNTED_ROWS + 1 if is_whole else _SAMPLED_ROWS)
    except NoTableError:
        return


def _label(pointer: str) -> str:
    return " ".join(pointer.replace("[", "(").replace("]", ")").split())[:_POINTER_CHARS]


def _shown(survey: Survey) -> str:
    shown: list[str] = []
    room = _LINE_CHARS
    for name, column in survey.columns.items():
        shown.append(f"{quoted(name)} {column.name or 'text'}")
        room -= len(shown[-1]) + 2
        if room < 0 and len(shown) > 1:
            shown.pop()
            return f"{', '.join(shown)}, and {len(survey.types) - len(shown)} more"
    return ", ".join(shown)


def quoted(name: str, *, always: bool = False) -> str:
    """Return a name of a column as SQL takes it: in quotes, unless it is a plain word."""
    is_plain = not always and _PLAIN_NAME.fullmatch(name) and name.lower() not in _KEYWORDS
    return name if is_plain else '"' + name.replace('"', '""') + '"'
