"""Codecs `json` and `raw`: records that any text tool opens, each read in one piece.

`json` is one document of schema 1.0 per record. `raw` is the content alone, with the header in a small JSON
object next to it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec

from offload.errors import CorruptError
from offload.records.codec.base import Encoded, Fetch
from offload.records.codec.content import StoredContent, TextContent
from offload.records.codec.spooled import SpooledContent
from offload.records.record import Header
from offload.records.record.header import Counts
from offload.storage.store import check_plain

DOCUMENT_SCHEMA = "1.0"


class WholeRecord:
    """A record whose content is in memory; its SHA-256 is checked when it is opened."""

    def __init__(self, header: Header, counts: Counts, content: bytes) -> None:
        if sha256(content).digest() != counts.sha256 or header.sha256 != counts.sha256:
            raise CorruptError(f"record {header.ref}: content does not match its SHA-256")
        self.ref = header.ref
        self.session = header.session
        self.header = header
        self.counts = counts
        self.is_redacted = header.redacted
        self.title = header.title
        self.agent = header.agent
        self._content = content

    @property
    def content(self) -> StoredContent:
        """The content, which is in memory. Raises `CorruptError` if it is not UTF-8."""
        return self._stored().decoded(self.header.encoding)

    def stream(self) -> Iterator[bytes]:
        """Yield the content in chunks."""
        return self._stored().chunks_from(0)[1]

    def _stored(self) -> StoredContent:
        try:
            return StoredContent.of(self._content, self.counts.lines)
        except UnicodeDecodeError as error:
            raise CorruptError(f"record {self.ref}: content is not UTF-8: {error}") from error

    def load(self) -> bytes:
        """Return the content."""
        return self._content


class DocumentCodec:
    """A JSON document with the content as one string."""

    name = "json"
    suffix = ".json"
    has_sidecar = False
    reads_ranges = False

    def encode(self, header: Header, content: TextContent | SpooledContent) -> Encoded:
        """Return one JSON document with the header and the text."""
        document = {
            "schema_version": DOCUMENT_SCHEMA,
            "item_id": header.ref,
            "item_type": header.item_type,
            "offloaded_at": int(header.created_at),
            "metadata": {"tool_name": header.tool_name},
            **_content_fields(content.data),
            **_sealed(header, content.counts),
        }
        return Encoded.whole(json.dumps(document, ensure_ascii=False, indent=2).encode())

    def open(self, fetch: Fetch, _sidecar: Fetch | None = None) -> WholeRecord:
        """Return the record in a JSON document. Raises `CorruptError`."""
        document, header, counts = _parse(fetch())
        return WholeRecord(header, counts, _content_of(document))


class PlainCodec:
    """The content without a container, for files that people read."""

    name = "raw"
    suffix = ".txt"
    has_sidecar = True
    reads_ranges = False

    def encode(self, header: Header, content: TextContent | SpooledContent) -> Encoded:
        """Return the content as it is, and its header as an object next to it."""
        sidecar = json.dumps(_sealed(header, content.counts), ensure_ascii=False, indent=2)
        pieces = content if isinstance(content, SpooledContent) else (content.data,)
        return Encoded((pieces,), content.counts.bytes, sidecar.encode())

    def open(self, fetch: Fetch, sidecar: Fetch | None = None) -> WholeRecord:
        """Return the record of two objects. Raises `CorruptError`."""
        if sidecar is None:
            raise CorruptError("a raw record must have a header object next to it, got none")
        _, header, counts = _parse(sidecar())
        return WholeRecord(header, counts, fetch())


def parse_sidecar(data: bytes) -> Header:
    """Return the header in a sidecar. Raises `CorruptError` if it is damaged."""
    return _parse(data)[1]


def _content_fields(content: bytes) -> dict[str, str]:
    """Return the fields of `content`: a string, or base64 if JSON cannot hold the text."""
    try:
        return {"content": content.decode()}
    except UnicodeDecodeError:
        return {"content_encoding": "base64", "content": base64.b64encode(content).decode()}


def _content_of(document: dict[str, Any]) -> bytes:
    content, encoding = document.get("content"), document.get("content_encoding")
    if not isinstance(content, str) or encoding not in (None, "base64"):
        raise CorruptError("a JSON record has no content of text or base64")
    try:
        return content.encode() if encoding is None else base64.b64decode(content, validate=True)
    except ValueError as error:
        raise CorruptError(f"the content of a JSON record cannot be read: {error}") from error


def _sealed(header: Header, counts: Counts) -> dict[str, Any]:
    """Return the fields of `header` and `counts`, and the seal that detects damage to them."""
    fields = {"header": msgspec.to_builtins(header), "counts": msgspec.to_builtins(counts)}
    return {**fields, "seal": _seal(fields)}


def _seal(document: dict[str, Any]) -> str:
    """Return the SHA-256 of header and counts as JSON with sorted keys and no spaces."""
    fields = {name: document.get(name) for name in ("header", "counts")}
    return sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _parse(data: bytes) -> tuple[dict[str, Any], Header, Counts]:
    """Return a JSON object and the header and counts in it.

    Raises `CorruptError` if they are damaged, `EncryptionError` if the object is encrypted.
    """
    try:
        document = json.loads(data)
        # An object just shallow enough to read may be too deep to write.
        seal = _seal(document) if isinstance(document, dict) else None
    except (ValueError, RecursionError) as error:
        check_plain(data)
        raise CorruptError(f"a JSON record cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise CorruptError("a JSON record is not an object")
    if document.get("seal") != seal:
        raise CorruptError("the header of a record does not match its seal")
    try:
        header = msgspec.convert(document.get("header"), Header)
        counts = msgspec.convert(document.get("counts"), Counts)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"the header of a record cannot be read: {error}") from error
    return document, header, counts
