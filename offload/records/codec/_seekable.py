"""Codec `zstd`: a record as a valid zstd stream that can be read by range.

    [skippable 0x184D2A50: head] [zstd frames] [skippable 0x184D2A51: tail] [seek table]

Head and tail are msgpack maps followed by a CRC-32. The frames hold 256 KiB of content each, are
independent and carry content size and checksum. The seek table is that of the official seekable
format of the zstd project and lists head and tail as frames of decompressed size 0. `FORMAT.md` has
the layout byte by byte.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator
from functools import reduce
from hashlib import sha256
from itertools import accumulate

import msgspec

from offload.base.threads.locks import cached
from offload.errors import ConfigError, CorruptError
from offload.records.codec._frames import compress, decompress, level_for
from offload.records.codec.base import Encoded, Fetch
from offload.records.codec.content import CHUNK_BYTES, Borders, StoredContent, TextContent
from offload.records.codec.spooled import SpooledContent
from offload.records.record import Header
from offload.records.record.header import Counts
from offload.storage.store import check_plain

HEAD_MAGIC, TAIL_MAGIC, TABLE_MAGIC = 0x184D2A50, 0x184D2A51, 0x184D2A5E
FOOTER_MAGIC = 0x8F92EAB1
# Enough for the tail and table of a 1 GiB record, or for all of a small record.
SUFFIX_BYTES = 64 * 1024
# A table of 4 Mi frames, a record of 1 TiB: larger claims are damage.
MAX_TABLE_BYTES = 32 * 1024 * 1024
WINDOW_BYTES = 8 * 1024 * 1024

_FRAME_HEAD = struct.Struct("<II")
_ENTRY = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")
_CRC = struct.Struct("<I")
# The rows of head and tail.
_MIN_ROWS = 2


class _Tail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The measures of the content, and the table that finds a position in it.

    `chars` and `newlines` hold a little-endian 24-bit number per frame; `stored_crc32` covers all bytes
    before the tail frame.
    """

    ref: str
    session: str
    counts: Counts
    chars: bytes
    newlines: bytes
    stored_crc32: int
    redacted: bool = False
    title: str | None = None
    agent: str | None = None
    encoding: str | None = None


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_HEADS = msgspec.msgpack.Decoder(Header)
_TAILS = msgspec.msgpack.Decoder(_Tail)


class SeekableCodec:
    """Seekable zstd, the default on every store."""

    name = "zstd"
    suffix = ".zst"
    has_sidecar = False
    reads_ranges = True

    def encode(self, header: Header, content: TextContent | SpooledContent) -> Encoded:
        frames, stored = _frames_of(content)
        packed = msgspec.msgpack.encode(header)
        head = _FRAME_HEAD.pack(HEAD_MAGIC, len(packed) + _CRC.size) + packed + _crc(packed)
        tail = _Tail(
            ref=header.ref,
            session=header.session,
            counts=content.counts,
            chars=_pack(s.chars for s in content.sizes),
            newlines=_pack(s.newlines for s in content.sizes),
            stored_crc32=reduce(lambda crc, piece: zlib.crc32(piece, crc), frames, zlib.crc32(head)),
            redacted=header.redacted,
            title=header.title,
            agent=header.agent,
            encoding=header.encoding,
        )
        if _table_size(len(stored) + _MIN_ROWS) > MAX_TABLE_BYTES:
            raise ConfigError("content must be at most 1 TiB; split it")
        rows = [(len(head), 0), *zip(stored, (s.bytes for s in content.sizes), strict=True)]
        footer = _footer(msgspec.msgpack.encode(tail), rows)
        return Encoded(((head,), frames, (footer,)), len(head) + sum(stored) + len(footer))

    def open(self, fetch: Fetch, _sidecar: Fetch | None = None) -> SeekableRecord:
        """Open a record from its last 64 KiB; a small one is read whole by that."""
        return SeekableRecord(fetch)


