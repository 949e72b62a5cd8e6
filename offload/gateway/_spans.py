"""Places of values in a JSON text: single values are replaced, and every other character is kept.

Values are skipped by the scanner of the standard library, one call each, so that a large text does not keep
other threads waiting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_SPACE = re.compile(r"[ \t\n\r]*")
_scan = json.JSONDecoder().raw_decode

Path = tuple[str | int, ...]


class Edit(NamedTuple):
    """New text for the characters from `start` to `end`."""

    start: int
    end: int
    text: str


class Reader:
    """Reads a JSON text from place `at` on. All methods raise `ValueError` for anything but JSON."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.at = at
        self._skip_space()

    def value(self) -> Any:
        """Read the value at this place; the place is then its end."""
        value, self.at = _scan(self.text, self.at)
        return value

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

    def elements(self) -> Iterator[int]:
        """Yield the index of each element of the array at this place; the caller reads it before the next."""
        yield from self._parts("[", "]")

    def end(self) -> None:
        """Check that nothing follows."""
        self._skip_space()
        if self.at != len(self.text):
            raise ValueError(f"more than one JSON value, at character {self.at}")

    def _parts(self, opening: str, closing: str) -> Iterator[int]:
        self._take(opening)
        self._skip_space()
        if self._is_at(closing):
            self.at += 1
            return
        index = 0
        while True:
            yield index
            self._skip_space()
            if not self._is_at(","):
                break
            self.at += 1
            self._skip_space()
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


def place_of(text: str, start: int, path: Path) -> tuple[int, int, int]:
    """Return the place of the value at `path` below the value at `start`: its start and its end.

    The third place is the end of the element before it in its array, or its own start.

    Raises:
        ValueError: there is no such value, or two, for a key that its object has twice.
    """
    before = start = Reader(text, start).at
    for step in path:
        before, start = _child(text, start, step)
    reader = Reader(text, start)
    reader.value()
    return start, reader.at, before


def replaced(text: str, edits: Iterable[Edit]) -> str:
    """Return `text` with `edits`, which do not overlap."""
    parts, at = [], 0
    for edit in sorted(edits):
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


def _child(text: str, start: int, step: str | int) -> tuple[int, int]:
    reader = Reader(text, start)
    found: list[tuple[int, int]] = []
    last: int | None = None
    names: Iterator[str | int] = reader.members() if isinstance(step, str) else reader.elements()
    for name in names:
        if name == step:
            found.append((reader.at if last is None else last, reader.at))
        reader.value()
        last = reader.at
    if len(found) != 1:
        raise ValueError(f"{len(found)} values for {step!r:.40}")
    return found[0]
