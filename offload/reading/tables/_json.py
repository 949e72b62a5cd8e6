"""Tables in JSON of any size: arrays, objects that hold them, documents one after the other, JSON lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

from offload.base.json_reader import (
    BrokenJsonError,
    JsonReader,
    RepeatedKeyError,
    member_pointer,
    scan_value,
)
from offload.reading.tables._form import Form, NoTableError, Remarks, Row, Sample, lines_of

_SPACES = " \t\r\n"
_DEPTH = 4
_LEAST_LINES = 2
_SAMPLED_MEMBERS = 3
# In an object of more objects they are its rows, and arrays in the others are not looked for.
_SEARCHED_OBJECTS = 50
_SHOWN_ARRAYS, _SHOWN_NAMES = 3, 5
_LONGEST_WORD = len("-Infinity")


class _Array(NamedTuple):
    """An array or object whose members may be rows.

    Attributes:
        rows: how many members are objects or arrays.
        members: how many there are.
    """

    pointer: str
    rows: int
    members: int
    is_object: bool

    @property
    def has_rows(self) -> bool:
        return 2 * self.rows > self.members

    @property
    def rank(self) -> tuple[bool, bool, bool, int]:
        """The larger, the more likely it is the table."""
        is_map = self.has_rows and self.is_object and self.members > 1
        return (self.has_rows and not self.is_object, is_map, not self.is_object, self.members)


def _array_of(values: Iterable[Any], pointer: str) -> _Array:
    """Return the array that has `values` as its members."""
    are_rows = Counter(isinstance(value, dict | list) for value in values)
    return _Array(pointer, are_rows[True], are_rows.total(), is_object=False)


class _RowPlan(NamedTuple):
    """The rows of JSON objects one after the other: members of `table` in each, or the objects themselves."""

    table: _Array
    documents: int
    is_paged: bool
    notes: list[str]

    @classmethod
    def of(cls, chunks: Iterable[str]) -> _RowPlan:
        """Return the plan for a text. Raises `NoTableError`, `BrokenJsonError`, `RecursionError`."""
        reader = JsonReader(chunks)
        arrays = [*_arrays(reader, "", 0)]
        table, documents, pages = max(arrays, key=lambda array: array.rank), 1, 1
        while reader.peek() == "{":
            documents += 1
            pages += table.pointer in [array.pointer for array in _arrays(reader, "", 0)]
        if [array.pointer for array in arrays].count(table.pointer) > 1:
            raise NoTableError(f"its JSON has {table.pointer} twice")
        where = table.pointer or "the object itself"
        is_paged = documents == 1 or (table.rank[0] and table.members >= documents)
        if is_paged and pages < documents:
            raise NoTableError(f"{documents - pages} of its {documents} JSON documents have no {where}")
        others = [a for a in arrays if not a.is_object and a.members and a is not table] if is_paged else []
        notes = [_others_note(where, others)] * bool(others)
        if documents > 1:
            rows = f"the members of {where} in each" if is_paged else "one row for each"
            notes.append(f"t has {rows} of {documents:,} JSON documents")
        return cls(table, documents, is_paged, notes)


def _others_note(where: str, others: list[_Array]) -> str:
    shown = ", ".join(f"{array.pointer} ({array.members:,})" for array in others[:_SHOWN_ARRAYS])
    more = f" and {len(others) - _SHOWN_ARRAYS:,} more" if len(others) > _SHOWN_ARRAYS else ""
    return f"t is {where}; other arrays, with their sizes, are {shown}{more}"


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise `NoTableError` for malformed JSON, and for an object of which a value would be lost."""
    try:
        yield
    except BrokenJsonError as error:
        raise NoTableError(f"invalid JSON at character {error.place}: {error}") from error
    except RecursionError as error:
        raise NoTableError("invalid JSON: it is nested too deeply") from error
    except RepeatedKeyError as error:
        raise NoTableError(str(error)) from error


@_refusing()
def json_form(sample: Sample) -> Form | None:
    """Return the table in JSON, by the beginning of the text: JSON lines, an array, or an object.

    Raises `NoTableError` if an object in it has a key twice.
    """
    first = sample.text.lstrip()[:1]
    if _is_lines(sample):
        form = _object_form(sample) if sample.is_whole and first == "{" else None
        return form if form and form.pointer else Form("JSON lines", _line_rows, is_typed=True)
    if first not in ("{", "[") or not first:
        return None
    if not (sample.is_whole or _may_be_json(sample.text.lstrip())):
        return None
    return _array_form(sample) if first == "[" else _object_form(sample)


def _object_form(sample: Sample) -> Form | None:
    if not (sample.is_whole and sample.text.lstrip(_SPACES).startswith("{")):
        # The largest array may be in the part that is not known yet. After other white space nothing is read.
        return Form("JSON", _object_rows, is_certain=False, is_typed=True)
    try:
        plan = _RowPlan.of([sample.text])
    except (BrokenJsonError, RecursionError):
        return None
    return Form(
        "JSON",
        partial(_object_rows, plan=plan),
        is_certain=any(plan.table.rank[:2]) or not plan.is_paged,
        is_typed=True,
        pointer=plan.table.pointer * plan.is_paged,
    )


def _is_lines(sample: Sample) -> bool:
    """Return whether most of the first lines are objects or arrays of JSON."""
    first = next((line[:1] for line in sample.filled if line[:1] in ("{", "[")), "")
    values = [_value_of(line) for line in sample.filled if line.startswith(first)] if first else []
    # The members of an array of objects are the rows.
    found = sum(
        value is not None and not (isinstance(value, list) and dict in map(type, value)) for value in values
    )
    return found >= _LEAST_LINES and 2 * found > len(sample.filled)


