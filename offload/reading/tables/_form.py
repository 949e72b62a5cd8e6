"""The form of a table in a text: its columns, and how its rows are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from offload.base.text import escape_surrogates
from offload.errors import ConfigError

MAX_COLUMNS = 1000
# A longer cell or line is cut.
MAX_CELL_CHARS = 50_000
_NAME_CHARS = 60
_HEAD_LINES = 1000
# Lines of the beginning by which a reader is chosen.
SAMPLED_LINES = 60
_SPACE = re.compile(r"[\s\x00-\x1f\x7f\[\]\"]+")

# The cells of a row, or its members by name; a member None is the key of the row in JSON.
Row = Sequence[Any] | dict[str, Any]


class NoTableError(ConfigError):
    """A text is not a table after all; the message gives the reason."""

    kind = "no_table"


@dataclass
class Remarks:
    """Parts of a text that a table does not show as they are: for each sort how many, and the first place.

    Attributes:
        misfits: how many lines should have been rows, and are not, or are not whole.
        notes: lines about the table itself.
    """

    sorts: dict[str, tuple[int, str]] = field(default_factory=dict)
    misfits: int = 0
    notes: list[str] = field(default_factory=list)

    def add(self, sort: str, place: int, unit: str = "line", *, is_misfit: bool = False) -> None:
        """Count one more of a sort, at a line, or at a row."""
        count, first = self.sorts.get(sort, (0, f"{unit} {place:,}"))
        self.sorts[sort] = (count + 1, first)
        self.misfits += is_misfit

    def counts(self) -> list[str]:
        return [f"{sort}: {count:,}, first at {first}" for sort, (count, first) in self.sorts.items()]

    def texts(self) -> list[str]:
        return [*self.notes, *self.counts()]


class Form(NamedTuple):
    """A table in a text.

    Attributes:
        name: the kind of text.
        rows: yields the rows of the whole text, given its chunks and a place for remarks.
        columns: names of the columns in the text; None if the rows have their own.
        is_certain: whether a placeholder may show the columns; else the beginning may deceive.
        is_typed: whether cells have types of their own, as in JSON; others are texts.
        score: how well it explains the sample, from 0 to 1.
        fits: returns the share of lines from another part of the text that are rows.
        is_comma_decimal: whether a comma in a number may be that of a decimal.
        misfit: why it is not a table after all, "" if it is.
    """

    name: str
    rows: Callable[[Iterable[str], Remarks], Iterator[Row]]
    columns: tuple[str, ...] | None = None
    is_certain: bool = True
    is_typed: bool = False
    pointer: str = ""
    score: float = 1.0
    fits: Callable[[Sequence[str]], float] = lambda _: 1.0
    is_comma_decimal: bool = False
    misfit: str = ""


class Sample(NamedTuple):
    """The beginning of a text, and its first complete `lines`, without line ends.

    `filled` are the lines that readers examine: the first ones that are not blank.
    """

    text: str
    is_whole: bool
    lines: list[str]
    filled: list[str]

    @classmethod
    def of(cls, text: str, *, is_whole: bool) -> Sample:
        lines = text.split("\n", _HEAD_LINES)
        has_end = is_whole and lines[-1] != "" and len(lines) <= _HEAD_LINES
        lines = lines if has_end else lines[:-1]
        lines = [line.removesuffix("\r") for line in lines] if "\r" in text else lines
        filled = [*islice((line for line in lines if line and not line.isspace()), SAMPLED_LINES)]
        return cls(text, is_whole, lines, filled)


def may_fit(lines: Sequence[str], least: float, fits: Callable[[str], object]) -> bool:
    """Return False if fewer than `least` of the lines fit for sure, by the first ones alone."""
    return any(map(fits, lines[: max(0, int(len(lines) - least)) + 1]))


def lines_of(chunks: Iterable[str], remarks: Remarks | None = None) -> Iterator[str]:
    """Yield the lines of a text without their ends; a line over `MAX_CELL_CHARS` is cut."""
    rest, number = "", 0
    for chunk in chunks:
        if len(rest) > MAX_CELL_CHARS:
            # Text beyond the limit is dropped at once, for one line may be the whole text.
            rest, border, chunk = rest[: MAX_CELL_CHARS + 1], *chunk.partition("\n")[1:]  # noqa: PLW2901  # the rest of the same chunk
            if not border:
                continue
            chunk = border + chunk  # noqa: PLW2901  # the rest of the same chunk
        *lines, rest = (rest + chunk).split("\n")
        for line in lines:
            number += 1
            yield line if len(line) <= MAX_CELL_CHARS else _cut(line, number, remarks)
    if rest:
        yield rest if len(rest) <= MAX_CELL_CHARS else _cut(rest, number + 1, remarks)


def _cut(line: str, number: int, remarks: Remarks | None) -> str:
    if remarks is not None:
        remarks.add(f"lines cut to {MAX_CELL_CHARS:,} characters", number)
    return line[:MAX_CELL_CHARS]


class Ended:
    """Chunks of a text; `is_open` once the last one came without an end of its line."""

    def __init__(self, chunks: Iterable[str]) -> None:
        self._chunks = chunks
        self.is_open = False

    def __iter__(self) -> Iterator[str]:
        for chunk in self._chunks:
            self.is_open = not chunk.endswith("\n") if chunk else self.is_open
            yield chunk

    def whole(self, rows: Iterable[tuple[int, Row]], remarks: Remarks) -> Iterator[Row]:
        """Yield numbered rows; the last one only if its line has an end, or its last cell a value."""
        last: tuple[int, Row] | None = None
        width = 0
        for row in rows:
            if last is not None:
                yield last[1]
                width = len(last[1])
            last = row
        if last is None:
            return
        number, cells = last
        if self.is_open and (len(cells) < width if isinstance(cells, dict) else not cells[-1]):
            remarks.add("rows that the end of the text may cut, not read", number, is_misfit=True)
        else:
            yield cells


class LineReader(NamedTuple):
    """Reads a text with one row on a line.

    Attributes:
        cut: returns the cells of a line, or nothing if it is not a row.
        start: the number of lines before the first row.
        heading: how many of these, the last ones, belong to the table.
        names: those of the columns of a table that ends with a blank line, or where other names follow.
    """

    cut: Callable[[str], Row]
    start: int = 0
    heading: int = 0
    names: Sequence[str] = ()

    def rows(self, chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
        """Yield the rows of the whole text."""
        text = Ended(chunks)
        yield from text.whole(self._rows(text, remarks), remarks)

    def _rows(self, text: Iterable[str], remarks: Remarks) -> Iterator[tuple[int, Row]]:
        has_begun = is_over = False
        for number, line in enumerate(each.removesuffix("\r") for each in lines_of(text, remarks)):
            is_over = is_over or (has_begun and self.names != () and not line.strip())
            cells = self.cut(line) if number >= self.start and not is_over and line.strip() else ()
            if cells and self.names and not isinstance(cells, dict) and cells[0] == self.names[0] != "":
                cells, is_over = (), True
            if cells:
                has_begun = True
                yield number + 1, cells
            elif line.strip() and not self.start - self.heading <= number < self.start:
                remarks.add("lines that are not rows", number + 1, is_misfit=number >= self.start)

    def fits(self, lines: Sequence[str]) -> float:
        """Return the share of the lines that are rows."""
        filled = [line for line in lines if line.strip()]
        return sum(bool(self.cut(line)) for line in filled) / len(filled) if filled else 1.0


def fitted(cells: Sequence[str], width: int, number: int, remarks: Remarks) -> list[str | None]:
    """Return a row with as many cells as there are columns; `number` is its line, for remarks."""
    if len(cells) > width:
        remarks.add("rows with more cells than columns, cut", number, is_misfit=True)
    elif len(cells) < width:
        remarks.add("short rows, filled with NULL", number, is_misfit=True)
    return [*cells[:width], *[None] * (width - len(cells))]


def names_for(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of columns: on one line, not empty, and different also if case is ignored."""
    taken: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        plain = _SPACE.sub(" ", escape_surrogates(name)).strip()[:_NAME_CHARS] or f"column{number}"
        candidate, again = plain, 1
        while candidate.lower() in taken:
            again += 1
            candidate = f"{plain}_{again}"
        taken[candidate.lower()] = candidate
    return tuple(taken.values())
