"""A scanner that steps through JSON of any size, chunk by chunk, in constant memory.

It finds the borders of values and the names of members. It does not validate the values that it skips.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from itertools import count

# Strings, and containers without nested containers, are skipped by one match. All repeats are possessive, so
# each byte is examined a constant number of times.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'[{\[](?:[^"{}\[\]]++|' + _STRING + rb")*+[}\]]"
_TOKENS = re.compile(_STRING + b"|" + _FLAT + rb'|([{\[])|([}\]])|(")', re.DOTALL)
_OPENS, _CLOSES, _CUT = 1, 2, 3
_SPACE = re.compile(rb"[ \t\r\n]*+")
_STRING_PART = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SCALAR_PART = re.compile(rb'[^\s",:{}\[\]]*+')
_KEY = re.compile(rb"(" + _STRING + rb")[ \t\r\n]*+:", re.DOTALL)
_MAX_KEY_BYTES = 1024 * 1024

_KINDS = {b"{": "object", b"[": "array", b'"': "string", b"t": "boolean", b"f": "boolean", b"n": "null"}
# Python and others write NaN and Infinity.
_KINDS |= {bytes([first]): "number" for first in b"-0123456789NI"}


class BrokenJsonError(Exception):
    """Malformed JSON. Attribute `place` is its byte offset."""

    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.place = place


class JsonScanner:
    """A place in JSON, which moves forward. Its methods raise `BrokenJsonError` where the JSON is malformed.

    Args:
        offset: byte offset of the first chunk in the content.
        start: byte offset to begin at; in the first chunk.
    """

    def __init__(self, chunks: Iterator[bytes], offset: int = 0, start: int = 0) -> None:
        self._chunks = chunks
        self._offset = offset
        self._buffer = next(chunks, b"")
        self._at = start - offset
        if self.place == 0 and self._buffer.startswith(BOM_UTF8):
            self._at = len(BOM_UTF8)

    @property
    def place(self) -> int:
        return self._offset + self._at

    def peek(self) -> bytes:
        """Skip white space and return the next byte; empty at the end."""
        byte = self._buffer[self._at : self._at + 1]
        if byte <= b" ":
            self._skip_part(_SPACE)
            byte = self._buffer[self._at : self._at + 1]
        return byte

    def kind(self) -> str:
        """Return the kind of value here: "object", "array", "string", "number", "boolean" or "null"."""
        first = self.peek()
        if first not in _KINDS:
            raise self._broken("a value", first)
        return _KINDS[first]

    def skip(self) -> int:
        """Skip the value here and return the byte offset of its end."""
        kind = self.kind()
        if kind in ("object", "array"):
            self._skip_container()
        elif kind == "string":
            self._skip_string()
        else:
            self._skip_part(_SCALAR_PART)
        return self.place

    def members(self) -> Iterator[bytes | int]:
        """Step through the container here; yield the name of each member, at its value.

        Names are the keys of an object as written, with quotes, or the indices of an array. The caller may
        skip the value or step into it; otherwise it is skipped.
        """
        is_object = self._take(b"{[") == b"{"
        closing = b"}" if is_object else b"]"
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
            if self._take(b"," + closing) == closing:
                return

    def _key(self) -> bytes:
        first = self.peek()
        while (match := _KEY.match(self._buffer, self._at)) is None:
            is_long = len(self._buffer) - self._at > _MAX_KEY_BYTES
            if first != b'"' or is_long or not self._fill():
                raise self._broken("a key and a colon", first)
        self._at = match.end()
        return match[1]

    def _take(self, allowed: bytes) -> bytes:
        byte = self.peek()
        if not byte or byte not in allowed:
            raise self._broken(" or ".join(map(chr, allowed)), byte)
        self._at += 1
        return byte

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
        while self._buffer[self._at : self._at + 1] != b'"':
            self._fill_or_break("a quote that closes")
            self._skip_part(_STRING_PART)
        self._at += 1

    def _skip_part(self, part: re.Pattern[bytes]) -> None:
        while True:
            match = part.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer) or not self._fill():
                return

    def _fill(self) -> bool:
        """Drop the bytes before this place and append the next chunk; return whether there is one."""
        chunk = next(self._chunks, b"")
        self._offset += self._at
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        return chunk != b""

    def _fill_or_break(self, expected: str) -> None:
        if not self._fill():
            raise self._broken(expected, b"")

    def _broken(self, expected: str, actual: bytes) -> BrokenJsonError:
        there = ascii(actual.decode("latin-1")) if actual else "the end"
        return BrokenJsonError(f"expected {expected}, found {there}", self.place)
