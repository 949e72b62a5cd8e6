"""JSON that begins with a map, whose first field is the SHA-256 of a name and all other bytes."""

from __future__ import annotations

import hashlib

from offload.errors import CorruptError

_BEGIN = b'{"sha256":"'
_END = len(_BEGIN) + 64


def undigested(data: bytes) -> bytes:
    """Return JSON that begins with a map, with a digest of zeros as its first field."""
    return _BEGIN + b"0" * 64 + (b'"' if data.startswith(b"{}") else b'",') + data[1:]


def with_digest(data: bytes, name: str) -> bytes:
    """Return the result of `undigested` with its digest, which depends on the object's name."""
    return _BEGIN + _digest(data, name) + data[_END:]


def check_digest(data: bytes, name: str) -> None:
    """Raise `CorruptError` unless `with_digest` made the data for an object of this name."""
    if data[:_END] != _BEGIN + _digest(data, name):
        raise CorruptError("its content does not match its digest")


def _digest(data: bytes, name: str) -> bytes:
    digest = hashlib.sha256(name.encode() + b"\n" + _BEGIN)
    digest.update(memoryview(data)[_END:])
    return digest.hexdigest().encode()
