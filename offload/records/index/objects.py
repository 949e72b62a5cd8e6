"""The sessions of a store, and the objects of each, sorted into records and deleted records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from heapq import merge
from itertools import groupby, islice

import msgspec

from offload.errors import InvalidKeyError, OffloadError
from offload.records.codec import find_codec
from offload.records.index.entries import Tombstone, parse_key
from offload.records.index.floors import floors_in
from offload.records.record import RecordInfo
from offload.storage.layout import (
    BRANCH,
    RECORD,
    DeletionReason,
    Family,
    decode_part,
    encode_part,
    is_hashed,
    is_link,
    session_part,
    sidecar_key,
)
from offload.storage.store import OffloadStore, StoredObject, folders, identity_of

# The maximum number of objects that are opened to find a session's name.
_MAX_TRIES = 20
# By address and session, then by the store's identity: a token of the latest deletion by this process, which
# sessions see without a request. The identity may need a connection, so only a deletion asks for it.
_deletions: dict[tuple[str, str], dict[str, object]] = {}


class _Fork(msgspec.Struct):
    """The part of a branch that names the session that it is of."""

    fork: str


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_FORKS = msgspec.json.Decoder(_Fork)


class DeletedRecord(msgspec.Struct, frozen=True):
    """A record with tombstones, one per reason; its stored size is 0 once its bytes are deleted."""

    info: RecordInfo
    tombstones: tuple[Tombstone, ...]

    @property
    def reasons(self) -> set[DeletionReason]:
        """Why it was deleted, by each tombstone."""
        return {tombstone.reason for tombstone in self.tombstones}

    @property
    def marked_at(self) -> float:
        """When the first tombstone was written, in seconds since the epoch."""
        return min(tombstone.at for tombstone in self.tombstones)

    @property
    def last_tombstone(self) -> Tombstone:
        """The newest tombstone."""
        return max(self.tombstones, key=lambda tombstone: tombstone.at)


class SessionObjects(msgspec.Struct):
    """The objects of the session with the key part `part`.

    `records` are the readable records and links, oldest first, and `torn` are empty objects without a
    tombstone; `newest` is the time of the object that was stored last, 0 without one. A session with a
    branch `is_fork`: it also reads records of its parent. `floors` are the times of the marks of its floor,
    and `quoting` has, by the ref of a record, the refs of those that quote it.
    """

    part: str
    records: list[RecordInfo]
    torn: list[RecordInfo]
    deleted: list[DeletedRecord]
    newest: float = 0.0
    is_fork: bool = False
    floors: dict[int, float] = {}
    quoting: dict[str, list[str]] = {}

    def __post_init__(self) -> None:
        for info in self.records:
            for ref in () if is_link(info.key) else info.quotes:
                self.quoting.setdefault(ref, []).append(info.ref)

    @property
    def name(self) -> str:
        """The session's name; a name too long for a key ends in an ellipsis."""
        return decode_part(self.part)

    def entries(self) -> list[RecordInfo]:
        """Return one entry per ref, oldest first, as `Catalog.entries` does: damaged ones are included."""
        first: dict[str, RecordInfo] = {}
        for info in sorted((*self.records, *self.torn), key=_precedence):
            first.setdefault(info.ref, info)
        return sorted(first.values(), key=_age)


def list_session(store: OffloadStore, part: str) -> SessionObjects:
    """List the session with this key part."""
    return _session_objects(part, store.keys(RECORD.prefix(part)))


def list_sessions(store: OffloadStore) -> Iterator[SessionObjects]:
    """Yield every session of `store` from one listing; one session at a time is in memory."""
    listed = (stored for stored in store.keys(RECORD.prefix()) if stored.key.count("/") > 1)
    for part, objects in groupby(listed, key=lambda stored: session_part(stored.key)):
        try:
            decode_part(part)
        except InvalidKeyError:
            continue
        yield _session_objects(part, objects)


