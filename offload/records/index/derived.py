"""Derived objects of a session: each repeats what many others say, so that a new process reads one object.

There are snapshots of a listing, packs of small records, and what a gateway sent in a conversation. All of
them keep these rules:

* Deleting all of them loses nothing. One that is damaged, too large or of another version is ignored.
* They are below `i/<session>/`. A snapshot and a pack have a random name and never change, so that writers
  need no coordination.
* One is stored if it saves more requests than it takes, unless another process just stored the same.
* No deleted text remains in one: gc deletes all of a session when it deletes the bytes of a record of it. A
  writer that was slower than that may store one later: a pack is then deleted by its writer, which lists
  the records again, a snapshot by the next writer, which does not find all of its records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set as AbstractSet
from contextlib import suppress
from itertools import chain, repeat
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
import zstandard

from offload.errors import OffloadError
from offload.records.index._listing import SessionListing, is_fresh
from offload.records.record.titles import Label
from offload.storage.layout import PACK, RECORD, SENT, SNAPSHOT, encode_part, name_of, random_letters
from offload.storage.store import OffloadStore, delete_many, get_many

T = TypeVar("T")

_FAMILIES = SNAPSHOT, PACK, SENT
# For fewer records a snapshot costs more than it saves; fewer are read at once in as little time as a pack.
_LEAST_LISTED, _LEAST_PACKED = 5000, 4
# The newest snapshot, and the one before it for a process that is about to read it.
_KEPT = 2
# Larger snapshots (more than a million records) are ignored, and so are impossible ones: refs are random,
# so each name takes at least three compressed bytes.
_MAX_LISTING, _MAX_RATIO, _MIN_NAME = 64 * 1024 * 1024, 32, 3
# From this number on, a writer replaces the smaller packs by one.
_MANY_PACKS = 8
# Of one pack, and of all that are read; those to be merged are smaller.
_MAX_PACK, _MAX_READ, _SMALL_PACK = 32 * 1024 * 1024, 64 * 1024 * 1024, 4 * 1024 * 1024


def compressed(body: bytes) -> bytes:
    """Return the object of a body in msgpack."""
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(body)


def opened(data: bytes, most: int, decode: Callable[[bytes], T]) -> T | None:
    """Return the body in an object; None if it is damaged, of another version or over `most` bytes."""
    with suppress(zstandard.ZstdError, msgspec.MsgspecError, RecursionError):
        # The claimed size is checked before memory is taken.
        if 0 < zstandard.frame_content_size(data) <= most:
            return decode(zstandard.ZstdDecompressor().decompress(data))
    return None


def delete_derived(store: OffloadStore, part: str) -> None:
    """Delete the derived objects of the session with a key part. Raises `StoreError`."""
    listed = [stored.key for stored in store.keys(SNAPSHOT.prefix(part))]
    delete_many(store, [key for key in listed if any(family.match(key) for family in _FAMILIES)])


class _ListingBody(msgspec.Struct):
    """The content of a snapshot; `titles` has None for unknown ones.

    `agents` has one for each record if any agent is known, "" for none; else it is empty.
    """

    version: Literal[1]
    names: list[str]
    sizes: list[int]
    times: list[float]
    titles: list[str | None]
    agents: list[str] = []

    def known_labels(self) -> Iterator[tuple[str, Label]]:
        """Yield the name and the label of each record whose title is known."""
        rows = zip(self.names, self.titles, chain(self.agents, repeat("")), strict=False)
        return ((name, Label.of(title, agent)) for name, title, agent in rows if title is not None)


class _Snapshot(NamedTuple):
    began: float
    took: float
    stored_at: float
    key: str

    def is_fresh(self, now: float) -> bool:
        # The older of two clocks counts; a wrong clock only costs a listing.
        return is_fresh(now - min(self.began, self.stored_at), self.took)


def read_snapshot(
    store: OffloadStore, part: str, now: float, labels: dict[str, Label]
) -> SessionListing | None:
    """Return the newest fresh and readable listing; None without one, or if the store fails.

    `now` is in seconds since the epoch. The known titles and agents of its records are added
    to `labels`. Costs one listing and one read.
    """
    with suppress(OffloadError):
        for snapshot in sorted(_snapshots(store, part), reverse=True)[:_KEPT]:
            if snapshot.is_fresh(now) and (body := _read(store, snapshot.key)) is not None:
                labels.update(body.known_labels())
                prefix = RECORD.prefix(part)
                lists = body.names, body.sizes, body.times
                return SessionListing(snapshot.began, snapshot.took, prefix, *lists)
    return None


def write_snapshot(
    store: OffloadStore, part: str, listing: SessionListing, now: float, labels: dict[str, Label]
) -> None:
    """Store a listing of a large session unless there is a fresh one; delete older ones but the last.

    Its labels are `labels` and those of the snapshot before it, which are added to `labels`. That one is
    deleted too if it has a record that the session lacks now. Errors of the store are ignored.
    """
    if len(listing.names) < _LEAST_LISTED:
        return
    with suppress(OffloadError):
        snapshots = sorted(_snapshots(store, part))
        if any(snapshot.is_fresh(now) for snapshot in snapshots):
            return
        # Another thread may add a record meanwhile, its time last.
        count = len(listing.times)
        lists = {name: getattr(listing, name)[:count] for name in ("names", "sizes", "times")}
        before = _read(store, snapshots[-1].key) if snapshots else None
        if before is not None:
            labels.update(before.known_labels())
            if {*before.names} <= {*lists["names"]}:
                snapshots.pop()
        lists |= _lists_of([labels.get(name) for name in lists["names"]])
        key = SNAPSHOT.key(
            session=part,
            began=round(listing.began * 1000),
            took=round(listing.took * 1000),
            letters=random_letters(),
        )
        store.put(key, compressed(msgspec.msgpack.encode({"version": 1, **lists})))
        for old in snapshots:
            store.delete(old.key)


def _lists_of(labels: Sequence[Label | None]) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {"titles": [None if label is None else label.title for label in labels]}
    if any(label is not None and label.agent for label in labels):
        lists["agents"] = ["" if label is None else label.agent for label in labels]
    return lists


def _snapshots(store: OffloadStore, part: str) -> Iterator[_Snapshot]:
    for stored in store.keys(SNAPSHOT.prefix(part)):
        match = SNAPSHOT.match(stored.key)
        if match:
            began, took = int(match["began"]) / 1000, int(match["took"]) / 1000
            yield _Snapshot(began, took, stored.modified, stored.key)


def _read(store: OffloadStore, key: str) -> _ListingBody | None:
    """Return a snapshot; None if it is gone or cannot be read."""
    with suppress(OffloadError):
        data = store.get(key)
        decoder = msgspec.msgpack.Decoder(_body_type(len(data) // _MIN_NAME))
        body: _ListingBody | None = opened(data, min(_MAX_LISTING, _MAX_RATIO * len(data)), decoder.decode)
        if body is not None and len(body.names) == len(body.sizes) == len(body.times):
            return body
    return None


def _body_type(most: int) -> Any:
    """Return the type of a body with lists of at most `most` entries, which is checked before decoding."""
    length = msgspec.Meta(max_length=most)
    lists = [("names", list[str]), ("sizes", list[int]), ("times", list[float]), ("titles", list[str | None])]
    fields: list[Any] = [(name, Annotated[kind, length]) for name, kind in lists]
    agents: Any = ("agents", Annotated[list[str], length], msgspec.field(default_factory=list))
    return msgspec.defstruct("_Bounded", [*fields, agents], bases=(_ListingBody,))


class _PackBody(msgspec.Struct):
    """The content of a pack: objects of records by the end of their keys."""

    version: Literal[1]
    records: dict[str, bytes]


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_PACKS = msgspec.msgpack.Decoder(_PackBody)


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
        if not self._store.is_shared or len(wanted) < _LEAST_PACKED:
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
            if isinstance(data, bytes) and (body := opened(data, 2 * _MAX_PACK, _PACKS.decode)) is not None:
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
        if len(new) < _LEAST_PACKED:
            self._new = new
            return
        small = [key for key, size in self._sizes.items() if size < _SMALL_PACK]
        merged = small if len(small) >= _MANY_PACKS else []
        with suppress(OffloadError):
            for records in self._read(merged):
                new |= {key: body for key, body in records.items() if key in known}
            self._put(new)
            delete_many(self._store, merged)
            self._sizes = {key: size for key, size in self._sizes.items() if key not in merged}

    def _put(self, records: Mapping[str, bytes]) -> None:
        body = _PackBody(1, {name_of(key): data for key, data in records.items()})
        data = compressed(msgspec.msgpack.encode(body))
        key = PACK.key(session=self._part, letters=random_letters())
        if len(data) <= _MAX_PACK:
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
