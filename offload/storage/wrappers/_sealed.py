"""The format of encrypted objects. Importing this module loads `cryptography`."""

from __future__ import annotations

import base64
import os
import re
import secrets
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from offload.errors import ConfigError, CorruptError, EncryptionError
from offload.storage.store import KEY_VARIABLE, SEALED_FOOTER, SEALED_MAGIC, blocks_of
from offload.storage.wrappers._chunks import CHUNK, SEALED_CHUNK, TAG, chunks_of, count_chunks, sealed_size

_KEY_BYTES = 32
_SALT_BYTES = 32
_ID_BYTES = 8
_KEY_ID = b"offload sealed object: key id"
_OBJECT_KEY = b"offload sealed object: object key"
# Magic, id of the key, salt, plain size; the CRC-32 of these ends the footer.
_FACTS = struct.Struct(f"<4s{_ID_BYTES}s{_SALT_BYTES}sQ")
_CRC = struct.Struct("<I")
_HEX = re.compile(rf"[0-9a-fA-F]{{{2 * _KEY_BYTES}}}", re.ASCII)
_BASE64 = re.compile(r"([A-Za-z0-9+/_-]{43})=?", re.ASCII)


class Key:
    """A key of 32 random bytes that seals and opens objects; no repr, error or pickle contains it."""

    __slots__ = ("_secret", "id")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.id = self._derive(_KEY_ID, _ID_BYTES, salt=None)

    def __repr__(self) -> str:
        return f"<Key {self.id.hex()}>"

    def __reduce__(self) -> NoReturn:
        raise ConfigError("a key cannot be copied or pickled; open the store in the process that uses it")

    def seal(self, name: str, data: bytes) -> bytes:
        """Return the sealed object of `data` under the store key `name`; each call returns other bytes."""
        return b"".join(self.seal_stream(name, [data], len(data)))

    def seal_stream(self, name: str, pieces: Iterable[bytes], size: int) -> SealedStream:
        """Return the sealed object of `pieces`, of `size` bytes in total; each call returns other bytes."""
        facts = _FACTS.pack(SEALED_MAGIC, self.id, secrets.token_bytes(_SALT_BYTES), size)
        footer = facts + _CRC.pack(zlib.crc32(facts))
        return SealedStream(self.sealed(name, footer), pieces, footer)

    def sealed(self, name: str, footer: bytes) -> Sealed:
        """Return the cipher of the object with this footer. Opening a chunk authenticates the footer.

        Raises `CorruptError` for other bytes, `EncryptionError` if the object was sealed with another key.
        """
        facts, crc = footer[: -_CRC.size], footer[-_CRC.size :]
        if (
            len(footer) != SEALED_FOOTER
            or crc != _CRC.pack(zlib.crc32(facts))
            or not facts.startswith(SEALED_MAGIC)
        ):
            raise CorruptError(f"{name}: damaged, or not written by an EncryptingStore")
        _, key_id, salt, size = _FACTS.unpack(facts)
        if key_id != self.id:
            raise EncryptionError(
                f"{name}: encrypted with the key of id {key_id.hex()}, got the key of id {self.id.hex()}; "
                f"use the key that wrote the object ({KEY_VARIABLE} for commands)"
            )
        cipher = AESGCM(self._derive(_OBJECT_KEY, _KEY_BYTES, salt=salt))
        return Sealed(name, size, cipher, footer + name.encode("utf-8", "surrogatepass"))

    def _derive(self, purpose: bytes, length: int, *, salt: bytes | None) -> bytes:
        return HKDF(SHA256(), length, salt, purpose).derive(self._secret)


