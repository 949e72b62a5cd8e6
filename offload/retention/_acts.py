"""The writes of gc; each may be repeated, interrupted or done by several processes at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offload.codec import find_codec
from offload.errors import ExistsError
from offload.index import DeletedRecord, list_session
from offload.layout import Reason, is_link, sidecar_key, tombstone_key
from offload.record import RecordInfo
from offload.session import note_deletions
from offload.store import OffloadStore, delete_many, put_many


def mark(store: OffloadStore, infos: Sequence[RecordInfo], reason: Reason) -> None:
    """Write a tombstone for each record; an existing one is kept."""
    try:
        for error in put_many(store, [(tombstone_key(info.key, reason), b"") for info in infos]):
            if error is not None and not isinstance(error, ExistsError):
                raise error
    finally:
        note_deletions(store, infos)


def undelete(store: OffloadStore, part: str, records: Sequence[DeletedRecord]) -> list[RecordInfo]:
    """Delete the tombstones of records; return the records that are readable again."""
    if not records:
        return []
    keys = [tombstone_key(r.info.key, reason) for r in records for reason in sorted(r.reasons)]
    delete_many(store, keys)
    # A stalled gc may have emptied a record meanwhile: the process that acts last detects that.
    torn = {info.key for info in list_session(store, part).torn}
    for record in records:
        if record.info.key in torn:
            mark(store, [record.info], min(record.reasons))
    return [record.info for record in records if record.info.key not in torn]


def empty(store: OffloadStore, records: Sequence[DeletedRecord]) -> None:
    """Delete the bytes of marked records; their keys remain taken."""
    for error in put_many(store, [(record.info.key, b"") for record in records], overwrite=True):
        if error is not None:
            raise error
    # Another gc that saw a pin may have deleted a tombstone meanwhile.
    for reason in sorted({min(record.reasons) for record in records}):
        mark(store, [record.info for record in records if min(record.reasons) == reason], reason)


def delete_sidecars(store: OffloadStore, infos: Iterable[RecordInfo]) -> None:
    """Delete the separate headers of the emptied records of one session."""
    records = [info.key for info in infos if not is_link(info.key)]
    keys = {sidecar_key(key) for key in records if find_codec(key).has_sidecar}
    if keys:
        folder = min(keys).rpartition("/")[0]
        delete_many(store, [stored.key for stored in store.keys(f"{folder}/") if stored.key in keys])
