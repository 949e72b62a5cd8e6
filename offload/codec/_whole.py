"""A record that is read in one piece: what the codecs `json` and `raw` open."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from offload.codec._content import Borders, StoredContent, split
from offload.errors import CorruptError
from offload.record import Counts, Header


class WholeRecord:
    """A record whose content is in memory, its SHA-256 checked when it was opened."""

    def __init__(self, header: Header, counts: Counts, content: bytes) -> None:
        if sha256(content).digest() != counts.sha256 or header.sha256 != counts.sha256:
            raise CorruptError(f"record {header.ref}: content does not match its SHA-256")
        self.ref = header.ref
        self.session = header.session
        self.header = header
        self.counts = counts
        self.is_redacted = header.redacted
        self._content = content

    @property
    def content(self) -> StoredContent:
        """The content by range."""
        borders = Borders.between(split(self._content))

        def read(first: int, last: int) -> Iterator[bytes]:
            return (self._content[borders.bytes[i] : borders.bytes[i + 1]] for i in range(first, last))

        return StoredContent(borders, read)

    def stream(self) -> Iterator[bytes]:
        """Yield the whole content, chunk by chunk."""
        return self.content.chunks_from(0)[1]

    def load(self) -> bytes:
        """Return the whole content."""
        return self._content
