"""The objects of a session, sorted into records and deleted records from one listing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from offload.errors import InvalidKeyError
from offload.index._entries import Tombstone, parse_key
from offload.layout import RECORD, Reason, decode_part, session_part
from offload.record import RecordInfo
from offload.store import OffloadStore, StoredObject


@dataclass(frozen=True, slots=True)
class DeletedRecord:
    """A record with a tombstone.

    Attributes:
        info: its entry; its stored size is 0 once its bytes are deleted.
        tombstones: its tombstones; several if several gc runs marked it.
    """

    info: RecordInfo
    tombstones: tuple[Tombstone, ...]

    @property
    def reasons(self) -> set[Reason]:
        """The reasons for its deletion."""
        return {tombstone.reason for tombstone in self.tombstones}

    @property
    def marked_at(self) -> float:
        """The time of its first tombstone."""
        return min(tombstone.at for tombstone in self.tombstones)

    @property
    def last_tombstone(self) -> Tombstone:
        """The tombstone that was written last."""
        return max(self.tombstones, key=lambda tombstone: tombstone.at)


@dataclass(slots=True)
class SessionObjects:
    """The objects of one session.

    Attributes:
        part: the session's key part.
        records: readable records and links, oldest first.
        torn: empty objects without a tombstone.
        deleted: records with a tombstone.
        newest: the time of the newest record, 0 without one.
    """

    part: str
    records: list[RecordInfo]
    torn: list[RecordInfo]
    deleted: list[DeletedRecord]
    newest: float = 0.0

    @property
    def name(self) -> str:
        """The session's name; a name too long for a key ends in an ellipsis."""
        return decode_part(self.part)


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
    infos, deleted = split_objects(objects)
    oldest_first = sorted(infos.values(), key=lambda info: (info.created_at, info.key))
    records = [info for info in oldest_first if info.stored_bytes]
    torn = [info for info in oldest_first if not info.stored_bytes]
    return SessionObjects(part, records, torn, deleted, records[-1].created_at if records else 0.0)
