"""Content codings of bodies: those that are known, decoded completely, in pieces of bounded size."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import brotli
import zstandard

# A piece of a decoded body is hardly larger.
_PIECE = 256 * 1024
# Of zstd: the largest window of an HTTP body (RFC 9659), and the input that is decoded at once, since a block
# of 4 bytes may be 128 KiB.
_WINDOW, _SLICE = 8 * 1024 * 1024, 256
# One over another; more are not sent for a good reason.
_MOST_CODINGS = 4
_ANY_DEFLATE = 15
_RAW, _GZIP = -15, 31


class _Coding(Protocol):
    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what a part of the body decodes to."""

    @property
    def is_whole(self) -> bool:
        """Whether the body ends where a coded text ends."""


class _Members:
    """Deflated texts, one behind another, which zeros may follow."""

    def __init__(self) -> None:
        self._member: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._member is None or self._member.eof:
                data = data if self._member is None else data.lstrip(b"\0")
                if not data:
                    return
                self._member = zlib.decompressobj(_GZIP)
            yield from _inflated(self._member, data)
            data = self._member.unused_data

    @property
    def is_whole(self) -> bool:
        return self._member is None or bool(self._member.eof)


class _Deflated:
    """One deflated text, with the head of zlib or, as some servers send it, without."""

    def __init__(self) -> None:
        self._head = b""
        self._text: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._text is None:
            data = self._head = self._head + data
            if len(data) < len(b"CM"):
                return
            is_zlib = data[0] & 15 == zlib.DEFLATED and int.from_bytes(data[:2]) % 31 == 0
            self._text = zlib.decompressobj(_ANY_DEFLATE if is_zlib else _RAW)
        if data and self._text.eof:
            raise ValueError("more follows a deflated text")
        yield from _inflated(self._text, data)
        if self._text.unused_data:
            raise ValueError("more follows a deflated text")

    @property
    def is_whole(self) -> bool:
        return not self._head if self._text is None else bool(self._text.eof)


def _inflated(text: Any, data: bytes) -> Iterator[bytes]:
    piece = b""
    # With a full piece, more may wait although all input was taken.
    while not text.eof and (data or len(piece) == _PIECE):
        piece = text.decompress(data, _PIECE)
        yield piece
        data = text.unconsumed_tail


class _Frames:
    """Frames of zstd, one behind another."""

    def __init__(self) -> None:
        self._frame: Any = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _SLICE):
            left = data[start : start + _SLICE]
            while left:
                if self._frame is None or self._frame.eof:
                    self._frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
                yield self._frame.decompress(left)
                left = self._frame.unused_data if self._frame.eof else b""

    @property
    def is_whole(self) -> bool:
        return self._frame is None or bool(self._frame.eof)


class _Brotli:
    """One text of Brotli."""

    def __init__(self) -> None:
        self._text = brotli.Decompressor()
        self._has_any = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._has_any = self._has_any or bool(data)
        if data and self._text.is_finished():
            raise ValueError("more follows a text of Brotli")
        piece = self._text.process(data, output_buffer_limit=_PIECE)
        while piece:
            yield piece
            # More may wait although all input was taken.
            piece = b"" if self._text.is_finished() else self._text.process(b"", output_buffer_limit=_PIECE)

    @property
    def is_whole(self) -> bool:
        return not self._has_any or bool(self._text.is_finished())


_CODINGS: dict[str, type[_Coding]] = {
    "gzip": _Members,
    "x-gzip": _Members,
    "deflate": _Deflated,
    "br": _Brotli,
    "zstd": _Frames,
}
# The names that a refusal lists.
KNOWN = ("gzip", "deflate", "br", "zstd")
_PLAIN = ("", "identity")


class Decoder:
    """Decodes a body that has some codings, one part after another."""

    def __init__(self, codings: Iterable[str]) -> None:
        # The coding that was applied last is taken off first.
        self._codings = [_CODINGS[name]() for name in codings][::-1]

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the pieces that a part decodes to. Raises `ValueError` if it is not encoded so."""
        pieces: Iterator[bytes] = iter([data])
        for coding in self._codings:
            pieces = _decoded(pieces, coding)
        try:
            yield from filter(None, pieces)
        except (zlib.error, zstandard.ZstdError, brotli.error, ValueError) as error:
            raise ValueError(f"the body is not encoded as its Content-Encoding says: {error}") from error

    def end(self) -> None:
        """Raise `ValueError` if the body ended before its codings did."""
        if not all(coding.is_whole for coding in self._codings):
            raise ValueError("the body ended before its Content-Encoding did")


def decoder(values: Iterable[str]) -> Decoder | None:
    """Return a decoder for the values of `Content-Encoding`; None if one of the codings is not known."""
    names = [name.strip().lower() for value in values for name in value.split(",")]
    codings = [name for name in names if name not in _PLAIN]
    is_known = len(codings) <= _MOST_CODINGS and all(name in _CODINGS for name in codings)
    return Decoder(codings) if is_known else None


def acceptable(value: str) -> str:
    """Return a value of `Accept-Encoding` without the codings that cannot be decoded."""
    kept = [
        part for part in value.split(",") if part.partition(";")[0].strip().lower() in (*_CODINGS, *_PLAIN)
    ]
    return ",".join(kept).strip() or "identity"


def _decoded(pieces: Iterator[bytes], coding: _Coding) -> Iterator[bytes]:
    return (more for piece in pieces for more in coding.feed(piece))