def _value_of(line: str) -> Any:
    """Return the object or array that is the line, None if it is another text."""
    try:
        value, end = scan_value(line, 0)
    except (StopIteration, ValueError, RecursionError, RepeatedKeyError):
        return None
    return value if isinstance(value, dict | list) and not line[end:].strip() else None


def _may_be_json(beginning: str) -> bool:
    """Return whether the first line of a longer text may begin JSON: that of a log is `[INFO] started`."""
    try:
        scan_value(beginning, 0)
    except json.JSONDecodeError as error:
        failed = len(beginning) if error.msg.startswith("Unterminated") else error.pos
    except StopIteration as error:
        failed = error.value
    except (RecursionError, RepeatedKeyError):
        return True
    else:
        return True
    return "\n" in beginning[:failed] or failed > len(beginning) - _LONGEST_WORD


def _array_form(sample: Sample) -> Form | None:
    reader = JsonReader(sample.text)
    try:
        members = reader.members()
        kinds = {type(reader.value()) for _ in islice(members, _SAMPLED_MEMBERS)}
        if next(members, None) is None and reader.peek() and not kinds <= {dict, list}:
            # It is a text that begins with a word in brackets.
            return None
    except (BrokenJsonError, RecursionError):
        return None if sample.is_whole else Form("JSON", _array_rows, is_certain=False, is_typed=True)
    return Form("JSON", _array_rows, is_certain=kinds == {dict}, is_typed=True) if kinds else None


def _line_rows(chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
    def values() -> Iterator[Any]:
        for number, line in enumerate(lines_of(chunks, remarks), 1):
            value = _value_of(line)
            if value is not None:
                yield value
            elif line.strip():
                remarks.add("lines that are not JSON objects, or have a key twice", number)

    return _rows_of(values(), remarks)


def _array_rows(chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
    reader = JsonReader(chunks)
    with _refusing():
        yield from _rows_of(_members_of_all(reader, remarks), remarks)
        _check_end(reader, chunks, remarks)


def _members_of_all(reader: JsonReader, remarks: Remarks) -> Iterator[Any]:
    """Yield the members of arrays one after the other."""
    documents = 0
    while documents == 0 or reader.peek() == "[":
        documents += 1
        for _ in reader.members():
            yield reader.value()
    if documents > 1:
        remarks.notes.append(f"t has the members of {documents:,} JSON documents")


def _check_end(reader: JsonReader, chunks: Iterable[str], remarks: Remarks) -> None:
    """Count a text after JSON. Raises `NoTableError` if it may have more JSON."""
    if not reader.peek():
        return
    start, at = reader.place, 0
    for chunk in chunks:
        after = chunk[max(0, start - at) :]
        if any(line.lstrip()[:1] in ("{", "[") for line in after.split("\n") if line.strip()):
            raise NoTableError(f"another text parts its JSON documents at character {start}")
        at += len(chunk)
    remarks.add("texts after the JSON, not read", start, "character")


def _rows_of(values: Iterable[Any], remarks: Remarks) -> Iterator[Row]:
    """Yield values as rows; if the first one may have the names of the others, the answer says so."""
    for number, value in enumerate(values):
        if number == 0 and isinstance(value, list) and value and all(isinstance(cell, str) for cell in value):
            shown = ", ".join(value[:_SHOWN_NAMES])[:100]
            remarks.notes.append(
                f"the first array is a row here, but may have the names of the columns: {shown}"
            )
        yield _row(value)


def _keyed(members: Iterable[tuple[Any, Any]], *, has_rows: bool) -> Iterator[dict[Any, Any]]:
    """Yield the members of an object as rows; `has_rows` if most are objects, which may have a `key` too."""
    return ({None: key, **(_row(value) if has_rows else {"value": value})} for key, value in members)


def _row(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {f"column{number}": cell for number, cell in enumerate(value, 1)}
    return {"value": value}


def _object_rows(chunks: Iterable[str], remarks: Remarks, plan: _RowPlan | None = None) -> Iterator[Row]:
    """Yield the rows of the largest array of rows in an object, or of another container without one."""
    with _refusing():
        plan = plan or _RowPlan.of(chunks)
        remarks.notes += plan.notes
        reader, steps = JsonReader(chunks), plan.table.pointer.split("/")[1:]
        members = chain.from_iterable(
            _members_at(reader, steps) if plan.is_paged else [(0, reader.value())]
            for _ in range(plan.documents)
        )
        if plan.is_paged and plan.table.is_object:
            yield from _keyed(members, has_rows=plan.table.has_rows)
        else:
            yield from _rows_of((value for _, value in members), remarks)
        _check_end(reader, chunks, remarks)


def _members_at(reader: JsonReader, steps: list[str]) -> Iterator[tuple[Any, Any]]:
    """Yield the members of a container in the one here, with their keys."""
    for key in reader.members():
        if not steps:
            yield key, reader.value()
        elif member_pointer("", key) == f"/{steps[0]}":
            yield from _members_at(reader, steps[1:])


def _arrays(reader: JsonReader, pointer: str, depth: int) -> Iterator[_Array]:
    """Yield the containers of the object here that may be tables, itself the last."""
    objects = count = 0
    for key in reader.members():
        name = member_pointer(pointer, key)
        first = reader.peek()
        count, objects = count + 1, objects + (first == "{")
        if first == "[":
            yield _array_of((reader.value() for _ in reader.members()), name)
        elif first == "{" and depth < _DEPTH and objects <= _SEARCHED_OBJECTS:
            yield from _arrays(reader, name, depth + 1)
        else:
            reader.value()
    yield _Array(pointer, objects, count, is_object=True)
