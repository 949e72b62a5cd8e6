"""Tables whose columns are aligned with blanks, as many commands print them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from offload.reading.tables._form import MAX_COLUMNS, SAMPLED_LINES, Form, LineReader, Sample
from offload.reading.tables._names import heading_of, is_like

_FITTING = 0.9
_LEAST_ROWS = 2
_PAIR = 2
# Of so many rows one may be no row.
_TOLERANT_ROWS = 4
# Lines before the names.
_MOST_BEFORE = 2
_EXAMINED_CHARS = 1000
# Long lines are examined up to this number.
_LEAST_LINES = 10
# How well a table is known: by a line of dashes, by names in capitals, by values that no name has.
_BY_RULE, _BY_CAPITALS, _BY_VALUES = 0.95, 0.9, 0.85
_HEADING = re.compile(r"[#%]?[^\W_][^=:;{}<>\"]*")
_DASHES = re.compile(r" *[-=\u2500]+(?: +[-=\u2500]+)+\s*")
_WORDS = re.compile(r"\S+")
_IS_FILLED = bytes(byte not in b" " for byte in range(256))


class _ColumnSpan(NamedTuple):
    """Characters of a line in which lines have text."""

    start: int
    end: int
    has_name: bool
    has_values: bool

    @property
    def is_full(self) -> bool:
        return self.has_name and self.has_values

    def completes(self, other: _ColumnSpan) -> bool:
        """Return whether one has a name alone, and the other values alone."""
        return not (self.is_full or other.is_full) and self.has_name != other.has_name

    def joined(self, other: _ColumnSpan) -> _ColumnSpan:
        """Return the span of both."""
        has_name, has_values = self.has_name or other.has_name, self.has_values or other.has_values
        return _ColumnSpan(self.start, other.end, has_name, has_values)


def aligned_forms(sample: Sample) -> Iterator[Form]:
    """Yield the table of columns that begin and end at places that all lines share."""
    longest = max(map(len, sample.lines[:_LEAST_LINES]), default=0)
    count = max(_LEAST_LINES, _EXAMINED_CHARS * _LEAST_LINES // (longest + 1))
    lines = sample.lines[: min(SAMPLED_LINES, count)]
    filled = [at for at, line in enumerate(lines) if line.strip()][: _MOST_BEFORE + 1]
    for at in filled:
        body = [line for line in lines[at + 1 :] if line.strip()]
        if len(body) < _LEAST_ROWS or not _HEADING.fullmatch(lines[at].strip()):
            continue
        is_ruled = _DASHES.fullmatch(body[0]) is not None
        if not is_ruled and "  " not in lines[at].rstrip():
            continue
        rows = body[is_ruled:]
        first = lines.index(body[0], at + 1) + 1 if is_ruled else at + 1
        cutters = _cutters(lines[at], rows, body[0] if is_ruled else "")
        known = _BY_RULE if is_ruled else _BY_CAPITALS if lines[at].isupper() else 0.0
        forms = (
            _form(*pair, rows, known, partial(LineReader, start=first, heading=first - at))
            for pair in cutters
        )
        form = max(filter(None, forms), key=lambda form: len(form.columns or ()), default=None)
        if form is not None:
            yield form
            return


class _Cutter(NamedTuple):
    """Cuts lines into cells, as the lines of the sample are; other lines are not rows.

    Attributes:
        cuts: where columns begin; none if only words part them.
        gaps: how many places before each are blank.
        lefts: columns whose cells begin where the column does.
        rights: where cells of other columns all end.
        parted: columns with cells that have two blanks in a row.
        kinds: the columns of numbers or times.
        words: the places of the names, if each cell but the last is one word.
    """

    cuts: tuple[int, ...]
    gaps: tuple[int, ...] = ()
    lefts: frozenset[int] = frozenset()
    rights: tuple[int, ...] = ()
    parted: frozenset[int] = frozenset()
    kinds: tuple[tuple[int, str], ...] = ()
    words: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, header: str, rows: Sequence[str], cuts: Sequence[int]) -> _Cutter:
        """Return the cutter of rows whose columns begin at `cuts`."""
        gaps = (_gap([cut - len(line[:cut].rstrip()) for line in (header, *rows)]) for cut in cuts)
        columns = [*zip(*(_slices(row, cuts) for row in rows), strict=True)]
        filled = [[cell for cell in column if cell.strip()] for column in columns]
        ends = [{len(cell.rstrip()) for cell in column} for column in filled]
        cells = [[cell.strip() for cell in _slices(row, cuts)] for row in rows]
        names = [found.span() for found in _WORDS.finditer(header)]
        is_of_words = len(names) == len(cuts) and cells == [row.split(None, len(cuts) - 1) for row in rows]
        return cls(
            tuple(cuts),
            tuple(gaps),
            frozenset(at for at, column in enumerate(filled) if not any(cell[0] == " " for cell in column)),
            tuple(min(each) if len(each) == 1 else 0 for each in ends[:-1]),
            frozenset(at for at, column in enumerate(filled) if any("  " in cell.strip() for cell in column)),
            heading_of([_cells(header, cuts), *cells]).kinds,
            tuple(names) if is_of_words else (),
        )

    def cells(self, line: str) -> list[str]:
        """Return the cells of a line, none if it is not a row."""
        found = self._by_place(line) if self.cuts and not _DASHES.fullmatch(line) else []
        # A word of each kind shows that a line of words is a row.
        found = found or (self.by_words(line) if self.words and self.kinds else [])
        return found if all(is_like(found[at], kind) for at, kind in self.kinds if found) else []

    def _by_place(self, line: str) -> list[str]:
        if any(line[cut - gap : cut].strip() for cut, gap in zip(self.cuts[1:], self.gaps[1:], strict=True)):
            return []
        cells = _slices(line, self.cuts)
        for at, cell in enumerate(cells):
            text = cell.strip()
            is_away = at not in self.lefts and at < len(self.rights) and len(cell.rstrip()) != self.rights[at]
            if text and (
                (at in self.lefts and cell[0] == " ")
                or (is_away and self.rights[at])
                or ("  " in text and at not in self.parted and at < len(cells) - 1)
            ):
                return []
        return [cell.strip() for cell in cells]

    def by_words(self, line: str) -> list[str]:
        """Return the words of a line, of which each is above or below its name, none if it has others."""
        found = [*_WORDS.finditer(line)]
        count = len(self.words)
        if len(found) < count:
            return []
        last = found[count - 1].start()
        spans = [word.span() for word in found[: count - 1]] + [(last, len(line.rstrip()))]
        # A long word moves those after it, each by no more than the one before.
        pairs = zip(spans, self.words, strict=True)
        is_below = all(
            start <= name_end and end >= name_start for (start, end), (name_start, name_end) in pairs
        )
        is_one = "  " not in line[last : len(line.rstrip())]
        return [line[start:end] for start, end in spans] if is_below and is_one else []


def _gap(blanks: Sequence[int]) -> int:
    """Return how many blanks are before a column in each line, or in all but a few that have one."""
    others = [count for count in blanks if count > 1]
    few = max(len(blanks) // 20, int(len(blanks) > _TOLERANT_ROWS))
    return min(others if len(others) >= len(blanks) - few else blanks)


def _is_one_column(cells: Sequence[str]) -> bool:
    """Return whether most cells have no blanks within that part columns."""
    return 2 * sum("  " in cell for cell in cells) <= len(cells)


def _cutters(header: str, rows: Sequence[str], rule: str) -> Iterator[tuple[_Cutter, list[str]]]:
    """Yield how the rows may be cut, with the names: at the same places in all or nearly all, or at words."""
    few = [len(rows) // 20, max(len(rows) // 10, int(len(rows) >= _TOLERANT_ROWS))]
    ruled = [0, *(word.start() for word in [*_WORDS.finditer(rule)][1:])]
    for cuts in [ruled] if rule else filter(None, [_cuts(header, rows, each) for each in few]):
        parted = [row for row in rows if _is_parted(row, cuts)]
        names = _cells(header, cuts)
        columns = [*zip(*(_cells(row, cuts) for row in parted), strict=True)]
        is_cut = all(map(_is_one_column, columns[:-1])) and not any("  " in name for name in names)
        if is_cut and _PAIR <= len(cuts) <= MAX_COLUMNS and len(parted) >= _LEAST_ROWS:
            cutter = _Cutter.of(header, parted, cuts)
            yield cutter._replace(gaps=(1,) * len(cuts)) if rule else cutter, names
    words = _Cutter((), words=tuple(found.span() for found in _WORDS.finditer(header)))
    fitting = [cells for row in rows if (cells := words.by_words(row))]
    if not rule and len(words.words) > _PAIR and fitting:
        yield words._replace(kinds=heading_of([header.split(), *fitting]).kinds), header.split()


def _form(
    cutter: _Cutter, names: list[str], rows: Sequence[str], known: float, reading: Callable[..., LineReader]
) -> Form | None:
    """Return the form of a table; `known` is its score if its heading is in doubt."""
    fitting = [cells for row in rows if (cells := cutter.cells(row))]
    if len(fitting) < max(_LEAST_ROWS, _FITTING * len(rows)):
        return None
    heading = heading_of([names, *fitting])
    score = known * bool(cutter.cuts) or (_BY_VALUES if heading.names and not heading.doubt else 0.0)
    if not score:
        return None
    is_certain = len(fitting) > _PAIR and len(rows) - len(fitting) <= 1
    reader = reading(cutter.cells, names=names)
    return Form(
        "aligned table", reader.rows, tuple(names), is_certain=is_certain, score=score, fits=reader.fits
    )


def _cuts(header: str, rows: Sequence[str], few: int) -> list[int]:
    """Return where the columns begin, none if the lines do not share places without text."""
    spans = _spans(header, rows, few)
    if spans is None:
        return []
    lines = (header, *rows)
    has_narrow = any(_is_narrow(*pair) and _is_padded(pair[0].end, lines) for pair in pairwise(spans))
    joined = spans[:1]
    for span in spans[1:]:
        last = joined[-1]
        is_loose = not has_narrow and not _is_padded(last.end, lines)
        if last.completes(span) or (span.start - last.end == 1 and (not span.is_full or is_loose)):
            joined[-1] = last.joined(span)
        elif not span.has_name:
            return []
        else:
            joined.append(span)
    return [0, *(span.start for span in joined[1:])]


def _is_narrow(one: _ColumnSpan, other: _ColumnSpan) -> bool:
    return other.start - one.end == 1 and one.is_full and other.is_full


def _is_padded(place: int, lines: Sequence[str]) -> bool:
    """Return whether some line has more than one blank at a place."""
    return any("  " in line[max(place - 1, 0) : place + _PAIR] for line in lines)


def _spans(header: str, rows: Sequence[str], few: int) -> list[_ColumnSpan] | None:
    """Return the places with text in the names or in more than a few rows."""
    masks = [_mask(row) for row in rows]
    named, width = _mask(header), min(max(map(len, (header, *rows))), _EXAMINED_CHARS)
    if any("\t" in line for line in (header, *rows)):
        return None
    counts = sum(masks).to_bytes(width + 1, "little")
    names = named.to_bytes(width + 1, "little")
    filled = bytes(name or count > few for name, count in zip(names, counts, strict=True))
    return [
        _ColumnSpan(*found.span(), any(names[slice(*found.span())]), max(counts[slice(*found.span())]) > few)
        for found in re.finditer(b"\x01+", filled)
    ]


def _mask(line: str) -> int:
    """Return a number that has a byte of 1 for each character that is not blank."""
    data = line[:_EXAMINED_CHARS].encode("latin-1", "replace").translate(_IS_FILLED)
    return int.from_bytes(data, "little")


def _is_parted(line: str, cuts: Sequence[int]) -> bool:
    """Return whether a line has blanks where columns begin, and is not one of dashes."""
    return all(line[cut - 1 : cut] in ("", " ") for cut in cuts[1:]) and not _DASHES.fullmatch(line)


def _slices(line: str, cuts: Sequence[int]) -> list[str]:
    return [line[start:end] for start, end in zip(cuts, [*cuts[1:], None], strict=True)]


def _cells(line: str, cuts: Sequence[int]) -> list[str]:
    return [cell.strip() for cell in _slices(line, cuts)]
