"""Types of columns. Texts that are numbers in any form compare as numbers; their spelling is kept."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from offload.reading.tables._numbers import NULLS, SPELLED_NULLS, Scale, number_of, scale_of

_INTEGERS = re.compile(r"(?:(?:-?[1-9][0-9]{0,18}|0)?\n)*+")
_NUMBERS = re.compile(r"(?:(?:-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,17})?)?\n)*+")
_LARGEST = 2**63 - 1
_SAFE_DIGITS = 18
# Beyond, neighbours of an integer have one float.
_EXACT = 2**53
# Cells by which a long column of words is known.
_SAMPLED = 50
# Texts of digits that are not plain numbers: 007, and 1,5, whose comma may be a point.
_CODE = re.compile(r"[+-]?(?:0[0-9]+|[0-9]+(?:,[0-9]+)+)(?:\.[0-9]+)?")
_SHOWN_CHARS = 30
# The beginning of a date or a time, the offset at its end, and a form whose order as text is that in time.
_TIME = re.compile(
    r"\[?(?:[A-Z][a-z]{2,8},? )?(?:\d{4}([-/.])\d\d?\1\d\d?(?!\d)|\d\d?([-/.])\d\d?\2\d{4}(?!\d)"
    r"|\d\d?[-/ ][A-Z][a-z]{2}[-/ ]\d{2,4}|[A-Z][a-z]{2} [ \d]\d[ ,]|T?\d\d?:\d\d(?::\d\d)?(?![:\w]))"
)
_OFFSET = re.compile(r"[+-]\d\d:?\d\d\Z", re.ASCII)
_ZEROS = str.maketrans("123456789", "0" * 9)
_CLOCK = r"00:00(?::00(?:[.,]0+)?)?"
_ORDERED = re.compile(
    rf"(?:0000(?P<sign>[-/.])00(?P=sign)00(?:[T ]{_CLOCK})?|{_CLOCK})"
    r"(?:Z| ?[+-]\d\d:?\d\d| ?(?:UTC|GMT|[A-Z]{1,3}T))?"
)
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_HINTS = {
    "version": re.compile(r"(?i)version|release|revision|\bver\b"),
    "size": re.compile(r"(?i)size|used|avail|free|total|mem|disk|swap|cache|space|capacity|usage|bytes|rss"),
}


class ColumnType(NamedTuple):
    """A summary of the cells of a column, which can be joined with those of more cells.

    Attributes:
        kinds: kinds of its cells: "integer", "real", "boolean", "JSON"; "other" for a text that is not a
            number.
        numbers: how many cells are numbers.
        others: how many are other texts.
        nulls: how many are texts for an absent value, such as N/A.
        empties: how many are empty texts.
        other: the first text that is not a number.
        code: the first text that may be a code and not a number, such as 007.
        large: the first number that would lose digits.
        written: a text whose spelling its number does not have, "" if there is none.
        units: units of its numbers.
        decimals: numbers of digits after the point of plain texts that are real.
        uneven: the first such text that is not the shortest one of its number.
        times: forms of its times, digits as 0; "" for another text.
        has_commas: whether some numbers have commas between thousands.
        hints: "version" if its name says that its points are not those of numbers; "size" if it says that K
            is 1,024; "comma" if a comma in this text may be that of a decimal.
    """

    kinds: frozenset[str] = frozenset()
    numbers: int = 0
    others: int = 0
    nulls: int = 0
    empties: int = 0
    other: str = ""
    code: str = ""
    large: str = ""
    written: str = ""
    units: frozenset[str] = frozenset()
    decimals: frozenset[int] = frozenset()
    uneven: str = ""
    times: frozenset[str] = frozenset()
    has_commas: bool = False
    hints: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The type: "integer", "real", "text", "boolean", "JSON", or "" if all cells are empty."""
        if not self.kinds:
            return "text" if self.nulls else ""
        if not self.numbers:
            return next(iter(self.kinds)) if self.kinds in ({"boolean"}, {"JSON"}) else "text"
        is_real = "real" in self.kinds or (self.scale is not None and self.scale.factors is not None)
        return "text" if self.doubt else "real" if is_real else "integer"

    @property
    def scale(self) -> Scale | None:
        return scale_of(self.units, is_size="size" in self.hints)

    @property
    def doubt(self) -> str:
        """The reason why a column with numbers is not one of numbers, "" if there is no reason."""
        count, more = self.numbers + self.others + self.nulls, sorted(self.kinds & {"boolean", "JSON"})
        others = self.others or (self.nulls if self.nulls > self.numbers else 0)
        doubts = {
            f"{others:,} of {count:,} values are not numbers, such as {self.other[:_SHOWN_CHARS]!r}": others,
            f"some of its values are {' and '.join(more)}": more,
            f"{self.large[:_SHOWN_CHARS]} would lose digits": self.large,
            f"the comma in {self.code!r} may be a decimal point": "," in self.code,
            f"{self.code!r} would lose a zero": self.code,
            f"its units differ: {', '.join(sorted(self.units)[:4])}": self.scale is None,
            "its commas may be decimal": self.has_commas and "comma" in self.hints,
            "its values are versions": "version" in self.hints and self.decimals,
            f"its values may be versions, such as {self.uneven!r}": self.is_uneven,
        }
        return next((doubt for doubt, holds in doubts.items() if holds), "") if self.numbers else ""

    @property
    def is_uneven(self) -> bool:
        """Whether real texts lose zeros at their end, and do not have them alike."""
        return self.uneven != "" and len(self.decimals) > 1

    @property
    def has_texts(self) -> bool:
        """Whether the spelling of a number column is kept in another column."""
        return self.name in ("integer", "real") and bool(self.written or self.nulls)

    @property
    def stored_as(self) -> tuple[str, bool, Scale | None]:
        """All that decides how a cell is stored."""
        return self.name, self.has_texts, self.scale if self.has_texts else None

    @property
    def shown(self) -> str:
        """The type for a schema: with the unit of its numbers, and how many values are none."""
        if not self.has_texts:
            return self.name or "text"
        unit = self.scale.unit if self.scale else ""
        more = ", ".join([unit] * bool(unit) + [f"{self.nulls:,} NULL"] * bool(self.nulls))
        return f"{self.name} ({more})" if more else self.name

    @property
    def affinity(self) -> str:
        """The declared type of a column of SQLite that changes none of its values."""
        return {"integer": "INTEGER", "boolean": "INTEGER", "real": "REAL"}.get(self.name, "TEXT")

    @property
    def empty_note(self) -> str:
        """A note for a statement that looks for NULL, "" if there is nothing to say."""
        counts = {"empty texts": self.empties, "texts such as 'NULL' or 'N/A'": self.nulls}
        found = " and ".join(f"{count:,} {texts}" for texts, count in counts.items() if count)
        return f"has {found}, which are not NULL" if found and self.name == "text" else ""

    def joined(self, other: ColumnType) -> ColumnType:
        joined = ColumnType(*map(_joined, self, other))
        return joined._replace(times=frozenset(sorted(joined.times)[:2]))

    def note(self, name: str, texts: str) -> str:
        """Return what an answer from this column says, "" if there is nothing to say.

        Args:
            name: the column, as SQL takes it.
            texts: the column with the spelling of its numbers, if it has one.
        """
        if self.has_texts:
            return self._number_note(name, texts)
        if self.name == "boolean":
            return f"{name} is 1 for true and 0 for false"
        if self.name == "text" and self.doubt:
            return f"{name} is text, since {self.doubt}"
        if len(self.times) > 1 or any(_ORDERED.fullmatch(form) is None for form in self.times):
            return f"{name} is text, such as {self.other[:_SHOWN_CHARS]!r}: it compares as text, not as time"
        return ""

    def _number_note(self, name: str, texts: str) -> str:
        unit = f" in {self.scale.unit}" if self.scale and self.scale.unit else ""
        spelled = f" ({self.written[:_SHOWN_CHARS]!r})" if self.written else ""
        note = f"{name} has numbers{unit}, as written in {texts}{spelled}"
        if not self.nulls:
            return note
        count = f"{self.nulls:,} of {self.nulls + self.numbers:,}"
        return f"{note}; {count} values are not numbers, so NULL, such as {self.other[:_SHOWN_CHARS]!r}"


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
    empties = cells.count("")
    if joined.count("\n") == len(texts):
        if joined.isspace():
            return ColumnType(empties=empties)
        if _INTEGERS.fullmatch(joined) and _are_small(texts):
            numbers = sum(map(bool, texts))
            return ColumnType(frozenset(("integer",)), numbers, empties=empties, units=frozenset(("",)))
        if "." in joined and _NUMBERS.fullmatch(joined):
            return _type_of_reals([text for text in texts if text])._replace(empties=empties)
    found = _type_of_forms([*filter(str.strip, texts)])
    blank = next((text for text in texts if text.isspace()), "") if found.numbers else ""
    return found._replace(written=found.written or blank, empties=empties)


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
        uneven=uneven,
    )


