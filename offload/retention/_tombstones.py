"""Tombstones, and the objects of the records that have one: written, deleted, emptied."""

from __future__ import annotations

from collections.abc import Sequence

from offload.errors import ExistsError
from offload.index.derived import delete_derived
from offload.index.objects import DeletedRecord, list_session, note_deletions
from offload.layout import DeletionReason, session_part, tombstone_key
from offload.record import RecordInfo
from offload.store import OffloadStore, delete_many, put_many


def put_tombstones(store: OffloadStore, infos: Sequence[RecordInfo], reason: DeletionReason) -> None:
    """Write a tombstone for each record; an existing one is kept."""
    try:
        put_empty(store, [tombstone_key(info.key, reason) for info in infos])
    finally:
        note_deletions(store, infos)


def put_empty(store: OffloadStore, keys: Sequence[str], *, overwrite: bool = False) -> None:
    """Store empty objects; without `overwrite` those that are there are kept."""
    for error in put_many(store, [(key, b"") for key in keys], overwrite=overwrite):
        if error is not None and not isinstance(error, ExistsError):
            raise error


def delete_tombstones(store: OffloadStore, part: str, records: Sequence[DeletedRecord]) -> list[RecordInfo]:
    """Delete the tombstones of records of a session; return the readable ones of these, oldest first."""
    if not records:
        return []
    delete_many(store, [tombstone_key(r.info.key, reason) for r in records for reason in sorted(r.reasons)])
    note_deletions(store, [record.info for record in records])
    objects = list_session(store, part)
    # A stalled gc may have emptied a record meanwhile: the process that acts last detects that.
    torn = {info.key for info in objects.torn}
    for record in records:
        if record.info.key in torn:
            put_tombstones(store, [record.info], min(record.reasons))
    keys = {record.info.key for record in records}
    return [info for info in objects.records if info.key in keys]


def empty_records(store: OffloadStore, records: Sequence[DeletedRecord]) -> None:
    """Delete the bytes of marked records; their keys remain taken."""
    put_empty(store, [record.info.key for record in records], overwrite=True)
    for part in {session_part(record.info.key) for record in records}:
        delete_derived(store, part)
    # Another gc that saw a pin may have deleted a tombstone meanwhile.
    for reason in sorted({min(record.reasons) for record in records}):
        put_tombstones(store, [r.info for r in records if min(r.reasons) == reason], reason)
