"""Snapshots: the listing of a large session as one object, so that other processes need not list it again.

Snapshots are derived data: an unreadable one is ignored, and deleting all of them loses nothing. Each has a
unique name and never changes, so writers need no coordination. The name contains the time of the listing,
because a stalled writer may store its snapshot much later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec
import zstandard

from offload.errors import OffloadError
from offload.index._listing import SessionListing, is_fresh
from offload.layout import RECORD, SNAPSHOT, encode_part, random_letters
from offload.store import OffloadStore

_VERSION = 1
# For fewer records a snapshot costs more than it saves.
_MIN_RECORDS = 5000
# The newest, and the one before it for a process that is about to read it.
_KEPT = 2
# Larger snapshots (more than a million records) are ignored, and so are impossible ones: refs are random,
# so each name takes at least three compressed bytes.
_MAX_BYTES = 64 * 1024 * 1024
_MAX_RATIO = 32
_MIN_PACKED = 3


class _Body(msgspec.Struct, frozen=True):
    """A body whose lists are not decoded yet."""

    version: int
    names: msgspec.Raw
    sizes: msgspec.Raw
    times: msgspec.Raw


class _Snapshot(NamedTuple):
    began: float
    took: float
    stored_at: float
    key: str

    def is_fresh(self, now: float) -> bool:
        # The older of two clocks counts; a wrong clock only costs a listing.
        return is_fresh(now - min(self.began, self.stored_at), self.took)


def read_snapshot(store: OffloadStore, session: str, now: float) -> SessionListing | None:
    """Return the newest fresh and readable listing; None without one, or if the store fails.

    `now` is in seconds since the epoch. Costs one listing and one read.
    """
    with suppress(OffloadError):
        for snapshot in sorted(_snapshots(store, session), reverse=True)[:_KEPT]:
            if snapshot.is_fresh(now) and (lists := _read(store, snapshot.key)) is not None:
                prefix = RECORD.prefix(encode_part(session))
                return SessionListing(snapshot.began, snapshot.took, prefix, *lists)
    return None


def write_snapshot(store: OffloadStore, session: str, listing: SessionListing, now: float) -> None:
    """Store a listing of a large session unless there is a fresh one; delete all but the newest two.

    Errors of the store are ignored.
    """
    if len(listing.names) < _MIN_RECORDS:
        return
    with suppress(OffloadError):
        snapshots = list(_snapshots(store, session))
        if any(snapshot.is_fresh(now) for snapshot in snapshots):
            return
        # Another thread may add a record meanwhile, its time last.
        count = len(listing.times)
        lists = {name: getattr(listing, name)[:count] for name in ("names", "sizes", "times")}
        packed = msgspec.msgpack.encode({"version": _VERSION, **lists})
        key = SNAPSHOT.key(
            session=encode_part(session),
            began=round(listing.began * 1000),
            took=round(listing.took * 1000),
            letters=random_letters(),
        )
        store.put(key, zstandard.ZstdCompressor(write_checksum=True).compress(packed))
        snapshots.append(_Snapshot(listing.began, listing.took, now, key))
        for old in sorted(snapshots)[:-_KEPT]:
            store.delete(old.key)


def delete_snapshots(store: OffloadStore, session: str) -> None:
    """Delete every snapshot of `session`. Raises `StoreError`."""
    for stored in list(store.keys(SNAPSHOT.prefix(encode_part(session)))):
        store.delete(stored.key)


def _snapshots(store: OffloadStore, session: str) -> Iterator[_Snapshot]:
    for stored in store.keys(SNAPSHOT.prefix(encode_part(session))):
        match = SNAPSHOT.match(stored.key)
        if match:
            began, took = int(match["began"]) / 1000, int(match["took"]) / 1000
            yield _Snapshot(began, took, stored.modified, stored.key)


def _read(store: OffloadStore, key: str) -> tuple[list[str], list[int], list[float]] | None:
    """Return names, sizes and times; None if the snapshot is gone, damaged, too large or another version."""
    try:
        packed = store.get(key)
        # Check claimed sizes before allocating memory.
        if not 0 < zstandard.frame_content_size(packed) <= min(_MAX_BYTES, _MAX_RATIO * len(packed)):
            return None
        body = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(packed), type=_Body)
        counts = {_length_of(packed_list) for packed_list in (body.names, body.sizes, body.times)}
        if body.version != _VERSION or len(counts) > 1 or max(counts) * _MIN_PACKED > len(packed):
            return None
        return (
            msgspec.msgpack.decode(body.names, type=list[str]),
            msgspec.msgpack.decode(body.sizes, type=list[int]),
            msgspec.msgpack.decode(body.times, type=list[float]),
        )
    except (OffloadError, zstandard.ZstdError, msgspec.MsgspecError, RecursionError):
        return None


def _length_of(packed: msgspec.Raw) -> int:
    """Return the claimed length of a msgpack list. Raises `ValidationError` for any other value."""
    head = bytes(memoryview(packed)[:5])
    if head[0] >> 4 == 0x9:  # noqa: PLR2004 # a msgpack list has one of three heads
        return head[0] & 0xF
    if head[0] not in (0xDC, 0xDD):
        raise msgspec.ValidationError("not a list")
    return int.from_bytes(head[1 : 3 if head[0] == 0xDC else 5])  # noqa: PLR2004 # a length of 2 or 4 bytes