@dataclass(frozen=True, slots=True)
class Sealed:
    """The cipher of the object with the store key `name` and `size` plain bytes."""

    name: str
    size: int
    _cipher: AESGCM = field(repr=False)
    _context: bytes = field(repr=False)

    @property
    def stored_size(self) -> int:
        return sealed_size(self.size)

    def seal(self, chunk: int, plain: bytes | memoryview) -> bytes:
        """Return the sealed bytes of `plain`, the bytes of chunk number `chunk`."""
        return self._cipher.encrypt(self._nonce(chunk), plain, self._context)

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return start and end of the sealed bytes that contain the plain ones from `start` to `end`."""
        chunks = chunks_of(start, end, self.size)
        return chunks.start * SEALED_CHUNK, min(chunks.stop * SEALED_CHUNK, self.stored_size - SEALED_FOOTER)

    def open(self, stored: bytes, offset: int, start: int, end: int) -> bytes:
        """Return the plain bytes from `start` to `end`, from sealed bytes that begin at `offset`.

        Raises `CorruptError` if bytes are missing or were changed.
        """
        chunks = chunks_of(start, end, self.size)
        if not 0 <= offset <= chunks.start * SEALED_CHUNK:
            raise self._corrupt(chunks.start)
        sealed = memoryview(stored)
        plain = b"".join([self._open(n, sealed, offset) for n in chunks])
        skipped = chunks.start * CHUNK
        return plain[max(0, start - skipped) : max(0, min(end, self.size) - skipped)]

    def _open(self, chunk: int, sealed: memoryview, offset: int) -> bytes:
        first = chunk * SEALED_CHUNK - offset
        size = min(CHUNK, self.size - chunk * CHUNK) + TAG
        try:
            return self._cipher.decrypt(self._nonce(chunk), sealed[first : first + size], self._context)
        except InvalidTag:
            raise self._corrupt(chunk) from None

    def _nonce(self, chunk: int) -> bytes:
        is_last = chunk == count_chunks(self.size) - 1
        return chunk.to_bytes(11, "big") + bytes([is_last])

    def _corrupt(self, chunk: int) -> CorruptError:
        return CorruptError(f"{self.name}: chunk {chunk} was changed since it was written")


class SealedStream:
    """A sealed object as an iterable of pieces, which are sealed on iteration.

    A second iteration, for another attempt, yields equal pieces. Changed plain bytes raise `ConfigError`:
    two texts under one nonce would reveal both. Plain bytes of another size than in the footer make a
    stream of another size, which the store refuses.
    """

    def __init__(self, sealed: Sealed, pieces: Iterable[bytes], footer: bytes) -> None:
        self.size = sealed.stored_size
        self._sealed, self._pieces, self._footer = sealed, pieces, footer
        self._tags: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        blocks = blocks_of(self._pieces, CHUNK)
        # Empty data has one empty chunk.
        for number, plain in enumerate(chain([next(blocks, b"")], blocks)):
            chunk = self._sealed.seal(number, plain)
            if number == len(self._tags):
                self._tags.append(chunk[-TAG:])
            if chunk[-TAG:] != self._tags[number]:
                raise ConfigError(
                    f"{self._sealed.name}: pieces must be equal on every iteration; pass a list"
                )
            yield chunk
        yield self._footer


def read_key(key: bytes | str | None) -> Key:
    """Return the key from bytes or text, or from the environment if it is None.

    Raises `ConfigError` if there is no key or it has another form; the message does not quote it.
    """
    what = "key" if key is not None else KEY_VARIABLE
    if key is None:
        key = os.environ.get(KEY_VARIABLE)
    if key is None:
        raise ConfigError(f"no key: pass 32 random bytes, or set {KEY_VARIABLE} to them in base64")
    secret: object = _decoded(key.strip()) if isinstance(key, str) else key
    if not isinstance(secret, bytes) or len(secret) != _KEY_BYTES:
        raise ConfigError(
            f"{what} must be {_KEY_BYTES} random bytes, or their text in hexadecimal or base64 "
            "as `openssl rand -base64 32` prints it"
        )
    return Key(secret)


def _decoded(text: str) -> bytes:
    """Return the bytes of a text in hexadecimal or base64; empty for any other text."""
    if _HEX.fullmatch(text):
        return bytes.fromhex(text)
    if match := _BASE64.fullmatch(text):
        return base64.b64decode(match[1].replace("-", "+").replace("_", "/") + "=")
    return b""
