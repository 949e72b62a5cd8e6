"""Named objects that may be overwritten: the files and key-value entries of frameworks.

The content of an object starts with its name, because the key of a long name has only a hash:

    <family>/<space>/<name>        length of the name in 4 bytes, big-endian; the name in UTF-8; the content
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from offload.base.text import decode_text, encode_text
from offload.errors import CorruptError, NotFoundError, OffloadError, result_or_error
from offload.storage.layout import Family, decode_part, encode_part, is_hashed
from offload.storage.registry import open_store
from offload.storage.store import SEALED_FOOTER, OffloadStore, StoredObject, check_plain, get_many, put_many

_LENGTH = struct.Struct(">I")
# Bytes to read for a name that is hashed in the key.
_HEAD_BYTES = 8192

StorageOptions = Mapping[str, Any] | None


class ObjectStore:
    """The objects of one family, `FILE` or `VALUE`, in one space of a store.

    Two names never share an object, and other spaces do not see the objects. `store`, `storage_options` and
    errors are those of `offload.Offloader`; nothing is read or written before the first call.
    """

    def __init__(
        self, store: Any, family: Family, space: str, storage_options: StorageOptions = None
    ) -> None:
        self._store: OffloadStore = open_store(store, storage_options=storage_options)
        self._prefix = family.prefix(encode_part(space))

    def get_many(self, names: Sequence[str]) -> list[bytes | OffloadError]:
        """Return the content of each name or the error of its read, in order."""
        keys = [self._key(name) for name in names]
        return [
            data if isinstance(data, OffloadError) else result_or_error(_content, data, name)
            for name, data in zip(names, get_many(self._store, keys), strict=True)
        ]

    def get(self, name: str) -> bytes | None:
        """Return the content of `name`, or None. Raises `CorruptError` and `StoreError`."""
        [content] = self.get_many([name])
        return found(content)

    def put_many(self, contents: Mapping[str, bytes]) -> None:
        """Store every content under its name, overwriting what exists. Raises `StoreError`."""
        items = [(self._key(name), _framed(name, content)) for name, content in contents.items()]
        for error in put_many(self._store, items, overwrite=True):
            if error is not None:
                raise error

    def put(self, name: str, content: bytes, *, overwrite: bool = True) -> None:
        """Store `content` under `name`. Raises `StoreError`, and `ExistsError` without `overwrite`."""
        self._store.put(self._key(name), _framed(name, content), overwrite=overwrite)

    def delete(self, name: str) -> None:
        """Delete `name`; a missing object is success. Raises `StoreError`."""
        self._store.delete(self._key(name))

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Yield the objects whose name starts with `prefix`, with the name as the key, in any order.

        Each long name costs a read. Raises `StoreError`.
        """
        for stored in self._store.keys(self._prefix):
            part = stored.key.removeprefix(self._prefix)
            name = self._stored_name(stored.key) if is_hashed(part) else decode_part(part)
            if name is not None and name.startswith(prefix):
                yield replace(stored, key=name, size=max(0, stored.size - len(_framed(name, b""))))

    def _key(self, name: str) -> str:
        return self._prefix + encode_part(name)

    def _stored_name(self, key: str) -> str | None:
        """Return the name in an object; None if the object was deleted meanwhile."""
        try:
            head = self._store.get(key, end=_HEAD_BYTES)
            if len(head) < _LENGTH.size:
                raise CorruptError(f"{key!r}: the object is truncated before the end of its name")
            end = _LENGTH.size + _LENGTH.unpack_from(head)[0]
            if end > len(head):
                head = self._store.get(key, end=end)
            return self._name_of(key, head[_LENGTH.size : end])
        except NotFoundError:
            return None

    def _name_of(self, key: str, encoded: bytes) -> str:
        with suppress(UnicodeDecodeError):
            if self._key(name := decode_text(encoded)) == key:
                return name
        check_plain(self._store.get(key, start=-SEALED_FOOTER), key)
        raise CorruptError(f"{key!r}: the object does not start with its name")


def found(content: bytes | OffloadError) -> bytes | None:
    """Return a result of `get_many`, None for a missing object. Raises any other error."""
    if isinstance(content, NotFoundError):
        return None
    if isinstance(content, OffloadError):
        raise content
    return content


def _framed(name: str, content: bytes) -> bytes:
    encoded = encode_text(name)
    return b"".join((_LENGTH.pack(len(encoded)), encoded, content))


def _content(data: bytes, name: str) -> bytes:
    """Return the content of an object. Raises `CorruptError`, and `EncryptionError` if it is encrypted."""
    head = _framed(name, b"")
    if not data.startswith(head):
        check_plain(data)
        raise CorruptError(f"the object {name!r:.80} does not start with its name")
    return data[len(head) :]
