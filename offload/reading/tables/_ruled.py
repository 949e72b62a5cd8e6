"""Tables whose cells are between bars, under a line of dashes: Markdown, psql, mysql, boxes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from offload.reading.tables._form import MAX_COLUMNS, Form, Remarks, Row, Sample, fitted, lines_of, names_for

_LEAST_ROWS = 2
_PAIR = 2
_SCORE = 0.97
# A line between rows, or between the names and the rows, in any of the usual characters.
_RULE = re.compile(r"(?s:(?=[\s|+:=\-\u2500-\u257f]*+\Z).*?(?:[-:]-|[\u2500-\u257f]|={3}).*)")
_BARS = "|\u2502\u2503\u2551"
_ANY_BAR = re.compile(f"[{_BARS}]")
_BAR = re.compile(rf"(?<!\\)[{_BARS}]")


class _Style(NamedTuple):
    """The way in which a table is drawn.

    Attributes:
        rule: the line below the names.
        width: how many columns it has.
        has_outer: whether a bar is before the first cell.
        is_box: whether a line closes it, so that cells may go over several lines.
        is_grid: whether a line follows each row.
    """

    rule: str
    width: int
    has_outer: bool
    is_box: bool
    is_grid: bool = False

    @property
    def is_markdown(self) -> bool:
        return "+" not in self.rule and not self.is_box

    def is_rule(self, line: str) -> bool:
        """Return whether a line below the names has no cells."""
        if _RULE.fullmatch(line) is None:
            return False
        return not self.is_markdown or _ANY_BAR.search(line) is None or line.strip() == self.rule.strip()

    def cells(self, line: str) -> list[str]:
        """Return the cells of a line as they are, none if it has no bars."""
        if _ANY_BAR.search(line) is None or self.is_rule(line):
            return []
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

    def values(self, cells: Sequence[str]) -> list[str]:
        return [cell.strip().replace("\\|", "|") if self.is_markdown else cell.strip() for cell in cells]


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
    yield Form("table", read, names_for(table.names), is_certain=is_certain, score=_SCORE)


def _tables(lines: Sequence[str]) -> Iterator[_RuledTable]:
    end = 0
    for at in [at for at, line in enumerate(lines) if _RULE.fullmatch(line)]:
        if at <= end or _ANY_BAR.search(lines[at - 1]) is None:
            continue
        style = _style_of(lines, at)
        if style is None:
            continue
        end = start = at + 1
        while end < len(lines) and (style.is_rule(lines[end]) or len(style.cells(lines[end])) >= _PAIR):
            end += 1
        body = lines[start:end]
        style = style._replace(is_grid=style.is_box and _is_grid(body, style))
        names = style.values(style.cells(lines[at - 1]))[:MAX_COLUMNS]
        yield _RuledTable(start, style, names, sum(not style.is_rule(row) for row in body))


def _style_of(lines: Sequence[str], at: int) -> _Style | None:
    """Return the style of a table whose names are before the line `at`, None if there is none."""
    header = lines[at - 1]
    if _RULE.fullmatch(header) is not None:
        return None
    is_box = at > 1 and _RULE.fullmatch(lines[at - 2]) is not None
    style = _Style(lines[at], 0, header.strip()[0] in _BARS, is_box)
    width = len(style.cells(header))
    return style._replace(width=min(width, MAX_COLUMNS)) if width >= _PAIR else None


def _is_grid(body: Sequence[str], style: _Style) -> bool:
    """Return whether the lines between two rules are one row."""
    groups: list[list[str]] = [[]]
    for line in body:
        if style.is_rule(line):
            groups.append([])
        else:
            groups[-1].append(style.cells(line)[0].strip())
    filled = [group for group in groups if group]
    return len(filled) > 1 and all(not any(group[1:]) for group in filled)


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


class _Drawn:
    """The rows of a table as its lines come.

    Attributes:
        row: the cells of the row whose lines are being read, none between rows.
    """

    def __init__(self, style: _Style, remarks: Remarks) -> None:
        self.row: list[str] = []
        self._style = style
        self._remarks = remarks
        self._continues = False
        self._is_over = False

    def take(self, line: str, number: int) -> Row:
        """Take a line into account; return the row that is complete before it, or no cells."""
        cells = [] if self._is_over else self._style.cells(line)
        if len(cells) < _PAIR:
            self._is_over = self._is_over or _RULE.fullmatch(line) is None
            if not self.count_other(line, number) and self._style.is_markdown:
                self._remarks.add("lines of dashes that are not rows", number)
            return self.end(number - 1) if self.row else []
        values = _without_marks(cells, self._style, line)
        done: Row = []
        if self.row and self._continues:
            pairs = zip(self.row, values, strict=False)
            self.row = [f"{cell}\n{more}" if more else cell for cell, more in pairs]
        else:
            done = self.end(number - 1) if self.row else []
            self.row = values
            if self._style.is_box and not self._style.is_grid and not values[0]:
                self._remarks.add("rows that may continue the one before", number, is_misfit=True)
        self._continues = self._style.is_grid or any(
            _is_marked(cells, at, self._style, line) for at in range(len(cells))
        )
        return done

    def end(self, number: int) -> Row:
        """Return the row with as many cells as there are columns; `number` is its last line."""
        row, self.row, self._continues = self.row, [], False
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
