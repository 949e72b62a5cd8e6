"""Types of columns. A text is a number only if every value of its column can be written back as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_INTEGERS = re.compile(r"(?:(?:-?[1-9][0-9]{0,18}|0)?\n)*+")
_NUMBERS = re.compile(r"(?:(?:-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?)?\n)*+")
_LARGEST = 2**63 - 1
# Beyond, neighbours of an integer have one float.
_EXACT = 2**53


class ColumnType(NamedTuple):
    """The type of the cells of a column.

    Attributes:
        name: "integer", "real", "text", "boolean", "JSON", "mixed", or "" if all cells are empty.
        decimals: numbers of digits after the point of texts that are real.
        is_shortest: whether each such text is the shortest one of its number.
    """

    name: str
    decimals: frozenset[int] = frozenset()
    is_shortest: bool = True

    @property
    def affinity(self) -> str:
        """The declared type of a column of SQLite that changes none of its values."""
        return {"integer": "INTEGER", "boolean": "INTEGER", "real": "REAL", "text": "TEXT"}.get(self.name, "")

    def joined(self, other: ColumnType) -> ColumnType:
        if not (self.name and other.name):
            return self if self.name else other
        decimals = self.decimals | other.decimals
        is_shortest = self.is_shortest and other.is_shortest
        names = {self.name, other.name}
        if names == {"real"} and not is_shortest and len(decimals) > 1:
            return TEXT
        if names <= {"integer", "real"}:
            return ColumnType("real" if "real" in names else "integer", decimals, is_shortest)
        return self if len(names) == 1 else _MIXED


_EMPTY = ColumnType("")
TEXT = ColumnType("text")
_MIXED = ColumnType("mixed")


def type_of_texts(cells: Sequence[str | None]) -> ColumnType:
    """Return the type of a column of texts."""
    texts = [cell or "" for cell in cells] if None in cells else cells
    joined = "\n".join(texts) + "\n"  # type: ignore[arg-type] # None is replaced
    if joined.count("\n") != len(texts):
        return TEXT
    if joined.isspace():
        return _EMPTY
    if _INTEGERS.fullmatch(joined):
        is_small = all(abs(int(text)) <= _LARGEST for text in texts if text and len(text) > 18)  # noqa: PLR2004
        return ColumnType("integer") if is_small else TEXT
    return _type_of_reals([text for text in texts if text]) if _NUMBERS.fullmatch(joined) else TEXT


def _type_of_reals(texts: Sequence[str]) -> ColumnType:
    decimals = frozenset(len(text) - text.index(".") - 1 for text in texts if "." in text)
    if not decimals:
        return TEXT
    pairs = [(text, float(text), "." in text) for text in texts]
    is_shortest = all(
        text == (repr(number) if has_point else f"{number:.0f}") for text, number, has_point in pairs
    )
    digits = max(decimals)
    is_even = len(decimals) == 1 and all(
        text == f"{number:.{digits if has_point else 0}f}" for text, number, has_point in pairs
    )
    return ColumnType("real", decimals, is_shortest) if is_shortest or is_even else TEXT


def type_of_values(cells: Sequence[Any]) -> ColumnType:
    """Return the type of a column of JSON values."""
    kinds = set(map(type, cells)) - {type(None)}
    if kinds <= {int, float} and kinds:
        largest = max((abs(cell) for cell in cells if type(cell) is int), default=0)
        if float not in kinds:
            return ColumnType("integer") if largest <= _LARGEST else _MIXED
        return ColumnType("real") if largest <= _EXACT else _MIXED
    if len(kinds) == 1 and kinds <= {str, bool}:
        return TEXT if str in kinds else ColumnType("boolean")
    if kinds <= {dict, list}:
        return ColumnType("JSON") if kinds else _EMPTY
    return _MIXED


def stored(cells: Sequence[Any], column: ColumnType, *, is_typed: bool) -> Iterable[Any]:
    """Return the cells of a column as SQLite stores them: numbers, texts, None."""
    if is_typed:
        return map(_plain, cells) if column.name in ("JSON", "mixed") else cells
    if column.name == "integer":
        return (int(cell) if cell else None for cell in cells)
    return (float(cell) if cell else None for cell in cells) if column.name == "real" else cells


def _plain(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value) if type(value) is int and abs(value) > _LARGEST else value
