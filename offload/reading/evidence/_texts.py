"""Texts in memory, with the blocks that may have each word, so that a search reads few of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar
from unicodedata import normalize

from offload.base.text import words_without_colors
from offload.reading.evidence._forms import HASH_CHARS, Spellings
from offload.reading.evidence._values import MAX_VALUE_CHARS, SEPARATORS

# The most characters of all texts.
MAX_CHARS = 40_000_000
_BLOCK_CHARS = 64 * 1024
# Words share so many places by their hash. A block has about 8,000 words.
_PLACES = 2**18
# A value that begins in a part of a text may end behind it: a path with escapes is twice as long.
_OVERLAP = 3 * MAX_VALUE_CHARS
_WORD = re.compile(r"[A-Za-z0-9_]+")
_GROUPED = re.compile(rf"\d{{1,3}}(?:[{SEPARATORS}]\d{{3}})+", re.ASCII)
_SEPARATOR = re.compile(f"[{SEPARATORS}]")
_ESCAPED = re.compile(r"\\[nrt](\w+)", re.ASCII)
_WITH_UNIT = re.compile(r"(?<![A-Za-z0-9_])(\d+)[A-Za-z]{1,3}(?![A-Za-z0-9_])")
_COMPACT = re.compile(r"(?<![A-Za-z0-9_])(\d{8})T\d")
_IN_ISO = re.compile(r"(\d\d)T(\d\d)(?=:)")
_HASH = re.compile(rf"(?<![A-Za-z0-9_])([0-9a-f]{{{HASH_CHARS}}})[0-9a-f]+")

UnitT = TypeVar("UnitT")


class TextPart(NamedTuple, Generic[UnitT]):
    """A part of a text: what it is of, and its first character and the one after its last."""

    unit: UnitT
    text: str
    start: int
    end: int

    def find(self, spellings: Spellings) -> int | None:
        """Return the first place of a value in the text that is in this part."""
        return spellings.find(self.text, self.start, self.end, self.end + _OVERLAP)


@dataclass
class Texts(Generic[UnitT]):
    """Texts, each of a unit; `chars` are the characters of all."""

    chars: int = 0

    def __post_init__(self) -> None:
        self._blocks: list[list[TextPart[UnitT]]] = []
        self._room = 0
        # By the hash of a word, the blocks that may have it, as bits.
        self._places = [0] * _PLACES

    def add(self, unit: UnitT, text: str) -> None:
        """Add a text of a unit, without colors; an accented letter is one character, as in the forms."""
        text = normalize("NFC", words_without_colors(text))
        for start in range(0, len(text), _BLOCK_CHARS):
            part = TextPart(unit, text, start, min(start + _BLOCK_CHARS, len(text)))
            size = part.end - part.start
            if size > self._room:
                self._blocks.append([])
                self._room = _BLOCK_CHARS
            self._room -= size
            self._blocks[-1].append(part)
            bit = 1 << len(self._blocks) - 1
            for place in {hash(word) % _PLACES for word in _words(text[start : part.end + _OVERLAP])}:
                self._places[place] |= bit
        self.chars += len(text)

    def parts(self, spellings: Spellings) -> Iterator[TextPart[UnitT]]:
        """Yield the parts that may have a value, in the order in which their texts were added."""
        bits = 0
        for words in spellings.words:
            both = (1 << len(self._blocks)) - 1
            for word in words:
                both &= self._places[hash(word) % _PLACES]
            bits |= both
        while bits:
            lowest = bits & -bits
            yield from self._blocks[lowest.bit_length() - 1]
            bits ^= lowest


def _words(text: str) -> set[str]:
    """Return the words of a text, also those that another one hides: see the rules of forms."""
    words = set(_WORD.findall(text))
    words.update(_SEPARATOR.sub("", number) for number in _GROUPED.findall(text))
    words.update(_WITH_UNIT.findall(text))
    words.update(_HASH.findall(text))
    words.update(_COMPACT.findall(text))
    if "\\" in text:
        for run in _ESCAPED.findall(text):
            words.update((run, run[:HASH_CHARS], *_WITH_UNIT.findall(run)))
    for day, hour in _IN_ISO.findall(text):
        words.update((day, hour))
    return words