class SeekableRecord:
    """A record of codec `zstd`, read by range."""

    def __init__(self, fetch: Fetch) -> None:
        asked = SUFFIX_BYTES
        suffix = fetch(start=-asked)
        needed = _footer_size(suffix)
        if needed > len(suffix):
            asked = needed
            suffix = fetch(start=-asked)
        self._fetch = fetch
        self._tail, stored, plain = _parse_footer(suffix)
        # The offset of each row, the head first.
        self._places = array("Q", accumulate(stored, initial=0))
        self._size = self._places[-1] + _table_size(len(stored))
        self.ref = self._tail.ref
        self.session = self._tail.session
        self.counts = self._tail.counts
        if len(suffix) < min(asked, self._size) or self._size < len(suffix) < asked:
            raise CorruptError(f"record {self.ref} does not have the size in its seek table")
        self._suffix = suffix[-self._size :]
        self._borders = _borders(self._tail, stored[1:-1], plain[1:-1])

    @property
    def is_redacted(self) -> bool:
        """Whether parts of the content were removed before storage, read from the tail."""
        return self._tail.redacted

    @property
    def title(self) -> str | None:
        """The title in the header, read from the tail."""
        return self._tail.title

    @property
    def agent(self) -> str | None:
        """The agent in the header, read from the tail."""
        return self._tail.agent

    @cached
    def header(self) -> Header:
        """The header; fetched on its own if the record is large."""
        return self._parse_head(self._bytes(0, self._places[1]))

    @property
    def content(self) -> StoredContent:
        """The content by range; neighbouring frames come in one request of at most 8 MiB."""
        stored = StoredContent(self._borders, self._read, self.counts.lines)
        return stored.decoded(self._tail.encoding)

    def stream(self) -> Iterator[bytes]:
        """Yield the content chunk by chunk; every stored byte and the SHA-256 are checked by its end."""
        crc, digest = 0, sha256()
        for row, stored in enumerate(self._stored(0, len(self._places) - 2)):
            crc = zlib.crc32(stored, crc)
            if row == 0:
                self.__dict__["header"] = self._parse_head(stored)
                continue
            chunk = self._decode(row - 1, stored)
            digest.update(chunk)
            yield chunk
        if crc != self._tail.stored_crc32:
            raise CorruptError(f"record {self.ref}: stored bytes do not match their CRC-32")
        if digest.digest() != self.counts.sha256:
            raise CorruptError(f"record {self.ref}: content does not match its SHA-256")

    def load(self) -> bytes:
        """Return the whole content; every stored byte and its SHA-256 are checked."""
        return b"".join(self.stream())

    def _read(self, first: int, last: int) -> Iterator[bytes]:
        for chunk, frame in enumerate(self._stored(first + 1, last + 1), first):
            yield self._decode(chunk, frame)

    def _stored(self, first: int, last: int) -> Iterator[bytes]:
        """Yield the stored bytes of the rows from `first` up to `last`, fetched 8 MiB at a time."""
        places = self._places
        while first < last:
            start = places[first]
            until = first + 1
            while until < last and places[until + 1] - start <= WINDOW_BYTES:
                until += 1
            window = self._bytes(start, places[until])
            for row in range(first, until):
                yield window[places[row] - start : places[row + 1] - start]
            first = until

    def _bytes(self, start: int, end: int) -> bytes:
        held_from = self._size - len(self._suffix)
        if start >= held_from:
            return self._suffix[start - held_from : end - held_from]
        if end <= held_from:
            return self._fetch(start=start, end=end)
        return self._fetch(start=start, end=held_from) + self._suffix[: end - held_from]

    def _decode(self, chunk: int, frame: bytes) -> bytes:
        try:
            return decompress(frame, self._borders.bytes[chunk + 1] - self._borders.bytes[chunk])
        except CorruptError as error:
            raise CorruptError(f"record {self.ref}: frame {chunk}: {error}") from error

    def _parse_head(self, frame: bytes) -> Header:
        tail = self._tail
        try:
            payload = _skippable(memoryview(frame), HEAD_MAGIC, "head")
            header = _HEADS.decode(_unsealed(payload, "head"))
        except (CorruptError, msgspec.MsgspecError, RecursionError) as error:
            raise CorruptError(f"record {tail.ref}: head: {error}") from error
        if (header.ref, header.session, header.sha256) != (tail.ref, tail.session, tail.counts.sha256):
            raise CorruptError(f"record {tail.ref}: head and tail belong to different records")
        return header


def _frames_of(content: TextContent | SpooledContent) -> tuple[Iterable[bytes], list[int]]:
    if isinstance(content, SpooledContent):
        return content.spool, content.stored
    level = level_for(len(content.data))
    frames = [compress(chunk, level) for chunk in content.chunks()]
    return frames, [len(frame) for frame in frames]


def _crc(payload: bytes | memoryview, *covered: bytes | memoryview) -> bytes:
    return _CRC.pack(reduce(lambda crc, part: zlib.crc32(part, crc), covered, zlib.crc32(payload)))


