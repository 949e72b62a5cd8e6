"""Tables in JSON of any size: arrays, objects that hold them, JSON lines."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Any, NamedTuple

from offload.base.json_reader import BrokenJsonError, JsonReader, member_pointer, scan_value
from offload.reading.tables._form import (
    MAX_COLUMNS,
    Again,
    Form,
    NoTableError,
    Remarks,
    Row,
    Sample,
    lines_of,
)
from offload.reading.tables._names import is_typed_heading

_SPACES = " \t\r\n"
_DEPTH = 4
_LEAST_LINES = 2
_SAMPLED_MEMBERS = 3
# In an object of more objects they are its rows, and arrays in the others are not looked for.
_SEARCHED_OBJECTS = 50


# The key of a member of an object that is a table; the member may have a `key` too.
_KEY = Again("key", 0)
_NAMES = re.compile(r".*/(?:columns|fields|headers?|names)", re.DOTALL)
_NAMED_ROWS = 50
_SHOWN_ARRAYS, _SHOWN_NAMES = 3, 5
_LONGEST_WORD = len("-Infinity")


class _Array(NamedTuple):
    """An array or object whose members may be rows.

    Attributes:
        rows: how many members are objects or arrays.
        members: how many there are.
        width: how many members each array in it has, 0 if they differ.
        names: its members, if all are texts.
    """

    pointer: str
    start: int
    rows: int
    members: int
    is_object: bool
    width: int = 0
    names: tuple[str, ...] = ()


def _array_of(values: Iterable[Any], pointer: str, start: int = 0) -> _Array:
    """Return the array that has `values` as its members."""
    rows = members = 0
    widths, names = set[int](), list[str]()
    for value in values:
        if isinstance(value, str) and len(names) == members < MAX_COLUMNS:
            names.append(value)
        members += 1
        rows += isinstance(value, dict | list)
        if isinstance(value, list):
            widths.add(len(value))
    width = widths.pop() if len(widths) == 1 else 0
    named = tuple(names) if len(names) == members else ()
    return _Array(pointer, start, rows, members, is_object=False, width=width, names=named)


class _ParsedJson:
    """The JSON at the beginning of a short text, parsed in a third of the time of stepping through it.

    Raises `ValueError` or `RecursionError` if it is malformed.
    """

    def __init__(self, text: str) -> None:
        # The members of each object in which two have one key, by the id of the object.
        self._repeated: dict[int, list[tuple[str, Any]]] = {}
        decoder = json.JSONDecoder(object_pairs_hook=self._object, parse_constant=str, strict=False)
        self.value = decoder.raw_decode(text.lstrip(_SPACES))[0]

    def arrays(
        self, value: dict[str, Any], pointer: str = "", depth: int = 0
    ) -> Iterator[tuple[_Array, Collection[Any]]]:
        """Yield the containers of an object as `_arrays` does, each with its members."""
        members = self._repeated.get(id(value), value.items())
        objects = 0
        for key, member in members:
            if isinstance(member, list):
                yield _array_of(member, member_pointer(pointer, key)), member
            elif isinstance(member, dict):
                objects += 1
                if depth < _DEPTH and objects <= _SEARCHED_OBJECTS:
                    yield from self.arrays(member, member_pointer(pointer, key), depth + 1)
        yield _Array(pointer, 0, objects, len(members), is_object=True), members

    def _object(self, members: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(members)
        if len(value) < len(members):
            self._repeated[id(value)] = members
        return value


def json_form(sample: Sample) -> Form | None:
    """Return the table in JSON, by the beginning of the text: JSON lines, an array, or an object."""
    first = sample.text.lstrip()[:1]
    if first not in ("{", "[") or not first:
        return None
    if _is_lines(sample):
        return Form("JSON lines", _line_rows, is_typed=True)
    if not (sample.is_whole or _may_be_json(sample.text.lstrip())):
        return None
    return _array_form(sample) if first == "[" else _object_form(sample)


def _object_form(sample: Sample) -> Form | None:
    if not (sample.is_whole and sample.text.lstrip(_SPACES).startswith("{")):
        # The largest array may be in the part that is not known yet. After other white space nothing is read.
        return Form("JSON", _object_rows, is_certain=False, is_typed=True)
    try:
        parsed = _ParsedJson(sample.text)
    except (ValueError, RecursionError):
        return None
    arrays = [*parsed.arrays(parsed.value)]
    largest, members = max(arrays, key=lambda pair: _rank(pair[0]))
    names = _names_of(largest, (array for array, _ in arrays))
    return Form(
        "JSON",
        _object_rows,
        is_certain=any(_rank(largest)[:2]),
        is_typed=True,
        pointer=largest.pointer,
        parsed=_keyed(members) if largest.is_object else _named(iter(members), Remarks(), names),
    )


def _is_lines(sample: Sample) -> bool:
    lines = [*filter(str.strip, sample.lines)]
    first = lines[0][:1] if lines else ""
    if len(lines) < _LEAST_LINES or not all(line.startswith(first) for line in lines):
        return False
    try:
        return all(isinstance(json.loads(line), dict | list) for line in lines[:_LEAST_LINES])
    except (ValueError, RecursionError):
        return False


def _may_be_json(beginning: str) -> bool:
    """Return whether the first line of a longer text may begin JSON: that of a log is `[INFO] started`."""
    try:
        scan_value(beginning, 0)
    except json.JSONDecodeError as error:
        failed = len(beginning) if error.msg.startswith("Unterminated") else error.pos
    except StopIteration as error:
        failed = error.value
    except RecursionError:
        return True
    else:
        return True
    return "\n" in beginning[:failed] or failed > len(beginning) - _LONGEST_WORD


def _array_form(sample: Sample) -> Form | None:
    reader = JsonReader(sample.text)
    try:
        members = reader.members()
        kinds = {type(reader.value()) for _ in islice(members, _SAMPLED_MEMBERS)}
        if next(members, None) is None and reader.peek():
            # It is a text that begins with a word in brackets.
            return None
    except (BrokenJsonError, RecursionError):
        return None if sample.is_whole else Form("JSON", _array_rows, is_certain=False, is_typed=True)
    form = Form("JSON", _array_rows, is_certain=kinds == {dict}, is_typed=True) if kinds else None
    if form is None or not (form.is_certain and sample.is_whole):
        return form
    with suppress(BrokenJsonError, RecursionError):  # Its first rows are read.
        return form._replace(parsed=map(_row, JsonReader(sample.text).value()))
    return form


def _line_rows(chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
    yield from _named(_line_values(chunks, remarks), remarks)


def _line_values(chunks: Iterable[str], remarks: Remarks) -> Iterator[Any]:
    for number, line in enumerate(lines_of(chunks, remarks), 1):
        try:
            value, end = scan_value(line, 0) if line.startswith("{") else (json.loads(line), len(line))
        except (StopIteration, ValueError, RecursionError):
            if line.strip():
                remarks.add("lines that are not JSON", number, is_misfit=True)
        else:
            if end < len(line.rstrip()):
                remarks.add("lines with a text after the JSON, not read", number, is_misfit=True)
            yield value


def _array_rows(
    chunks: Iterable[str],
    remarks: Remarks,
    start: int = 0,
    names: tuple[str, ...] = (),
    *,
    is_object: bool = False,
) -> Iterator[Row]:
    reader = JsonReader(chunks, start=start)
    with _refusing():
        if is_object:
            yield from _keyed((key, reader.value()) for key in reader.members())
        else:
            yield from _named((reader.value() for _ in reader.members()), remarks, names)
        if start == 0 and reader.peek():
            remarks.add("texts after the JSON, not read", reader.place, "character")


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise `NoTableError` for malformed JSON."""
    try:
        yield
    except BrokenJsonError as error:
        raise NoTableError(f"invalid JSON at character {error.place}: {error}") from error
    except RecursionError as error:
        raise NoTableError("invalid JSON: it is nested too deeply") from error


