"""Width and height of an image, from its header."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

# Markers of a JPEG frame header, which follows segments of any length: SOF0 to SOF15 without DHT, JPG, DAC.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def pixels_of(head: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, JPEG, GIF or WebP that begins with `head`, None if it has none."""
    for magic, read in _READERS.items():
        if re.match(magic, head, re.DOTALL):
            try:
                return read(head)
            except (struct.error, IndexError):
                return None
    return None


def _png(head: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", head, 16)
    return width, height


def _gif(head: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", head, 6)
    return width, height


def _jpeg(head: bytes) -> tuple[int, int]:
    at = 2
    while head[at + 1] not in _JPEG_FRAMES:
        at += 2 + max(2, struct.unpack_from(">H", head, at + 2)[0])
    height, width = struct.unpack_from(">HH", head, at + 5)
    return width, height


def _webp(head: bytes) -> tuple[int, int]:
    if head[12:16] == b"VP8X":
        width, height = (int.from_bytes(head[i : i + 3], "little") + 1 for i in (24, 27))
        return width, height
    if head[12:16] == b"VP8L":
        bits = struct.unpack_from("<I", head, 21)[0]
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    width, height = struct.unpack_from("<HH", head, 26)
    return width & 0x3FFF, height & 0x3FFF


_READERS: dict[bytes, Callable[[bytes], tuple[int, int]]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"GIF8[79]a": _gif,
    b"\xff\xd8\xff": _jpeg,
    b"RIFF....WEBP": _webp,
}
