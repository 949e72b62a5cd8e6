"""What a collector does to records; each act may be done twice, by several, and be cut off anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from offload.codec import find_codec
from offload.errors import ExistsError
from offload.layout import Reason, sidecar_key, tombstone_key
from offload.record import RecordInfo
from offload.retention._holding import Grave, hold
from offload.session import note_marked
from offload.store import OffloadStore, SupportsBulk

_IN_FLIGHT = 16


def mark(store: OffloadStore, infos: Sequence[RecordInfo], reason: Reason) -> None:
    """Put a tombstone beside each record; one that is there already stays."""
    try:
        _bury(store, [tombstone_key(info.key, reason) for info in infos])
    finally:
        note_marked(store, infos)


def _bury(store: OffloadStore, keys: Sequence[str]) -> None:
    if not isinstance(store, SupportsBulk):
        for key in keys:
            with suppress(ExistsError):
                store.put(key, b"")
        return
    for error in store.put_many([(key, b"") for key in keys]):
        if error is not None and not isinstance(error, ExistsError):
            raise error


def revive(store: OffloadStore, part: str, graves: Sequence[Grave]) -> list[RecordInfo]:
    """Take the tombstones of graves away again; return the records that are back."""
    if not graves:
        return []
    remove(store, [tombstone_key(g.info.key, reason) for g in graves for reason in sorted(g.reasons)])
    # A stalled collector may have emptied one meanwhile: whoever comes last finds that out.
    lost = {info.key for info in hold(store, part).unmarked}
    for grave in graves:
        if grave.info.key in lost:
            mark(store, [grave.info], min(grave.reasons))
    return [grave.info for grave in graves if grave.info.key not in lost]


def empty(store: OffloadStore, graves: Sequence[Grave]) -> None:
    """Take the bytes of marked records; their keys stay taken."""
    _each(store, [partial(store.put, grave.info.key, b"", overwrite=True) for grave in graves])
    # A collector that saw a pin may have taken a tombstone away meanwhile: the same from its other side.
    for reason in sorted({min(grave.reasons) for grave in graves}):
        mark(store, [grave.info for grave in graves if min(grave.reasons) == reason], reason)


def remove_sidecars(store: OffloadStore, infos: Iterable[RecordInfo]) -> None:
    """Delete the headers that were kept apart from records of one session that are empty."""
    gone = {sidecar_key(info.key) for info in infos if _has_sidecar(info)}
    if gone:
        folder = min(gone).rpartition("/")[0]
        remove(store, [found.key for found in store.keys(f"{folder}/") if found.key in gone])


def remove(store: OffloadStore, keys: Sequence[str]) -> None:
    """Delete objects, many at once where the store can."""
    if isinstance(store, SupportsBulk):
        store.delete_many(keys)
        return
    for key in keys:
        store.delete(key)


def _each(store: OffloadStore, acts: Sequence[Callable[[], None]]) -> None:
    """Do all acts, concurrently where the store is one that moves many objects at once."""
    if not isinstance(store, SupportsBulk):
        for act in acts:
            act()
        return
    with ThreadPoolExecutor(_IN_FLIGHT) as pool:
        for done in [pool.submit(act) for act in acts]:
            done.result()


def _has_sidecar(info: RecordInfo) -> bool:
    codec = find_codec(info.key)
    return codec is not None and codec.has_sidecar
