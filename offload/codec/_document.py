"""Codec `json`: one readable JSON document of schema 1.0 per record, opened with any text tool."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from offload.codec._base import Encoded, Fetch
from offload.codec._whole import WholeRecord
from offload.errors import CorruptError
from offload.record import Counts, Header, decode_text, encode_text

DOCUMENT_SCHEMA = "1.0"


class DocumentCodec:
    """A JSON document with the content as one string; the whole record is read at once."""

    name = "json"
    suffix = ".json"
    has_sidecar = False

    def encode(self, header: Header, counts: Counts, content: bytes) -> Encoded:
        """Return the record as an indented JSON document."""
        text = decode_text(content)
        document = {
            "schema_version": DOCUMENT_SCHEMA,
            "item_id": header.ref,
            "item_type": header.item_type,
            "offloaded_at": int(header.created_at),
            "metadata": {"tool_name": header.tool_name},
            "header": msgspec.to_builtins(header),
            "counts": msgspec.to_builtins(counts),
            "content": text,
        }
        # A lone surrogate has no UTF-8 form; escaped, any JSON reader takes it.
        plain = text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)
        return Encoded(encode_text(json.dumps(document, ensure_ascii=not plain, indent=2)))

    def open(self, fetch: Fetch, sidecar: Fetch | None = None) -> WholeRecord:
        """Read and check the document."""
        del sidecar
        document, header, counts = parse_document(fetch())
        content = document.get("content")
        if not isinstance(content, str):
            raise CorruptError("a JSON record has no content of text")
        return WholeRecord(header, counts, encode_text(content))


def parse_document(data: bytes) -> tuple[dict[str, Any], Header, Counts]:
    """Return a JSON object and the two structures it keeps under "header" and "counts".

    Raises `CorruptError` if `data` is no such object.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"a JSON record cannot be read: {error}") from error
    if not isinstance(document, dict):
        raise CorruptError("a JSON record is not an object")
    try:
        header = msgspec.convert(document.get("header"), Header)
        counts = msgspec.convert(document.get("counts"), Counts)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"the header of a record cannot be read: {error}") from error
    return document, header, counts