def session_parts(store: OffloadStore, *families: Family) -> Iterator[str]:
    """Yield the key part of each session of `store` in key order, from a listing of its folders.

    Each has an object of one of `families`, by default records.
    """
    listed = [folders(store, family.prefix()) for family in families or (RECORD,)]
    for part, _ in groupby(merge(*listed, key=lambda name: f"{name}/")):
        with suppress(InvalidKeyError):
            decode_part(part)
            yield part


def split_objects(objects: Iterable[StoredObject]) -> tuple[dict[str, RecordInfo], list[DeletedRecord]]:
    """Return the records and links by key, and the records with a tombstone, of listed objects."""
    infos: dict[str, RecordInfo] = {}
    tombstones: dict[str, list[Tombstone]] = {}
    for entry in map(parse_key, objects):
        if isinstance(entry, RecordInfo):
            infos[entry.key] = entry
        elif entry is not None:
            tombstones.setdefault(entry.key, []).append(entry)
    deleted = []
    for key, marks in tombstones.items():
        # An object that is missing counts as emptied when it was marked.
        info = infos.pop(key, None) or parse_key(StoredObject(key, 0, min(mark.at for mark in marks)))
        if isinstance(info, RecordInfo):
            deleted.append(DeletedRecord(info, tuple(marks)))
    return infos, deleted


def _session_objects(part: str, objects: Iterable[StoredObject]) -> SessionObjects:
    times: dict[str, float] = {}
    infos, deleted = split_objects(_noting_times(objects, times))
    oldest_first = sorted(infos.values(), key=_age)
    records = [info for info in oldest_first if info.stored_bytes]
    torn = [info for info in oldest_first if not info.stored_bytes]
    newest = max((times[info.key] for info in records), default=0.0)
    is_fork = any(map(BRANCH.match, times))
    return SessionObjects(part, records, torn, deleted, newest, is_fork, floors_in(times.items()))


def _age(info: RecordInfo) -> tuple[float, str]:
    return info.created_at, info.key


def _precedence(info: RecordInfo) -> tuple[bool, bool, str]:
    """Order the keys of one ref: a session's own records before links, readable ones before empty ones."""
    return is_link(info.key), not info.stored_bytes, info.key


def _noting_times(objects: Iterable[StoredObject], times: dict[str, float]) -> Iterator[StoredObject]:
    for stored in objects:
        times[stored.key] = stored.modified
        yield stored


def sessions(store: OffloadStore) -> Iterator[str]:
    """Yield the name of each session in `store`, from a listing of its folders; a long name takes a read."""
    return (session_name(store, part) for part in session_parts(store))


def session_name(store: OffloadStore, part: str) -> str:
    """Return the name of the session with this key part.

    The name behind a hashed part is read from the header of a record, or from the branch of a fork. If at
    most 20 of these give none, it ends in an ellipsis: a reader needs the part then.
    Raises `InvalidKeyError` if `part` encodes no name.
    """
    listed = store.keys(RECORD.prefix(part)) if is_hashed(part) else ()
    # An empty object is a deleted record or a mark.
    named = (o.key for o in listed if o.size and (RECORD.match(o.key) or BRANCH.match(o.key)))
    for key in islice(named, _MAX_TRIES):
        with suppress(OffloadError, msgspec.MsgspecError, RecursionError):
            name = _name_in(store, key)
            if encode_part(name) == part:
                return name
    return decode_part(part)


def _name_in(store: OffloadStore, key: str) -> str:
    """Return the name of the session in the record or branch at a key."""
    if BRANCH.match(key):
        return _FORKS.decode(store.get(key)).fork
    return find_codec(key).open(partial(store.get, key), partial(store.get, sidecar_key(key))).session


def latest_deletion(store: OffloadStore, session: str) -> object:
    """Return a mark that this process replaces when it deletes records of a session; None before."""
    noted = _deletions.get((store.url, encode_part(session)))
    return None if noted is None else noted.get(identity_of(store))


def note_deletions(store: OffloadStore, infos: Iterable[RecordInfo]) -> None:
    """Note that this process marked records of `store` for deletion."""
    for part in {session_part(info.key) for info in infos}:
        _deletions.setdefault((store.url, part), {})[identity_of(store)] = object()
