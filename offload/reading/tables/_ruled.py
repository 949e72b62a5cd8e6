"""Tables whose cells are between bars, under a line of dashes: Markdown, psql, mysql, boxes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from offload.reading.tables._form import MAX_COLUMNS, Form, Remarks, Row, Sample, fitted, lines_of

_LEAST_ROWS = 2
_PAIR = 2
_SCORE = 0.97
# A line between rows, or between the names and the rows, in any of the usual characters.
_RULE = re.compile(r"(?s:(?=[\s|+:=\-\u2500-\u257f]*+\Z).*?(?:[-:]-|[\u2500-\u257f]|={3}).*)")
_BARS = "|\u2502\u2503\u2551"
_ANY_BAR = re.compile(f"[{_BARS}]")
_BAR = re.compile(rf"(?<!\\)[{_BARS}]")
# A place of a rule where columns meet.
_CROSSING = re.compile(r"[^\s=:\-\u2500\u2501\u2550]")
_COUNT = re.compile(r"\(?(\d+) rows?(?:\)| in set.*)")


class _Style(NamedTuple):
    """The way in which a table is drawn.

    Attributes:
        rule: the line below the names.
        width: how many columns it has.
        has_outer: whether a bar is before the first cell.
        is_box: whether a line closes it, so that cells may go over several lines.
    """

    rule: str
    width: int
    has_outer: bool
    is_box: bool

    @property
    def is_markdown(self) -> bool:
        return "+" not in self.rule and not self.is_box

    @property
    def is_closed(self) -> bool:
        """Whether a bar is after the last cell."""
        return self.has_outer and _CROSSING.match(self.rule.rstrip()[-1:]) is not None

    def is_rule(self, line: str) -> bool:
        """Return whether a line below the names has no cells."""
        if _RULE.fullmatch(line) is None:
            return False
        return not self.is_markdown or _ANY_BAR.search(line) is None or line.strip() == self.rule.strip()

    def cells(self, line: str) -> list[str]:
        """Return the cells of a line as they are, none if it has no bars."""
        if _ANY_BAR.search(line) is None or self.is_rule(line):
            return []
        if not self.is_markdown and (found := self._placed(line)):
            return found
        bare = line.strip()
        # In Markdown a single row may have bars that the names do not have.
        has_outer = self.has_outer or (bare == line and bare[0] in _BARS and bare[-1] in _BARS)
        if has_outer:
            bare = bare[bare[0] in _BARS :]
            is_closed = bare[-1:] in _BARS and bare != "" and not (self.is_markdown and bare.endswith("\\|"))
            bare = bare[:-1] if is_closed else bare
        else:
            bare = line
        return (_BAR if self.is_markdown else _ANY_BAR).split(bare)[: MAX_COLUMNS + 1]

    def _placed(self, line: str) -> list[str]:
        """Return the cells between the bars where columns of the rule meet, none if bars are elsewhere."""
        places = [found.start() for found in _CROSSING.finditer(self.rule)]
        wide = line if line.isascii() else "".join(map(_padded, line))
        if not places or not all(_ANY_BAR.match(wide, place) for place in places):
            return []
        borders = places if self.has_outer else [-1, *places, len(wide)]
        return [wide[start + 1 : end].replace("\0", "") for start, end in pairwise(borders)][
            : MAX_COLUMNS + 1
        ]

    def values(self, cells: Sequence[str]) -> list[str]:
        return [cell.strip().replace("\\|", "|") if self.is_markdown else cell.strip() for cell in cells]


def _padded(char: str) -> str:
    """Return a character with a sign for each more place that it takes."""
    return f"{char}\0" if unicodedata.east_asian_width(char) in ("W", "F") else char


class _RuledTable(NamedTuple):
    """A table in lines: the index of its first row, its style, its names and the number of its rows."""

    start: int
    style: _Style
    names: list[str]
    rows: int


def ruled_forms(sample: Sample) -> Iterator[Form]:
    """Yield the longest table whose cells are between bars."""
    tables = [*_tables(sample.lines)] if any(bar in sample.text for bar in _BARS) else []
    if not tables:
        return
    table = max(tables, key=lambda found: found.rows)
    rules = sum(_RULE.fullmatch(line) is not None for line in sample.lines)
    others = sum(not line.isspace() for line in sample.lines if line) - rules - table.rows - 1
    if len(tables) == 1 and others > _PAIR + table.rows and table.rows < _LEAST_ROWS:
        return
    note = f"t is the longest of {len(tables)} tables, its names at line {table.start - 1}"
    read = partial(_rows, start=table.start, style=table.style, note=note if len(tables) > 1 else "")
    is_certain = table.rows >= _LEAST_ROWS and others <= max(_PAIR, table.rows // 10)
    yield Form("table", read, tuple(table.names), is_certain=is_certain, score=_SCORE)


def _tables(lines: Sequence[str]) -> Iterator[_RuledTable]:
    end = 0
    for at in [at for at, line in enumerate(lines) if _RULE.fullmatch(line)]:
        header = lines[at - 1]
        if at <= end or _ANY_BAR.search(header.strip().strip(_BARS)) is None or _RULE.fullmatch(header):
            continue
        style = _style_of(lines, at)
        end = start = at + 1
        # Rows of a table whose names are not known do not name another one.
        while end < len(lines) and (_ANY_BAR.search(lines[end]) or _RULE.fullmatch(lines[end])):
            end += 1
        if style is None:
            continue
        names = style.values(style.cells(header))[:MAX_COLUMNS]
        yield _RuledTable(start, style, names, sum(not style.is_rule(row) for row in lines[start:end]))


def _style_of(lines: Sequence[str], at: int) -> _Style | None:
    """Return the style of a table whose names are before the line `at`, None if there is none."""
    header = lines[at - 1]
    is_box = at > 1 and _RULE.fullmatch(lines[at - 2]) is not None
    style = _Style(lines[at], 0, header.strip()[0] in _BARS, is_box)
    names = style.cells(header)
    # Another line of names, or a name that is parted, shows that the names are not those of columns.
    is_alone = is_box or at < _PAIR or len(style.cells(lines[at - 2])) < _PAIR
    if len(names) < _PAIR or not is_alone or any("  " in name.strip() for name in names):
        return None
    return style._replace(width=min(len(names), MAX_COLUMNS))


def _rows(chunks: Iterable[str], remarks: Remarks, *, start: int, style: _Style, note: str) -> Iterator[Row]:
    remarks.notes += [note] * bool(note)
    drawn = _Drawn(style, remarks)
    number = 0
    for number, line in enumerate(lines_of(chunks, remarks), 1):
        text = line.removesuffix("\r")
        if number <= start:
            if number != start - 1:
                drawn.count_other(text, number)
        elif row := drawn.take(text, number):
            yield row
    if drawn.row:
        yield drawn.end(number)
    if not drawn.is_closed and (style.is_box or not (style.is_markdown or style.has_outer)):
        remarks.add("tables without their last line, which may be cut", number)


class _Drawn:
    """The rows of a table as its lines come.

    Attributes:
        row: the cells of the row whose lines are being read, none between rows.
    """

    def __init__(self, style: _Style, remarks: Remarks) -> None:
        self.row: list[str] = []
        self._style = style
        self._remarks = remarks
        # The cells that continue in the next line.
        self._continued: Sequence[bool] = ()
        self._is_over = False
        # Whether the last line was one that ends the table.
        self.is_closed = False
        self._count = 0
        # Rows that lines part, and the rows since the last line.
        self._groups = self._in_group = 0

    def take(self, line: str, number: int) -> Row:
        """Take a line into account; return the row that is complete before it, or no cells."""
        cells = [] if self._is_over else self._style.cells(line)
        if len(cells) < _PAIR:
            done = self.end(number - 1) if self.row else []
            self._take_other(line, number)
            return done
        self.is_closed = False
        if self._style.is_closed and _ANY_BAR.match(line.rstrip()[-1:]) is None:
            self._remarks.add("rows without a last bar", number, is_misfit=True)
        values = _without_marks(cells, self._style, line)
        done = []
        if self.row and any(self._continued) and len(values) == len(self.row):
            self._continue(values, number)
        else:
            done = self.end(number - 1) if self.row else []
            self.row = values
            self._count_parts(number)
        self._continued = [_is_marked(cells, at, self._style, line) for at in range(len(cells))]
        return done

    def _count_parts(self, number: int) -> None:
        """Count a row of a box that may be a part of another: no first cell, or others between two lines."""
        self._in_group += 1
        is_alone = self._in_group == 1 or self._groups == 0
        if self._style.is_box and not (self.row[0] and is_alone):
            self._remarks.add("rows that may continue the one before", number, is_misfit=True)
        elif self._style.is_box and self._in_group == self._groups == 1 and self._count > 1:
            self._remarks.add("rows before a line, which may be one row", number)

    def _take_other(self, line: str, number: int) -> None:
        """Take a line without cells into account: a rule, the number of rows, or one that ends the table."""
        said = None if self._style.is_markdown else _COUNT.fullmatch(line.strip())
        if said and int(said[1]) != self._count:
            self._remarks.add(f"lines that say {said[0]}", number, is_misfit=True)
        is_rule = _RULE.fullmatch(line) is not None
        if is_rule and self._in_group:
            self._groups, self._in_group = self._groups + 1, 0
        self.is_closed = self.is_closed or said is not None or (is_rule and not self._is_over)
        self._is_over = self._is_over or not (is_rule or said)
        if not said and not self.count_other(line, number) and self._style.is_markdown:
            self._remarks.add("lines of dashes that are not rows", number)

    def _continue(self, values: Sequence[str], number: int) -> None:
        """Join the cells of a line with those of the row that it continues."""
        parts = [*zip(self.row, values, self._continued, strict=True)]
        if any(more and not is_continued for _, more, is_continued in parts):
            self._remarks.add("cells of a line that may continue a row, not read", number, is_misfit=True)
        self.row = [f"{cell}\n{more}" if is_continued else cell for cell, more, is_continued in parts]

    def end(self, number: int) -> Row:
        """Return the row with as many cells as there are columns; `number` is its last line."""
        row, self.row, self._continued = self.row, [], ()
        self._count += 1
        return fitted(row, self._style.width, number, self._remarks)

    def count_other(self, line: str, number: int) -> bool:
        """Count a line that is not part of the table; return whether it is not."""
        is_other = line.strip() != "" and _RULE.fullmatch(line) is None
        if is_other:
            self._remarks.add("lines that are not rows", number)
        return is_other or not line.strip()


def _is_marked(cells: Sequence[str], at: int, style: _Style, line: str) -> bool:
    if style.is_markdown or style.is_box or not cells[at].endswith("+"):
        return False
    return at < len(cells) - 1 or len(line) >= len(style.rule)


def _without_marks(cells: Sequence[str], style: _Style, line: str) -> list[str]:
    """Return the values of cells, without the marks of psql for a cell of several lines."""
    return [
        value[:-1].rstrip() if _is_marked(cells, at, style, line) else value
        for at, value in enumerate(style.values(cells))
    ]
