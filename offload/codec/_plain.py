"""Codec `raw`: the content alone as one object, its header as a small JSON object beside it."""

from __future__ import annotations

import json

from offload.codec._base import Encoded, Fetch
from offload.codec._content import TextContent
from offload.codec._document import parse_document, sealed
from offload.codec._spooled import SpooledContent
from offload.codec._whole import WholeRecord
from offload.errors import CorruptError
from offload.record import Header


class PlainCodec:
    """The content as it is, for files that are read by hand; the whole record is read at once."""

    name = "raw"
    suffix = ".txt"
    has_sidecar = True
    reads_ranges = False

    def encode(self, header: Header, content: TextContent | SpooledContent) -> Encoded:
        """Return the content, and the header as a JSON sidecar."""
        sidecar = json.dumps(sealed(header, content.counts), ensure_ascii=False, indent=2)
        pieces = content if isinstance(content, SpooledContent) else (content.data,)
        return Encoded(pieces, content.counts.bytes, sidecar.encode())

    def open(self, fetch: Fetch, sidecar: Fetch | None = None) -> WholeRecord:
        """Read and check both objects."""
        if sidecar is None:
            raise CorruptError("a raw record needs the header object beside it")
        _, header, counts = parse_document(sidecar())
        return WholeRecord(header, counts, fetch())


def parse_sidecar(data: bytes) -> Header:
    """Return the header that a sidecar holds. Raises `CorruptError` if it holds none."""
    return parse_document(data)[1]
