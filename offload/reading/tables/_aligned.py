"""Tables whose columns are aligned with blanks, as many commands print them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from offload.reading.tables._form import MAX_COLUMNS, SAMPLED_LINES, Form, LineReader, Row, Sample, names_for
from offload.reading.tables._names import Heading, heading_of

_FITTING = 0.9
_LEAST_ROWS = 2
_PAIR = 2
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

# Returns the reader of the rows, given how a line is cut.
_Reading = Callable[[Callable[[str], Row]], LineReader]


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
        reading = partial(LineReader, start=first, heading=first - at)
        form = _aligned(lines[at], rows, body[0] if is_ruled else "", reading)
        form = form or _spaced(lines[at], rows, reading)
        if form is not None:
            yield form
            return


def _aligned(header: str, rows: Sequence[str], rule: str, reading: _Reading) -> Form | None:
    ruled = [0, *(word.start() for word in [*_WORDS.finditer(rule)][1:])]
    cuts = ruled if rule else _cuts(header, rows)
    if not _PAIR <= len(cuts) <= MAX_COLUMNS:
        return None
    fitting = [cells for row in rows if (cells := _row(row, cuts))]
    if len(fitting) < max(_LEAST_ROWS, _FITTING * len(rows)):
        return None
    names = _cells(header, cuts)
    score = _score(header, heading_of([names, *fitting]), rule)
    if not score:
        return None
    is_certain = len(fitting) > _PAIR and len(rows) - len(fitting) <= 1
    reader = reading(partial(_row, cuts=cuts))
    return Form(
        "aligned table", reader.rows, names_for(names), is_certain=is_certain, score=score, fits=reader.fits
    )


def _score(header: str, heading: Heading, rule: str) -> float:
    if rule:
        return _BY_RULE
    if header.isupper():
        return _BY_CAPITALS
    return _BY_VALUES if heading.names and not heading.doubt else 0.0


def _cuts(header: str, rows: Sequence[str]) -> list[int]:
    """Return where the columns begin, none if the lines do not share places without text."""
    spans = _spans(header, rows)
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


def _spans(header: str, rows: Sequence[str]) -> list[_ColumnSpan] | None:
    """Return the places with text in the names or in more than a few rows."""
    masks = [_mask(row) for row in rows]
    named, width = _mask(header), min(max(map(len, (header, *rows))), _EXAMINED_CHARS)
    if any("\t" in line for line in (header, *rows)):
        return None
    counts = sum(masks).to_bytes(width + 1, "little")
    names = named.to_bytes(width + 1, "little")
    few = len(rows) // 20
    filled = bytes(name or count > few for name, count in zip(names, counts, strict=True))
    return [
        _ColumnSpan(*found.span(), any(names[slice(*found.span())]), max(counts[slice(*found.span())]) > few)
        for found in re.finditer(b"\x01+", filled)
    ]


def _mask(line: str) -> int:
    """Return a number that has a byte of 1 for each character that is not blank."""
    data = line[:_EXAMINED_CHARS].encode("latin-1", "replace").translate(_IS_FILLED)
    return int.from_bytes(data, "little")


def _row(line: str, cuts: Sequence[int]) -> list[str]:
    """Return the cells of a line that has blanks where columns begin, none of another one or of dashes."""
    is_row = all(line[cut - 1 : cut] in ("", " ") for cut in cuts[1:]) and not _DASHES.fullmatch(line)
    return _cells(line, cuts) if is_row else []


def _cells(line: str, cuts: Sequence[int]) -> list[str]:
    return [line[start:end].strip() for start, end in zip(cuts, [*cuts[1:], None], strict=True)]


def _spaced(header: str, rows: Sequence[str], reading: _Reading) -> Form | None:
    """Return the table if the cells are single words under their names, but for the last."""
    names = [(found[0], *found.span()) for found in _WORDS.finditer(header)]
    width = len(names)
    fitting = [cells for row in rows if (cells := _words(row, names))]
    if width <= _PAIR or len(fitting) < max(_LEAST_ROWS, _FITTING * len(rows)):
        return None
    heading = heading_of([[name for name, *_ in names], *fitting])
    if not heading.names or heading.doubt:
        return None
    is_certain = len(fitting) == len(rows) > _PAIR
    rows_of = reading(partial(_words, names=names)).rows
    return Form("aligned table", rows_of, names_for(heading.names), is_certain=is_certain, score=_BY_VALUES)


def _words(line: str, names: Sequence[tuple[str, int, int]]) -> list[str]:
    """Return the words of a line, of which each is above or below its name, none if it has others."""
    found = [*_WORDS.finditer(line)]
    if len(found) < len(names):
        return []
    last = found[len(names) - 1].start()
    spans = [word.span() for word in found[: len(names) - 1]] + [(last, len(line.rstrip()))]
    # A long word moves those after it, each by no more than the one before.
    pairs = zip(spans, names, strict=True)
    is_below = all(
        start <= name_end and end >= name_start for (start, end), (_, name_start, name_end) in pairs
    )
    return [line[start:end] for start, end in spans] if is_below else []
