"""Places of values in a JSON text: single values are replaced, and every other byte is kept.

A text has one character for each byte of a body in UTF-8, see `text_of`: places in one are places in the
other, neither is read as a whole to get the other, and no character makes a text wider. Values are skipped by
the scanner of the standard library, one call each, so that a large text does not keep other threads waiting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

_SPACE = re.compile(r"[ \t\n\r]*")
_scan = json.JSONDecoder().raw_decode

# Texts are compared in parts of so many characters: each is copied, at best into memory that is near.
_PART = 64 * 1024

Path = tuple[str | int, ...]


def text_of(body: bytes) -> str:
    """Return a body with one character for each byte."""
    return body.decode("latin-1")


def body_of(text: str) -> bytes:
    """Return the body of a text, the inverse of `text_of`."""
    return text.encode("latin-1")


def read(text: str) -> str:
    """Return a part of a text as its characters are. Raises `ValueError` for anything but UTF-8."""
    return text if text.isascii() else body_of(text).decode()


class Edit(NamedTuple):
    """New text for the characters from `start` to `end`, with its characters as they are."""

    start: int
    end: int
    text: str


class Reader:
    """Reads a JSON text from place `at` on. All methods raise `ValueError` for anything but JSON."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.at = at
        self._is_ascii = text.isascii()
        self._skip_space()

    def value(self) -> Any:
        """Read the value at this place; the place is then its end."""
        start = self.at
        value, self.at = _scan(self.text, start)
        if self._is_ascii or (text := self.text[start : self.at]).isascii():
            return value
        return _scan(read(text))[0]

    def skip(self) -> None:
        """Pass the value at this place, which was read before."""
        _, self.at = _scan(self.text, self.at)

    def members(self) -> Iterator[str]:
        """Yield each key of the object at this place; the caller reads its value before the next."""
        for _ in self._parts("{", "}"):
            if not self._is_at('"'):
                raise ValueError(f"expected a key at character {self.at}")
            key = self.value()
            self._skip_space()
            self._take(":")
            self._skip_space()
            yield key

    def elements(self, ends: Sequence[int] = ()) -> Iterator[int]:
        """Yield the index of each element of the array at this place; the caller reads it before the next.

        The first elements are left out if `ends` has their known ends.
        """
        yield from self._parts("[", "]", ends)

    def end(self) -> None:
        """Check that nothing follows."""
        self._skip_space()
        if self.at != len(self.text):
            raise ValueError(f"more than one JSON value, at character {self.at}")

    def _parts(self, opening: str, closing: str, ends: Sequence[int] = ()) -> Iterator[int]:
        self._take(opening)
        self._skip_space()
        if self._is_at(closing):
            self.at += 1
            return
        index = len(ends)
        self.at = ends[-1] if ends else self.at
        while True:
            if index:
                self._skip_space()
                if not self._is_at(","):
                    break
                self.at += 1
                self._skip_space()
            yield index
            index += 1
        self._take(closing)

    def _take(self, mark: str) -> None:
        if not self._is_at(mark):
            raise ValueError(f"expected {mark} at character {self.at}")
        self.at += 1

    def _is_at(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)

    def _skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at


def common(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    low, most = 0, min(len(one), len(other))
    while low < most and one[low : low + _PART] == other[low : low + _PART]:
        low += _PART
    low, high = min(low, most), min(low + _PART, most)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Place(NamedTuple):
    """The place of a value: its start and end, and the end of the value before it in its object or array."""

    start: int
    end: int
    before: int


class Places:
    """Finds values in a JSON text; each object and array on the way is read once."""

    def __init__(self, text: str) -> None:
        self._text = text
        # By start of an object or an array: the key or index and the place of each value in it.
        self._known: dict[int, list[tuple[str | int, Place]]] = {}

    def find(self, start: int, path: Path) -> Place:
        """Return the place of the value at `path` below the value at `start`. Raises `ValueError`."""
        reader = Reader(self._text, start)
        place = Place(reader.at, reader.at, reader.at)
        if not path:
            reader.skip()
            return place._replace(end=reader.at)
        for step in path:
            found = [part for name, part in self._parts(place.start) if name == step]
            if len(found) != 1:
                raise ValueError(f"{len(found)} values for {step!r:.40}")
            [place] = found
        return place

    def without(self, start: int, path: Path, gone: Collection[int], instead: str) -> Iterator[Edit]:
        """Yield the changes that remove elements of the array at `path`; `instead` replaces all of them.

        Raises `ValueError`.
        """
        places = [place for _, place in self._parts(self.find(start, path).start)]
        kept = [index for index in range(len(places)) if index not in gone]
        if not kept:
            yield Edit(places[0].start, places[-1].end, instead)
            return
        for index in gone:
            # Its comma goes with it: the one before it, or the one behind it at the beginning.
            if index > kept[0]:
                yield Edit(places[index].before, places[index].end, "")
            else:
                yield Edit(places[index].start, places[index + 1].start, "")

    def _parts(self, start: int) -> list[tuple[str | int, Place]]:
        if start not in self._known:
            reader = Reader(self._text, start)
            is_array = self._text.startswith("[", start)
            names: Iterator[str | int] = reader.elements() if is_array else reader.members()
            parts: list[tuple[str | int, Place]] = []
            before = start
            for name in names:
                at = reader.at
                reader.skip()
                parts.append((name, Place(at, reader.at, before)))
                before = reader.at
            self._known[start] = parts
        return self._known[start]


def replaced(text: str, edits: Iterable[Edit]) -> str:
    """Return `text` with `edits`, which do not overlap."""
    parts, at = [], 0
    for edit in sorted(edits):
        parts += [text[at : edit.start], edit.text if edit.text.isascii() else text_of(edit.text.encode())]
        at = edit.end
    return "".join([*parts, text[at:]])
