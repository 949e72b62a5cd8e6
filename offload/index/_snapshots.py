"""Snapshots: the listing of a large session as one object, so that other processes need not list it again.

Snapshots are derived data: an unreadable one is ignored, and deleting all of them loses nothing. Each has a
unique name and never changes, so writers need no coordination. The name contains the time of the listing,
because a stalled writer may store its snapshot much later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import zstandard

from offload.errors import OffloadError
from offload.index._listing import SessionListing, is_fresh
from offload.layout import RECORD, SNAPSHOT, random_letters
from offload.record.titles import Label
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


class _Body(msgspec.Struct):
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
    if len(listing.names) < _MIN_RECORDS:
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
        packed = msgspec.msgpack.encode({"version": _VERSION, **lists})
        key = SNAPSHOT.key(
            session=part,
            began=round(listing.began * 1000),
            took=round(listing.took * 1000),
            letters=random_letters(),
        )
        store.put(key, zstandard.ZstdCompressor(write_checksum=True).compress(packed))
        for old in snapshots:
            store.delete(old.key)


def _lists_of(labels: Sequence[Label | None]) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {"titles": [None if label is None else label.title for label in labels]}
    if any(label is not None and label.agent for label in labels):
        lists["agents"] = ["" if label is None else label.agent for label in labels]
    return lists


def delete_snapshots(store: OffloadStore, part: str) -> None:
    """Delete every snapshot of the session with a key part. Raises `StoreError`."""
    for stored in list(store.keys(SNAPSHOT.prefix(part))):
        store.delete(stored.key)


def _snapshots(store: OffloadStore, part: str) -> Iterator[_Snapshot]:
    for stored in store.keys(SNAPSHOT.prefix(part)):
        match = SNAPSHOT.match(stored.key)
        if match:
            began, took = int(match["began"]) / 1000, int(match["took"]) / 1000
            yield _Snapshot(began, took, stored.modified, stored.key)


def _read(store: OffloadStore, key: str) -> _Body | None:
    """Return a snapshot; None if it is gone, damaged, too large or of another version."""
    try:
        packed = store.get(key)
        # Check claimed sizes before allocating memory.
        if not 0 < zstandard.frame_content_size(packed) <= min(_MAX_BYTES, _MAX_RATIO * len(packed)):
            return None
        body_type = _body_type(len(packed) // _MIN_PACKED)
        body: _Body = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(packed), type=body_type)
    except (OffloadError, zstandard.ZstdError, msgspec.MsgspecError, RecursionError):
        return None
    return body if len(body.names) == len(body.sizes) == len(body.times) else None


def _body_type(most: int) -> Any:
    """Return the type of a body with lists of at most `most` entries, which is checked before decoding."""
    length = msgspec.Meta(max_length=most)
    lists = [("names", list[str]), ("sizes", list[int]), ("times", list[float]), ("titles", list[str | None])]
    fields: list[Any] = [(name, Annotated[kind, length]) for name, kind in lists]
    agents: Any = ("agents", Annotated[list[str], length], msgspec.field(default_factory=list))
    return msgspec.defstruct("_Bounded", [*fields, agents], bases=(_Body,))
