"""Types of columns. Texts that are numbers in any form compare as numbers; their spelling is kept."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from offload.reading.tables._numbers import NULLS, Scale, number_of, scale_of

_INTEGERS = re.compile(r"(?:(?:-?[1-9][0-9]{0,18}|0)?\n)*+")
_NUMBERS = re.compile(r"(?:(?:-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,17})?)?\n)*+")
_LARGEST = 2**63 - 1
_SAFE_DIGITS = 18
# Beyond, neighbours of an integer have one float.
_EXACT = 2**53
# Cells by which a long column of words is known.
_SAMPLED = 50
# Of the values of a column of numbers, the largest share that may be something else.
_MOST_OTHERS = 0.1
_KEPT_WHOLES = 3
# Texts of digits that are not plain numbers: 007, and 1,5, whose comma may be a point.
_CODE = re.compile(r"[+-]?(?:0[0-9]+|[0-9]+(?:,[0-9]+)+)(?:\.[0-9]+)?")
_SHOWN_CHARS = 30
_HINTS = {
    "version": re.compile(r"version|release|revision|\bver\b", re.IGNORECASE),
    "size": re.compile(
        r"size|used|avail|free|total|mem|disk|swap|cache|space|capacity|usage|bytes|rss", re.IGNORECASE
    ),
}


class ColumnType(NamedTuple):
    """A summary of the cells of a column, which can be joined with those of more cells.

    Attributes:
        kinds: kinds of its cells: "integer", "real", "boolean", "JSON", "large" for a JSON integer beyond
            64 bits; "other" for a text that is not a number.
        numbers: how many cells are numbers.
        others: how many are other texts.
        nulls: how many are texts for an absent value, such as N/A.
        texts: how many are texts of JSON.
        other: the first text that is not a number.
        code: the first text that may be a code and not a number, such as 007.
        written: a text whose spelling its number does not have, "" if there is none.
        units: units of its numbers.
        decimals: numbers of digits after the point of plain texts that are real.
        wholes: some of the different whole parts of texts that are real.
        uneven: the first such text that is not the shortest one of its number.
        has_values: whether some numbers are those of JSON, not texts.
        has_commas: whether some numbers have commas between thousands.
        hints: "version" if its name says that its points are not those of numbers; "size" if it says that K
            is 1,024; "comma" if a comma in this text may be that of a decimal.
    """

    kinds: frozenset[str] = frozenset()
    numbers: int = 0
    others: int = 0
    nulls: int = 0
    texts: int = 0
    other: str = ""
    code: str = ""
    written: str = ""
    units: frozenset[str] = frozenset()
    decimals: frozenset[int] = frozenset()
    wholes: frozenset[str] = frozenset()
    uneven: str = ""
    has_values: bool = False
    has_commas: bool = False
    hints: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The type: "integer", "real", "text", "boolean", "JSON", "mixed", or "" if all cells are empty."""
        if not self.kinds:
            return "text" if self.nulls else ""
        if not self.kinds & {"boolean", "JSON", "large"}:
            if not self.numbers or self.doubt:
                return "mixed" if self.has_values else "text"
            is_real = "real" in self.kinds or (self.scale is not None and self.scale.factors is not None)
            return "real" if is_real else "integer"
        return next(iter(self.kinds)) if len(self.kinds) == 1 and "large" not in self.kinds else "mixed"

    @property
    def scale(self) -> Scale | None:
        return scale_of(self.units, is_size="size" in self.hints)

    @property
    def doubt(self) -> str:
        """The reason why a column with numbers is not one of numbers, "" if there is no reason."""
        if not (self.others or self.nulls or self.code or self.hints or self.uneven or len(self.units) > 1):
            return ""
        if self.others > _MOST_OTHERS * (self.numbers + self.others) or self.nulls > self.numbers:
            others = self.others + self.nulls
            return f"{others:,} of {others + self.numbers:,} values are not numeric, such as {self.other!r}"
        is_version = self.is_uneven and len(self.wholes) < _KEPT_WHOLES and self.units <= {"", "0"}
        doubts = {
            f"the comma in {self.code!r} may be a decimal point": "," in self.code,
            f"{self.code!r} would lose a zero": self.code != "",
            f"its units differ: {', '.join(sorted(self.units)[:4])}": self.scale is None,
            "its commas may be decimal": self.has_commas and "comma" in self.hints,
            "its values are versions": "version" in self.hints and self.decimals,
            f"its values may be versions, such as {self.uneven!r}": is_version,
        }
        return next((doubt for doubt, holds in doubts.items() if holds), "")

    @property
    def is_uneven(self) -> bool:
        """Whether real texts lose zeros at their end, and do not have them alike."""
        return self.uneven != "" and len(self.decimals) > 1

    @property
    def has_texts(self) -> bool:
        """Whether the spelling of a number column is kept in another column."""
        return self.name in ("integer", "real") and bool(
            self.written or self.others or self.nulls or self.is_uneven
        )

    @property
    def stored_as(self) -> tuple[str, bool, Scale | None]:
        """All that decides how a cell is stored."""
        return self.name, self.has_texts, self.scale if self.has_texts else None

    @property
    def shown(self) -> str:
        """The type for a schema: with the unit of its numbers."""
        scale = self.scale if self.has_texts else None
        return f"{self.name} ({scale.unit})" if scale is not None and scale.unit else self.name or "text"

    @property
    def affinity(self) -> str:
        """The declared type of a column of SQLite that changes none of its values."""
        return {"integer": "INTEGER", "boolean": "INTEGER", "real": "REAL", "text": "TEXT"}.get(self.name, "")

    def joined(self, other: ColumnType) -> ColumnType:
        joined = ColumnType(*map(_joined, self, other))
        return joined._replace(wholes=frozenset(sorted(joined.wholes)[:_KEPT_WHOLES]))

    def note(self, name: str, texts: str) -> str:
        """Return what an answer from this column says, "" if there is nothing to say.

        Args:
            name: the column, as SQL takes it.
            texts: the column with the spelling of its numbers, if it has one.
        """
        if self.has_texts:
            return self._number_note(name, texts)
        count = self.numbers + self.others + self.nulls
        if self.name == "mixed" and self.texts:
            example = (self.other or self.written)[:_SHOWN_CHARS]
            return (
                f"{name} is mixed: {self.texts:,} of {count:,} values are texts, such as {example!r}, "
                "which sums and comparisons with numbers get wrong"
            )
        if self.name == "text" and 2 * self.numbers > count:
            number = f"replace({name}, ',', '.')" if "," in self.code else name
            use = "" if self.written else f"; for numbers use CAST({number} AS REAL)"
            return f"{name} is text, since {self.doubt}{use}"
        return ""

    def _number_note(self, name: str, texts: str) -> str:
        unit = f" in {self.scale.unit}" if self.scale and self.scale.unit else ""
        written = (self.written or self.uneven)[:_SHOWN_CHARS]
        spelled = f" ({written!r})" if written else ""
        absent = self.others + self.nulls
        note = f"{name} has numbers{unit}, as written in {texts}{spelled}"
        if not absent:
            return note
        other = repr(self.other[:_SHOWN_CHARS])
        count = absent + self.numbers
        return f"{note}; {absent:,} of {count:,} values are not numbers, so NULL, such as {other}"


