"""What a codec is: the contract between records and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from offload.codec._content import StoredContent, TextContent
from offload.codec._spooled import SpooledContent
from offload.record import Counts, Header
from offload.store import OffloadStore, put_stream

# A larger object is written piece by piece.
_STREAMED_BYTES = 8 * 1024 * 1024


class Fetch(Protocol):
    """Reads a range of one stored object; `start` < 0 counts from the end, as in `OffloadStore.get`."""

    def __call__(self, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` up to `end`."""
        ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record as bytes.

    Attributes:
        pieces: the object that commits the record, in pieces that can be iterated again.
        size: its size in bytes.
        sidecar: a header kept beside a body that holds the content alone, to be stored before it.
    """

    pieces: Iterable[bytes]
    size: int
    sidecar: bytes | None = None

    @classmethod
    def whole(cls, body: bytes, sidecar: bytes | None = None) -> Encoded:
        """Return a record whose object is `body`."""
        return cls((body,), len(body), sidecar)

    @property
    def body(self) -> bytes:
        """The object in one piece."""
        return b"".join(self.pieces)

    def create(self, store: OffloadStore, key: str) -> None:
        """Create the object under `key`, as `OffloadStore.put` does and with its errors.

        An object of over 8 MiB is written in pieces; a store without `SupportsStreams` gets it in one, which
        takes memory for all of it.
        """
        if self.size > _STREAMED_BYTES:
            put_stream(store, key, self.pieces, self.size)
        else:
            store.put(key, self.body)


class StoredRecord(Protocol):
    """A record opened for reading; what is asked for is fetched, and nothing else. Threads may share it."""

    @property
    def ref(self) -> str:
        """The ref that it was stored under."""
        ...

    @property
    def session(self) -> str:
        """The session that it was stored in."""
        ...

    @property
    def header(self) -> Header:
        """What the record is."""
        ...

    @property
    def counts(self) -> Counts:
        """How large its content is."""
        ...

    @property
    def is_redacted(self) -> bool:
        """Whether something was cut out of the content before it was stored."""
        ...

    @property
    def content(self) -> StoredContent:
        """The content, for reading by range and line; each range is checked as it is read.

        A new one each time, for one thread.
        """
        ...

    def stream(self) -> Iterator[bytes]:
        """Yield the whole content in order, in chunks that end between characters.

        A codec that `reads_ranges` holds 8 MiB at a time. Every check that `load` makes is made: what
        only the whole can show, its SHA-256 above all, raises `CorruptError` after the last chunk.
        """
        ...

    def load(self) -> bytes:
        """Return the whole content, its SHA-256 checked. Raises `CorruptError`."""
        ...


class Codec(Protocol):
    """Turns a record into bytes and back.

    Attributes:
        name: what the codec is called in `Offloader(codec=…)`.
        suffix: the end of the keys that it writes.
        has_sidecar: whether the header is kept in an object of its own.
        reads_ranges: whether an opened record fetches what it is asked for, and holds little.
    """

    name: str
    suffix: str
    has_sidecar: bool
    reads_ranges: bool

    def encode(self, header: Header, content: TextContent | SpooledContent) -> Encoded:
        """Return the bytes of a record.

        Spooled content keeps its frames in codec `zstd` and is read by chunks in `raw`; `json` takes memory
        for the whole of it.
        """
        ...

    def open(self, fetch: Fetch, sidecar: Fetch | None = None) -> StoredRecord:
        """Open a record that `fetch` reads. Raises `CorruptError` if its structure is damaged."""
        ...
