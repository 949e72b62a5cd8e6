"""Whether the first row of a table has the names of its columns, or values like the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from offload.reading.tables._numbers import NULLS, number_of, scale_of

_NAME_CHARS = 60
_YEAR = re.compile(r"(?:19|20)[0-9]{2}")
_CODE = re.compile(r"[{}=<>;\\]")
# Rows that are examined, fewer of a wide table.
_LEAST_ROWS, _SAMPLED_ROWS, _SAMPLED_CELLS = 6, 40, 1000
_SHOWN_NAMES, _SHOWN_CHARS = 5, 100
# Kinds of texts that no name is of.
_KINDS = {
    "time": r"\d{4}[-/.]\d\d?[-/.]\d\d?(?:[T ].*)?|\d\d?[-/.]\d\d?[-/.]\d{2,4}(?: .*)?|T?\d\d?:\d\d.*",
    "truth": r"(?i:true|false|yes|no)",
    "address": r"\d{1,3}(?:\.\d{1,3}){3}(?:[:/]\d+)?|[\w.+-]+@[\w-]+(?:\.[\w-]+)+|[a-z]{2,9}://\S+|/\S*",
    "hash": r"(?i:(?=.*\d)[0-9a-f]{7,64}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
}
_KIND = re.compile("|".join(f"(?P<{kind}>(?:{pattern})\\Z)" for kind, pattern in _KINDS.items()))
_DIGIT = re.compile(r"\d")
_DIGITS = frozenset("0123456789")


class Heading(NamedTuple):
    """The names of the columns of a table.

    Attributes:
        names: the names, none if the first row has values.
        doubt: why the first row may not be the names, "" if it surely is.
        has_values: whether some column has values of one kind.
        is_likely: whether some column has values that its name is not like.
        kinds: for each column of numbers or times, its place and its kind.
    """

    names: tuple[str, ...] = ()
    doubt: str = ""
    has_values: bool = False
    is_likely: bool = False
    kinds: tuple[tuple[int, str], ...] = ()

    def is_plain(self, row: Sequence[str]) -> bool:
        """Return whether the first number of a row begins with a digit, as in most rows."""
        place = self.kinds[0][0] if self.kinds else 0
        return place < len(row) and row[place][:1] in _DIGITS and self.kinds != ()

    def is_like(self, row: Sequence[str]) -> bool:
        """Return whether some cell of a row is like those of its column, if these are of one kind."""
        return not self.kinds or any(is_like(row[place], kind) for place, kind in self.kinds)


def is_like(cell: str, kind: str) -> bool:
    """Return whether a cell is a time, or has a digit for a number; or is absent."""
    text = cell.strip()
    if not text or text.lower() in NULLS:
        return True
    return _DIGIT.search(text) is not None if kind == "number" else _kind_of(text) == kind


def heading_of(rows: Sequence[Sequence[str]]) -> Heading:
    """Return the names of the columns of rows that have the same width."""
    first = [cell.strip() for cell in rows[0]]
    count = max(_LEAST_ROWS, min(_SAMPLED_ROWS, _SAMPLED_CELLS // max(len(first), 1)))
    body = [*zip(*rows[1:count], strict=True)] or [()] * len(first)
    columns = [[cell.strip() for cell in column if cell.strip()] for column in body]
    kinds = [_kind_of_all(column) for column in columns]
    pairs = [*zip(first, columns, kinds, strict=True)]
    has_values = any(kinds)
    known = tuple((place, kind) for place, kind in enumerate(kinds) if kind in ("number", "time"))
    values, names = (sum(test(*pair) for pair in pairs) for test in (_is_value, _is_name))
    are_plain = _are_plain(first)
    if values > names or (not names and (not are_plain or any(map(_kind_of, first)))):
        return Heading(has_values=has_values, kinds=known)
    if names and are_plain and not values:
        return Heading(tuple(first), "", has_values, kinds=known)
    shown = ", ".join(first[:_SHOWN_NAMES])[:_SHOWN_CHARS]
    doubt = f"the first line is taken as the names of the columns, but may be a row: {shown}"
    return Heading(tuple(first), doubt, has_values, is_likely=names > 0 == values, kinds=known)


def _are_plain(cells: Sequence[str]) -> bool:
    filled = [cell for cell in cells if cell]
    return 2 * len(filled) >= len(cells) and all(
        len(cell) <= _NAME_CHARS and not _CODE.search(cell) for cell in filled
    )


def _is_value(first: str, column: Sequence[str], kind: str) -> bool:
    """Return whether the first cell of a column has a value of the kind of the others."""
    if (
        not kind
        or _kind_of(first) != kind
        or (_YEAR.fullmatch(first) and not all(map(_YEAR.fullmatch, column)))
    ):
        return False
    number = number_of(first)
    units = {*map(_unit_of, column)}
    if number is None or number.unit in {"", "0", *units}:
        return True
    # 4.0K and 1.2M compare; above numbers without a unit, it may be a name.
    return "" not in units and scale_of({number.unit, *units}, is_size=True) is not None


def _is_name(first: str, column: Sequence[str], kind: str) -> bool:
    """Return whether the first cell of a column is unlike the values below it."""
    if not first or not column or first.lower() in NULLS:
        return False
    if kind and _kind_of(first) == kind:
        is_year = _YEAR.fullmatch(first) is not None and not all(map(_YEAR.fullmatch, column))
        return kind == "number" and (is_year or not _is_value(first, column, kind))
    if kind:
        return True
    return _DIGIT.search(first) is None and all(map(_DIGIT.search, column))


def _unit_of(cell: str) -> str:
    number = number_of(cell)
    return number.unit if number else ""


def _kind_of_all(column: Sequence[str]) -> str:
    values = [cell for cell in column if cell.lower() not in NULLS]
    kind = _kind_of(values[0]) if values else ""
    return kind if kind and all(_kind_of(cell) == kind for cell in values) else ""


def _kind_of(cell: str) -> str:
    if not cell:
        return ""
    if number_of(cell) is not None or cell.lstrip("-").isdigit():
        return "number"
    found = _KIND.match(cell)
    return (found.lastgroup or "") if found else ""
