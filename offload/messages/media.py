"""Images and documents whose bytes are in a block of a message, and the one-line placeholder of one.

The text of such an item is its data URL; its form holds the rest of the block, for `restore`. Blocks with a
URL or the id of a file hold nothing that could be offloaded, and are kept.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from offload.base.patterns import lazy_pattern
from offload.messages._shapes import ItemText, Shape
from offload.messages.access import Path, at, built_like, edit_at, fields_of, get, with_field
from offload.messages.marks import marks_of, with_marks, without_marks
from offload.storage.layout import REF_PATTERN

_DATA_URL = lazy_pattern(r"data:((?:image|application)/[\w.+-]{1,80})(?:;[\w.=+-]{1,40})*;base64,", re.ASCII)
_MEDIA_PLACEHOLDER = lazy_pattern(
    rf"\[Offloaded: (?:image|document) of [^\n]{{1,200}}, id ({REF_PATTERN})\. It cannot be shown again\]"
)
_HEAD_CHARS = 64 * 1024
_PIXELS_PER_TOKEN = 750
_MOST_IMAGE_TOKENS = 1600
_BYTES_PER_PAGE, _TOKENS_PER_PAGE = 64 * 1024, 2250
_SOUND_BYTES_PER_TOKEN = 500
# Markers of a JPEG frame header, which follows segments of any length: SOF0 to SOF15 without DHT, JPG, DAC.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# By the beginning of a GIF or WebP: the place and bytes of its width and height, the bits of each, the bits
# from one to the other, and the size that 0 means.
_LITTLE_ENDIAN = {
    b"GIF8[79]a": (6, 4, 16, 16, 0),
    b"RIFF....WEBPVP8X": (24, 6, 24, 24, 1),
    b"RIFF....WEBPVP8L": (21, 4, 14, 14, 1),
    b"RIFF....WEBP": (26, 4, 14, 16, 0),
}


class MediaFacts(NamedTuple):
    """Facts about an image or a document; `pixels` is None if its first bytes have no width and height."""

    media_type: str
    bytes: int
    pixels: tuple[int, int] | None

    @property
    def kind(self) -> str:
        """Its kind: "image" or "document", or "sound" for sound and video."""
        first = self.media_type.partition("/")[0]
        return {"image": "image", "audio": "sound", "video": "sound"}.get(first, "document")

    @property
    def tokens(self) -> int:
        """An estimate: width x height / 750 for an image, 2,250 per 64 KiB for a document.

        Sound and video are one token per 500 bytes: 32 tokens a second at 128 kbit/s, as Gemini counts.

        Anthropic counts an image so, with at most 1,600, which is also the estimate without a size
        (https://docs.anthropic.com/en/docs/build-with-claude/vision). A page of a document has 1,500 to 3,000
        (https://docs.anthropic.com/en/docs/build-with-claude/pdf-support); only a parser could count them.
        """
        if self.kind == "sound":
            return -(-self.bytes // _SOUND_BYTES_PER_TOKEN)
        if self.kind == "document":
            return -(-self.bytes // _BYTES_PER_PAGE) * _TOKENS_PER_PAGE
        width, height = self.pixels or (_PIXELS_PER_TOKEN, _MOST_IMAGE_TOKENS)
        return min(_MOST_IMAGE_TOKENS, -(-width * height // _PIXELS_PER_TOKEN))


def media_facts(url: str) -> MediaFacts | None:
    """Return the facts in the data URL of an image or a document; None for any other text."""
    match = _DATA_URL.match(url)
    return None if match is None else base64_facts(match[1], url, match.end())


def bytes_facts(media_type: str, data: bytes) -> MediaFacts:
    """Return the facts of data; without a type, an image is recognized by its first bytes."""
    pixels = _pixels_of(data[:_HEAD_CHARS])
    return MediaFacts(media_type or ("image/" if pixels else ""), len(data), pixels)


def base64_facts(media_type: str, text: str, start: int = 0) -> MediaFacts:
    """Return the facts of the base64 data in a text from character `start` on."""
    data = text[start : start + _HEAD_CHARS]
    try:
        head = base64.b64decode(data[: len(data) // 4 * 4])
    except ValueError:
        head = b""
    padding = text.count("=", max(start, len(text) - 2))
    return MediaFacts(media_type, max(0, (len(text) - start) * 3 // 4 - padding), _pixels_of(head))


def media_ref(text: str) -> str | None:
    """Return the ref in a text that looks like the placeholder of an image or a document, else None."""
    match = _MEDIA_PLACEHOLDER.fullmatch(text)
    return match[1] if match else None


class DataPaths(NamedTuple):
    """The paths to data in a block (bytes, base64, a data URL), and to its type if the data is not a URL.

    `prefix` is the first part of that type, if the block holds its second part only.
    """

    data: Path
    media_type: Path = ()
    prefix: str = ""


class Media(Shape):
    """The shape of an image or a document: a block that a text block with fields `text_block` replaces."""

    def __init__(self, data_paths: Sequence[DataPaths], text_block: Mapping[str, str]) -> None:
        self._data_paths = data_paths
        self._text_block = text_block

    def read(self, block: Any, _where: str = "") -> ItemText | None:
        """Return the data URL in a block and its form, or the placeholder of one; None for other blocks."""
        text = get(block, "text")
        if isinstance(text, str):
            return ItemText(text) if media_ref(text) else None
        found = self._found(block)
        return (
            None
            if found is None
            else self.proven(block, found[1], partial(_form, found[0]), without_marks(block))
        )

    def places(self, block: Any) -> Iterable[Path]:
        found = None if isinstance(get(block, "text"), str) else self._found(block)
        return (("text",) if found is None else found[0].data,)

    def _found(self, block: Any) -> tuple[DataPaths, str] | None:
        """Return the paths to the data in a block, and its data URL."""
        for paths in self._data_paths:
            value = at(block, paths.data)
            url = None if value is None else _as_url(value, paths, block)
            if url is not None and _DATA_URL.match(url):
                return paths, url
        return None

    def replace(self, block: Any, text: str) -> Any:
        """Return the text block that replaces `block`; a text block keeps its other fields."""
        if isinstance(get(block, "text"), str):
            return with_field(block, "text", text)
        return with_marks(built_like(block, {**self._text_block, "text": text}), marks_of(block))

    def restore(self, block: Any, text: str, form: str | None) -> Any:
        if form is None:
            return with_field(block, "text", text)
        kept = json.loads(form)
        fields = edit_at(kept["block"], tuple(kept["at"]), lambda kind: _from_url(text, kind))
        return with_marks(built_like(block, fields), marks_of(block))


# The paths to bytes for all providers that name the type of a block: a user message with an image alone may
# be in any of their formats.
TYPED = Media(
    [
        DataPaths(("source", "data"), ("source", "media_type")),
        DataPaths(("image_url", "url")),
        DataPaths(("file", "file_data")),
    ],
    {"type": "text"},
)


def _form(paths: DataPaths, block: Any, *, is_ordered: bool) -> Any:
    fields = fields_of(block, without="", is_ordered=is_ordered)
    return {"at": paths.data, "block": edit_at(fields, paths.data, _kind_of)}


def _kind_of(value: Any) -> str:
    """Return how a block holds its bytes: the word that replaces them in a form."""
    if isinstance(value, bytes):
        return "bytes"
    return "url" if value.startswith("data:") else "base64"


def _as_url(value: Any, paths: DataPaths, block: Any) -> str | None:
    if not isinstance(value, str | bytes):
        return None
    if _kind_of(value) == "url":
        return str(value)
    media_type = f"{paths.prefix}{at(block, paths.media_type)}"
    data = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    return f"data:{media_type};base64,{data}" if paths.media_type else None


def _from_url(url: str, kind: str) -> str | bytes:
    data = url.partition(";base64,")[2]
    if kind == "bytes":
        return base64.b64decode(data)
    return url if kind == "url" else data


def _pixels_of(head: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, JPEG, GIF or WebP that begins with `head`, None if it has none."""
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack_from(">II", head, 16)
        elif head.startswith(b"\xff\xd8\xff"):
            at = 2
            while head[at + 1] not in _JPEG_FRAMES:
                at += 2 + max(2, struct.unpack_from(">H", head, at + 2)[0])
            height, width = struct.unpack_from(">HH", head, at + 5)
        else:
            return _little_endian_pixels(head)
    except (struct.error, IndexError):
        return None
    return width, height


def _little_endian_pixels(head: bytes) -> tuple[int, int] | None:
    for magic, (start, size, bits, step, least) in _LITTLE_ENDIAN.items():
        if re.match(magic, head, re.DOTALL) and len(head) >= start + size:
            both, mask = int.from_bytes(head[start : start + size], "little"), (1 << bits) - 1
            return (both & mask) + least, (both >> step & mask) + least
    return None
