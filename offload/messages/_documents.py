"""Documents in messages that a client may change: search results, text documents, text files.

Only their text is replaced, in its place: titles, sources, file names and settings of citations are kept.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from offload.base.patterns import lazy_pattern
from offload.messages._results import ResultBlocks
from offload.messages._shapes import PLAIN, ItemText, Shape
from offload.messages.access import Path, at, edit_at
from offload.messages.media import DataPaths

_DATA_URL = lazy_pattern(r"data:([\w.+/-]{0,100})(?:;[\w.=+-]{1,40})*;base64,", re.ASCII)
# `format/` precedes the formats of Bedrock, which are not media types. Without a type, the bytes decide.
_TEXTUAL = lazy_pattern(
    r"|text/.*|format/(?:txt|md|csv|html)"
    r"|application/(?:json|jsonl|x-ndjson|xml|yaml|x-yaml|toml|javascript|x-javascript|x-python|x-sh|sql|csv)"
    r"|application/[\w.-]+\+(?:json|xml|yaml)",
    re.ASCII,
)


def is_textual(media_type: str) -> bool:
    """Return whether data of a media type is text; True without a type, if it can be decoded."""
    return _TEXTUAL.fullmatch(media_type.partition(";")[0].strip().lower()) is not None


class DocumentKind(NamedTuple):
    """A kind of document in a block: the path to the value with its text, and the shape of that.

    `mark` is the path to a field that such a block has, and its value.
    """

    path: Path
    shape: Shape
    mark: tuple[Path, str] | None = None

    def read(self, block: Any) -> ItemText | None:
        """Return the text in `block`, None if it is not such a document or is without one."""
        if self.mark is not None and at(block, self.mark[0]) != self.mark[1]:
            return None
        value = at(block, self.path)
        return None if value is None else self.shape.read(value, "document")


class TextFile(Shape):
    """A block with the bytes of a text file: as bytes, base64 or a data URL; so it has the placeholder."""

    def __init__(self, data_paths: Sequence[DataPaths]) -> None:
        self._data_paths = data_paths

    def read(self, block: Any, _where: str = "") -> ItemText | None:
        found = self._found(block)
        return None if found is None else ItemText(found[1])

    def places(self, block: Any) -> Iterable[Path]:
        found = self._found(block)
        return () if found is None else (found[0].data,)

    def replace(self, block: Any, text: str) -> Any:
        found = self._found(block)
        return block if found is None else edit_at(block, found[0].data, lambda old: _encoded(text, old))

    def restore(self, block: Any, text: str, _form: str | None) -> Any:
        return self.replace(block, text)

    def _found(self, block: Any) -> tuple[DataPaths, str] | None:
        """Return the paths to a text file in a block, and its text, if that can be encoded again."""
        for paths in self._data_paths:
            value = at(block, paths.data)
            if value is None:
                continue
            text = _decoded(value, f"{paths.prefix}{at(block, paths.media_type)}" if paths.media_type else "")
            if text is not None and _encoded(text, value) == value:
                return paths, text
        return None


def documents(files: Sequence[DataPaths], texts: ResultBlocks) -> tuple[DocumentKind, ...]:
    """Return the kinds of documents of formats whose blocks name their type; `texts` reads their blocks."""
    return (
        DocumentKind(("content",), texts, (("type",), "search_result")),
        DocumentKind(("source", "data"), PLAIN, (("source", "type"), "text")),
        DocumentKind(("source", "content"), texts, (("source", "type"), "content")),
        DocumentKind((), TextFile(files)),
    )


def _decoded(value: Any, media_type: str) -> str | None:
    """Return the text in data of a media type; None for other data."""
    if isinstance(value, bytes):
        return _text_in(value) if is_textual(media_type) else None
    if not isinstance(value, str) or not value:
        return None
    url = _DATA_URL.match(value)
    if not is_textual(media_type or (url[1] if url else "")):
        return None
    try:
        return _text_in(base64.b64decode(value[url.end() if url else 0 :], validate=True))
    except (binascii.Error, ValueError):
        return None


def _text_in(data: bytes) -> str | None:
    try:
        return None if b"\0" in data else data.decode()
    except UnicodeDecodeError:
        return None


def _encoded(text: str, like: Any) -> Any:
    """Return a text as the same kind of data as `like`."""
    data = text.encode("utf-8", "surrogatepass")
    if isinstance(like, bytes):
        return data
    url = _DATA_URL.match(like)
    return (url[0] if url else "") + base64.b64encode(data).decode()


# For all providers whose blocks name their type; the data of a text file is not an image or a document.
TYPED_FILES = (
    DataPaths(("source", "data"), ("source", "media_type")),
    DataPaths(("file", "file_data")),
    DataPaths(("file_data",)),
)
