"""The text of a document: the fields of an item as JSON, one to a line, the content last.

A Read tool may cut a line at 2,000 characters, and `content` is one line. So if that is longer, the list
`content_lines` before it has the same text in pieces: each line of the text is one, a long line several.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from io import StringIO
from typing import Any

from offload.base.text import decode_text, escape_surrogates
from offload.records.codec.base import StoredRecord

SCHEMA = "1.0"
# The most characters of a line of the document, in UTF-16, in which some programs count.
LINE_CHARS = 2_000
PIECE_CHARS = 1_900
# The indent of a piece and the comma after it.
_FRAME_CHARS = 5
# The most characters of one character in JSON, and of the quotes.
_ESCAPE_CHARS, _QUOTES = 6, 2
_json = partial(json.dumps, ensure_ascii=False)


def document_of(record: StoredRecord) -> bytes:
    """Return the document of a record. Raises `CorruptError` if the record is damaged."""
    text, header = decode_text(record.load()), record.header
    metadata: dict[str, Any] = {"tool_name": header.tool_name}
    if header.summary is not None:
        metadata["summary"] = header.summary
    fields = {
        "schema_version": SCHEMA,
        "item_id": header.ref,
        "item_type": header.item_type,
        "offloaded_at": int(header.created_at),
        "metadata": metadata,
    }
    parts = [json.dumps(fields, ensure_ascii=False, indent=2).removesuffix("\n}")]
    content = f'  "content": {_json(text)}'
    if _width(content) > LINE_CHARS:
        pieces = ",\n    ".join(map(_json, pieces_of(text)))
        parts.append(f'  "content_lines": [\n    {pieces}\n  ]')
    document = ",\n".join([*parts, content]) + "\n}\n"
    # UTF-8 has no lone surrogates; their escapes are those of JSON.
    return document.encode("utf-8", "backslashreplace")


def pieces_of(text: str) -> Iterator[str]:
    """Yield `text` in pieces: its lines with their ends, and parts of those that are too long."""
    for line in StringIO(text, newline="\n"):
        if len(line) * _ESCAPE_CHARS + _QUOTES + _FRAME_CHARS <= LINE_CHARS:
            yield line
            continue
        for start in range(0, len(line), PIECE_CHARS):
            yield from _fitting(line[start : start + PIECE_CHARS])


def _fitting(piece: str) -> Iterator[str]:
    """Yield a piece, in halves if it has so many escapes that its line would be too long."""
    if _width(_json(piece)) + _FRAME_CHARS <= LINE_CHARS:
        yield piece
        return
    half = len(piece) // 2
    yield from _fitting(piece[:half])
    yield from _fitting(piece[half:])


def _width(line: str) -> int:
    if line.isascii():
        return len(line)
    return len(escape_surrogates(line).encode("utf-16-le")) // 2
