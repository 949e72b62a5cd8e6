"""Bytes that a tool printed as a text: of a program, an archive, an image, a text in UTF-16 or UTF-32."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits

from offload.base.patterns import lazy_pattern

# Characters of neither text nor terminal colors, and those that a failed decoding produces.
_CONTROL = lazy_pattern("[\0-\x06\x0e-\x1a\x1c-\x1f\x7f-\x9f\ufffd\udc80-\udcff]")
_BINARY_SHARE, _LEAST_CONTROLS = 0.2, 8
# Of each of the beginning, the middle and the end of a long text.
_SAMPLE_CHARS = 1000
_CONTROL_BYTES = bytes([*range(0x07), *range(0x0E, 0x1B), *range(0x1C, 0x20), 0x7F])
# One in so many characters is of each of these kinds; half of what random bytes give.
_BASE64 = {ascii_uppercase.encode(): 5, ascii_lowercase.encode(): 5, digits.encode(): 13, b"+/": 64}
_BASE64_BYTES = b"".join(_BASE64) + b"=\r\n"
_LEAST_LINE = 40
_MAGIC = {
    "%PDF-": "PDF",
    "PNG\r\n": "PNG image",
    "GIF8": "GIF image",
    "JFIF": "JPEG image",
    "PK\x03\x04": "zip archive",
    "ELF": "ELF program",
    "SQLite format 3": "SQLite database",
    "\x1f\x8b": "gzip data",
    "\x1f\ufffd\x08": "gzip data",
    "\x1f\udc8b": "gzip data",
}
_MAGIC_CHARS = 16

# A longer text is not decoded: whoever reads a part of it would hold all of it.
MAX_CHARS = 4 * 1024 * 1024
_ENCODED_CHARS = 2000
# The marks of encodings; the longer ones first.
_MARKS = {
    b"\xff\xfe\0\0": "utf-32-le",
    b"\0\0\xfe\xff": "utf-32-be",
    b"\xff\xfe": "utf-16-le",
    b"\xfe\xff": "utf-16-be",
}
ENCODINGS = frozenset(_MARKS.values())
# The marks as Latin-1; that of a decoded text; and what a tool has in place of bytes that are not UTF-8.
_LATIN, _BOM, _LOST = ("ÿþ", "þÿ"), "\ufeff", "\ufffd"
# Of a text of ASCII in UTF-16 every second byte is NUL, and no other one.
_MANY, _FEW = 0.9, 0.02


def is_binary(text: str) -> bool:
    """Return whether a text is unreadable: more than a fifth of it are controls. NULs do not count."""
    text = text.replace("\0", "")
    is_ascii = text.isascii()
    count = _count(_CONTROL_BYTES, text.encode()) if is_ascii else len(_CONTROL.findall(text))
    return count > max(_LEAST_CONTROLS, _BINARY_SHARE * len(text))


def unreadable_kind(text: str) -> str:
    """Return the kind of content that says nothing to a reader, judged by samples; nothing for a text.

    It is base64, or `is_binary`.
    """
    middle = len(text) // 2
    sample = text[:_SAMPLE_CHARS] + text[middle : middle + _SAMPLE_CHARS] + text[-_SAMPLE_CHARS:]
    if _is_base64(sample):
        return "base64"
    return (file_kind(text) or "binary content") if is_binary(sample) else ""


def file_kind(text: str) -> str:
    """Return the kind of file that begins so, or nothing for an unknown one."""
    begin = text[:_MAGIC_CHARS]
    return next((kind for magic, kind in _MAGIC.items() if magic in begin), "")


def _is_base64(sample: str) -> bool:
    """Return whether a sample has only characters of base64, most kinds of them, and long lines."""
    data = sample.encode() if sample.isascii() else b" "
    if data.translate(None, _BASE64_BYTES) or data.count(b"\n") * _LEAST_LINE > len(data):
        return False
    return all(_count(kind, data) * least > len(data) for kind, least in _BASE64.items())


def _count(characters: bytes, data: bytes) -> int:
    """Return how many bytes of `data` are `characters`; faster than a search for them."""
    return len(data) - len(data.translate(None, characters))


def encoding_of(text: str, left_out: int = 0) -> str | None:
    """Return the encoding that a mark or the places of NULs show, None for UTF-8 and for a long text."""
    sample = text[:_ENCODED_CHARS]
    if "\0" not in sample or len(text) + left_out > MAX_CHARS:
        return None
    data = _bytes_of(sample.replace(_LOST, "\udcff"))
    encoding = next((name for mark, name in _MARKS.items() if data.startswith(mark)), _by_nuls(data))
    return None if encoding is None or is_binary(decoded(sample, encoding)) else encoding


def decoded(text: str, encoding: str) -> str:
    """Return the text that `text` has in an encoding; if a tool replaced bytes, what is left without NULs."""
    data = _bytes_of(text)
    if not data or _LOST in text:
        return text.replace("\0", "").lstrip(_LOST + _LATIN[0])
    return data.decode(encoding, "replace").removeprefix(_BOM)


def readable_text(text: str, left_out: int = 0) -> str:
    """Return `text`, decoded if it needs that."""
    encoding = encoding_of(text, left_out)
    return text if encoding is None else decoded(text, encoding)


def _bytes_of(text: str) -> bytes:
    """Return the bytes that a tool printed, empty if they are not known."""
    try:
        return text.encode("latin-1") if text.startswith(_LATIN) else text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return b""


def _by_nuls(data: bytes) -> str | None:
    even, odd = (data[first::2].count(0) / max(1, len(data) // 2) for first in (0, 1))
    if odd >= _MANY and even <= _FEW:
        return "utf-16-le"
    return "utf-16-be" if even >= _MANY and odd <= _FEW else None
