"""Codec of contents that quote other records: only what these lack is stored.

The object is one zstd frame. The content is put together again from the other records of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import zstandard

from offload.base.text import decode_text, encode_text
from offload.errors import CorruptError, ExpiredError, NotFoundError
from offload.records.codec._frames import compress, decompress
from offload.records.codec.base import Encoded, Fetch, StoredRecord
from offload.records.codec.content import Part, Quote, StoredContent, TextContent
from offload.records.codec.readable import WholeRecord
from offload.records.codec.spooled import SpooledContent
from offload.records.record import Header
from offload.records.record.header import Counts
from offload.storage.store import check_plain

# A larger text is stored whole.
MAX_QUOTING_BYTES = 1024 * 1024
_MAX_OBJECT_BYTES = 2 * MAX_QUOTING_BYTES
_LOST = "the content of record {ref} is in other records, of which one is gone: {error}"


class _QuotingObject(msgspec.Struct, frozen=True):
    header: Header
    counts: Counts
    parts: list[bytes | Quote]


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_OBJECTS = msgspec.msgpack.Decoder(_QuotingObject)


class QuotingRecord:
    """A record whose content is put together when it is read, its SHA-256 checked.

    Attributes:
        find: opens a record of the same session by its ref.
    """

    def __init__(self, stored: _QuotingObject) -> None:
        self.header = stored.header
        self.counts = stored.counts
        self.ref = self.header.ref
        self.session = self.header.session
        self.is_redacted = self.header.redacted
        self.title = self.header.title
        self.agent = self.header.agent
        self.find: Callable[[str], StoredRecord] | None = None
        self.parts: tuple[Part, ...] = tuple(
            decode_text(part) if isinstance(part, bytes) else part for part in stored.parts
        )
        self._whole: WholeRecord | None = None

    @property
    def content(self) -> StoredContent:
        """The content, in memory. Raises `ExpiredError` if a record that it quotes is deleted."""
        return self._joined().content

    def stream(self) -> Iterator[bytes]:
        """Yield the content in chunks."""
        return self._joined().stream()

    def load(self) -> bytes:
        """Return the content."""
        return self._joined().load()

    def _joined(self) -> WholeRecord:
        if self._whole is None:
            self._whole = WholeRecord(self.header, self.counts, encode_text(self._text()))
        return self._whole

    def _text(self) -> str:
        find = self.find
        if find is None:
            raise CorruptError(f"record {self.ref} quotes records of a session that is not open")
        try:
            sources = [find(ref) for ref in self.header.quotes]
            if any(isinstance(source, QuotingRecord) for source in sources):
                # Such records could quote each other.
                raise CorruptError(f"record {self.ref} quotes a record that quotes others")
            return joined(self.parts, [source.content for source in sources])
        except ExpiredError as error:
            raise ExpiredError(_LOST.format(ref=self.ref, error=error), error.reason, error.at) from error
        except NotFoundError as error:
            raise NotFoundError(_LOST.format(ref=self.ref, error=error)) from error


def joined(parts: Sequence[Part], sources: Sequence[StoredContent]) -> str:
    """Return the text of some parts."""
    return "".join(
        part if isinstance(part, str) else sources[part.source].text(part.start, part.start + part.chars)
        for part in parts
    )


class QuotingCodec:
    """The header, the counts and the parts of a content as one frame."""

    name = "part"
    suffix = ".part"
    has_sidecar = False
    reads_ranges = False

    def encode(self, header: Header, content: TextContent | SpooledContent) -> Encoded:
        """Return one frame with the parts of `content`."""
        parts = content.parts if isinstance(content, TextContent) else ()
        stored = [encode_text(part) if isinstance(part, str) else part for part in parts]
        data = msgspec.msgpack.encode(_QuotingObject(header, content.counts, stored))
        return Encoded.whole(compress(data))

    def open(self, fetch: Fetch, _sidecar: Fetch | None = None) -> QuotingRecord:
        """Open a record; the reader of its session sets `find`. Raises `CorruptError`."""
        frame = fetch(end=_MAX_OBJECT_BYTES)
        try:
            size = zstandard.get_frame_parameters(frame).content_size
            if size > _MAX_OBJECT_BYTES:
                raise CorruptError(f"a record that quotes others claims {size} bytes")
            return QuotingRecord(_checked(_OBJECTS.decode(decompress(frame, size))))
        except (zstandard.ZstdError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            check_plain(frame)
            raise CorruptError(f"a record that quotes others cannot be read: {error}") from error


def _checked(stored: _QuotingObject) -> _QuotingObject:
    """Return an object whose claims agree; they are checked before memory is taken."""
    header, counts = stored.header, stored.counts
    quotes = [part for part in stored.parts if isinstance(part, Quote)]
    are_parts = all(0 <= q.source < len(header.quotes) and q.start >= 0 < q.chars for q in quotes)
    chars = sum(q.chars for q in quotes)
    if not are_parts or chars > counts.chars or not counts.chars <= counts.bytes <= MAX_QUOTING_BYTES:
        raise CorruptError(f"record {header.ref}: its parts and its counts disagree")
    return stored