def _joined(one: Any, other: Any) -> Any:
    """Return what two parts of a column have in a field: all of a set, the sum of counts, else the first."""
    if type(one) is int:
        return one + other
    return one | other if isinstance(one, frozenset) else one or other


def new_column(name: str, *, is_comma_decimal: bool) -> ColumnType:
    """Return the summary of no cells."""
    hints = {hint for hint, pattern in _HINTS.items() if pattern.search(name)}
    return ColumnType(hints=frozenset(hints | ({"comma"} if is_comma_decimal else set())))


def type_of_texts(cells: Sequence[str | None]) -> ColumnType:
    """Return the summary of cells that are texts."""
    texts = [cell or "" for cell in cells]
    joined = "\n".join(texts) + "\n"
    if joined.count("\n") == len(texts):
        if joined.isspace():
            return ColumnType()
        if _INTEGERS.fullmatch(joined) and _are_small(texts):
            return ColumnType(frozenset(("integer",)), len(texts), units=frozenset(("",)))
        if "." in joined and _NUMBERS.fullmatch(joined):
            return _type_of_reals([text for text in texts if text])
    found = _type_of_forms([text for text in texts if text and not text.isspace()])
    blank = next((text for text in texts if text and text.isspace()), "")
    return found._replace(written=found.written or blank) if blank and found.numbers else found


def _may_be_number(text: str) -> bool:
    bare = text.strip()
    return number_of(bare) is not None or bare.lower() in NULLS or _CODE.fullmatch(bare) is not None


def _are_small(texts: Sequence[str]) -> bool:
    return all(abs(int(text)) <= _LARGEST for text in texts if len(text) > _SAFE_DIGITS)


