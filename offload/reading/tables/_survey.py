"""The columns of a table and their types, and the line of a placeholder that names them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar, cast

from offload.reading.tables._columns import (
    ColumnType,
    new_column,
    spelled,
    stored,
    type_of_texts,
    type_of_values,
)
from offload.reading.tables._form import MAX_COLUMNS, Form, NoTableError, Remarks, Row, names_for
from offload.reading.tables._forms import HEAD_CHARS, form_of

T = TypeVar("T")

_TEXT_SUFFIX = "_text"
_BATCH_ROWS = 2000
# Rows that are counted and typed for a placeholder, and those of a longer table.
_COUNTED_ROWS = 1000
_SAMPLED_ROWS = 100
_LEAST_ROWS = 2
_CHUNK_CHARS = 4096
_LINE_CHARS = 300
_LEAST_CHARS = 40
_POINTER_CHARS = 80
_MOST_REMARKS = 3
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


class Field(NamedTuple):
    """A column in SQL.

    Attributes:
        place: its place among the columns of the rows.
        has_texts: whether it has the numbers of another column as they are written.
    """

    name: str
    place: int
    type: ColumnType
    has_texts: bool = False

    @property
    def affinity(self) -> str:
        return "TEXT" if self.has_texts else self.type.affinity

    @property
    def shown(self) -> str:
        return "text" if self.has_texts else self.type.name or "text"

    def stored(self, cells: Sequence[Any], *, is_typed: bool) -> Iterable[Any]:
        return spelled(cells) if self.has_texts else stored(cells, self.type, is_typed=is_typed)


@dataclass
class Survey:
    """The columns of a table, `types` by their key in the rows: the name in a row, or its place."""

    form: Form
    types: dict[Any, ColumnType] = field(default_factory=dict)
    rows: int = 0

    @property
    def fields(self) -> list[Field]:
        """The columns in SQL: those of the rows, then for numbers their texts."""
        kinds = [*self.types.values()]
        names = names_for(self._keys)
        spelled_at = [at for at, kind in enumerate(kinds) if kind.has_texts]
        every = names_for([*names, *(f"{names[at]}{_TEXT_SUFFIX}" for at in spelled_at)])
        fields = [Field(name, at, kind) for at, (name, kind) in enumerate(zip(names, kinds, strict=True))]
        texts = zip(every[len(names) :], spelled_at, strict=True)
        return fields + [Field(name, at, kinds[at], has_texts=True) for name, at in texts]

    @property
    def _keys(self) -> Sequence[str]:
        """The columns as the text names them."""
        return (
            self.form.columns
            if self.form.columns is not None
            else ["key" if key is None else key for key in self.types]
        )

    @property
    def notes(self) -> dict[str, str]:
        """For each column what an answer from it says, if it says something."""
        fields = self.fields
        texts = {field.place: quoted(field.name) for field in fields if field.has_texts}
        plain = [field for field in fields if not field.has_texts]
        alike = Counter(key.lower() for key in self._keys)
        notes = {}
        for each, key in zip(plain, self._keys, strict=True):
            note = each.type.note(quoted(each.name), texts.get(each.place, ""))
            if key and alike[key.lower()] > 1:
                note = f"{quoted(each.name)} is one of several columns {key!r}{'; ' * bool(note)}{note}"
            notes[each.name] = note
        return {name: note for name, note in notes.items() if note}

    def add(self, batch: Sequence[Row]) -> list[Sequence[Any]]:
        """Take the rows of a batch into account; return their cells by column. Raises `NoTableError`."""
        cells = self.cells(batch)
        type_of = type_of_values if self.form.is_typed else type_of_texts
        for key, column in zip(self.types, cells, strict=True):
            self.types[key] = self.types[key].joined(type_of(column))
        self.rows += len(batch)
        return cells

    def cells(self, batch: Sequence[Row]) -> list[Sequence[Any]]:
        """Return the cells of a batch by column; new columns are added. Raises `NoTableError`."""
        if self.form.columns is not None:
            for place, name in enumerate(self.form.columns if not self.types else ()):
                self.types[place] = self._new(name)
            return [*zip(*batch, strict=True)]
        # Rows that have their own columns are dicts.
        rows = cast("Sequence[dict[Any, Any]]", batch)
        for row in rows:
            if not row.keys() <= self.types.keys():
                for key in row:
                    if key not in self.types:
                        self.types[key] = self._new(key or "")
        if len(self.types) > MAX_COLUMNS:
            raise NoTableError(f"it has more than {MAX_COLUMNS:,} columns")
        return [[row.get(key) for row in rows] for key in self.types]

    def joined(self, key: Any, kind: ColumnType) -> ColumnType:
        """Return the type of a column joined with another."""
        return self.types[key].joined(kind) if key in self.types else kind

    def _new(self, name: str) -> ColumnType:
        return new_column(name, is_comma_decimal=self.form.is_comma_decimal)


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
    it is known, for which `text` must be whole.
    """
    if "\0" in text[:HEAD_CHARS]:
        return ""
    is_whole = is_whole and len(text) <= HEAD_CHARS
    form = _sure_form(text, is_whole=is_whole)
    remarks = Remarks()
    try:
        rows = [*_first_rows(form, text[:HEAD_CHARS], remarks, is_whole=is_whole)] if form else []
        if form is None or len(rows) < _LEAST_ROWS:
            return ""
        survey = Survey(form)
        is_counted = is_whole and len(rows) <= _COUNTED_ROWS
        survey.add(rows if is_counted else rows[:_SAMPLED_ROWS])
    except NoTableError:
        return ""
    if not survey.types:
        return ""
    count = f"{len(rows):,} row{'s' * (len(rows) != 1)}; " if is_counted else ""
    note = "" if is_counted else "; types by its first rows"
    where = f" {_plain(survey.form.pointer, _POINTER_CHARS)}" if survey.form.pointer else ""
    return f"[table{where}: {count}{_shown(survey)}{note}{_unread(remarks)}]"


