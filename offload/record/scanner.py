"""A scanner that steps through JSON of any size, chunk by chunk, in constant memory.

It finds the borders of values and the names of members, and reads values of a bounded size. It does not
validate the values that it skips.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import count
from typing import Any

# Strings, and containers without nested containers, are skipped by one match. All repeats are possessive, so
# each character is examined a constant number of times.
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_FLAT = r'[{\[](?:[^"{}\[\]]++|' + _STRING + r")*+[}\]]"
_TOKENS = re.compile(_STRING + "|" + _FLAT + r'|([{\[])|([}\]])|(")', re.DOTALL)
_OPENS, _CLOSES, _CUT = 1, 2, 3
_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING_PART = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SCALAR_PART = re.compile(r'[^\s",:{}\[\]]*+', re.ASCII)
_KEY = re.compile(r"(" + _STRING + r")[ \t\r\n]*+:", re.DOTALL)
_MAX_KEY_CHARS = 1024 * 1024
# A value that is read as one.
_MAX_VALUE_CHARS = 16 * 1024 * 1024
_BOM = "\ufeff"
_scan: Any = getattr(json.JSONDecoder(parse_constant=str, strict=False), "scan_once")  # noqa: B009 # typeshed has no such name

_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
# Python and others write NaN and Infinity.
_KINDS |= dict.fromkeys("-0123456789NI", "number")


class BrokenJsonError(Exception):
    """Malformed JSON. Attribute `place` is its character offset."""

    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.place = place


class JsonScanner:
    """A place in JSON, which moves forward. Its methods raise `BrokenJsonError` where the JSON is malformed.

    Args:
        chunks: the text by the chunk.
        offset: character offset of the first chunk in the text.
        start: character offset to begin at.
    """

    def __init__(self, chunks: Iterator[str], offset: int = 0, start: int = 0) -> None:
        self._chunks = chunks
        self._offset = offset
        self._buffer = ""
        self._at = 0
        while self._fill() and self._offset + len(self._buffer) <= start:
            self._at = len(self._buffer)
        self._at = start - self._offset
        if self.place == 0 and self._buffer.startswith(_BOM):
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
        """Read the value here, with texts for NaN and Infinity, and move to its end."""
        self.peek()
        while True:
            try:
                value, end = _scan(self._buffer, self._at)
            except (StopIteration, ValueError):
                if not self._fill_more():
                    raise self._broken("a value", self._buffer[self._at : self._at + 1]) from None
            except RecursionError:
                raise BrokenJsonError("it is nested too deeply", self.place) from None
            else:
                # A number at the end of the buffer may be longer.
                if end < len(self._buffer) or not self._fill_more():
                    self._at = end
                    return value

    def members(self) -> Iterator[str | int]:
        """Step through the container here; yield the key or the index of each member, at its value.

        The caller may skip or read the value, or step into it; otherwise it is skipped.
        """
        is_object = self._take("{[") == "{"
        closing = "}" if is_object else "]"
        if self.peek() == closing:
            self._take(closing)
            return
        for index in count():
            name = self._key() if is_object else index
            self.peek()
            place = self.place
            yield name
            if self.place == place:
                self.skip()
            if self._take("," + closing) == closing:
                return

    def _key(self) -> str:
        first = self.peek()
        while (match := _KEY.match(self._buffer, self._at)) is None:
            is_long = len(self._buffer) - self._at > _MAX_KEY_CHARS
            if first != '"' or is_long or not self._fill():
                raise self._broken("a key and a colon", first)
        self._at = match.end()
        try:
            return str(_scan(match[1], 0)[0])
        except ValueError:
            return match[1][1:-1]

    def _take(self, allowed: str) -> str:
        char = self.peek()
        if not char or char not in allowed:
            raise self._broken(" or ".join(allowed), char)
        self._at += 1
        return char

    def _skip_container(self) -> None:
        depth = 0
        while True:
            for token in _TOKENS.finditer(self._buffer, self._at):
                kind = token.lastindex
                if kind == _CUT:
                    self._at = token.start()
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
        self._skip_part(_STRING_PART)
        while self._buffer[self._at : self._at + 1] != '"':
            self._fill_or_break("a quote that closes")
            self._skip_part(_STRING_PART)
        self._at += 1

    def _skip_part(self, part: re.Pattern[str]) -> None:
        while True:
            match = part.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer) or not self._fill():
                return

    def _fill(self, least: int = 1) -> bool:
        """Drop the text before this place and append `least` characters or more; return whether any came."""
        parts, size = [self._buffer[self._at :]], 0
        while size < least and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            size += len(chunk)
        self._offset += self._at
        self._buffer = "".join(parts)
        self._at = 0
        return size > 0

    def _fill_more(self) -> bool:
        """Double the text from this place on, so that a long value is scanned only a few times."""
        size = len(self._buffer) - self._at
        if size > _MAX_VALUE_CHARS:
            raise BrokenJsonError(f"a value has more than {_MAX_VALUE_CHARS:,} characters", self.place)
        return self._fill(size)

    def _fill_or_break(self, expected: str) -> None:
        if not self._fill():
            raise self._broken(expected, "")

    def _broken(self, expected: str, actual: str) -> BrokenJsonError:
        there = ascii(actual) if actual else "the end"
        return BrokenJsonError(f"expected {expected}, found {there}", self.place)
