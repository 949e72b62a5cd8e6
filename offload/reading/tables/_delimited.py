"""Tables of texts between commas, semicolons, tabs or bars, and single columns under a name."""

from __future__ import annotations

import csv
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from offload.reading.tables._form import (
    MAX_CELL_CHARS,
    MAX_COLUMNS,
    Form,
    NoTableError,
    Remarks,
    Row,
    Sample,
    fitted,
    lines_of,
    names_for,
)
from offload.reading.tables._names import Heading, heading_of

# Lines before a table that do not belong to it.
_MOST_BEFORE = 8
# Shares of the rows with one width: of a table, and of one that is too doubtful to be read.
_FITTING, _LIKELY = 0.9, 0.6
_LEAST_ROWS = 2
_PAIR = 2
_NAMES = {"\t": "TSV", ",": "CSV", ";": "CSV with semicolons", "|": "CSV with bars"}
_COMMENT = re.compile(r"\s*(?:#|//)")
_DIRECTIVE = re.compile(r"sep=(.)", re.IGNORECASE)
# Characters that are parsed without finding the ends of quotes, in all.
_MOST_SOUGHT = 20_000_000
# How well a table is known: by its names, by values of one kind, or only by its delimiters.
_BY_NAMES, _BY_LIKELY_NAMES, _BY_VALUES, _BY_PLACES, _BY_NOTHING = 0.95, 0.93, 0.7, 0.6, 0.3
_NARROW = 0.1


class _Dialect(NamedTuple):
    """The way to cut the lines of a table.

    Attributes:
        is_spaced: whether a blank follows each delimiter.
    """

    delimiter: str
    width: int
    is_spaced: bool = False

    def cut(self, line: str) -> list[str]:
        """Return the cells of a line without regard to quotes."""
        cells = line.split(self.delimiter)
        return [cell.strip(" ") for cell in cells] if self.is_spaced or self.delimiter == "|" else cells

    def unquoted(self, text: str) -> list[str] | None:
        """Return the cells of a text with quotes, none if one has no end; None if quotes are only text."""
        try:
            [cells] = csv.reader(
                [f"{line}\n" for line in text.split("\n")],
                delimiter=self.delimiter,
                strict=True,
                skipinitialspace=self.is_spaced,
            )
        except csv.Error as error:
            return [] if "end of data" in str(error) else None
        except ValueError:
            return None
        return [*cells[:-1], cells[-1].removesuffix("\n")]


class _Rows:
    """The rows in numbered lines; `number` is the line of the one that was returned last.

    A cell in quotes may go over several lines. Where each of these is a row without regard to quotes, or no
    quote ends it, the quote is text.
    """

    def __init__(self, lines: Iterable[tuple[int, str]], dialect: _Dialect, remarks: Remarks) -> None:
        self._lines = iter(lines)
        self._ahead: deque[tuple[int, str]] = deque()
        self._dialect = dialect
        self._remarks = remarks
        self._sought = 0
        self.number = 0

    def __iter__(self) -> Iterator[list[str]]:
        cut = self._dialect.cut
        while True:
            if self._ahead:
                self.number, line = self._ahead.popleft()
            else:
                self.number, line = next(self._lines, (0, ""))
                if not self.number:
                    return
            yield self._quoted(line) if '"' in line else cut(line)

    def _quoted(self, line: str) -> list[str]:
        cells = self._dialect.unquoted(line)
        if cells == [] and line:
            cells = self._over_lines(line)
        if cells is not None:
            return cells
        if self._dialect.delimiter != "\t" or line.count('"') % 2:
            self._remarks.add("lines with a quote that is read as text", self.number)
        return self._dialect.cut(line)

    def _over_lines(self, line: str) -> list[str] | None:
        """Return the cells of a row that goes over several lines, None if its quote is text."""
        dialect, text, are_rows = self._dialect, line, len(self._dialect.cut(line)) == self._dialect.width
        for count in range(1, MAX_CELL_CHARS):
            following = self._following(count)
            if following is None or len(text) > MAX_CELL_CHARS or self._sought > _MOST_SOUGHT:
                return None
            text += f"\n{following}"
            are_rows = are_rows and len(dialect.cut(following)) == dialect.width
            if '"' not in following:
                continue
            self._sought += len(text)
            cells = dialect.unquoted(text)
            if cells is None or (cells and are_rows):
                return None
            if cells:
                self._sought -= len(text)
                for _ in range(count):
                    self._ahead.popleft()
                return cells
        return None

    def _following(self, count: int) -> str | None:
        """Return the line that is `count` lines ahead, None at the end."""
        while len(self._ahead) < count:
            line = next(self._lines, None)
            if line is None:
                return None
            self._ahead.append(line)
        return self._ahead[count - 1][1]


