"""A store whose objects can only be read with a key."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from offload import errors
from offload.base.threads.locks import NO_FORK, Recent
from offload.storage import store
from offload.storage.layout import check_key
from offload.storage.wrappers._base import WrapperStore
from offload.storage.wrappers._chunks import plain_size, suffix_size

if TYPE_CHECKING:
    from offload.storage.wrappers._sealed import Sealed

_CACHED_FOOTERS = 2000
# Attempts to read a range of an object that is being replaced.
_ROUNDS = 8
# So many random bytes resemble a text in one of 100,000 cases at most; no JSON object of a store is shorter.
_SHORTEST, _HEAD = 15, 64
# The first bytes of a zstd frame, and of the 16 kinds of skippable ones without their lowest byte.
_ZSTD, _SKIPPABLE = b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18"


class EncryptingStore(WrapperStore):
    """Encrypts and authenticates every object, in chunks of 64 KiB, so that a range costs its chunks.

    Construction: each object has 32 random bytes of salt and a key derived from key and salt by
    HKDF-SHA256. AES-256-GCM seals chunk i under that key; the nonce is i (11 bytes) and a flag for the last
    chunk (1 byte); the associated data is the object's footer (format, key id, salt, size) and its store
    key. So no nonce is used twice under one key, for any number of objects, and a chunk that was changed,
    moved, removed, added or copied from another object, version or store key is refused.

    A whole read and a suffix take one request, a range one or two: the footers of 2,000 objects are
    cached. An object grows by 16 bytes per chunk and 56 bytes; listings show its plain size.

    Limits: store keys, sizes and times are visible, and so is which objects share an encryption key. A
    writer of the wrapped store can delete objects, restore an older version under the same store key, or
    copy an object to the same store key of another store. Changing the encryption key means writing
    every object again, and without the key all objects are lost.

    The key is in no object, repr, error or pickle; a store with a key cannot be pickled. An object of
    another key, and one that was stored in clear, raise `EncryptionError`, the first with both key ids; any
    other bytes that this store did not write, or that were changed, raise `CorruptError`.

    Args:
        inner: the store that is wrapped; it receives sealed bytes only.
        key: 32 random bytes, or their text in hexadecimal or base64; None reads the text from the
            environment variable `OFFLOAD_KEY`. Do not use a password.

    Raises:
        ConfigError: there is no key, or it has another form.
        MissingExtraError: the package of the extra `crypto` is not installed.
    """

    def __init__(self, inner: store.OffloadStore, key: bytes | str | None = None) -> None:
        super().__init__(inner)
        with errors.needs_extra("crypto"), NO_FORK:
            from offload.storage.wrappers import _sealed  # noqa: PLC0415  # loads cryptography
        self._key = _sealed.read_key(key)
        self._footers: Recent[str, bytes] = Recent(_CACHED_FOOTERS)

    @property
    def key_id(self) -> str:
        """The id of the key, in hexadecimal: the same for every store with this key."""
        return self._key.id.hex()

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        self.inner.put(key, self._key.seal(check_key(key), data), overwrite=overwrite)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes of `key` or a range of them, opened; see `OffloadStore.get`.

        Raises `CorruptError` and `EncryptionError` too.
        """
        check_key(key)
        store.check_range(start, end)
        if start < 0:
            return self._open_end(key, self.inner.get(key, start=-suffix_size(-start)), -start)
        if start == 0 and end is None:
            return self._open_end(key, self.inner.get(key))
        return self._open_range(key, start, sys.maxsize if end is None else end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[store.StoredObject]:
        for entry in self.inner.keys(prefix, after=after):
            yield replace(entry, size=plain_size(entry.size))

    def folders(self, prefix: str = "") -> Iterator[str]:
        return store.folders(self.inner, prefix)

    def put_many(
        self, items: Iterable[tuple[str, bytes]], *, overwrite: bool = False
    ) -> list[errors.OffloadError | None]:
        sealed = ((key, self._key.seal(key, data)) for key, data in items)
        return store.put_many(self.inner, sealed, overwrite=overwrite)

    def get_many(self, keys: Sequence[str]) -> Iterable[bytes | errors.OffloadError]:
        return (
            errors.result_or_error(self._open_end, key, stored) if isinstance(stored, bytes) else stored
            for key, stored in zip(keys, store.get_many(self.inner, keys), strict=True)
        )

    def delete_many(self, keys: Iterable[str]) -> None:
        store.delete_many(self.inner, keys)

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        sealed = self._key.seal_stream(check_key(key), pieces, size)
        store.put_stream(self.inner, key, sealed, sealed.size)

    def _open_end(self, key: str, stored: bytes, count: int = sys.maxsize) -> bytes:
        """Return the last `count` plain bytes, given the last sealed ones."""
        footer = stored[-store.SEALED_FOOTER :]
        is_whole = count == sys.maxsize or len(stored) < suffix_size(count)
        sealed = self._sealed(key, footer, stored if is_whole else None)
        offset = sealed.stored_size - len(stored)
        plain = sealed.open(stored, offset, max(0, sealed.size - count), sealed.size)
        self._footers.put(key, footer)
        return plain

    def _open_range(self, key: str, start: int, end: int) -> bytes:
        footer = self._footers.get(key) or self.inner.get(key, start=-store.SEALED_FOOTER)
        for _ in range(_ROUNDS):
            try:
                return self._open_chunks(key, footer, start, end)
            except errors.CorruptError:
                newest = self.inner.get(key, start=-store.SEALED_FOOTER)
                if newest == footer:
                    raise
                footer = newest
        raise errors.StoreUnavailableError(
            f"{self.url}: {key!r} was replaced during each of {_ROUNDS} reads; try again"
        )

    def _open_chunks(self, key: str, footer: bytes, start: int, end: int) -> bytes:
        sealed = self._sealed(key, footer)
        first, last = sealed.span(start, end)
        plain = sealed.open(self.inner.get(key, start=first, end=last), first, start, end)
        self._footers.put(key, footer)
        return plain

    def _sealed(self, key: str, footer: bytes, stored: bytes | None = None) -> Sealed:
        """Return the cipher of an object with this footer; `stored` is the whole object, if it was read."""
        try:
            return self._key.sealed(key, footer)
        except errors.CorruptError:
            start = self.inner.get(key, end=store.SEALED_FOOTER) if stored is None else stored
            if not store.is_sealed(footer) and _is_in_clear(start):
                raise errors.EncryptionError(
                    f"{key}: it was stored in clear, and the store has a key; open the store without it, in "
                    f"commands without {store.KEY_VARIABLE}"
                ) from None
            raise


def encryption_of(outer: store.OffloadStore) -> EncryptingStore | None:
    """Return the `EncryptingStore` that a store is or wraps; None for one in clear."""
    while isinstance(outer, WrapperStore):
        if isinstance(outer, EncryptingStore):
            return outer
        outer = outer.inner
    return None


def _is_in_clear(start: bytes) -> bool:
    """Return whether an object that begins with `start` was stored without encryption: text or zstd frames.

    Encrypted bytes are random. Of binary content that is not compressed the answer is no.
    """
    if start.startswith(_ZSTD) or (start[1:4] == _SKIPPABLE and 0x50 <= start[0] <= 0x5F):  # noqa: PLR2004 # the kinds
        return True
    if len(start) < _SHORTEST:
        return False
    head = start[:_HEAD]
    # A cut may fall inside a character.
    text = head.decode("utf-8", "ignore")
    is_utf8 = len(head) - len(text.encode()) <= (3 if len(start) >= _HEAD else 0)
    return is_utf8 and all(char.isprintable() or char in "\t\n\r" for char in text)
