"""Tables of texts between commas, semicolons, tabs or bars, and single columns under a name."""

from __future__ import annotations

import csv
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from offload.reading.tables._form import (
    MAX_COLUMNS,
    Ended,
    Form,
    NoTableError,
    Remarks,
    Row,
    Sample,
    fitted,
    lines_of,
)
from offload.reading.tables._names import Heading, heading_of

# Lines before a table that do not belong to it.
_MOST_BEFORE = 8
# Shares of the rows with one width: of a table, and of one that is too doubtful to be read.
_FITTING, _LIKELY = 0.9, 0.6
_LEAST_ROWS = 2
_PAIR = 2
_NAMES = {"\t": "TSV", ",": "CSV", ";": "CSV with semicolons", "|": "CSV with bars"}
# Excel reads the delimiter from a first line `sep=;`.
_COMMENT = re.compile(r"\s*(?:#|//)|sep=.\s*\Z")
# How well a table is known: by its names, by values of one kind, or only by its delimiters.
_BY_NAMES, _BY_LIKELY_NAMES, _BY_VALUES, _BY_PLACES = 0.95, 0.93, 0.7, 0.6
_NARROW = 0.1


class _Dialect(NamedTuple):
    """The way to cut the lines of a table.

    Attributes:
        is_spaced: whether blanks around delimiters are no part of cells.
    """

    delimiter: str
    width: int
    is_spaced: bool = False

    def cut(self, line: str) -> list[str]:
        """Return the cells of a line without regard to quotes."""
        return self.bare(line.removesuffix("\r").split(self.delimiter))

    def bare(self, cells: list[str]) -> list[str]:
        return [cell.strip(" ") for cell in cells] if self.is_spaced or self.delimiter == "|" else cells


class _Rows:
    """The rows in numbered lines, as RFC 4180 has them; `number` is the last line of the one that came last.

    A quote is text in a row that has no other reading.
    """

    def __init__(self, lines: Iterable[tuple[int, str]], dialect: _Dialect, remarks: Remarks) -> None:
        self._lines = iter(lines)
        self._taken: deque[tuple[int, str]] = deque()
        self._ahead: deque[tuple[int, str]] = deque()
        self._dialect = dialect
        self._remarks = remarks
        self.number = 0

    def _feed(self) -> Iterator[str]:
        """Yield lines with their ends; those of the row that is being read are kept."""
        while True:
            numbered = self._ahead.popleft() if self._ahead else next(self._lines, None)
            if numbered is None:
                return
            self._taken.append(numbered)
            yield f"{numbered[1]}\n"

    def __iter__(self) -> Iterator[list[str]]:
        dialect, is_over = self._dialect, False
        while not is_over:
            reader = csv.reader(
                self._feed(), delimiter=dialect.delimiter, strict=True, skipinitialspace=dialect.is_spaced
            )
            try:
                for cells in reader:
                    self.number = self._taken[-1][0]
                    if (
                        len(self._taken) > 1
                        and dialect.delimiter == "\t"
                        and self._rows_taken == len(self._taken)
                    ):
                        raise NoTableError(
                            f"quotes may be text, or hold line ends: line {self._taken[0][0]:,}"
                        )
                    self._taken.clear()
                    yield dialect.bare(cells)
                is_over = True
            except csv.Error as error:
                is_over = "end of data" in str(error) and self._is_cut
                self.number, line = self._taken.popleft()
                if is_over:
                    self._remarks.add("rows cut at the end of the text", self.number, is_misfit=True)
                    return
                self._ahead.extendleft(reversed(self._taken))
                self._taken.clear()
                if '"' in line:
                    self._remarks.add("lines with a quote that is read as text", self.number)
                yield dialect.cut(line)

    @property
    def _rows_taken(self) -> int:
        """The number of lines of the current row that are rows if quotes are text."""
        return sum(len(self._dialect.cut(line)) == self._dialect.width for _, line in self._taken)

    @property
    def _is_cut(self) -> bool:
        """Whether a row without its last quote is one that the end of the text cuts."""
        is_row = 2 * self._rows_taken > len(self._taken) > 1
        return self._dialect.delimiter != "\t" and self._dialect.width > 0 and not is_row


def delimited_forms(sample: Sample) -> Iterator[Form]:
    """Yield the tables of texts between delimiters, one for each delimiter that the lines share."""
    first = next((at for at, line in enumerate(sample.filled) if not _COMMENT.match(line)), 0)
    for delimiter in _NAMES:
        form = _delimited(sample.filled[first:], delimiter)
        if form is not None:
            yield form


def _delimited(lines: Sequence[str], delimiter: str) -> Form | None:
    counts = [line.count(delimiter) for line in lines]
    if 2 * sum(map(bool, counts)) < len(lines):
        return None
    if max(counts) >= MAX_COLUMNS:
        raise NoTableError(f"it has more than {MAX_COLUMNS:,} columns")
    table = _DelimitedTable.of(lines, delimiter)
    if table is None:
        return None
    heading = heading_of([row for row in table.rows if len(row) == table.dialect.width])
    score = _score(table, heading)
    if table.first > _MOST_BEFORE or ((table.misfit or table.first) and (heading.doubt or not heading.names)):
        return None
    if delimiter != "\t" and sum("\t" in line for line in lines) * 2 > len(lines):
        score *= 0.5
    return Form(
        _NAMES[delimiter],
        partial(_rows, dialect=table.dialect, heading=heading),
        heading.names or ("",) * table.dialect.width,
        is_certain=table.is_regular and heading.names != () and not heading.doubt,
        score=score,
        fits=partial(_fits, dialect=table.dialect),
        is_comma_decimal=delimiter == ";",
        misfit=table.misfit,
    )


