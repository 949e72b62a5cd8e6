"""The form of the table in a text, found by its beginning: one reader for each kind of text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from offload.tables._form import Form, Head, NoTableError, Remarks, Row, lines_of
from offload.tables._json import json_form
from offload.tables._lines import aligned_form, delimited_form, pairs_form, pattern_form, ruled_form

# Characters of the beginning that are examined.
HEAD_CHARS = 64 * 1024
# In this order; the first reader that knows the text is used.
_LINE_READERS: tuple[Callable[[Head], Form | None], ...] = (
    ruled_form,
    pairs_form,
    pattern_form,
    delimited_form,
    aligned_form,
)
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


def form_of(beginning: str, *, is_whole: bool) -> Form | None:
    """Return the form of the table in a text with this beginning, None if it has none.

    `HEAD_CHARS` are examined. Raises `NoTableError` with the reason for a table that cannot be read.
    """
    is_whole = is_whole and len(beginning) <= HEAD_CHARS
    text = beginning[:HEAD_CHARS].removeprefix(_BOM)
    has_numbers = _has_numbers(text)
    if has_numbers:
        text = "".join(_Unnumbered([text], has_numbers=True))
    head = Head.of(text, is_whole=is_whole)
    has_lines = len([*islice(filter(str.strip, head.lines), _LEAST_LINES)]) == _LEAST_LINES
    readers = (json_form, *(_LINE_READERS if has_lines else ()))
    form = next((form for reader in readers if (form := reader(head)) is not None), None)
    if form is None:
        return None
    rows = form.rows

    def read(chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
        return rows(_Unnumbered(chunks, has_numbers), remarks)

    return form._replace(rows=read)


def _has_numbers(text: str) -> bool:
    """Return whether the first lines begin with successive numbers that a file reader printed."""
    lines = text.split("\n", _NUMBERED)[:_NUMBERED]
    found = [match for line in lines if (match := _GUTTER.match(line))]
    first = int(found[0][1]) if found else 0
    return len(found) == _NUMBERED and [int(match[1]) for match in found] == [
        *range(first, first + _NUMBERED)
    ]


__all__ = ["HEAD_CHARS", "NoTableError", "form_of"]