def _type_of_reals(texts: Sequence[str]) -> ColumnType:
    pairs = [(text, float(text), len(text) - text.find(".") - 1 if "." in text else -1) for text in texts]
    decimals = frozenset(digits for _, _, digits in pairs if digits >= 0)
    uneven = next(
        (t for t, number, digits in pairs if t != (repr(number) if digits >= 0 else f"{number:.0f}")), ""
    )
    is_even = len(decimals) <= 1 and all(t == f"{number:.{max(digits, 0)}f}" for t, number, digits in pairs)
    return ColumnType(
        frozenset(("real",)),
        len(texts),
        written="" if is_even or len(decimals) > 1 else uneven,
        units=frozenset(("",)),
        decimals=decimals,
        wholes=frozenset(sorted({text.partition(".")[0] for text in texts})[:_KEPT_WHOLES]),
        uneven=uneven,
    )


def _type_of_forms(texts: Sequence[str]) -> ColumnType:
    """Return the summary of texts of which some are numbers in another form than the plain one."""
    sample = [*islice(texts, _SAMPLED)]
    if 2 * sum(map(_may_be_number, sample)) < len(sample):
        return ColumnType(frozenset(("other",)), others=len(texts), other=texts[0]) if texts else ColumnType()
    pairs = [(text, number_of(text.strip())) for text in texts]
    numbers = [(text, number) for text, number in pairs if number is not None]
    codes = [text for text, number in pairs if number is None and _CODE.fullmatch(text)]
    rest = [text for text, number in pairs if number is None and not _CODE.fullmatch(text)]
    nulls = sum(text.strip().lower() in NULLS for text in rest)
    kinds = {"real" if type(number.value) is float else "integer" for _, number in numbers}
    plain = type_of_texts([text for text, number in numbers if _is_plain(text)]) if numbers else ColumnType()
    return plain._replace(
        kinds=frozenset(kinds | ({"other"} if len(rest) > nulls or codes else set())),
        numbers=len(numbers) + len(codes),
        others=len(rest) - nulls,
        nulls=nulls,
        other=next((text for text in rest if text.strip().lower() not in NULLS), rest[0] if rest else ""),
        code=codes[0] if codes else "",
        written=plain.written or next((text for text, _ in numbers if not _is_plain(text)), ""),
        units=frozenset(number.unit for _, number in numbers),
        has_commas=any(number.has_comma for _, number in numbers),
    )


def _is_plain(text: str) -> bool:
    return text != "-0" and any(plain.fullmatch(f"{text}\n") for plain in (_INTEGERS, _NUMBERS))


def type_of_values(cells: Sequence[Any]) -> ColumnType:
    """Return the summary of cells that are JSON values."""
    kinds = Counter(map(type, cells))
    numbers = kinds[int] + kinds[float]
    found = type_of_texts([cell for cell in cells if type(cell) is str]) if kinds[str] else ColumnType()
    if kinds[str] and not found.kinds and not found.nulls:
        found = ColumnType(frozenset(("other",)), others=kinds[str])
    largest = max((abs(cell) for cell in cells if type(cell) is int), default=0) if kinds[int] else 0
    names = {
        *(["integer"] if kinds[int] else []),
        *(["real"] if kinds[float] else []),
        *(["boolean"] if kinds[bool] else []),
        *(["JSON"] if kinds[dict] + kinds[list] else []),
        *(["large"] if largest > (_EXACT if kinds[float] else _LARGEST) else []),
    }
    return found._replace(
        kinds=found.kinds | names,
        numbers=found.numbers + numbers,
        texts=kinds[str],
        units=found.units | ({""} if numbers else set()),
        has_values=numbers > 0,
        # A number that JSON has as a text keeps it.
        written=found.written
        or next((cell for cell in cells if type(cell) is str and found.numbers and cell), ""),
    )


def stored(cells: Sequence[Any], column: ColumnType, *, is_typed: bool) -> Iterable[Any]:
    """Return the cells of a column as SQLite stores them: numbers, texts, None."""
    if column.has_texts:
        return map(_number_in(column), cells)
    if is_typed:
        return map(_plain, cells) if column.name in ("JSON", "mixed") else cells
    if column.name == "integer":
        return (int(cell) if cell else None for cell in cells)
    return (float(cell) if cell else None for cell in cells) if column.name == "real" else cells


def spelled(cells: Sequence[Any]) -> Iterable[Any]:
    """Return the cells of a column of numbers as they are written."""
    return (cell if cell is None or type(cell) is str else json.dumps(cell) for cell in cells)


def _number_in(column: ColumnType) -> Callable[[Any], Any]:
    """Return the function that reads the number in a cell: a text, a number of JSON, or None."""
    factors = (column.scale or Scale("")).factors
    is_real = column.name == "real"

    def number_in(cell: Any) -> Any:
        if type(cell) is not str:
            return cell
        number = number_of(cell.strip())
        if number is None:
            return None
        value = number.value * factors.get(number.unit, 1.0) if factors else number.value
        return float(value) if is_real else value

    return number_in


def _plain(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return str(value) if type(value) is int and abs(value) > _LARGEST else value
