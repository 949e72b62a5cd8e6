"""The catalog of a session: its store keys as entries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set as AbstractSet
from itertools import islice

import msgspec

from offload.base.threads.locks import Lock
from offload.records.index._listing import LARGE, MAX_AGE, Candidates, Page, SessionListing, is_fresh
from offload.records.index.derived import delete_derived, read_snapshot, write_snapshot
from offload.records.index.entries import Tombstone, parse_key
from offload.records.index.floors import Floor, clocks
from offload.records.index.objects import DeletedRecord, split_objects
from offload.records.record import RecordInfo
from offload.records.record.titles import Label
from offload.storage.layout import RECORD, encode_part, generation_of, is_link, name_of, ref_of
from offload.storage.store import OffloadStore, StoredObject

# More refs are looked up by one listing of the session.
_MAX_LOOKUPS = 8


class Catalog:
    """The known records of one session in one store.

    Entries that this process wrote are known at once; others are read by `load`, or one by one when an
    unknown ref is looked up. A record with a tombstone has no entry.

    A session of more than 1,000 objects is large: `page` and `recent` reuse a listing of it, from memory or
    from a snapshot in the store, for 100 times as long as it took and at most ten minutes.

    Attributes:
        floor: the lowest generation of a new record, and the marks of sessions that drew refs.

    Args:
        store: the store.
        session: the name of the session.
        part: its key part, for a name that is not known whole.
        inherit: returns the records that a session with a branch reads from its parent; it is called once a
            listing showed a mark of another session, or a ref is not known.
    """

    def __init__(
        self,
        store: OffloadStore,
        session: str,
        inherit: Callable[[], Iterable[RecordInfo]] | None = None,
        *,
        part: str | None = None,
    ) -> None:
        self._inherit = inherit
        self._inherited: dict[str, RecordInfo] | None = None
        # The marks of other sessions when the records were inherited.
        self._origins: set[str] = set()
        self._store = store
        self._session = session
        self._part = encode_part(session) if part is None else part
        self._prefix = RECORD.prefix(self._part)
        self.floor = Floor(store, self._part)
        # Guards the fields below; never held during a request, since readers use several threads.
        self._lock = Lock()
        self._entries: dict[str, RecordInfo] = {}
        self._keys_of: dict[str, list[str]] = {}
        # Lengths of the contents of all records so far: an item of another length needs no hash to have none.
        self._chars: set[int] = set()
        self._deleted: dict[str, dict[str, DeletedRecord]] = {}
        # The sorted entries, until one of them changes.
        self._ordered: list[RecordInfo] | None = None
        # Titles and agents that this process wrote, read or took from a snapshot, by `name_of`.
        self._labels: dict[str, Label] = {}
        # Records of this process, which a cached listing may miss.
        self._own: dict[str, RecordInfo] = {}
        # The newest listing of a large session, and the listing that the entries were read from.
        self._cached: SessionListing | None = None
        self._loaded: SessionListing | None = None

    def add(self, info: RecordInfo) -> None:
        """Add a record that this process stored or adopted."""
        row = parse_key(StoredObject(info.key, info.stored_bytes, info.created_at))
        with self._lock:
            self._labels[name_of(info.key)] = Label(info.title or "", info.agent_name or "")
            if isinstance(row, RecordInfo):
                info = self._completed(row)
            self._own[info.key] = info
            self._insert(info)
            if self._cached is not None:
                self._cached.add(info)

    def drop(self, key: str) -> None:
        """Remove the entry of a key whose object was deleted."""
        with self._lock:
            (self._inherited or {}).pop(key, None)
            info = self._entries.pop(key, None)
            if info is not None:
                self._keys_of[info.ref].remove(key)
                self._ordered = None
            self._own.pop(key, None)
            if self._cached is not None:
                self._cached.drop(key)

    def learn(self) -> None:
        """Know what a new record depends on: the floor, and all records if another session drew refs of any.

        It takes one listing, unless the session was listed in the last day. Raises `StoreError`.
        """
        self.floor.learn()
        if self.floor.origins and self._loaded is None:
            self.load()

    def load(self) -> None:
        """List the session's records: one request per 1,000 of them on an object store."""
        self._list(may_use_snapshot=False)

    def refresh(self, refs: Iterable[str]) -> None:
        """Look up `refs` in the store, with a listing per ref or one listing of the session."""
        unique = set(refs)
        if len(unique) > _MAX_LOOKUPS:
            self.load()
            return
        for ref in sorted(unique):
            # The listing may miss records that another thread adds meanwhile.
            with self._lock:
                known = set(self._keys_of.get(ref, ()))
            # A longer ref may begin with this one.
            objects = [o for o in self._store.keys(self._prefix + ref) if ref_of(name_of(o.key)) == ref]
            with self._lock:
                self._deleted.pop(ref, None)
                self._replace(known, objects)
        if not all(map(self.known, unique)):
            self._add_inherited()

    @property
    def is_empty(self) -> bool:
        """True if no record is known; sends no request."""
        return not self._entries

    def has_chars(self, chars: int) -> bool:
        """Return whether a content of so many characters may be among the records; sends no request."""
        return chars in self._chars

    def known(self, ref: str) -> list[RecordInfo]:
        """Return the known entries of `ref` in key order, without a request.

        A link counts only if the session has no record of its own, a torn record only if there is no other.
        """
        with self._lock:
            keys = self._keys_of.get(ref, ())
            own = [key for key in keys if not is_link(key)]
            infos = [self._entries[key] for key in own or keys]
            return [info for info in infos if info.stored_bytes] or infos

    def find(self, ref: str, *, is_fresh: bool = False) -> list[RecordInfo]:
        """Return the entries of `ref` in key order.

        An unknown ref costs one listing by its prefix, and so does `is_fresh`: another writer may have stored
        the item under another key, or gc may have deleted it.
        """
        if is_fresh or not self.known(ref):
            self.refresh([ref])
        return self.known(ref)

    def tombstone(self, ref: str) -> Tombstone | None:
        """Return the latest known tombstone of `ref`."""
        with self._lock:
            latest = [deleted.last_tombstone for deleted in self._deleted.get(ref, {}).values()]
            return max(latest, key=lambda tombstone: tombstone.at, default=None)

    def next_generation(self, ref: str) -> int:
        """Return the generation for a new record of `ref`; 1 if none was deleted or is expired."""
        with self._lock:
            expired = [info.key for info in self.known(ref) if info.is_expired]
            after = (generation_of(key) + 1 for key in (*self._deleted.get(ref, ()), *expired))
            return max([self.floor.lowest, *after])

    def entries(self) -> list[RecordInfo]:
        """Return one entry per known ref, oldest first; of several keys the first in key order."""
        with self._lock:
            if self._ordered is None:
                first = (self.known(ref)[0] for ref, keys in self._keys_of.items() if keys)
                self._ordered = sorted(first, key=lambda info: (info.created_at, info.key))
            return self._ordered.copy()

    def objects(self) -> list[RecordInfo]:
        """Return an entry for every known key, in key order."""
        with self._lock:
            return [self._entries[key] for key in sorted(self._entries)]

    def knows_title(self, info: RecordInfo) -> bool:
        """Return whether the title of a record, or that it has none, is known."""
        return name_of(info.key) in self._labels

    def learn_labels(self, labels: Mapping[str, Label]) -> None:
        """Note the titles and agents of records by key."""
        with self._lock:
            self._labels.update((name_of(key), label) for key, label in labels.items())
            for key in labels.keys() & self._entries.keys():
                self._insert(self._completed(self._entries[key]))

    def completed(self, infos: Iterable[RecordInfo]) -> list[RecordInfo]:
        """Return entries with their titles, if these are known."""
        with self._lock:
            return [self._completed(info) for info in infos]

    def candidates(
        self,
        words: Sequence[str],
        item_type: str | None = None,
        tool: str | None = None,
        after: str | None = None,
    ) -> Candidates:
        """Return the entries whose title has all `words` or is not known, newest first; see `page`."""
        listing = self._recent_listing()
        with self._lock:
            return listing.candidates(words, self._labels, item_type, tool, after)

    def page(
        self,
        item_type: str | None = None,
        tool: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> Page:
        """Return entries of a type and a tool, newest first, from after that of the ref `after`.

        The listing of a large session may be ten minutes old. Raises `ConfigError` if `after` names none.
        """
        listing = self._recent_listing()
        with self._lock:
            page = listing.page(item_type, tool, limit, after)
            infos = [self._completed(info) for info in page.infos]
            for info in infos:
                self._insert(info)
        return page._replace(infos=infos)

    def recent(self) -> list[RecordInfo]:
        """Return the entries, oldest first; the listing of a large session may be ten minutes old."""
        listing = self._recent_listing()
        with self._lock:
            if listing is not self._loaded:
                self._replace(self._entries.keys(), listing.objects())
                self._loaded = listing
        return self.entries()

    def _recent_listing(self) -> SessionListing:
        """Return a listing that is fresh enough; for a small session always a new one."""
        cached = self._cached
        if cached is not None and is_fresh(time.time() - cached.began, cached.took):
            return cached
        return self._list(may_use_snapshot=True)

    def _list(self, *, may_use_snapshot: bool) -> SessionListing:
        """List the session into memory, or read a recent snapshot instead."""
        with self._lock:
            known = set(self._entries)
        began, start, listed_at = time.time(), time.monotonic(), clocks()
        keys = iter(self._store.keys(self._prefix))
        objects = [*islice(keys, LARGE + 1)]
        if may_use_snapshot and len(objects) > LARGE:
            snapshot = read_snapshot(self._store, self._part, time.time(), self._labels)
            if snapshot is not None:
                return self._cache(snapshot)
        objects += keys
        took = time.monotonic() - start
        self.floor.note(objects, listed_at)
        self._add_inherited()
        with self._lock:
            self._deleted.clear()
            self._replace(known, objects)
            listing = self._loaded = SessionListing.of(self.entries(), began, took, self._prefix)
            self._cached = listing if len(objects) > LARGE else None
        if len(objects) > LARGE:
            write_snapshot(self._store, self._part, listing, time.time(), self._labels)
        return listing

    def _cache(self, snapshot: SessionListing) -> SessionListing:
        """Cache a snapshot with the records that this process wrote since."""
        with self._lock:
            for info in self._own.values():
                # The snapshot's clock may be another machine's.
                if info.created_at >= snapshot.began - MAX_AGE:
                    snapshot.add(info)
            self._cached = snapshot
        return snapshot

    def _replace(self, known: AbstractSet[str], objects: Iterable[StoredObject]) -> None:
        """Insert the listed records and deleted records; drop the `known` keys that are not listed."""
        with self._lock:
            infos, deleted = split_objects(objects)
            for record in deleted:
                self._deleted.setdefault(record.info.ref, {})[record.info.key] = record
            listed = {info.key for info in infos.values() if self._insert(self._completed(info))}
            for key in known - listed - (self._inherited or {}).keys():
                self.drop(key)

    def is_inherited(self, key: str) -> bool:
        """Return whether the record at a key is one of the parent's, so that no object is there."""
        return key in (self._inherited or {})

    def _add_inherited(self) -> None:
        """Insert the records that the session reads from its parent, if it was forked; look once."""
        self.floor.learn()
        if self._inherited is None or self._origins != self.floor.origins:
            marks = {*self.floor.origins}
            inherited = {info.key: info for info in (self._inherit() if self._inherit and marks else ())}
            with self._lock:
                self._inherited, self._origins = inherited, marks
                for info in inherited.values():
                    self._insert(self._completed(info))

    def _completed(self, info: RecordInfo) -> RecordInfo:
        """Return the entry with what its key lacks: title, agent, a session name that is hashed."""
        label = self._labels.get(name_of(info.key), Label())
        title, name = label.title or None, label.agent or None
        if (info.session, info.title, info.agent_name) == (self._session, title, name):
            return info
        return msgspec.structs.replace(info, session=self._session, title=title, agent_name=name)

    def _insert(self, info: RecordInfo) -> bool:
        """Insert an entry; return False if the record is deleted."""
        with self._lock:
            if info.key in self._deleted.get(info.ref, ()):
                return False
            if info == self._entries.get(info.key):
                return True
            self._ordered = None
            self._entries[info.key] = info
            self._chars.add(info.chars)
            keys = self._keys_of.setdefault(info.ref, [])
            if info.key not in keys:
                keys.append(info.key)
                keys.sort()
            return True


def reindex(store: OffloadStore, session: str, *, part: str | None = None) -> int:
    """Rebuild the index of a session from its keys; return the number of records.

    `part` is its key part, for a name that is not known whole. Raises `StoreError` if the store fails, also
    to delete a snapshot; no record is affected.
    """
    delete_derived(store, encode_part(session) if part is None else part)
    catalog = Catalog(store, session, part=part)
    catalog.load()
    return len(catalog.entries())
