"""JSON read by pieces: the borders of values, the names of members, and single values, in a text of any size.

Text that comes by the chunk is read in constant memory. Values that are skipped are not validated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from offload.base.patterns import lazy_pattern

# All repeats are possessive, so each character is examined a constant number of times. A match takes all up
# to the next bracket of a deeply nested container; shallow ones are a part of it, which is faster.
_STRING_PART = r'[^"\\]*+(?:\\.[^"\\]*+)*+'
_STRING = f'"{_STRING_PART}"'
_RUN = rf'(?:[^"{{}}\[\]]++|{_STRING})*+'
for _ in range(2):
    _RUN = rf'(?:[^"{{}}\[\]]++|{_STRING}|[{{\[]{_RUN}[}}\]])*+'
_TOKENS = lazy_pattern(_RUN + r'(?:([{\[])|([}\]])|(")|\Z)', re.DOTALL)
_OPENS, _CLOSES, _CUT = 1, 2, 3
_SPACE = lazy_pattern(r"[ \t\r\n]*+")
_REST_OF_STRING = lazy_pattern(_STRING_PART, re.DOTALL)
_SCALAR_PART = lazy_pattern(r'[^\s",:{}\[\]]*+', re.ASCII)
_KEY = lazy_pattern(r"(" + _STRING + r")[ \t\r\n]*+:", re.DOTALL)
_MAX_KEY_CHARS = 1024 * 1024
# A value that is read as one.
_MAX_VALUE_CHARS = 16 * 1024 * 1024
# A number that the buffer cuts ends before its `.` or `e+`.
_CUT_CHARS = 2
_BOM = "\ufeff"


class RepeatedKeyError(Exception):
    """An object has a key twice, so that one of two values would be lost."""


def _members_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object. Raises `RepeatedKeyError`."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise RepeatedKeyError(f"an object in it has the key {twice!r:.60} twice")
    return members


# Read the value at a place; return it with the place of its end. Raise `ValueError`, `StopIteration`, or
# `RepeatedKeyError`.
scan_value: Any = getattr(  # noqa: B009 # typeshed has no such name
    json.JSONDecoder(parse_constant=str, strict=False, object_pairs_hook=_members_once), "scan_once"
)
scan_strictly = json.JSONDecoder().raw_decode

_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
# Python and others write NaN and Infinity.
_KINDS |= dict.fromkeys("-0123456789NI", "number")


class BrokenJsonError(ValueError):
    """Malformed JSON. Attribute `place` is its character offset."""

    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.place = place


class JsonReader:
    """A place in JSON, which moves forward. Its methods raise `BrokenJsonError` where the JSON is malformed.

    Args:
        text: the text, or its chunks.
        offset: character offset of the first chunk in the text.
        start: character offset to begin at.
        is_strict: whether values and keys are read as `json.loads` reads them; else a byte order mark and
            control characters in strings are allowed, and NaN and Infinity are texts.
    """

    def __init__(
        self, text: str | Iterable[str], offset: int = 0, start: int = 0, *, is_strict: bool = False
    ) -> None:
        self._chunks = iter(() if isinstance(text, str) else text)
        self._buffer = text if isinstance(text, str) else ""
        self._offset = offset
        self._scan = scan_strictly if is_strict else scan_value
        self._at = len(self._buffer)
        while self._offset + len(self._buffer) <= start and self._fill():
            self._at = len(self._buffer)
        self._at = start - self._offset
        if not is_strict and self.place == 0 and self._buffer.startswith(_BOM):
            self._at = len(_BOM)

    @property
    def place(self) -> int:
        """The character offset of this place in the text."""
        return self._offset + self._at

    def peek(self) -> str:
        """Skip white space and return the next character; empty at the end."""
        char = self._buffer[self._at : self._at + 1]
        if char <= " ":
            self._skip_part(_SPACE)
            char = self._buffer[self._at : self._at + 1]
        return char

    def kind(self) -> str:
        """Return the kind of value here: "object", "array", "string", "number", "boolean" or "null"."""
        first = self.peek()
        if first not in _KINDS:
            raise self._broken("a value", first)
        return _KINDS[first]

    def skip(self) -> int:
        """Skip the value here and return the character offset of its end."""
        kind = self.kind()
        if kind in ("object", "array"):
            self._skip_container()
        elif kind == "string":
            self._skip_string()
        else:
            self._skip_part(_SCALAR_PART)
        return self.place

    def value(self) -> Any:
        """Read the value here and move to its end.

        Raises `RecursionError` if it is nested too deeply, and `RepeatedKeyError` unless it is read strictly.
        """
        self.peek()
        while True:
            try:
                value, end = self._scan(self._buffer, self._at)
            except (StopIteration, ValueError) as error:
                if not self._fill_more():
                    raise self._broken("a value", self._buffer[self._at : self._at + 1]) from error
            else:
                if end + _CUT_CHARS < len(self._buffer) or not self._fill_more():
                    self._at = end
                    return value

    def move(self, place: int) -> None:
        """Go to a known place further on in the text, which is in memory."""
        self._at = place - self._offset

    def members(self) -> Iterator[str | int]:
        """Step through the container here; yield the key or the index of each member, at its value.

        The caller may skip or read the value, or step into it; otherwise it is skipped.
        """
        is_object = self._take("{[") == "{"
        closing, marks = ("}", ",}") if is_object else ("]", ",]")
        for index in count():
            if (index or self.peek() == closing) and self._take(marks) == closing:
                return
            name = self._key() if is_object else index
            self.peek()
            place = self.place
            yield name
            if self.place == place:
                self.skip()

    def _key(self) -> str:
        first = self.peek()
        while (match := _KEY.match(self._buffer, self._at)) is None:
            is_long = len(self._buffer) - self._at > _MAX_KEY_CHARS
            if first != '"' or is_long or not self._fill():
                raise self._broken("a key and a colon", first)
        try:
            name = str(self._scan(match[1], 0)[0])
        except ValueError:
            raise self._broken("a key", first) from None
        self._at = match.end()
        return name

    def _take(self, allowed: str) -> str:
        char = self.peek()
        if not char or char not in allowed:
            raise self._broken(" or ".join(allowed), char)
        self._at += 1
        return char

    def _skip_container(self) -> None:
        self._at += 1
        depth = 1
        while True:
            for token in _TOKENS.finditer(self._buffer, self._at):
                kind = token.lastindex
                if kind == _CUT:
                    self._at = token.start(_CUT)
                    self._skip_string()
                    break
                depth += (kind == _OPENS) - (kind == _CLOSES)
                if depth == 0:
                    self._at = token.end()
                    return
            else:
                self._at = len(self._buffer)
                self._fill_or_break("a bracket that closes")

    def _skip_string(self) -> None:
        self._at += 1
        self._skip_part(_REST_OF_STRING)
        while self._buffer[self._at : self._at + 1] != '"':
            self._fill_or_break("a quote that closes")
            self._skip_part(_REST_OF_STRING)
        self._at += 1

    def _skip_part(self, part: re.Pattern[str]) -> None:
        while True:
            match = part.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer) or not self._fill():
                return

    def _fill(self, least: int = 1) -> bool:
        """Append `least` characters or more and drop the text before this place; return whether any came."""
        parts, size = list[str](), 0
        while size < least and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            size += len(chunk)
        if size > 0:
            self._buffer = "".join([self._buffer[self._at :], *parts])
            self._offset += self._at
            self._at = 0
        return size > 0

    def _fill_more(self) -> bool:
        """Double the text from this place on, so that a long value is scanned only a few times."""
        size = len(self._buffer) - self._at
        is_long = size > _MAX_VALUE_CHARS
        has_more = self._fill(1 if is_long else size)
        if is_long and has_more:
            raise BrokenJsonError(f"a value has more than {_MAX_VALUE_CHARS:,} characters", self.place)
        return has_more

    def _fill_or_break(self, expected: str) -> None:
        if not self._fill():
            raise self._broken(expected, "")

    def _broken(self, expected: str, actual: str) -> BrokenJsonError:
        there = ascii(actual) if actual else "the end"
        return BrokenJsonError(f"expected {expected}, found {there}", self.place)


def member_pointer(pointer: str, name: str | int) -> str:
    """Return the JSON pointer (RFC 6901) of a member of the container at `pointer`."""
    return f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}"
