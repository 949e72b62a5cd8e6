"""Packs: small records of a session in one object, so that a new process reads all of them at once.

Packs are derived data: an unreadable one is ignored, and deleting all of them loses nothing. Each has a
unique name and never changes, so that several writers need no coordination: a reader takes the union. A pack
has the objects of records byte for byte; they are checked when they are opened, as the records themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Literal

import msgspec
import zstandard

from offload.errors import OffloadError
from offload.layout import PACK, RECORD, SENT, SNAPSHOT, encode_part, name_of, random_letters
from offload.store import OffloadStore, delete_many, get_many

# Fewer records are read at once in as little time.
_MIN_RECORDS = 4
# From this number on, a writer replaces the smaller ones by one.
_MANY_PACKS = 8
# Of one pack, and of all that are read; those to be merged are smaller.
_MAX_BYTES, _MAX_READ, _SMALL_BYTES = 32 * 1024 * 1024, 64 * 1024 * 1024, 4 * 1024 * 1024


class _Body(msgspec.Struct):
    """The content of a pack: objects of records by the end of their keys."""

    version: Literal[1]
    records: dict[str, bytes]


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_BODIES = msgspec.msgpack.Decoder(_Body)


class Packs:
    """The packs of a session, as one process knows them; for one thread at a time.

    Nothing is read or written on a local store, where each record is near. Errors of the store are ignored.
    """

    def __init__(self, store: OffloadStore, session: str) -> None:
        self._store = store
        self._part = encode_part(session)
        # The sizes of the packs that were read, by key, and the keys of their records.
        self._sizes: dict[str, int] = {}
        self._packed: set[str] = set()
        self._new: dict[str, bytes] = {}

    def fetch(self, wanted: Collection[str]) -> dict[str, bytes]:
        """Return the objects of records, among the `wanted` keys, that packs have.

        It takes one listing, and one read for each pack that was not read before; nothing for a few records.
        """
        found: dict[str, bytes] = {}
        if not self._store.is_shared or len(wanted) < _MIN_RECORDS:
            return found
        wanted = {*wanted}
        with suppress(OffloadError):
            for records in self._read([*self._unread()]):
                self._packed.update(records)
                found |= {key: body for key, body in records.items() if key in wanted}
        return found

    def _unread(self) -> Iterator[str]:
        """Yield the keys of packs that were not read, for as long as they are not too large together."""
        room = _MAX_READ
        for stored in self._store.keys(f"{PACK.prefix(self._part)}pack~"):
            if PACK.match(stored.key) and stored.key not in self._sizes and stored.size <= room:
                room -= stored.size
                self._sizes[stored.key] = stored.size
                yield stored.key

    def _read(self, keys: Collection[str]) -> Iterator[Mapping[str, bytes]]:
        """Yield the objects in packs by the keys of their records."""
        prefix = RECORD.prefix(self._part)
        for data in get_many(self._store, keys):
            if isinstance(data, bytes) and (body := _parsed(data)) is not None:
                yield {prefix + name: record for name, record in body.records.items()}

    def note(self, records: Mapping[str, bytes]) -> None:
        """Note objects of records by their keys, for the next pack, unless a pack has them."""
        if self._store.is_shared:
            self._new |= {key: body for key, body in records.items() if key not in self._packed}

    def write(self, known: Collection[str]) -> None:
        """Store the noted records as a pack, if there are enough; merge small packs if there are many.

        Args:
            known: the keys of the records that the session has now: no others are merged.
        """
        new, self._new = self._new, {}
        if len(new) < _MIN_RECORDS:
            self._new = new
            return
        small = [key for key, size in self._sizes.items() if size < _SMALL_BYTES]
        merged = small if len(small) >= _MANY_PACKS else []
        with suppress(OffloadError):
            for records in self._read(merged):
                new |= {key: body for key, body in records.items() if key in known}
            self._put(new)
            delete_many(self._store, merged)
            self._sizes = {key: size for key, size in self._sizes.items() if key not in merged}

    def _put(self, records: Mapping[str, bytes]) -> None:
        body = _Body(1, {name_of(key): data for key, data in records.items()})
        data = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(msgspec.msgpack.encode(body))
        key = PACK.key(session=self._part, letters=random_letters())
        if len(data) <= _MAX_BYTES:
            self._store.put(key, data)
            self._sizes[key] = len(data)
            self._packed.update(records)
            # A gc that deleted the packs may not have seen this one: the process that acts last detects that.
            if not self._are_there(records.keys()):
                self._store.delete(key)

    def _are_there(self, keys: AbstractSet[str]) -> bool:
        """Return whether the session still has all of these records."""
        with suppress(OffloadError):
            listed = self._store.keys(RECORD.prefix(self._part))
            return keys <= {stored.key for stored in listed if stored.size}
        return False


def delete_derived(store: OffloadStore, part: str) -> None:
    """Delete all that repeats texts of the records of the session with a key part. Raises `StoreError`."""
    listed = [stored.key for stored in store.keys(SNAPSHOT.prefix(part))]
    delete_many(store, [key for key in listed if any(f.match(key) for f in (SNAPSHOT, PACK, SENT))])


def _parsed(data: bytes) -> _Body | None:
    """Return the content of a pack; None if it is damaged, too large or of another version."""
    try:
        # The records are compressed already, so that a larger claim is none of a pack.
        if not 0 < zstandard.frame_content_size(data) <= 2 * _MAX_BYTES:
            return None
        return _BODIES.decode(zstandard.ZstdDecompressor().decompress(data))
    except (zstandard.ZstdError, msgspec.MsgspecError, RecursionError):
        return None
