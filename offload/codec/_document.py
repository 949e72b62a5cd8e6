"""Codec `json`: one readable JSON document of schema 1.0 per record, opened with any text tool."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from typing import Any

import msgspec

from offload.codec._base import Encoded, Fetch
from offload.codec._content import TextContent
from offload.codec._spooled import SpooledContent
from offload.codec._whole import WholeRecord
from offload.errors import CorruptError
from offload.record import Counts, Header

DOCUMENT_SCHEMA = "1.0"


class DocumentCodec:
    """A JSON document with the content as one string; the whole record is read at once."""

    name = "json"
    suffix = ".json"
    has_sidecar = False
    reads_ranges = False

    def encode(self, header: Header, content: TextContent | SpooledContent) -> Encoded:
        """Return the record as an indented JSON document."""
        document = {
            "schema_version": DOCUMENT_SCHEMA,
            "item_id": header.ref,
            "item_type": header.item_type,
            "offloaded_at": int(header.created_at),
            "metadata": {"tool_name": header.tool_name},
            **_content_fields(content.data),
            **sealed(header, content.counts),
        }
        return Encoded.whole(json.dumps(document, ensure_ascii=False, indent=2).encode())

    def open(self, fetch: Fetch, sidecar: Fetch | None = None) -> WholeRecord:
        """Read and check the document."""
        del sidecar
        document, header, counts = parse_document(fetch())
        return WholeRecord(header, counts, _content_of(document))


def _content_fields(content: bytes) -> dict[str, str]:
    """Return the fields that hold `content`: as text, or where JSON has no such text as base64."""
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


def sealed(header: Header, counts: Counts) -> dict[str, Any]:
    """Return the fields that hold `header` and `counts`, and the seal that finds damage to them."""
    fields = {"header": msgspec.to_builtins(header), "counts": msgspec.to_builtins(counts)}
    return {**fields, "seal": _seal(fields)}


def _seal(document: dict[str, Any]) -> str:
    """Return the SHA-256 of header and counts as JSON with sorted keys and no blanks."""
    fields = {name: document.get(name) for name in ("header", "counts")}
    return sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse_document(data: bytes) -> tuple[dict[str, Any], Header, Counts]:
    """Return a JSON object and the two structures it keeps under "header" and "counts".

    Raises `CorruptError` if `data` is no such object, or its seal is not theirs.
    """
    try:
        document = json.loads(data)
        # What was just deep enough to be read may be too deep to be written.
        seal = _seal(document) if isinstance(document, dict) else None
    except (ValueError, RecursionError) as error:
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