def _type_of_forms(texts: Sequence[str]) -> ColumnType:
    """Return the summary of texts of which some are numbers in another form than the plain one."""
    if not texts:
        return ColumnType()
    sample = texts[:_SAMPLED]
    if 2 * sum(map(_may_be_number, sample)) < len(sample):
        are_times = 2 * sum(map(bool, map(_TIME.match, sample))) > len(sample)
        times = frozenset(sorted(_forms_of_times(texts))[:2]) if are_times else frozenset[str]()
        nulls = 0 if SPELLED_NULLS.isdisjoint(texts) else sum(map(SPELLED_NULLS.__contains__, texts))
        return ColumnType(frozenset(("other",)), 0, len(texts) - nulls, nulls, other=texts[0], times=times)
    pairs = [(text, number_of(text.strip())) for text in texts]
    numbers = [(text, number) for text, number in pairs if number is not None]
    plains = [text for text, number in numbers if _is_plain(text) and not _is_large(number.value)]
    codes = [text for text, number in pairs if number is None and _CODE.fullmatch(text)]
    rest = [text for text, number in pairs if number is None and not _CODE.fullmatch(text)]
    others = [text for text in rest if text.strip().lower() not in NULLS]
    kinds = {"real" if type(number.value) is float else "integer" for _, number in numbers}
    plain = type_of_texts(plains)
    return plain._replace(
        kinds=frozenset(kinds | ({"other"} if others or codes else set())),
        numbers=len(numbers) + len(codes),
        others=len(others),
        nulls=len(rest) - len(others),
        other=next(iter([*others, *rest]), ""),
        code=codes[0] if codes else "",
        large=next((text for text, number in numbers if _is_large(number.value)), ""),
        written=plain.written or next((text for text, _ in numbers if not _is_plain(text)), ""),
        units=frozenset(number.unit for _, number in numbers),
        has_commas=any(number.has_comma for _, number in numbers),
    )


