"""What a collector does to records; each act may be done twice, by several, and be cut off anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offload.codec import find_codec
from offload.errors import ExistsError
from offload.layout import Reason, sidecar_key, tombstone_key
from offload.record import RecordInfo
from offload.retention._holding import Grave, hold
from offload.session import note_marked
from offload.store import OffloadStore, delete_many, put_many


def mark(store: OffloadStore, infos: Sequence[RecordInfo], reason: Reason) -> None:
    """Put a tombstone beside each record; one that is there already stays."""
    try:
        _bury(store, [tombstone_key(info.key, reason) for info in infos])
    finally:
        note_marked(store, infos)


def _bury(store: OffloadStore, keys: Sequence[str]) -> None:
    for error in put_many(store, [(key, b"") for key in keys]):
        if error is not None and not isinstance(error, ExistsError):
            raise error


def revive(store: OffloadStore, part: str, graves: Sequence[Grave]) -> list[RecordInfo]:
    """Take the tombstones of graves away again; return the records that are back."""
    if not graves:
        return []
    delete_many(store, [tombstone_key(g.info.key, reason) for g in graves for reason in sorted(g.reasons)])
    # A stalled collector may have emptied one meanwhile: whoever comes last finds that out.
    lost = {info.key for info in hold(store, part).unmarked}
    for grave in graves:
        if grave.info.key in lost:
            mark(store, [grave.info], min(grave.reasons))
    return [grave.info for grave in graves if grave.info.key not in lost]


def empty(store: OffloadStore, graves: Sequence[Grave]) -> None:
    """Take the bytes of marked records; their keys stay taken."""
    for error in put_many(store, [(grave.info.key, b"") for grave in graves], overwrite=True):
        if error is not None:
            raise error
    # A collector that saw a pin may have taken a tombstone away meanwhile: the same from its other side.
    for reason in sorted({min(grave.reasons) for grave in graves}):
        mark(store, [grave.info for grave in graves if min(grave.reasons) == reason], reason)


def remove_sidecars(store: OffloadStore, infos: Iterable[RecordInfo]) -> None:
    """Delete the headers that were kept apart from records of one session that are empty."""
    gone = {sidecar_key(info.key) for info in infos if _has_sidecar(info)}
    if gone:
        folder = min(gone).rpartition("/")[0]
        delete_many(store, [found.key for found in store.keys(f"{folder}/") if found.key in gone])


def _has_sidecar(info: RecordInfo) -> bool:
    codec = find_codec(info.key)
    return codec is not None and codec.has_sidecar
