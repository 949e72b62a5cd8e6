"""Binary content: the bytes of a program, an archive or an image that a tool printed."""

from __future__ import annotations

from string import ascii_lowercase, ascii_uppercase, digits

from offload.base.patterns import lazy_pattern

# Characters of neither text nor terminal colors, and those that a failed decoding produces.
_CONTROL = lazy_pattern("[\0-\x06\x0e-\x1a\x1c-\x1f\x7f-\x9f\ufffd\udc80-\udcff]")
_BINARY_SHARE = 0.1
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


def is_binary(text: str) -> bool:
    """Return whether a text is unreadable: it has a NUL, or more than 10 % control characters."""
    return "\0" in text or _has_controls(text)


def unreadable_kind(text: str) -> str:
    """Return the kind of content that says nothing to a reader, judged by samples; nothing for a text.

    It is base64, or has more than 10 % control characters. NULs, as in UTF-16, do not count.
    """
    middle = len(text) // 2
    sample = text[:_SAMPLE_CHARS] + text[middle : middle + _SAMPLE_CHARS] + text[-_SAMPLE_CHARS:]
    if _is_base64(sample):
        return "base64"
    return (file_kind(text) or "binary content") if _has_controls(sample.replace("\0", "")) else ""


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


def _has_controls(text: str) -> bool:
    is_ascii = text.isascii()
    count = _count(_CONTROL_BYTES, text.encode()) if is_ascii else len(_CONTROL.findall(text))
    return count > _BINARY_SHARE * len(text)


def _count(characters: bytes, data: bytes) -> int:
    """Return how many bytes of `data` are `characters`; faster than a search for them."""
    return len(data) - len(data.translate(None, characters))
