"""A scanner that finds its way through JSON of any size, chunk by chunk, and keeps nothing of it.

It finds where values begin and end and what the members of a container are called. It does not validate:
what it steps over may be malformed, and is shown as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# Strings and containers without containers in them are stepped over in one go. Every repeat is possessive,
# so whatever the content is, each byte is looked at a constant number of times.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'[{\[](?:[^"{}\[\]]++|' + _STRING + rb")*+[}\]]"
_SCALAR = rb'[^\s",:{}\[\]]++'
_TOKENS = re.compile(_STRING + b"|" + _FLAT + rb'|([{\[])|([}\]])|(")', re.DOTALL)
_OPENS, _CLOSES, _CUT = 1, 2, 3
_SPACE = re.compile(rb"[ \t\r\n]*+")
_STRING_PART = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SCALAR_PART = re.compile(rb'[^\s",:{}\[\]]*+')
_KEY = re.compile(rb"[ \t\r\n]*+(" + _STRING + rb")[ \t\r\n]*+:", re.DOTALL)
# A whole member and the comma behind it; a value that is no string, flat container or scalar does not match.
_VALUE = rb"[ \t\r\n]*+(?P<value>" + _STRING + b"|" + _FLAT + b"|" + _SCALAR + rb")[ \t\r\n]*+,"
_ELEMENT = re.compile(_VALUE, re.DOTALL)
_MEMBER = re.compile(rb"[ \t\r\n]*+(?P<key>" + _STRING + rb")[ \t\r\n]*+:" + _VALUE, re.DOTALL)

# So much is at hand where a member begins, so that a small one is seen as a whole.
_AT_HAND_BYTES = 4096
_MAX_KEY_BYTES = 1024 * 1024

_KINDS = {b"{": "object", b"[": "array", b'"': "string", b"t": "boolean", b"f": "boolean", b"n": "null"}
# NaN and Infinity are what Python and others write for them.
_KINDS |= {bytes([first]): "number" for first in b"-0123456789NI"}


class BrokenJsonError(Exception):
    """What stands at a place is not what JSON has there. Attribute `place` is its byte offset."""

    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.place = place


class JsonScanner:
    """Stands at a place in JSON and moves forward.

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
        """The byte offset that the scanner stands at."""
        return self._offset + self._at

    def peek(self) -> bytes:
        """Step over white space and return the byte that follows; none at the end."""
        while True:
            match = _SPACE.match(self._buffer, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._fill():
                return b""

    def kind(self) -> str:
        """Return what kind of value begins here: "object", "array", "string", "number", "boolean" or "null".

        Raises:
            BrokenJsonError: no value begins here.
        """
        first = self.peek()
        if first not in _KINDS:
            raise self._broken("a value", first)
        return _KINDS[first]

    def skip(self) -> int:
        """Step over the value that begins here and return the byte offset of its end.

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
        """Step through the container that begins here; yield the name of each member at its value.

        Names are the keys of an object as they are written, with their quotes, and the indices of an array.
        The value may be stepped over or into; one that was not is stepped over when the next is asked for.

        Raises:
            BrokenJsonError: what stands here is no container, or is malformed.
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
            held = len(self._buffer) - self._at
            if self.peek() not in (b'"', b"") or held > _MAX_KEY_BYTES or not self._have(held + 1):
                raise self._broken("a key and a colon", self.peek())
        self._at = match.end()
        return match[1]

    def _take(self, allowed: bytes) -> bytes:
        found = self.peek()
        if not found or found not in allowed:
            raise self._broken(" or ".join(map(chr, allowed)), found)
        self._at += 1
        return found

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
            # A backslash that ends a chunk, or what it escapes at the begin of the next.
            self._at += 1
            self._byte()
            self._at += 1

    def _byte(self) -> bytes:
        """Return the byte that stands here, be it white space."""
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
        """Go on to the next chunk; tell whether there is one."""
        self._offset += len(self._buffer)
        self._at -= len(self._buffer)
        self._buffer = next(self._chunks, b"")
        return self._buffer != b""

    def _fill_or_break(self, wanted: str) -> None:
        if not self._fill():
            raise self._broken(wanted, b"")

    def _have(self, size: int) -> bool:
        """Have `size` bytes from here on at hand; tell whether there are so many."""
        while len(self._buffer) - self._at < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                return False
            self._offset += self._at
            self._buffer = self._buffer[self._at :] + chunk
            self._at = 0
        return True

    def _broken(self, wanted: str, found: bytes) -> BrokenJsonError:
        there = ascii(found.decode("latin-1")) if found else "the end"
        return BrokenJsonError(f"expected {wanted}, found {there}", self.place)