def _unsealed(sealed: memoryview, what: str, *covered: memoryview) -> memoryview:
    payload, seal = sealed[: -_CRC.size], sealed[-_CRC.size :]
    if seal != _crc(payload, *covered):
        raise CorruptError(f"the {what} of a record does not match its CRC-32")
    return payload


def _skippable(frame: memoryview, magic: int, what: str) -> memoryview:
    if frame[: _FRAME_HEAD.size] != _FRAME_HEAD.pack(magic, max(0, len(frame) - _FRAME_HEAD.size)):
        raise CorruptError(f"the {what} of a record is not where its seek table says")
    return frame[_FRAME_HEAD.size :]


def _pack(numbers: Iterator[int]) -> bytes:
    return b"".join(n.to_bytes(3, "little") for n in numbers)


def _unpack(packed: bytes) -> array[int]:
    """Return the 24-bit numbers of a tail, each with a byte of zeros behind it."""
    wide = bytearray(len(packed) // 3 * 4)
    for place in range(3):
        wide[place::4] = packed[place::3]
    return _numbers(wide)


def _numbers(data: memoryview | bytearray) -> array[int]:
    numbers = array("I")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _table_size(entries: int) -> int:
    return _FRAME_HEAD.size + entries * _ENTRY.size + _FOOTER.size


def _footer(tail: bytes, entries: list[tuple[int, int]]) -> bytes:
    sealed_size = len(tail) + _CRC.size
    rows = [*entries, (_FRAME_HEAD.size + sealed_size, 0)]
    table = b"".join(
        [
            _FRAME_HEAD.pack(TABLE_MAGIC, _table_size(len(rows)) - _FRAME_HEAD.size),
            *(_ENTRY.pack(stored, plain) for stored, plain in rows),
            _FOOTER.pack(len(rows), 0, FOOTER_MAGIC),
        ]
    )
    return _FRAME_HEAD.pack(TAIL_MAGIC, sealed_size) + tail + _crc(tail, table) + table


def _footer_size(suffix: bytes) -> int:
    """Return how many of the last bytes of a record hold its tail and seek table."""
    if len(suffix) < _FOOTER.size:
        raise CorruptError(f"a record of {len(suffix)} bytes is truncated")
    rows, descriptor, magic = _FOOTER.unpack(suffix[-_FOOTER.size :])
    size = _table_size(rows)
    last_row = suffix[-_FOOTER.size - _ENTRY.size : -_FOOTER.size]
    is_table = magic == FOOTER_MAGIC and descriptor == 0 and rows >= _MIN_ROWS and size <= MAX_TABLE_BYTES
    if not is_table or len(last_row) < _ENTRY.size:
        check_plain(suffix)
        raise CorruptError("a record must end in a seek table; it is truncated, or not a record")
    tail_size: int = _ENTRY.unpack(last_row)[0]
    if tail_size > MAX_TABLE_BYTES:
        raise CorruptError(f"the seek table of a record claims a tail of {tail_size} bytes")
    return size + tail_size


def _parse_footer(suffix: bytes) -> tuple[_Tail, array[int], array[int]]:
    """Return the tail, and of each row of the seek table its stored size and that of its content."""
    needed = _footer_size(suffix)
    if needed > len(suffix):
        raise CorruptError("a record is shorter than its seek table says; it is truncated")
    rows: int = _FOOTER.unpack(suffix[-_FOOTER.size :])[0]
    # Views: a table and a tail may take 32 MiB each.
    footer = memoryview(suffix)[-needed:]
    table = footer[-_table_size(rows) :]
    numbers = _numbers(_skippable(table, TABLE_MAGIC, "seek table")[: -_FOOTER.size])
    sealed = _skippable(footer[: -len(table)], TAIL_MAGIC, "tail")
    try:
        tail = _TAILS.decode(_unsealed(sealed, "tail", table))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CorruptError(f"the tail of a record cannot be read: {error}") from error
    return tail, numbers[::2], numbers[1::2]


def _borders(tail: _Tail, stored: array[int], plain: array[int]) -> Borders:
    """Return where the chunks of a record end, as its tail and its seek table agree."""
    is_sound = (
        3 * len(plain) == len(tail.chars) == len(tail.newlines)
        and sum(plain) == tail.counts.bytes
        and 0 < min(plain, default=1) <= max(plain, default=1) <= CHUNK_BYTES
        and 0 < min(stored, default=1) <= max(stored, default=1) <= WINDOW_BYTES
    )
    if not is_sound:
        raise CorruptError(f"record {tail.ref}: its tail and its seek table disagree")
    return Borders.of(plain, _unpack(tail.chars), _unpack(tail.newlines))
