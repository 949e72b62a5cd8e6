"""Tables whose columns are aligned with blanks, as many commands print them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from offload.reading.tables._form import MAX_COLUMNS, SAMPLED_LINES, Form, LineReader, Sample
from offload.reading.tables._names import heading_of, is_like

_FITTING = 0.9
_LEAST_ROWS = 2
_PAIR = 2
# A longer line is not one of names.
_HEADER_CHARS = 10_000
# Lines before the names.
_MOST_BEFORE = 2
# How well a table is known: by a line of dashes, by names in capitals, by values that no name has.
_BY_RULE, _BY_CAPITALS, _BY_VALUES = 0.95, 0.9, 0.85
_HEADING = re.compile(r"[#%]?[^\W_][^=:;{}<>\"]*")
_DASHES = re.compile(r" *[-=\u2500]+(?: +[-=\u2500]+)+\s*")
_WORDS = re.compile(r"\S+")
# Words that one blank parts belong to one name.
_NAMES = re.compile(r"\S+(?: \S+)*")

# Where a name, or the dashes below it, begins and ends.
_Span = tuple[int, int]
_Cut = Callable[[str], list[str]]


class _TableLines(NamedTuple):
    """The line of names in a sample, and the lines below it: dashes if it has some, and rows.

    Attributes:
        start: the number of lines before the first row.
        heading: how many of these, the last ones, belong to the table.
    """

    header: str
    rule: str
    rows: list[str]
    start: int
    heading: int


def aligned_forms(sample: Sample) -> Iterator[Form]:
    """Yield the table below a line of names: cut by dashes, by the places of the names, or by words."""
    lines = sample.lines[:SAMPLED_LINES]
    filled = [at for at, line in enumerate(lines) if line.strip()]
    for place, at in enumerate(filled[: _MOST_BEFORE + 1], 1):
        # A blank line ends the table.
        body = [other for count, other in enumerate(filled[place:]) if other - count == filled[place]]
        header = lines[at]
        if len(body) < _LEAST_ROWS or "\t" in header or len(header) > _HEADER_CHARS:
            continue
        if not _HEADING.fullmatch(header.strip()):
            continue
        is_ruled = _DASHES.fullmatch(lines[body[0]]) is not None
        start = body[0] + 1 if is_ruled else at + 1
        rows = [lines[other] for other in body[is_ruled:]]
        parts = _TableLines(header, lines[body[0]] if is_ruled else "", rows, start, start - at)
        readers = (_below_dashes,) if is_ruled else (_below_names, _below_words)
        found = [reader(parts) for reader in readers if is_ruled or "  " in header.rstrip()]
        form = max(filter(None, found), key=lambda form: len(form.columns or ()), default=None)
        if form is not None:
            yield form
            return


def _form(lines: _TableLines, cut: _Cut, names: list[str], known: float | None) -> Form | None:
    """Return the form of a table if nearly all lines are rows.

    Args:
        lines: the lines of the sample.
        cut: returns the cells of a line, none if it is not a row.
        names: those of the columns.
        known: its score if the names are in doubt; None if only a number or a time in each row shows a row.
    """
    fitting = [cells for row in lines.rows if (cells := cut(row))]
    if len(fitting) < max(_LEAST_ROWS, _FITTING * len(lines.rows)) or not _PAIR <= len(names) <= MAX_COLUMNS:
        return None
    heading = heading_of([names, *fitting])
    score = known or (_BY_VALUES if heading.names and not heading.doubt else 0.0)
    if not score or (known is None and not heading.kinds):
        return None

    def checked(line: str) -> list[str]:
        cells = cut(line)
        return cells if all(is_like(cells[at], kind) for at, kind in heading.kinds if cells) else []

    reader = LineReader(checked, lines.start, lines.heading, names)
    is_certain = len(fitting) > _PAIR and len(lines.rows) - len(fitting) <= 1
    return Form(
        "aligned table", reader.rows, tuple(names), is_certain=is_certain, score=score, fits=reader.fits
    )


class _ByPlace(NamedTuple):
    """Cuts a line where columns begin, if it has blanks before each.

    Attributes:
        cuts: where columns begin.
        gaps: how many places before each are blank.
        widths: the length of the dashes of each: a cell that begins later ends within; 0 without dashes.
    """

    cuts: Sequence[int]
    gaps: Sequence[int]
    widths: Sequence[int]

    def cells(self, line: str) -> list[str]:
        if any(line[cut - gap : cut].strip() for cut, gap in zip(self.cuts, self.gaps, strict=True)):
            return []
        ends = [*self.cuts[1:], len(line)]
        cells = [line[start:end].rstrip() for start, end in zip(self.cuts, ends, strict=True)]
        pairs = zip(cells, self.widths, strict=True)
        # A line without a first cell may continue the row before it, and a word alone may be anything.
        is_row = cells[0] != "" and any(cells[1:])
        is_row = is_row and all(cell[:1] != " " or len(cell) <= width for cell, width in pairs)
        is_apart = any(self.widths) or not any("  " in cell for cell in cells[:-1])
        return [cell.strip() for cell in cells] if is_row and is_apart and not _DASHES.fullmatch(line) else []


class _ByWords(NamedTuple):
    """Cuts a line into words, of which each is below its name; the last cell is all that follows."""

    names: Sequence[_Span]

    def cells(self, line: str) -> list[str]:
        count = len(self.names)
        spans = [found.span() for found in islice(_WORDS.finditer(line), count)]
        if len(spans) < count:
            return []
        spans[-1] = (spans[-1][0], len(line.rstrip()))
        # A long word moves those after it, each by no more than the one before.
        pairs = zip(spans, self.names, strict=True)
        is_below = all(
            start <= name_end and end >= name_start for (start, end), (name_start, name_end) in pairs
        )
        cells = [line[start:end] for start, end in spans]
        return cells if is_below and "  " not in cells[-1] else []


def _below_dashes(lines: _TableLines) -> Form | None:
    spans = [found.span() for found in _WORDS.finditer(lines.rule)]
    cut = _ByPlace([start for start, _ in spans], [1] * len(spans), [end - start for start, end in spans])
    names = cut.cells(lines.header)
    return _form(lines, cut.cells, names, _BY_RULE) if names else None


def _below_names(lines: _TableLines) -> Form | None:
    """Return the table whose cells begin where the names do, which more than one blank parts."""
    names = [*_NAMES.finditer(lines.header)]
    cuts, widths = [name.start() for name in names], [0] * len(names)
    loose = _ByPlace(cuts, [cuts[0], *[1] * (len(cuts) - 1)], widths).cells
    rows = [row for row in lines.rows if loose(row)]
    columns = zip(*map(loose, rows), strict=True)
    if any(_are_several(name[0], column) for name, column in zip(names, columns, strict=False)):
        return None
    # Later cells may be longer than those of the sample.
    before = ([row[max(0, cut - _PAIR) : cut].rstrip() for row in (lines.header, *rows)] for cut in cuts)
    gaps = [_PAIR - max(map(len, texts)) for texts in before]
    gaps[0] = cuts[0]
    known = _BY_CAPITALS if lines.header.isupper() else 0.0
    return _form(lines, _ByPlace(cuts, gaps, widths).cells, [name[0] for name in names], known)


def _are_several(name: str, cells: Sequence[str]) -> bool:
    """Return whether a name of several words is those of several columns, by the words of the cells below."""
    places, *others = ([found.start() for found in _WORDS.finditer(text)] for text in (name, *cells))
    return len(places) > 1 and (any("  " in cell for cell in cells) or all(each == places for each in others))


def _below_words(lines: _TableLines) -> Form | None:
    """Return the table whose words are below those of the header; the last name may have several."""
    header = lines.header
    words = [found.span() for found in _WORDS.finditer(header)]
    # Rows may begin with a cell that has no name.
    if header[:1] == " " and not any(row[:1] == " " for row in lines.rows):
        words.insert(0, (0, 0))
    counts = Counter(len(row.split(None, len(words))) for row in lines.rows)
    count = min(len(words), counts.most_common(1)[0][0])
    spans = [*words[: count - 1], (words[count - 1][0], len(header.rstrip()))]
    names = [header[start:end] for start, end in spans]
    return None if "  " in names[-1] else _form(lines, _ByWords(spans).cells, names, None)
