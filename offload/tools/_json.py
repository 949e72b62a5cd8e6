"""A scanner that steps through JSON of any size, chunk by chunk, in constant memory.

It finds the borders of values and the names of members. It does not validate the values that it skips.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Strings, and containers without nested containers, are skipped by one match. All repeats are possessive, so
# each byte is examined a constant number of times.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'[{\[](?:[^"{}\[\]]++|' + _STRING + rb")*+[}\]]"
_SCALAR = rb'[^\s",:{}\[\]]++'
_TOKENS = re.compile(_STRING + b"|" + _FLAT + rb'|([{\[])|([}\]])|(")', re.DOTALL)
_OPENS, _CLOSES, _CUT = 1, 2, 3
_SPACE = re.compile(rb"[ \t\r\n]*+")
_STRING_PART = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SCALAR_PART = re.compile(rb'[^\s",:{}\[\]]*+')
_KEY = re.compile(rb"[ \t\r\n]*+(" + _STRING + rb")[ \t\r\n]*+:", re.DOTALL)
# A whole member and its comma, if the value is a string, a flat container or a scalar.
_VALUE = rb"[ \t\r\n]*+(?P<value>" + _STRING + b"|" + _FLAT + b"|" + _SCALAR + rb")[ \t\r\n]*+,"
_ELEMENT = re.compile(_VALUE, re.DOTALL)
_MEMBER = re.compile(rb"[ \t\r\n]*+(?P<key>" + _STRING + rb")[ \t\r\n]*+:" + _VALUE, re.DOTALL)

# Bytes buffered at the start of a member, so that one match takes a small one.
_AT_HAND_BYTES = 4096
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
    """A place in JSON, which moves forward.

    Args:
        chunks: the content, in order.
        offset: byte offset of the first chunk in the content.
        start: byte offset to begin at; in the first chunk.
    """

    def __init__(self, chunks: Iterator[bytes], offset: int = 0, start: int = 0) -> None:
        self._chunks = chunks
        self._offset = offset
        self._buffer = next(chunks, b"")
        self._at = start - offset

    @property
    def place(self) -> int:
        """The byte offset of the scanner."""
        return self._offset + self._at

    def peek(self) -> bytes:
        """Skip white space and return the next byte; empty at the end."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._fill():
                return b""

    def kind(self) -> str:
        """Return the kind of value here: "object", "array", "string", "number", "boolean" or "null".

        Raises:
            BrokenJsonError: no value begins here.
        """
        first = self.peek()
        if first not in _KINDS:
            raise self._broken("a value", first)
        return _KINDS[first]

    def skip(self) -> int:
        """Skip the value here and return the byte offset of its end.

        Raises:
            BrokenJsonError: no value begins here, or it does not end.
        """
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

        Raises:
            BrokenJsonError: no container begins here, or it is malformed.
        """
        is_object = self._take(b"{[") == b"{"
        closing = b"}" if is_object else b"]"
        if self.peek() == closing:
            self._take(closing)
            return
        index, fast = 0, _MEMBER if is_object else _ELEMENT
        while True:
            self._have(_AT_HAND_BYTES)
            match = fast.match(self._buffer, self._at)
            if match is None:
                name: bytes | int = self._key() if is_object else index
                self.peek()
            else:
                name = match["key"] if is_object else index
                self._at = match.start("value")
            place = self.place
            yield name
            if self.place != place:
                match = None
            elif match is None:
                self.skip()
            else:
                self._at = match.end()
            if match is None and self._take(b"," + closing) == closing:
                return
            index += 1

    def _key(self) -> bytes:
        while (match := _KEY.match(self._buffer, self._at)) is None:
            size = len(self._buffer) - self._at
            if self.peek() not in (b'"', b"") or size > _MAX_KEY_BYTES or not self._have(size + 1):
                raise self._broken("a key and a colon", self.peek())
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
        while True:
            self._skip_part(_STRING_PART)
            if self._byte() == b'"':
                self._at += 1
                return
            # A backslash at the end of a chunk, and the character it escapes in the next.
            self._at += 1
            self._byte()
            self._at += 1

    def _byte(self) -> bytes:
        """Return the byte here, which may be white space."""
        if self._at >= len(self._buffer):
            self._fill_or_break("a quote that closes")
        return self._buffer[self._at : self._at + 1]

    def _skip_part(self, part: re.Pattern[bytes]) -> None:
        while True:
            match = part.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer) or not self._fill():
                return

    def _fill(self) -> bool:
        """Move to the next chunk; return whether there is one."""
        self._offset += len(self._buffer)
        self._at -= len(self._buffer)
        self._buffer = next(self._chunks, b"")
        return self._buffer != b""

    def _fill_or_break(self, expected: str) -> None:
        if not self._fill():
            raise self._broken(expected, b"")

    def _have(self, size: int) -> bool:
        """Buffer `size` bytes from here; return whether there are so many."""
        while len(self._buffer) - self._at < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                return False
            self._offset += self._at
            self._buffer = self._buffer[self._at :] + chunk
            self._at = 0
        return True

    def _broken(self, expected: str, actual: bytes) -> BrokenJsonError:
        there = ascii(actual.decode("latin-1")) if actual else "the end"
        return BrokenJsonError(f"expected {expected}, found {there}", self.place)