class _DelimitedTable(NamedTuple):
    """The rows of a sample, from the first one that has the width of most."""

    dialect: _Dialect
    rows: list[list[str]]
    first: int
    fitting: int

    @classmethod
    def of(cls, lines: Sequence[str], delimiter: str) -> _DelimitedTable | None:
        spaced = sum(line.count(f"{delimiter} ") for line in lines)
        is_spaced = 10 * spaced > 9 * sum(line.count(delimiter) for line in lines)
        # Some tools pad the cells between tabs.
        is_spaced = 2 * sum(" \t" in line for line in lines) > len(lines) if delimiter == "\t" else is_spaced
        rows = [*_Rows(enumerate(lines, 1), _Dialect(delimiter, 0, is_spaced), Remarks())]
        if not rows:
            return None
        width = Counter(map(len, rows)).most_common(1)[0][0]
        dialect = _Dialect(delimiter, width, is_spaced)
        if any('"' in line for line in lines):
            # With the width known, a quote that is only text swallows no rows.
            rows = [*_Rows(enumerate(lines, 1), dialect, Remarks())]
        first = next((at for at, row in enumerate(rows) if len(row) == width), len(rows))
        fitting = sum(len(row) == width for row in rows[first:])
        if width < _PAIR or fitting < max(_LEAST_ROWS, _LIKELY * (len(rows) - first)):
            return None
        table = cls(dialect, rows[first:], first, fitting)
        return None if table.is_prose else table

    @property
    def misfit(self) -> str:
        """Why it is not a table, "" if enough rows have its width."""
        others = len(self.rows) - self.fitting
        if self.fitting >= _FITTING * (len(self.rows) - 1):
            return ""
        return f"{others} of its first {len(self.rows)} lines do not fit"

    @property
    def is_regular(self) -> bool:
        return self.first == 0 and self.fitting >= len(self.rows) - 1 and self.fitting > _PAIR

    @property
    def is_prose(self) -> bool:
        """Whether the delimiter is only a part of sentences or code."""
        rows = [row for row in self.rows if len(row) == self.dialect.width]
        if self.dialect.delimiter == "\t":
            # Indented code, and lines after the numbers that a file reader prints.
            return not any(row[0].strip() for row in rows) or all(row[0][:1] == " " for row in rows)
        return not any(cell.strip() for row in rows for cell in row[-1:])


def _score(table: _DelimitedTable, heading: Heading) -> float:
    is_sure, is_spaced = heading.names != () and not heading.doubt, table.dialect.is_spaced
    ways = {
        _BY_NAMES: is_sure,
        _BY_LIKELY_NAMES: heading.is_likely and not is_spaced,
        _BY_VALUES: heading.has_values,
        _BY_PLACES: heading.names and not is_spaced,
    }
    known = next((score for score, holds in ways.items() if holds), 0.0)
    is_narrow = known <= _BY_VALUES and table.dialect.width == _PAIR
    return (known - _NARROW * is_narrow) * table.fitting / max(len(table.rows), 1)


def _fits(lines: Sequence[str], dialect: _Dialect) -> float:
    rows = [row for row in _Rows(enumerate(lines, 1), dialect, Remarks()) if any(row)]
    return sum(len(row) == dialect.width for row in rows) / len(rows) if rows else 1.0


def _rows(chunks: Iterable[str], remarks: Remarks, *, dialect: _Dialect, heading: Heading) -> Iterator[Row]:
    text = Ended(chunks)
    yield from text.whole(_numbered_rows(text, remarks, dialect, heading), remarks)


def _numbered_rows(
    text: Iterable[str], remarks: Remarks, dialect: _Dialect, heading: Heading
) -> Iterator[tuple[int, Row]]:
    lines: Iterator[tuple[int, str]] = enumerate(lines_of(text, remarks), 1)
    if heading.doubt:
        remarks.notes.append(heading.doubt)
    skipped, count, is_parted = int(heading.names != ()), 0, False
    is_plain = heading.is_plain
    rows = _Rows(_without_comments(lines, remarks), dialect, remarks)
    for row in rows:
        is_row = len(row) == dialect.width
        if not any(row) and not (count and is_row):
            is_parted = count > 0
        elif is_parted or not (is_row or (count and len(row) >= _PAIR)):
            sort = "lines behind a blank line, not read" if is_parted else "lines that are not rows"
            remarks.add(sort, rows.number, is_misfit=count > 0)
        else:
            count += 1
            if count > skipped:
                if not is_plain(row):
                    _remark_names(row, rows.number, heading, remarks)
                yield rows.number, row if is_row else fitted(row, dialect.width, rows.number, remarks)


def _remark_names(row: Sequence[str], number: int, heading: Heading, remarks: Remarks) -> None:
    if len(row) == len(heading.names) and (tuple(row) == heading.names or not heading.is_like(row)):
        remarks.add("rows that may be names of columns", number)


def _without_comments(lines: Iterator[tuple[int, str]], remarks: Remarks) -> Iterator[tuple[int, str]]:
    """Yield lines from the first one that is neither blank nor a comment."""
    for number, line in lines:
        if line.strip() and not _COMMENT.match(line):
            yield number, line
            break
        if line.strip():
            remarks.add("comment lines before the table", number)
    yield from lines
