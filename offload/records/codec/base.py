"""The protocols of codecs and stored records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Protocol

import msgspec

from offload.records.codec.content import StoredContent, TextContent
from offload.records.codec.spooled import SpooledContent
from offload.records.record import Header
from offload.records.record.header import Counts

_LARGE_BYTES = 8 * 1024 * 1024


class Fetch(Protocol):
    """Reads a range of one stored object; `start` < 0 counts from the end, as in `OffloadStore.get`."""

    def __call__(self, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` up to `end`."""


class Encoded(msgspec.Struct, frozen=True):
    """A record as bytes: the pieces of the object that commits it, which can be iterated again, and its size.

    The header is a `sidecar`, to be stored first, if the object holds the content alone.
    """

    parts: tuple[Iterable[bytes], ...]
    size: int
    sidecar: bytes | None = None

    @classmethod
    def whole(cls, body: bytes, sidecar: bytes | None = None) -> Encoded:
        """Return a record of one piece, with the object next to it if it has one."""
        return cls(((body,),), len(body), sidecar)

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self.parts)

    @property
    def body(self) -> bytes:
        """The object in one piece."""
        return b"".join(self)

    @property
    def is_large(self) -> bool:
        """Whether the object is stored in pieces, alone."""
        return self.size > _LARGE_BYTES


class StoredRecord(Protocol):
    """A record opened for reading, which fetches only the requested parts. Threads may share it.

    Its ref and session are those it was stored under.
    """

    ref: str
    session: str
    counts: Counts

    @property
    def header(self) -> Header:
        """The description of the item."""

    @property
    def is_redacted(self) -> bool:
        """Whether parts of the content were removed before storage."""

    @property
    def title(self) -> str | None:
        """The title in the header, which costs no request once the record is open."""

    @property
    def agent(self) -> str | None:
        """The agent in the header, which costs no request once the record is open."""

    @property
    def content(self) -> StoredContent:
        """The content, for reading by range and line, decoded; each range is checked as it is read.

        A new one each time, for one thread.
        """

    def stream(self) -> Iterator[bytes]:
        """Yield the whole content as stored, in order, in chunks that end between characters.

        A codec that `reads_ranges` holds 8 MiB at a time. Makes every check of `load`: a mismatch of the
        whole content, such as its SHA-256, raises `CorruptError` after the last chunk.
        """

    def load(self) -> bytes:
        """Return the whole content, its SHA-256 checked. Raises `CorruptError`."""


class Codec(Protocol):
    """Turns a record into bytes and back.

    Attributes:
        has_sidecar: whether the header is an object of its own.
        reads_ranges: whether an opened record fetches requested ranges only, and holds little.
    """

    name: str
    suffix: str
    has_sidecar: bool
    reads_ranges: bool

    def encode(self, header: Header, content: TextContent | SpooledContent) -> Encoded:
        """Return the bytes of a record.

        Codec `zstd` reuses the frames of spooled content, `raw` reads it in chunks, and `json` takes memory
        for all of it.
        """

    def open(self, fetch: Fetch, sidecar: Fetch | None = None) -> StoredRecord:
        """Open a record that `fetch` reads. Raises `CorruptError` if its structure is damaged."""
