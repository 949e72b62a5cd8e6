"""The content of a record on its way into a copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

import msgspec

from offload import errors
from offload.base.text import decode_text
from offload.records.codec.base import Encoded, StoredRecord
from offload.records.codec.content import TextContent
from offload.records.codec.quoting import QuotingRecord
from offload.records.codec.spooled import ContentWriter, SpooledContent
from offload.records.record import RecordInfo
from offload.storage import layout
from offload.storage.store import OffloadStore

_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The bytes of a stored object in pieces; it can be iterated again."""

    store: OffloadStore
    key: str
    size: int

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, self.size, _PIECE_BYTES):
            yield self.store.get(self.key, start=start, end=min(start + _PIECE_BYTES, self.size))


def stored(store: OffloadStore, info: RecordInfo, body: bytes | None, *, has_sidecar: bool) -> Encoded:
    """Return a record as it is stored; `body` is its object if already fetched."""
    sidecar = store.get(layout.sidecar_key(info.key)) if has_sidecar else None
    if body is not None:
        return Encoded.whole(body, sidecar)
    return Encoded((_Ranges(store, info.key, info.stored_bytes),), info.stored_bytes, sidecar)


def check_content(info: RecordInfo, record: StoredRecord, chars: int, lines: int) -> None:
    """Raise `CorruptError` unless a record matches its content, of so many characters and lines."""
    if (chars, lines) != (record.counts.chars, record.counts.lines):
        raise errors.CorruptError(f"{info.key}: the size of its content does not match its counts")
    if not record.header.is_drawn():
        raise errors.CorruptError(f"record {info.ref}: the id does not match the content")


def content_of(record: StoredRecord, spools: ExitStack) -> TextContent | SpooledContent:
    """Return the content of a record, with the tokens that its writer counted."""
    writer = spools.enter_context(closing(ContentWriter(lambda _: 0)))
    for text in _texts(record):
        writer.add(text)
    content, tokens = writer.finish(), record.counts.tokens
    if isinstance(content, str):
        parts = record.parts if isinstance(record, QuotingRecord) else ()
        return msgspec.structs.replace(TextContent.of(content, tokens), parts=parts)
    return msgspec.structs.replace(content, counts=msgspec.structs.replace(content.counts, tokens=tokens))


def measured(record: StoredRecord) -> tuple[int, int]:
    """Read a record; return the characters and lines of its content."""
    chars, newlines, end = 0, 0, "\n"
    for text in _texts(record):
        chars += len(text)
        newlines += text.count("\n")
        end = text[-1:]
    return chars, newlines + (end != "\n")


def _texts(record: StoredRecord) -> Iterator[str]:
    """Yield the content of a record; at its end all checks are done. Raises `CorruptError`."""
    try:
        for chunk in record.stream():
            yield decode_text(chunk)
    except UnicodeDecodeError as error:
        raise errors.CorruptError(f"record {record.ref}: its content is not valid text: {error}") from error
