"""What a codec is: the contract between records and bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from offload.codec._content import Content, StoredContent
from offload.record import Counts, Header


class Fetch(Protocol):
    """Reads a range of one stored object; `start` < 0 counts from the end, as in `OffloadStore.get`."""

    def __call__(self, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from `start` up to `end`."""
        ...


@dataclass(frozen=True, slots=True)
class Encoded:
    """A record as bytes.

    Attributes:
        body: the object that commits the record.
        sidecar: a header kept beside a body that holds the content alone, to be stored before it.
    """

    body: bytes
    sidecar: bytes | None = None


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
    def content(self) -> StoredContent:
        """The content, for reading by range and line; each range is checked as it is read.

        A new one each time, for one thread.
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

    def encode(self, header: Header, content: Content) -> Encoded:
        """Return the bytes of a record."""
        ...

    def open(self, fetch: Fetch, sidecar: Fetch | None = None) -> StoredRecord:
        """Open a record that `fetch` reads. Raises `CorruptError` if its structure is damaged."""
        ...