def delimited_forms(sample: Sample) -> Iterator[Form]:
    """Yield the tables of texts between delimiters, one for each delimiter that the lines share."""
    lines = sample.filled
    directive = _DIRECTIVE.fullmatch(lines[0]) if lines else None
    for delimiter in (directive[1],) if directive else _NAMES:
        form = _delimited(lines[directive is not None :], delimiter, is_told=directive is not None)
        if form is not None:
            yield form


def _delimited(lines: Sequence[str], delimiter: str, *, is_told: bool) -> Form | None:
    counts = [line.count(delimiter) for line in lines]
    if delimiter in '"\r\n' or 2 * sum(map(bool, counts)) < len(lines):
        return None
    if max(counts) >= MAX_COLUMNS:
        raise NoTableError(f"it has more than {MAX_COLUMNS:,} columns")
    comments = next((at for at, line in enumerate(lines) if not _COMMENT.match(line)), len(lines))
    table = _DelimitedTable.of(lines[comments:], delimiter)
    if table is None:
        return None
    heading = table.heading(lines[comments - 1] if comments else "")
    score = _score(table, heading)
    if table.misfit and (heading.doubt or not heading.names):
        return None
    if (table.first and heading.doubt != "") or table.first > _MOST_BEFORE:
        return None
    if delimiter != "\t" and sum("\t" in line for line in lines) * 2 > len(lines):
        score *= 0.5
    return Form(
        _NAMES.get(delimiter, f"table with {delimiter}"),
        partial(_rows, dialect=table.dialect, heading=heading, is_told=is_told),
        names_for(heading.names or [""] * table.dialect.width),
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
        is_spaced = delimiter not in "\t|" and 10 * spaced > 9 * sum(line.count(delimiter) for line in lines)
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

    def heading(self, comment: str) -> Heading:
        """Return the names of the columns, of the first row or of the comment before it."""
        rows = [row for row in self.rows if len(row) == self.dialect.width]
        found = heading_of(rows)
        above = self.dialect.cut(_COMMENT.sub("", comment).strip(" ")) if comment else []
        if len(above) == self.dialect.width and (not found.names or found.doubt):
            named = heading_of([above, *rows])
            return named._replace(is_above=True) if named.names and not named.doubt else found
        return found


def _score(table: _DelimitedTable, heading: Heading) -> float:
    share = table.fitting / max(len(table.rows), 1)
    if heading.names and not heading.doubt:
        return share * _BY_NAMES
    if heading.is_likely and not table.dialect.is_spaced:
        return share * _BY_LIKELY_NAMES
    known = _BY_NOTHING
    if heading.has_values:
        known = _BY_VALUES
    elif heading.names and not table.dialect.is_spaced:
        known = _BY_PLACES
    return share * (known - _NARROW * (table.dialect.width == _PAIR))


def _fits(lines: Sequence[str], dialect: _Dialect) -> float:
    rows = [row for row in _Rows(enumerate(lines, 1), dialect, Remarks()) if any(row)]
    return sum(len(row) == dialect.width for row in rows) / len(rows) if rows else 1.0


def _rows(
    chunks: Iterable[str], remarks: Remarks, *, dialect: _Dialect, heading: Heading, is_told: bool
) -> Iterator[Row]:
    lines = ((number, line.removesuffix("\r")) for number, line in enumerate(lines_of(chunks, remarks), 1))
    if is_told:
        next((line for _, line in lines if line.strip()), None)
    if heading.doubt:
        remarks.notes.append(heading.doubt)
    is_named = heading.names == () or heading.is_above
    has_begun = False
    rows = _Rows(_without_comments(lines, remarks), dialect, remarks)
    for row in rows:
        if len(row) == dialect.width:
            if is_named:
                yield row
            has_begun = is_named = True
        elif has_begun and len(row) >= _PAIR:
            yield fitted(row, dialect.width, rows.number, remarks)
        elif any(row):
            remarks.add("lines that are not rows", rows.number, is_misfit=has_begun)


def _without_comments(lines: Iterator[tuple[int, str]], remarks: Remarks) -> Iterator[tuple[int, str]]:
    """Yield lines from the first one that is neither blank nor a comment."""
    for number, line in lines:
        if line.strip() and not _COMMENT.match(line):
            yield number, line
            break
        if line.strip():
            remarks.add("comment lines before the table", number)
    yield from lines


def column_forms(sample: Sample) -> Iterator[Form]:
    """Yield the table of one column: a name, and values of one kind below it."""
    lines = sample.filled
    if len(lines) <= _LEAST_ROWS or any(delimiter in lines[0] for delimiter in _NAMES):
        return
    heading = heading_of([[line.strip()] for line in lines])
    if heading.names and heading.has_values and not heading.doubt and heading.is_word:
        yield Form("column", _single_rows, names_for(heading.names), is_certain=False, score=_BY_PLACES)


def _single_rows(chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
    lines = ((n, line.strip()) for n, line in enumerate(lines_of(chunks, remarks), 1))
    for _, line in islice((found for found in lines if found[1]), 1, None):
        yield [line]
