"""Places of values in a JSON text: single values are replaced, and every other byte is kept.

A text has one character for each byte of a body in UTF-8, see `text_of`: places in one are places in the
other, neither is read as a whole to get the other, and no character makes a text wider.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from offload.base.json_reader import JsonReader, scan_strictly

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


class BodyReader(JsonReader):
    """Reads the text of a body from place `start` on; keys and values have their characters as they are."""

    def __init__(self, text: str, start: int = 0) -> None:
        super().__init__(text, start=start, is_strict=True)
        if not text.isascii():
            self._scan = _scan_utf_8

    def skip(self) -> int:
        """Pass the value here, which was read before, with the scanner of Python: it is fastest."""
        self.peek()
        self._at = scan_strictly(self._buffer, self._at)[1]
        return self.place


def _scan_utf_8(text: str, at: int) -> tuple[Any, int]:
    value, end = scan_strictly(text, at)
    part = text[at:end]
    return value if part.isascii() else scan_strictly(read(part), 0)[0], end


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
        reader = BodyReader(self._text, start)
        reader.peek()
        place = Place(reader.place, reader.place, reader.place)
        if not path:
            return place._replace(end=reader.skip())
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
            reader = BodyReader(self._text, start)
            parts: list[tuple[str | int, Place]] = []
            before = start
            for name in reader.members():
                place = Place(reader.place, reader.skip(), before)
                parts.append((name, place))
                before = place.end
            self._known[start] = parts
        return self._known[start]


def replaced(text: str, edits: Iterable[Edit]) -> str:
    """Return `text` with `edits`, which do not overlap."""
    parts, at = [], 0
    for edit in sorted(edits):
        parts += [text[at : edit.start], edit.text if edit.text.isascii() else text_of(edit.text.encode())]
        at = edit.end
    return "".join([*parts, text[at:]])
