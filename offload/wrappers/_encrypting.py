"""A store whose objects only the holder of a key can read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from offload.errors import (
    CorruptError,
    MissingExtraError,
    OffloadError,
    StoreUnavailableError,
    result_or_error,
)
from offload.layout import check_key
from offload.store import (
    OffloadStore,
    StoredObject,
    check_range,
    delete_many,
    get_many,
    put_many,
    put_stream,
)
from offload.wrappers._base import WrapperStore
from offload.wrappers._chunks import FOOTER, plain_size, suffix_size
from offload.wrappers._memory_cache import MemoryCache

_REMEMBERED_BYTES = 512 * 1024
# An object is replaced while a range is read; each round has a newer footer.
_ROUNDS = 8


class EncryptingStore(WrapperStore):
    """Encrypts and authenticates every object, in chunks of 64 KiB, so that a range costs its chunks.

    Construction: per object 32 random bytes of salt, and from key and salt by HKDF-SHA256 a key of its
    own. Chunk i is sealed under that by AES-256-GCM; its nonce is i (11 bytes) and whether it is the last
    (1 byte); the associated data is the object's footer (format, key id, salt, size) and its store key.
    So a nonce is never used twice under one key, whatever the number of objects, and a chunk that was
    changed, moved, left out, added or taken from another object, version or store key is refused.

    A whole read and a suffix are one request, a range one or two: the footers of some thousand objects
    are remembered. An object takes 16 bytes per chunk and 56 bytes more; listings tell its plain size.

    What it does not do: store keys, sizes and times stay visible, and so does which objects have one
    encryption key. Whoever can write to the wrapped store can delete objects, put back an older version
    under the same store key, or copy an object to the same store key of another store. The encryption key is
    changed only by writing everything again, and who loses it has lost all objects.

    The key itself is in no object, repr, error or pickle; a store that holds one cannot be pickled.
    A wrong key raises `ConfigError`, which names the ids of both; bytes that this store did not write,
    or that were changed, raise `CorruptError`.

    Args:
        inner: the store that is wrapped; it sees nothing but sealed bytes.
        key: 32 random bytes, or these as text in hexadecimal or base64; None takes the text from the
            environment variable `OFFLOAD_KEY`. A password is no key.

    Raises:
        ConfigError: there is no key, or it is not of that form.
        MissingExtraError: the package of the extra `crypto` is not installed.
    """

    def __init__(self, inner: OffloadStore, key: bytes | str | None = None) -> None:
        super().__init__(inner)
        try:
            from offload.wrappers import _sealed  # noqa: PLC0415  # loads cryptography
        except ImportError as error:
            message = "an EncryptingStore needs cryptography: pip install 'offload[crypto]'"
            raise MissingExtraError(message) from error
        self._key = _sealed.read_key(key)
        self._footers = MemoryCache(_REMEMBERED_BYTES)

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        """Store `data` under `key`, sealed; see `OffloadStore.put`."""
        self.inner.put(key, self._key.seal(check_key(key), data), overwrite=overwrite)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range of them, opened; see `OffloadStore.get`.

        Raises `CorruptError` or, for an object that was sealed with another key, `ConfigError` too.
        """
        check_key(key)
        check_range(start, end)
        if start < 0:
            return self._open_end(key, self.inner.get(key, start=-suffix_size(-start)), -start)
        if start == 0 and end is None:
            return self._open_end(key, self.inner.get(key))
        return self._open_range(key, start, sys.maxsize if end is None else end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        """Yield objects in key order, with their plain sizes; see `OffloadStore.keys`."""
        for found in self.inner.keys(prefix, after=after):
            yield replace(found, size=plain_size(found.size))

    def put_many(
        self, items: Sequence[tuple[str, bytes]], *, overwrite: bool = False
    ) -> list[OffloadError | None]:
        """Store many objects, sealed; see `SupportsBulk.put_many`."""
        sealed = [(key, self._key.seal(key, data)) for key, data in items]
        return put_many(self.inner, sealed, overwrite=overwrite)

    def get_many(self, keys: Sequence[str]) -> list[bytes | OffloadError]:
        """Return many objects, opened; see `SupportsBulk.get_many`."""
        return [
            result_or_error(self._open_end, key, stored) if isinstance(stored, bytes) else stored
            for key, stored in zip(keys, get_many(self.inner, keys), strict=True)
        ]

    def delete_many(self, keys: Iterable[str]) -> None:
        """Remove many keys; see `SupportsBulk.delete_many`."""
        delete_many(self.inner, keys)

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        """Create `key` piece by piece, sealed; see `SupportsStreams.put_stream`."""
        sealed = self._key.seal_stream(check_key(key), pieces, size)
        put_stream(self.inner, key, sealed, sealed.size)

    def _open_end(self, key: str, stored: bytes, count: int = sys.maxsize) -> bytes:
        """Return the last `count` plain bytes, given the last sealed ones."""
        footer = stored[-FOOTER:]
        sealed = self._key.sealed(key, footer)
        offset = sealed.stored_size - len(stored)
        plain = sealed.open(stored, offset, max(0, sealed.size - count), sealed.size)
        self._footers.put(key, footer)
        return plain

    def _open_range(self, key: str, start: int, end: int) -> bytes:
        footer = self._footers.get(key) or self.inner.get(key, start=-FOOTER)
        for _ in range(_ROUNDS):
            try:
                return self._open_chunks(key, footer, start, end)
            except CorruptError:
                newest = self.inner.get(key, start=-FOOTER)
                if newest == footer:
                    raise
                footer = newest
        raise StoreUnavailableError(f"{self.url}: {key!r} was replaced again and again while it was read")

    def _open_chunks(self, key: str, footer: bytes, start: int, end: int) -> bytes:
        sealed = self._key.sealed(key, footer)
        first, last = sealed.span(start, end)
        plain = sealed.open(self.inner.get(key, start=first, end=last), first, start, end)
        self._footers.put(key, footer)
        return plain