def _is_plain(text: str) -> bool:
    return text != "-0" and any(plain.fullmatch(f"{text}\n") for plain in (_INTEGERS, _NUMBERS))


def _is_large(value: float) -> bool:
    return type(value) is int and abs(value) > _LARGEST


def _forms_of_times(texts: Sequence[str]) -> set[str]:
    """Return the forms of times: 0 for each digit but those of an offset; "" for other texts."""
    forms = {*"\n".join(texts).translate(_ZEROS).split("\n")}
    if any(map(_OFFSET.search, forms)):
        forms = {_OFFSET.sub("", text).translate(_ZEROS) + "".join(_OFFSET.findall(text)) for text in texts}
    return {form if _TIME.match(form) else "" for form in forms}


def type_of_values(cells: Sequence[Any]) -> ColumnType:
    """Return the summary of cells that are JSON values."""
    kinds = Counter(map(type, cells))
    numbers = kinds[int] + kinds[float]
    found = type_of_texts([cell for cell in cells if type(cell) is str]) if kinds[str] else ColumnType()
    if found.empties == kinds[str] > 0:
        found = found._replace(kinds=frozenset(("other",)))
    most = _EXACT if kinds[float] else _LARGEST
    names = {
        *(["integer"] if kinds[int] else []),
        *(["real"] if kinds[float] else []),
        *(["boolean"] if kinds[bool] else []),
        *(["JSON"] if kinds[dict] + kinds[list] else []),
    }
    return found._replace(
        kinds=found.kinds | names,
        numbers=found.numbers + numbers,
        # Next to numbers, an empty text is one that is none.
        others=found.others + (found.empties if numbers else 0),
        units=found.units | ({""} if numbers else set()),
        large=found.large or next((str(c) for c in cells if type(c) is int and abs(c) > most), ""),
        # A number that JSON has as a text keeps it.
        written=found.written
        or next((cell for cell in cells if type(cell) is str and found.numbers and cell), ""),
    )


def stored(cells: Sequence[Any], column: ColumnType, *, is_typed: bool) -> Iterable[Any]:
    """Return the cells of a column as SQLite stores them: numbers, texts, None."""
    if column.has_texts:
        return map(_number_in(column), cells)
    if is_typed:
        return spelled(cells) if column.name in ("JSON", "text") else cells
    if column.name == "integer":
        return (int(cell) if cell else None for cell in cells)
    return (float(cell) if cell else None for cell in cells) if column.name == "real" else cells


def spelled(cells: Sequence[Any]) -> Iterable[Any]:
    """Return cells as they are written."""
    return (cell if cell is None or type(cell) is str else _JSON.encode(cell) for cell in cells)


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
