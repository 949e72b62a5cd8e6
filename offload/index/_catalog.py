"""The catalog of a session: store keys ⇄ entries. A cache: the records themselves are the truth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice

import msgspec

from offload.codec import find_codec
from offload.errors import InvalidKeyError, OffloadError
from offload.index._keys import (
    RECORDS,
    Tombstone,
    generation_of,
    parse_key,
    session_prefix,
    sidecar_key,
)
from offload.keys import decode_part, is_hashed
from offload.record import RecordInfo
from offload.store import OffloadStore

# A few refs are looked up one by one, more by a listing of the session.
_FEW = 8
# How many records are opened at most to find a session's name.
_TRIES = 20


def sessions(store: OffloadStore) -> Iterator[str]:
    """Yield the names of the sessions that `store` has known, one short listing for each."""
    after = ""
    while True:
        first = next(store.keys(f"{RECORDS}/", after=after), None)
        if first is None:
            return
        if first.key.count("/") == 1:
            after = first.key  # No record: they lie one level deeper.
            continue
        part = first.key.split("/")[1]
        with suppress(InvalidKeyError):
            yield _name_of(store, part) if is_hashed(part) else decode_part(part)
        # "0" follows "/": the next key past everything below this session.
        after = f"{RECORDS}/{part}0"


def _name_of(store: OffloadStore, part: str) -> str:
    """Return the name of the session with this key part as one of its records tells it."""
    for stored in islice(store.keys(f"{RECORDS}/{part}/"), _TRIES):
        codec = find_codec(stored.key)
        if codec is not None and stored.size:
            with suppress(OffloadError):
                sidecar = partial(store.get, sidecar_key(stored.key))
                return codec.open(partial(store.get, stored.key), sidecar).session
    return decode_part(part)


class Catalog:
    """What is known of one session's records in one store.

    Entries that this process wrote are known at once; those of others come with `load`, or one by one
    when an unknown ref is looked up. A record with a tombstone is no entry.
    """

    def __init__(self, store: OffloadStore, session: str) -> None:
        self._store = store
        self._session = session
        self._entries: dict[str, RecordInfo] = {}
        self._keys_of: dict[str, list[str]] = {}
        self._tombstones: dict[str, dict[str, Tombstone]] = {}
        self.is_loaded = False

    def add(self, info: RecordInfo) -> None:
        """Remember a record. What was known of it beyond a listing is kept; the time is the store's."""
        known = self._entries.get(info.key)
        if known is not None and info.lines is None:
            info = msgspec.structs.replace(
                known,
                created_at=info.created_at,
                expires_at=info.expires_at,
                stored_bytes=info.stored_bytes,
            )
        self._entries[info.key] = info
        keys = self._keys_of.setdefault(info.ref, [])
        if info.key not in keys:
            keys.append(info.key)
            keys.sort()

    def drop(self, key: str) -> None:
        """Forget a key whose object turned out to be gone."""
        info = self._entries.pop(key, None)
        if info is not None:
            self._keys_of[info.ref].remove(key)

    def load(self) -> None:
        """List the session's records: one request per 1,000 of them on an object store."""
        self._tombstones.clear()
        listed = self._take_in(session_prefix(self._session))
        for key in self._entries.keys() - listed:
            self.drop(key)
        self.is_loaded = True

    def refresh(self, refs: Iterable[str]) -> None:
        """Ask the store what it holds of `refs`: a listing for each of a few, one of all for more."""
        wanted = set(refs)
        if len(wanted) > _FEW:
            self.load()
            return
        for ref in sorted(wanted):
            self._tombstones.pop(ref, None)
            listed = self._take_in(session_prefix(self._session) + ref, ref)
            for key in [key for key in self._keys_of.get(ref, ()) if key not in listed]:
                self.drop(key)

    def known(self, ref: str) -> list[RecordInfo]:
        """Return the entries of `ref` that are known without asking the store, in key order."""
        return [self._entries[key] for key in self._keys_of.get(ref, ())]

    def find(self, ref: str, *, is_fresh: bool = False) -> list[RecordInfo]:
        """Return the entries of `ref` in key order.

        An unknown one costs one listing by its prefix, and so does a known one with `is_fresh`: another
        writer may have stored the same item under another key, a collector may have taken it.
        """
        if is_fresh or not self.known(ref):
            self.refresh([ref])
        return self.known(ref)

    def tombstone(self, ref: str) -> Tombstone | None:
        """Return the latest known tombstone of `ref`."""
        return max(self._tombstones.get(ref, {}).values(), key=lambda t: t.at, default=None)

    def next_generation(self, ref: str) -> int:
        """Return the generation under which the item of `ref` is to be stored; 1 if none was collected."""
        return max((generation_of(key) + 1 for key in self._tombstones.get(ref, ())), default=1)

    def entries(self) -> list[RecordInfo]:
        """Return the entry of every known ref, oldest first; of several keys the first in key order."""
        first = (self._entries[keys[0]] for keys in self._keys_of.values() if keys)
        return sorted(first, key=lambda info: (info.created_at, info.key))

    def objects(self) -> list[RecordInfo]:
        """Return an entry for every known key, in key order."""
        return [self._entries[key] for key in sorted(self._entries)]

    def _take_in(self, prefix: str, ref: str | None = None) -> set[str]:
        """List `prefix`, remember what stands there, of `ref` alone if one is given; return entries' keys."""
        found = [f for f in map(parse_key, self._store.keys(prefix)) if f and ref in (None, f.ref)]
        buried = {t.key: t for t in found if isinstance(t, Tombstone)}
        for tombstone in buried.values():
            self._tombstones.setdefault(tombstone.ref, {})[tombstone.key] = tombstone
        infos = [i for i in found if isinstance(i, RecordInfo) and i.key not in buried]
        for info in infos:
            # A hashed name decodes to its beginning: the session's own name is the exact one.
            self.add(msgspec.structs.replace(info, session=self._session))
        return {info.key for info in infos}