def _named(values: Iterator[Any], remarks: Remarks, names: tuple[str, ...] = ()) -> Iterator[Row]:
    """Yield values as rows; if they are arrays, the first one may have the names."""
    first = [*islice(values, _NAMED_ROWS)]
    if not names and first and all(isinstance(value, list) for value in first):
        if is_typed_heading(first[0], first[1:]):
            names, *first = tuple(first[0]), *first[1:]
        elif first[0] and all(isinstance(cell, str) for cell in first[0]):
            shown = ", ".join(first[0][:_SHOWN_NAMES])[:100]
            remarks.notes.append(
                f"the first array is a row here, but may have the names of the columns: {shown}"
            )
    for value in chain(first, values):
        yield _row(value, names)


def _keyed(members: Iterable[tuple[Any, Any]]) -> Iterator[dict[Any, Any]]:
    """Yield the members of an object as rows."""
    return ({_KEY: key, **_row(value)} for key, value in members)


def _row(value: Any, names: tuple[str, ...] = ()) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        places = enumerate(value)
        return {names[at] if at < len(names) else f"column{at + 1}": cell for at, cell in places}
    return {"value": value}


def _object_rows(chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
    """Yield the rows of the largest array of rows in an object, or of another container without one."""
    with _refusing():
        arrays = [*_arrays(JsonReader(chunks), "", 0)]
    largest = max(arrays, key=_rank)
    names = _names_of(largest, arrays)
    others = [array for array in arrays if not array.is_object and array.members and array is not largest]
    if others:
        shown = ", ".join(f"{array.pointer} ({array.members:,})" for array in others[:_SHOWN_ARRAYS])
        more = f" and {len(others) - _SHOWN_ARRAYS:,} more" if len(others) > _SHOWN_ARRAYS else ""
        where = largest.pointer or "the object itself"
        remarks.notes.append(f"t is {where}; other arrays, with their sizes, are {shown}{more}")
    yield from _array_rows(chunks, remarks, largest.start, names, is_object=largest.is_object)


def _names_of(table: _Array, arrays: Iterable[_Array]) -> tuple[str, ...]:
    """Return the names of the columns of arrays, if an array next to them has as many."""
    parent = table.pointer.rpartition("/")[0]
    named = (
        array.names
        for array in arrays
        if _NAMES.fullmatch(array.pointer) and array.pointer.rpartition("/")[0] == parent
    )
    fitting = (names for names in named if len(names) == table.width and len({*names}) == len(names))
    return next(fitting, ())


def _rank(array: _Array) -> tuple[bool, bool, bool, int]:
    has_rows = 2 * array.rows > array.members
    is_map = has_rows and array.is_object and array.members > 1
    return (has_rows and not array.is_object, is_map, not array.is_object, array.members)


def _arrays(reader: JsonReader, pointer: str, depth: int) -> Iterator[_Array]:
    """Yield the containers of the object here that may be tables, itself the last."""
    reader.peek()
    start, objects, count = reader.place, 0, 0
    for key in reader.members():
        name = member_pointer(pointer, key)
        first = reader.peek()
        count, objects = count + 1, objects + (first == "{")
        if first == "[":
            place = reader.place
            yield _array_of((reader.value() for _ in reader.members()), name, place)
        elif first == "{" and depth < _DEPTH and objects <= _SEARCHED_OBJECTS:
            yield from _arrays(reader, name, depth + 1)
        else:
            reader.value()
    yield _Array(pointer, start, objects, count, is_object=True)
