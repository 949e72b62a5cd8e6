"""The exact values of a text that others do not have, without regard to who wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from offload.reading.evidence._forms import spellings_of
from offload.reading.evidence._texts import Texts
from offload.reading.evidence._values import Stated, values_of

UnitT = TypeVar("UnitT")
_AROUND, _MOST_PLACES = frozenset(' \t\n"`()[]{}<>=;|'), 20
# Behind the last value of a line or entry, which a limit of length may have cut.
_ENDS = ("\n", " […]", "…")


def missing_values(text: str, sources: Sequence[str]) -> list[Stated]:
    """Return the exact values in a text that none of its sources has, in order.

    A value at the end of a line or entry that was cut may be the beginning of a source's.
    """
    joined = "\n".join(sources)
    values = [value for value in values_of(text) if not _is_plainly_in(value.text, joined)]
    texts: Texts[None] = Texts()
    for source in sources if values else ():
        texts.add(None, source)
    missing = [value for value in values if not has(texts, value)]
    return [value for value in missing if not (_is_last(value, text) and _is_part(value, sources))]


def has(texts: Texts[UnitT], value: Stated) -> bool:
    """Return whether a text has a value."""
    spellings = spellings_of(value)
    return any(part.find(spellings) is not None for part in texts.parts(spellings))


def _is_plainly_in(value: str, text: str) -> bool:
    """Return whether one of the first places of a value has signs around it that are part of no value.

    It is much faster than the rules, which decide in all other cases.
    """
    at = -1
    for _ in range(_MOST_PLACES):
        at = text.find(value, at + 1)
        if at < 0:
            return False
        around = text[at - 1 : at] + text[at + len(value) : at + len(value) + 1]
        if _AROUND.issuperset(around):
            return True
    return False


def _is_last(value: Stated, text: str) -> bool:
    end = value.start + len(value.text)
    return end == len(text) or text.startswith(_ENDS, end)


def _is_part(value: Stated, sources: Sequence[str]) -> bool:
    return any(value.text in source for source in sources)
