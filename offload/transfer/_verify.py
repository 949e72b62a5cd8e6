"""Records verified for a copy, byte for byte or encoded again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import msgspec

from offload.codec import ContentWriter, Encoded, SpooledContent, StoredRecord, TextContent, find_codec
from offload.errors import CorruptError
from offload.index import record_key
from offload.layout import generation_of, sidecar_key
from offload.record import Header, RecordInfo, decode_text
from offload.session import NewRecord
from offload.store import OffloadStore

# An object up to this size is fetched once, so the verified bytes are the stored bytes.
WHOLE_BYTES = 8 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRecord(NewRecord):
    """A verified record for the target; `info` is its entry in the source."""

    info: RecordInfo


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The bytes of a stored object in pieces; it can be iterated again."""

    store: OffloadStore
    key: str
    size: int

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, self.size, _PIECE_BYTES):
            yield self.store.get(self.key, start=start, end=min(start + _PIECE_BYTES, self.size))


def moved(header: Header, session: str) -> Header:
    """Return the header of a record's copy in `session`, with the session in which its ref was drawn."""
    drawn_in = header.session if header.origin is None else header.origin
    if header.session == session:
        return header
    origin = None if drawn_in == session else drawn_in
    return msgspec.structs.replace(header, session=session, origin=origin)


def pack_as_it_is(store: OffloadStore, info: RecordInfo, record: StoredRecord, body: bytes | None) -> Encoded:
    """Verify a record of `store` and return its bytes; `body` is its object if already fetched.

    Raises `CorruptError` if it is damaged or does not match its key.
    """
    chars, lines = _measured(record)
    if (chars, lines) != (record.counts.chars, record.counts.lines):
        raise CorruptError(f"{info.key}: the size of its content does not match its counts")
    codec = find_codec(info.key)
    _check_ref(record.header)
    if record_key(record.header, record.counts, codec.suffix, generation_of(info.key)) != info.key:
        raise CorruptError(f"{info.key} does not match the record that it contains")
    sidecar = store.get(sidecar_key(info.key)) if codec.has_sidecar else None
    if body is not None:
        return Encoded.whole(body, sidecar)
    return Encoded((_Ranges(store, info.key, info.stored_bytes),), info.stored_bytes, sidecar)


def pack_anew(info: RecordInfo, record: StoredRecord, session: str, spools: ExitStack) -> Encoded:
    """Verify a record and return the bytes of its copy in `session`, by the same codec.

    `spools` closes the temporary files of the bytes. Raises `CorruptError` if the record is damaged.
    """
    content = _content_of(record, spools)
    _check_ref(record.header)
    if content.counts != record.counts:
        raise CorruptError(f"{info.key}: the size of its content does not match its counts")
    return find_codec(info.key).encode(moved(record.header, session), content)


def _content_of(record: StoredRecord, spools: ExitStack) -> TextContent | SpooledContent:
    """Return the content of a record, with the tokens that its writer counted."""
    writer = spools.enter_context(closing(ContentWriter(lambda _: 0)))
    for text in _texts(record):
        writer.add(text)
    content, tokens = writer.finish(), record.counts.tokens
    if isinstance(content, str):
        return TextContent.of(content, tokens)
    return replace(content, counts=msgspec.structs.replace(content.counts, tokens=tokens))


def _measured(record: StoredRecord) -> tuple[int, int]:
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
        raise CorruptError(f"record {record.ref}: its content is not valid text: {error}") from error


def _check_ref(header: Header) -> None:
    """Raise `CorruptError` if the ref of a record is not drawn from its content."""
    if not header.is_drawn():
        raise CorruptError(f"record {header.ref}: the id does not match the content")
