"""Tables of HTML: the largest one of a text that begins with a tag."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from itertools import chain, islice

from offload.reading.tables._form import (
    MAX_COLUMNS,
    Form,
    NoTableError,
    Remarks,
    Row,
    Sample,
    fitted,
    names_for,
)
from offload.reading.tables._names import Heading, heading_of

_BEGINNING = re.compile(
    r"\s*(?:<\?xml|<!doctype html|<(?:html|table|div|body|section|main|!--))", re.IGNORECASE
)
_TABLE = re.compile(r"<table[\s>]", re.IGNORECASE)
# Of the beginning this much is parsed.
_SAMPLED_CHARS = 8 * 1024
# A tag, or a comment, that is longer is an error: it would be parsed again with each chunk.
_MOST_PENDING = 64 * 1024
_CHUNK_CHARS = 16 * 1024
# Rows by which the names are known.
_SAMPLED_ROWS = 60
_LEAST_ROWS = 2


class _Cell:
    """A cell that is being read."""

    def __init__(self, *, is_name: bool) -> None:
        self.is_name = is_name
        self.parts: list[str] = []

    @property
    def text(self) -> str:
        return " ".join("".join(self.parts).split())


class _Tables(HTMLParser):
    """The rows of the tables of a text, each with the number of its table.

    A table in another one, and cells that span several columns or rows, are refused.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.rows: list[tuple[int, list[_Cell]]] = []
        self.count = 0
        self.is_open = False
        self._row: list[_Cell] | None = None
        self._cell: _Cell | None = None
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            if self.is_open:
                raise NoTableError("its HTML has a table in a table")
            self.is_open, self.count = True, self.count + 1
        elif tag == "tr" and self.is_open:
            self._end_row()
            self._row = []
        elif tag in ("td", "th") and self._row is not None:
            if any(name in ("colspan", "rowspan") and value not in ("1", None) for name, value in attrs):
                raise NoTableError("its HTML has a cell that spans several columns or rows")
            self._cell = _Cell(is_name=tag == "th")
            self._row.append(self._cell)
        elif tag == "br" and self._cell is not None:
            self._cell.parts.append(" ")
        self._silent += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = None
        elif tag in ("tr", "table", "thead", "tbody"):
            self._end_row()
            self.is_open = self.is_open and tag != "table"
        self._silent -= tag in ("script", "style") and self._silent > 0

    def handle_data(self, data: str) -> None:
        if self._cell is not None and not self._silent:
            self._cell.parts.append(data)

    def _end_row(self) -> None:
        if self._row:
            self.rows.append((self.count, self._row))
        self._row = self._cell = None

    def read(self, chunks: Iterable[str]) -> Iterator[tuple[int, list[_Cell]]]:
        """Yield the rows, each with the number of its table from 1."""
        for chunk in chunks:
            for at in range(0, len(chunk), _CHUNK_CHARS):
                self.feed(chunk[at : at + _CHUNK_CHARS])
                if len(self.rawdata) > _MOST_PENDING:
                    raise NoTableError("its HTML has a tag or a comment without an end")
                yield from self.rows
                self.rows.clear()


def html_form(sample: Sample) -> Form | None:
    """Return the table of HTML, None if the text is not HTML."""
    if _BEGINNING.match(sample.text) is None or _TABLE.search(sample.text) is None:
        return None
    tables = _Tables()
    start = next(found.start() for found in _TABLE.finditer(sample.text))
    is_whole = sample.is_whole and len(sample.text) <= start + _SAMPLED_CHARS
    rows = [*tables.read([sample.text[start : start + _SAMPLED_CHARS]])]
    first = [cells for number, cells in rows if number == 1]
    if len(first) <= _LEAST_ROWS:
        return Form("HTML", _rows, is_certain=False)
    heading = _heading(first)
    is_certain = is_whole and tables.count == 1 and not heading.doubt and len({*map(len, first)}) == 1
    return Form("HTML", _rows, is_certain=is_certain)


def _heading(rows: list[list[_Cell]]) -> Heading:
    texts = [[cell.text for cell in row] for row in rows]
    if all(cell.is_name for cell in rows[0]):
        return Heading(tuple(texts[0]))
    return heading_of([texts[0], *(row for row in texts[1:] if len(row) == len(texts[0]))])


def _rows(chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
    counts: dict[int, int] = {}
    for number, _ in _Tables().read(chunks):
        counts[number] = counts.get(number, 0) + 1
    if not counts or max(counts.values()) < _LEAST_ROWS:
        raise NoTableError("its HTML has no table with rows")
    largest = max(counts, key=lambda number: counts[number])
    if len(counts) > 1:
        remarks.notes.append(f"t is table {largest} of {len(counts)} in the HTML, the one with most rows")
    rows = (cells for number, cells in _Tables().read(chunks) if number == largest)
    first = [*islice(rows, _SAMPLED_ROWS)]
    heading = _heading(first)
    if heading.doubt:
        remarks.notes.append(heading.doubt)
    width = len(first[0])
    names = names_for((heading.names or [""] * width)[:MAX_COLUMNS])
    for number, row in enumerate(chain(first[bool(heading.names) :], rows), 1):
        cells = fitted([cell.text for cell in row], len(names), number, remarks, "row")
        yield dict(zip(names, cells, strict=True))
