"""The catalog of a session: store keys ⇄ entries. A cache: the records themselves are the truth."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from offload.index._entries import Tombstone, parse_key
from offload.index._listing import LARGE, MAX_AGE, CachedListing, Page, SessionListing
from offload.index._snapshots import delete_snapshots, read_snapshot, write_snapshot
from offload.layout import RECORD, encode_part, generation_of, is_link
from offload.locks import Lock
from offload.record import RecordInfo
from offload.store import OffloadStore, StoredObject

# A few refs are looked up one by one, more by a listing of the session.
_FEW = 8


class Catalog:
    """What is known of one session's records in one store.

    Entries that this process wrote are known at once; those of others come with `load`, or one by one
    when an unknown ref is looked up. A record with a tombstone is no entry. An entry says what a listing
    says of its record, whoever wrote it.

    A session of more than 1,000 objects is large: `page` and `recent` use a listing of it again for 100
    times as long as it took, at most ten minutes: one that is held in memory, or a snapshot in the store.
    """

    def __init__(self, store: OffloadStore, session: str) -> None:
        self._store = store
        self._session = session
        self._prefix = RECORD.prefix(encode_part(session))
        # Around what is remembered, never around a request: readers have threads of their own.
        self._lock = Lock()
        self._entries: dict[str, RecordInfo] = {}
        self._keys_of: dict[str, list[str]] = {}
        self._tombstones: dict[str, dict[str, Tombstone]] = {}
        # The entries in order, until one of them changes.
        self._ordered: list[RecordInfo] | None = None
        # What was written here: a listing may be older.
        self._own: dict[str, RecordInfo] = {}
        # Of a large session, the newest listing, and the one that all entries are from.
        self._held: CachedListing | None = None
        self._taken: CachedListing | None = None

    def add(self, info: RecordInfo) -> None:
        """Remember a record that this process stored, or found to be stored already."""
        row = parse_key(StoredObject(info.key, info.stored_bytes, info.created_at))
        if isinstance(row, RecordInfo):
            info = self._named(row)
        with self._lock:
            self._own[info.key] = info
            self._remember(info)
            if self._held is not None:
                self._held.add(info)

    def drop(self, key: str) -> None:
        """Forget a key whose object turned out to be gone."""
        with self._lock:
            self._forget(key)
            if self._held is not None:
                self._held.drop(key)

    def load(self) -> None:
        """List the session's records: one request per 1,000 of them on an object store."""
        self._list(may_be_old=False)

    def refresh(self, refs: Iterable[str]) -> None:
        """Ask the store what it holds of `refs`: a listing for each of a few, one of all for more."""
        wanted = set(refs)
        if len(wanted) > _FEW:
            self.load()
            return
        for ref in sorted(wanted):
            # What another thread adds from here on the listing may miss.
            with self._lock:
                known = set(self._keys_of.get(ref, ()))
            objects = list(self._store.keys(self._prefix + ref))
            with self._lock:
                self._tombstones.pop(ref, None)
                listed = self._take_in(objects, ref)
            for key in known - listed:
                self.drop(key)

    @property
    def is_empty(self) -> bool:
        """Whether no record is known, without asking the store."""
        return not self._entries

    def known(self, ref: str) -> list[RecordInfo]:
        """Return the entries of `ref` that are known without asking the store, in key order.

        One that is shared by another session is told only where the session has no record of its own, and
        one that is torn only where it is the last.
        """
        with self._lock:
            keys = self._keys_of.get(ref, ())
            own = [key for key in keys if not is_link(key)]
            infos = [self._entries[key] for key in own or keys]
            return [info for info in infos if info.stored_bytes] or infos

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
        with self._lock:
            return max(self._tombstones.get(ref, {}).values(), key=lambda t: t.at, default=None)

    def next_generation(self, ref: str) -> int:
        """Return the generation under which the item of `ref` is to be stored; 1 if none was collected."""
        with self._lock:
            over = [info.key for info in self.known(ref) if info.is_expired]
            return max((generation_of(key) + 1 for key in (*self._tombstones.get(ref, ()), *over)), default=1)

    def entries(self) -> list[RecordInfo]:
        """Return the entry of every known ref, oldest first; of several keys the first in key order."""
        with self._lock:
            if self._ordered is None:
                first = (self.known(ref)[0] for ref, keys in self._keys_of.items() if keys)
                self._ordered = sorted(first, key=lambda info: (info.created_at, info.key))
            return self._ordered.copy()

    def objects(self) -> list[RecordInfo]:
        """Return an entry for every known key, in key order."""
        with self._lock:
            return [self._entries[key] for key in sorted(self._entries)]

    def page(
        self,
        item_type: str | None = None,
        tool: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page:
        """Return entries, newest first: of a large session by a listing that may be ten minutes old.

        Args:
            item_type: only entries of this type.
            tool: only entries of this tool.
            limit: how many at most.
            after: the ref that they come after.

        Raises:
            ConfigError: `after` is not among the entries.
        """
        held = self._recently_listed()
        with self._lock:
            page = held.page(item_type, tool, limit, after)
            infos = [self._named(info) for info in page.infos]
            for info in infos:
                self._remember(info)
        return page._replace(infos=infos)

    def recent(self) -> list[RecordInfo]:
        """Return what `entries` does: of a large session by a listing that may be ten minutes old."""
        held = self._recently_listed()
        with self._lock:
            if held is not self._taken:
                listed = self._take_in(held.objects())
                for key in self._entries.keys() - listed:
                    self._forget(key)
                self._taken = held
        return self.entries()

    def reindex(self) -> None:
        """Throw away what is derived of the session, list it anew and derive it again."""
        delete_snapshots(self._store, self._session)
        self.load()

    def _recently_listed(self) -> CachedListing:
        """Return a listing that may still be used: of a small session always a new one."""
        held = self._held
        return held if held is not None and held.is_fresh(time.time()) else self._list(may_be_old=True)

    def _list(self, *, may_be_old: bool) -> CachedListing:
        """List the session into memory; or, if that may be, stop at a recent snapshot and hold that."""
        with self._lock:
            known = set(self._entries)
        began, start = time.time(), time.monotonic()
        objects: list[StoredObject] = []
        for stored in self._store.keys(self._prefix):
            objects.append(stored)
            if may_be_old and len(objects) == LARGE + 1:
                snapshot = read_snapshot(self._store, self._session, time.time())
                if snapshot is not None:
                    return self._hold_old(snapshot)
        took = time.monotonic() - start
        with self._lock:
            self._tombstones.clear()
            for key in known - self._take_in(objects):
                self._forget(key)
            listing = SessionListing.of(self.entries(), began, took)
            held = self._taken = CachedListing(listing, self._prefix)
            self._held = held if len(objects) > LARGE else None
        if self._held is not None:
            write_snapshot(self._store, self._session, listing, time.time())
        return held

    def _hold_old(self, listing: SessionListing) -> CachedListing:
        """Hold a listing that may miss what was written here since."""
        held = CachedListing(listing, self._prefix)
        with self._lock:
            for info in self._own.values():
                # The listing's clock may be another machine's.
                if info.created_at >= listing.began - MAX_AGE:
                    held.add(info)
            self._held = held
        return held

    def _take_in(self, objects: Iterable[StoredObject], ref: str | None = None) -> set[str]:
        """Remember what stands there, of `ref` alone if one is given; return the entries' keys."""
        with self._lock:
            found = [f for f in map(parse_key, objects) if f and ref in (None, f.ref)]
            for tombstone in (f for f in found if isinstance(f, Tombstone)):
                self._tombstones.setdefault(tombstone.ref, {})[tombstone.key] = tombstone
            infos = [i for i in found if isinstance(i, RecordInfo) and not self._is_buried(i)]
            for info in infos:
                self._remember(self._named(info))
            return {info.key for info in infos}

    def _named(self, info: RecordInfo) -> RecordInfo:
        """Return the entry with the session's name: a hashed one decodes to its beginning."""
        if info.session == self._session:
            return info
        return msgspec.structs.replace(info, session=self._session)

    def _is_buried(self, info: RecordInfo) -> bool:
        return info.key in self._tombstones.get(info.ref, ())

    def _remember(self, info: RecordInfo) -> None:
        with self._lock:
            if info == self._entries.get(info.key) or self._is_buried(info):
                return
            self._ordered = None
            self._entries[info.key] = info
            keys = self._keys_of.setdefault(info.ref, [])
            if info.key not in keys:
                keys.append(info.key)
                keys.sort()

    def _forget(self, key: str) -> None:
        with self._lock:
            info = self._entries.pop(key, None)
            if info is not None:
                self._keys_of[info.ref].remove(key)
                self._ordered = None
            self._own.pop(key, None)


def reindex(store: OffloadStore, session: str) -> int:
    """Rebuild the index of a session from the keys of its records; return how many records there are.

    Raises `StoreError` as the store does, also where it cannot delete: nothing that counts is lost then.
    """
    catalog = Catalog(store, session)
    catalog.reindex()
    return len(catalog.entries())
