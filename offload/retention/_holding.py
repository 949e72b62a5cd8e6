"""What a session holds, as one listing shows it: records, graves, and empty objects without a mark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from offload.index import Tombstone, parse_key
from offload.layout import RECORD, Reason, session_part
from offload.record import RecordInfo
from offload.retention._clock import check_time
from offload.store import OffloadStore, StoredObject


@dataclass(frozen=True, slots=True)
class Grave:
    """A record with a tombstone.

    Attributes:
        info: its entry; without a byte once it is emptied.
        reasons: why it went; more than one if collectors met.
        at: when it was marked first.
    """

    info: RecordInfo
    reasons: frozenset[Reason]
    at: float

    @property
    def is_emptied(self) -> bool:
        """Whether nothing is left to be read."""
        return not self.info.stored_bytes


@dataclass(slots=True)
class Holding:
    """The objects of one session.

    Attributes:
        part: the session's key part.
        records: what can be read, oldest first.
        graves: what has a tombstone.
        unmarked: empty objects whose tombstone is missing.
        newest: when the newest record was stored, 0 without one.
    """

    part: str
    records: list[RecordInfo] = field(default_factory=list)
    graves: list[Grave] = field(default_factory=list)
    unmarked: list[RecordInfo] = field(default_factory=list)
    newest: float = 0.0


def hold(store: OffloadStore, part: str) -> Holding:
    """List the session with this key part."""
    return _sorted_out(store, part, store.keys(RECORD.prefix(part)))


def hold_each(store: OffloadStore) -> Iterator[Holding]:
    """Yield every session of `store`, from one listing; one session at a time is in memory."""
    listed = (found for found in store.keys(RECORD.prefix()) if found.key.count("/") > 1)
    for part, of_session in groupby(listed, key=lambda found: session_part(found.key)):
        yield _sorted_out(store, part, of_session)


def _sorted_out(store: OffloadStore, part: str, listed: Iterable[StoredObject]) -> Holding:
    held = Holding(part)
    tombstones: dict[str, list[Tombstone]] = {}
    infos: dict[str, RecordInfo] = {}
    info: RecordInfo | Tombstone | None
    for stored in listed:
        check_time(store, stored.modified)
        match parse_key(stored):
            case Tombstone() as tombstone:
                tombstones.setdefault(tombstone.key, []).append(tombstone)
            case RecordInfo() as info:
                infos[info.key] = info
    for key, marks in tombstones.items():
        at = min(mark.at for mark in marks)
        # What is not there counts as emptied when it was marked.
        info = infos.pop(key) if key in infos else parse_key(StoredObject(key, 0, at))
        if isinstance(info, RecordInfo):
            held.graves.append(Grave(info, frozenset(mark.reason for mark in marks), at))
    for info in sorted(infos.values(), key=lambda info: (info.created_at, info.key)):
        (held.records if info.stored_bytes else held.unmarked).append(info)
    held.newest = held.records[-1].created_at if held.records else 0.0
    return held


def size_of(infos: Iterable[RecordInfo]) -> int:
    """Return the bytes that records take in the store."""
    return sum(info.stored_bytes for info in infos)
