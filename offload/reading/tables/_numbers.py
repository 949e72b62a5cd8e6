"""Numbers as people and programs write them: exponents, thousands, percent, money, sizes, durations."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from typing import NamedTuple

_UNIT = r"[%‰°A-Za-zµμ€£¥$₹][A-Za-z/²³]{0,9}"
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<money>[$€£¥₹]|[A-Z]{3} )?(?P<minus>-?)"
    r"(?P<whole>[1-9][0-9]{0,2}(?:,[0-9]{3})+|0|[1-9][0-9]*)?(?P<fraction>\.[0-9]+)?"
    rf"(?P<power>[eE][+-]?[0-9]{{1,3}})?(?: ?(?P<unit>{_UNIT}))?"
)
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|μs|ms|s|m|h|d|w) ?){2,6}")
_PART = re.compile(r"([0-9.]+)([a-zµμ]+)")
_SECONDS = {
    "ns": 1e-9,
    "us": 1e-6,
    # The sign of micro, and the Greek letter.
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ms": 1e-3,
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 604800.0),
}
_BYTES = {"": 1.0, "B": 1.0, "byte": 1.0, "bytes": 1.0, "k": 1024.0, "kB": 1000.0}
for _power, _letter in enumerate("KMGTPE", 1):
    _BYTES |= dict.fromkeys((_letter, f"{_letter}i", f"{_letter}iB"), 1024.0**_power)
    _BYTES[f"{_letter}B"] = 1000.0**_power
# Whether these are 1,000 or 1,024 is not known without a B, or a name that says size.
_BARE = frozenset("kKMGTPE")
_SIZES = _BYTES.keys() - _BARE - {""}
# One of meters, minutes, thousandths.
_UNCLEAR = frozenset(("m",))
# A zero needs no unit.
_ZERO = "0"
_SEVERAL = "several"
# Spellings of an absent value.
NULLS = frozenset(
    (
        *("n/a", "na", "null", "none", "nan", "nil", "-", "--", "?"),
        *("<nil>", "<na>", "<none>", "<null>", "\\n", "#n/a"),
    )
)
SPELLED_NULLS = frozenset(spell(null) for null in NULLS for spell in (str.lower, str.upper, str.title)) | {
    "NaN"
}
# A longer text is not a number.
_MOST_CHARS = 60


class Number(NamedTuple):
    """A number in a text: its value in its own unit, and whether it has commas between thousands."""

    value: int | float
    unit: str
    has_comma: bool = False


class Scale(NamedTuple):
    """The unit of a column, and what one of each unit in it is worth; None if it is always 1."""

    unit: str
    factors: dict[str, float] | None = None


def number_of(text: str) -> Number | None:
    """Return the number in a text, None if it has none, or is a code such as 007."""
    found = _NUMBER.fullmatch(text) if len(text) <= _MOST_CHARS else None
    if found is None or not (found["whole"] or found["fraction"]):
        return _duration_of(text)
    money, unit = (found["money"] or "").strip(), found["unit"] or ""
    if (money and unit) or (found["minus"] and (found["sign"] or not money)):
        return None
    whole, fraction = found["whole"] or "0", found["fraction"] or ""
    digits = f"{found['sign']}{found['minus']}{whole.replace(',', '')}{fraction}{found['power'] or ''}"
    is_real = bool(fraction or found["power"])
    value = float(digits) if is_real else int(digits)
    return Number(value, money or unit or (_ZERO if value == 0 else ""), "," in whole)


def _duration_of(text: str) -> Number | None:
    if len(text) > _MOST_CHARS or _DURATION.fullmatch(text) is None:
        return None
    parts = _PART.findall(text)
    try:
        return Number(sum(float(count) * _SECONDS[unit] for count, unit in parts), _SEVERAL)
    except ValueError:
        return None


def scale_of(units: AbstractSet[str], *, is_size: bool) -> Scale | None:
    """Return the scale of a column with these units, None if they cannot be compared.

    Args:
        units: the units of its numbers.
        is_size: whether the name of the column says that K is 1,024.
    """
    named = units - {_ZERO}
    if named <= _BYTES.keys() and (named & _SIZES or (is_size and named - {""})):
        return Scale("bytes", _BYTES)
    if named and named <= _SECONDS.keys() | {_SEVERAL} and named != _UNCLEAR:
        return Scale("seconds", _SECONDS)
    return Scale(next(iter(named), "")) if len(named) <= 1 else None
