"""Objects that change, under any names, beside the records of a store: what frameworks ask of a store.

A record is written once and found by its ref. A file of an agent or an entry of a key-value store has a
name of its own and is overwritten; it lies under

    <kind>/<space>/<name>        4 bytes, big-endian: length of the name; the name in UTF-8; the content

A name that is too long for a key is hashed there (rule R7), and told by the object itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from offload.errors import CorruptError, NotFoundError, OffloadError
from offload.layout import Family, decode_part, encode_part, is_hashed
from offload.store import OffloadStore, get_many, put_many

_LENGTH = struct.Struct(">I")
# What is read to learn a name that its key does not tell.
_HEAD_BYTES = 8192


class ObjectInfo(NamedTuple):
    """One line of a listing.

    Attributes:
        name: the name.
        size: bytes of its content.
        modified: when it was written, in seconds since the epoch by the store's own clock.
    """

    name: str
    size: int
    modified: float


class ObjectStore:
    """The objects of one kind in one space of a store. Two names never share an object.

    Args:
        store: where they are.
        kind: what they are: `layout.FILE` or `layout.VALUE`.
        space: whose they are; other spaces do not see them.
    """

    def __init__(self, store: OffloadStore, kind: Family, space: str) -> None:
        self._store = store
        self._prefix = kind.prefix(encode_part(space))

    def get_many(self, names: Sequence[str]) -> list[bytes | OffloadError]:
        """Return the content under each name, or the error that there was instead, in the same order."""
        keys = [self._key(name) for name in names]
        return [_content(data, name) for name, data in zip(names, get_many(self._store, keys), strict=True)]

    def get(self, name: str) -> bytes:
        """Return the content under `name`.

        Raises:
            NotFoundError: there is none.
            CorruptError: the object is damaged.
            StoreError: the store failed.
        """
        [found] = self.get_many([name])
        if isinstance(found, OffloadError):
            raise found
        return found

    def put_many(self, contents: Mapping[str, bytes]) -> None:
        """Store every content under its name, in the place of what is there. Raises `StoreError`."""
        items = [(self._key(name), _framed(name, content)) for name, content in contents.items()]
        for error in put_many(self._store, items, overwrite=True):
            if error is not None:
                raise error

    def put(self, name: str, content: bytes) -> None:
        """Store `content` under `name`, in the place of what is there. Raises `StoreError`."""
        self._store.put(self._key(name), _framed(name, content), overwrite=True)

    def create(self, name: str, content: bytes) -> None:
        """Store `content` under `name`. Raises `ExistsError` if something is there, and `StoreError`."""
        self._store.put(self._key(name), _framed(name, content))

    def delete(self, name: str) -> None:
        """Remove what is under `name`; nothing there is success. Raises `StoreError`."""
        self._store.delete(self._key(name))

    def list(self) -> Iterator[ObjectInfo]:
        """Yield what there is, in no order of names. A long name costs a read. Raises `StoreError`."""
        for found in self._store.keys(self._prefix):
            part = found.key.removeprefix(self._prefix)
            name = self._told_name(found.key) if is_hashed(part) else decode_part(part)
            if name is not None:
                head = _LENGTH.size + len(_encoded(name))
                yield ObjectInfo(name, max(0, found.size - head), found.modified)

    def _key(self, name: str) -> str:
        return self._prefix + encode_part(name)

    def _told_name(self, key: str) -> str | None:
        """Return the name that an object tells; None if it is gone by now."""
        try:
            head = self._store.get(key, end=_HEAD_BYTES)
            end = _name_end(head, key)
            if end > len(head):
                head = self._store.get(key, end=end)
        except NotFoundError:
            return None
        return head[_LENGTH.size : end].decode("utf-8", "surrogatepass")


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogatepass")


def _framed(name: str, content: bytes) -> bytes:
    encoded = _encoded(name)
    return b"".join((_LENGTH.pack(len(encoded)), encoded, content))


def _name_end(head: bytes, where: str) -> int:
    if len(head) < _LENGTH.size:
        raise CorruptError(f"{where!r}: an object begins with the length of its name; this one is cut off")
    return int(_LENGTH.unpack_from(head)[0]) + _LENGTH.size


def _content(data: bytes | OffloadError, name: str) -> bytes | OffloadError:
    if isinstance(data, OffloadError):
        return data
    head = _framed(name, b"")
    if not data.startswith(head):
        return CorruptError(f"what is stored as {name!r:.80} does not begin with that name")
    return data[len(head) :]
