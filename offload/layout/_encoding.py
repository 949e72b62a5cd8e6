"""Key grammar, and the encoding that turns any name from outside into a safe key part.

A name from a model, a tool or a caller is data, never a path. `encode_part` is injective: two different names
never share a part, also on file systems that fold case, and a short lower-case slug is its own part.
"""

from __future__ import annotations

import base64
import hashlib
import re

from offload.errors import InvalidKeyError

MAX_KEY_BYTES = 512
MAX_PART_BYTES = 120
# The descriptor that a backend stores about its medium; no listing contains it.
DESCRIPTOR = "offload.json"

_PART = re.compile(r"[a-z0-9_=~-][a-z0-9._=~-]*", re.ASCII)
_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789._-")
_UNSAFE_NAME = re.compile(r"[^a-z0-9._-]")
_ESCAPE = re.compile(rb"=([0-9a-f]{2})")
_CUT_ESCAPE = re.compile(r"=[0-9a-f]?$", re.ASCII)
_EMPTY = "=="
_HASH_MARK = "=="
_HEAD_OF_HASHED = 40
# Windows opens these as devices, with or without an extension.
_DEVICES = frozenset(["con", "prn", "aux", "nul", *(f"{d}{n}" for d in ("com", "lpt") for n in range(10))])


def check_key(key: str) -> str:
    """Return `key` if it is a valid store key, or raise `InvalidKeyError`.

    A key is 1 to 512 characters: parts of `[a-z0-9._=~-]` joined by single slashes, none of which
    starts with a dot or is longer than 240 characters. The name `offload.json` is reserved for the store.
    """
    if not isinstance(key, str):
        raise InvalidKeyError(f"key must be a str, got {type(key).__name__}")
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise InvalidKeyError(f"key must have 1 to {MAX_KEY_BYTES} characters, got {len(key)}")
    if key == DESCRIPTOR:
        raise InvalidKeyError(f"key {key!r} is reserved for the store; use another name")
    for part in key.split("/"):
        if not _PART.fullmatch(part) or len(part) > 2 * MAX_PART_BYTES:
            raise InvalidKeyError(
                f"each part of a key must have 1 to {2 * MAX_PART_BYTES} characters [a-z0-9._=~-] and no "
                f"leading dot, got {part[:80]!r} in {key[:80]!r}; use offload.layout.encode_part"
            )
    return key


def encode_part(name: str) -> str:
    """Return the key part of `name`: at most 120 characters, different for every name.

    Characters `[a-z0-9._-]` are kept; every other byte of the UTF-8 form becomes `=hh`. A longer part is cut
    to a readable beginning, `==` and 130 bits of the name's SHA-256.
    """
    if name == "":
        return _EMPTY
    escaped = _escape(name)
    if len(escaped) <= MAX_PART_BYTES:
        return escaped
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    tail = base64.b32encode(digest).decode().lower()[:26]
    return escaped[:_HEAD_OF_HASHED] + _HASH_MARK + tail


def is_hashed(part: str) -> bool:
    """Return whether `part` contains only the beginning and a hash of its name."""
    return _HASH_MARK in part and part != _EMPTY


def decode_part(part: str) -> str:
    """Return the name that `encode_part` encoded as `part`; a hashed name ends in an ellipsis.

    Raises:
        InvalidKeyError: `part` encodes no name.
    """
    if part == _EMPTY:
        return ""
    readable, hashed, _ = part.partition(_HASH_MARK)
    raw = _ESCAPE.sub(lambda m: bytes([int(m[1], 16)]), readable.encode())
    if hashed:
        # The cut may fall inside an escape or a character.
        return _CUT_ESCAPE.sub("", raw.decode("utf-8", "ignore")) + "…"
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise InvalidKeyError(f"part {part[:80]!r} encodes no name") from None


def _escape(name: str) -> str:
    if not _UNSAFE_NAME.search(name):
        escaped = name
    else:
        data = name.encode("utf-8", "surrogatepass")
        escaped = "".join(chr(b) if b in _SAFE else f"={b:02x}" for b in data)
    # A leading dot hides, a trailing one is dropped by Windows, a device name opens a device.
    if escaped[0] == "." or escaped.split(".")[0] in _DEVICES:
        escaped = f"={ord(escaped[0]):02x}{escaped[1:]}"
    if escaped[-1] == ".":
        escaped = escaped[:-1] + "=2e"
    return escaped