def _sure_form(text: str, *, is_whole: bool) -> Form | None:
    try:
        form = form_of([text], is_whole=is_whole)
    except NoTableError:
        return None
    return form if form is not None and form.is_certain else None


def _first_rows(form: Form, text: str, remarks: Remarks, *, is_whole: bool) -> Iterator[Row]:
    """Yield the first rows of a text of which the beginning is known; the last one there may be cut."""
    if not is_whole and (not form.is_typed or form.name == "JSON lines"):
        text = text[: text.rfind("\n") + 1]
    # No more is split into lines than the rows need.
    chunks = [text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS)]
    rows = form.rows(chunks, remarks)
    try:
        yield from islice(rows, _COUNTED_ROWS + 1 if is_whole else _SAMPLED_ROWS)
    except NoTableError:
        if is_whole:
            raise


def _unread(remarks: Remarks) -> str:
    """Return how much of the text is not in the table, for a placeholder."""
    return "".join(f"; {_plain(text, _LINE_CHARS)}" for text in remarks.counts()[:_MOST_REMARKS])


def _plain(text: str, chars: int) -> str:
    return " ".join(text.replace("[", "(").replace("]", ")").split())[:chars]


def _shown(survey: Survey) -> str:
    fields = [field for field in survey.fields if not field.has_texts]
    texts = [field for field in survey.fields if field.has_texts]
    columns = _fitting([f"{quoted(field.name)} {field.type.shown}" for field in fields], _LINE_CHARS)
    spelled_in = _fitting(
        [quoted(field.name) for field in texts], max(_LEAST_CHARS, _LINE_CHARS - len(columns))
    )
    return f"{columns}; as written in {spelled_in}" if texts else columns


def _fitting(names: Sequence[str], room: int) -> str:
    shown: list[str] = []
    for name in names:
        room -= len(name) + 2
        if room < 0 and shown:
            return f"{', '.join(shown)}, and {len(names) - len(shown)} more"
        shown.append(name)
    return ", ".join(shown)


def quoted(name: str) -> str:
    """Return a name of a column as SQL takes it: in quotes, unless it is a plain word."""
    is_plain = _PLAIN_NAME.fullmatch(name) and name.lower() not in _KEYWORDS
    return name if is_plain else '"' + name.replace('"', '""') + '"'
