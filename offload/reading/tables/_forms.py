"""The form of the table in a text: the reader that explains the lines best, if no other does as well."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from offload.reading.tables._aligned import aligned_forms
from offload.reading.tables._delimited import delimited_forms
from offload.reading.tables._form import Form, NoTableError, Remarks, Row, Sample, lines_of
from offload.reading.tables._json import json_form
from offload.reading.tables._lines import pairs_forms, pattern_forms
from offload.reading.tables._ruled import ruled_forms

# Characters of the beginning that are examined.
HEAD_CHARS = 64 * 1024
# Characters of the middle and of the end that are examined too.
PART_CHARS = 4 * 1024
_LINE_READERS: tuple[Callable[[Sample], Iterator[Form]], ...] = (
    ruled_forms,
    pairs_forms,
    pattern_forms,
    delimited_forms,
    aligned_forms,
)
_LEAST_SCORE = 0.5
# Two readers whose scores are this close explain a text equally well.
_TIE = 0.03
# Share of the lines in another part of the text that must be rows.
_FITTING = 0.6
# Lines that may fail to be rows: so many, and a share of the rows.
_MOST_MISFITS, _MISFIT_SHARE = 2, 0.1
_BOM = "\ufeff"
# The number that a file reader prints before a line.
_GUTTER = re.compile(
    r" {0,8}([0-9]{1,7})(?:→|(?<= [0-9])\t|(?<= [0-9]{2})\t|(?<= [0-9]{3})\t|(?<= [0-9]{4})\t)"
)
_NUMBERED = 3
_LEAST_LINES = 2


@dataclass(frozen=True)
class _Unnumbered:
    """Chunks of a text without its byte order mark, and without the number before each line if it has one."""

    chunks: Iterable[str]
    has_numbers: bool

    def __iter__(self) -> Iterator[str]:
        if self.has_numbers:
            yield from (f"{_GUTTER.sub('', line, count=1)}\n" for line in lines_of(self.chunks))
            return
        chunks = iter(self.chunks)
        yield next(chunks, "").removeprefix(_BOM)
        yield from chunks


def form_of(chunks: Iterable[str], *, is_whole: bool = True) -> Form | None:
    """Return the form of the table in a text, None if it has none.

    Its beginning of `HEAD_CHARS` is examined, and parts of its middle and its end.

    Args:
        chunks: the text; read again for its parts.
        is_whole: whether that is the text, or only its beginning.

    Raises `NoTableError` with the reason for a table that cannot be read, or that can be read in two ways.
    """
    beginning = ""
    for chunk in chunks:
        beginning += chunk
        if len(beginning) > HEAD_CHARS:
            break
    later = _parts(chunks) if len(beginning) > HEAD_CHARS else ()
    is_whole = is_whole and not later
    text = beginning[:HEAD_CHARS].removeprefix(_BOM)
    has_numbers = _has_numbers(text)
    if has_numbers:
        text = "".join(_Unnumbered([text], has_numbers=True))
    sample = Sample.of(text, is_whole=is_whole)
    form = json_form(sample) or _best(sample, later, has_numbers=has_numbers)
    if form is None:
        return None
    rows, name = form.rows, form.name

    def read(chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
        count = 0
        for count, row in enumerate(rows(_Unnumbered(chunks, has_numbers), remarks), 1):  # noqa: B007 # counted
            yield row
        if remarks.misfits > _MOST_MISFITS + _MISFIT_SHARE * count:
            misfits = f"{remarks.misfits:,} of its lines do not fit ({'; '.join(remarks.texts())})"
            raise NoTableError(f"it begins as {name}, but {misfits}")

    return form._replace(rows=read)


def _best(sample: Sample, later: Iterable[str], *, has_numbers: bool) -> Form | None:
    """Return the form that explains the lines best. Raises `NoTableError` if another one does as well."""
    if len([*islice(filter(str.strip, sample.lines), _LEAST_LINES)]) < _LEAST_LINES:
        return None
    found = (form for reader in _LINE_READERS for form in reader(sample) if form.score >= _LEAST_SCORE)
    forms = sorted(found, key=lambda form: -form.score)
    parts = [_complete_lines(part, has_numbers=has_numbers) for part in later] if forms else []
    fitting = [form for form in forms if all(form.fits(part) >= _FITTING for part in parts)]
    sound = [form for form in fitting if not form.misfit]
    if forms and not sound:
        why = fitting[0].misfit if fitting else "lines in its middle or at its end do not fit"
        raise NoTableError(f"it begins as {(fitting or forms)[0].name}, but {why}")
    if len(sound) > 1 and sound[0].score - sound[1].score < _TIE:
        raise NoTableError(f"it can be read as {sound[0].name} and as {sound[1].name}")
    return sound[0] if sound else None


def _complete_lines(part: str, *, has_numbers: bool) -> list[str]:
    lines = part.split("\n")[1:-1]
    return [_GUTTER.sub("", line, count=1) for line in lines] if has_numbers else lines


def _parts(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the parts of the middle and the end of a long text that are examined too."""
    chars, end = 0, ""
    for chunk in chunks:
        chars += len(chunk)
        end = (end + chunk)[-PART_CHARS:]
    start, middle = chars // 2, ""
    for chunk in chunks:
        middle += chunk[max(start, 0) : max(start, 0) + PART_CHARS]
        start -= len(chunk)
        if len(middle) >= PART_CHARS:
            break
    yield from (middle[:PART_CHARS], end)


def _has_numbers(text: str) -> bool:
    """Return whether the first lines begin with successive numbers that a file reader printed."""
    lines = text.split("\n", _NUMBERED)[:_NUMBERED]
    found = [match for line in lines if (match := _GUTTER.match(line))]
    first = int(found[0][1]) if found else 0
    return len(found) == _NUMBERED and [int(match[1]) for match in found] == [
        *range(first, first + _NUMBERED)
    ]
