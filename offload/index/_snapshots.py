"""Snapshots: a listing of a large session as one object, so that others need not list it again.

    i/<session>/<began>~<took>~<letters>     msgpack in zstd; both times in milliseconds

They are derived: whatever is wrong with one, it is passed over, and deleting all of them loses nothing.
Each is created under a name of its own and never changed, so writers need not know of each other. The name
tells the age of the listing, which a writer that was held up publishes late, past the object's own time.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec
import zstandard

from offload.errors import OffloadError
from offload.index._listing import SessionListing, is_fresh
from offload.layout import SNAPSHOT, encode_part
from offload.store import OffloadStore

_VERSION = 1
# Writing one costs a listing and a put, which fewer records do not repay.
_MIN_RECORDS = 5000
# The newest, and the one before it for who is about to read that.
_KEPT = 2
# What claims more than a million records is passed over, and so is what no listing makes: the refs in its
# names are drawn at random, and each takes three bytes at least however it is compressed.
_MAX_BYTES = 64 * 1024 * 1024
_MAX_RATIO = 32
_MIN_PACKED = 3


class _Body(msgspec.Struct, frozen=True, omit_defaults=True):
    version: int
    names: list[str]
    sizes: list[int]
    times: list[float]


class _Unread(msgspec.Struct, frozen=True):
    """A body whose lists are not made yet."""

    version: int
    names: msgspec.Raw
    sizes: msgspec.Raw
    times: msgspec.Raw


class _Standing(NamedTuple):
    began: float
    took: float
    stored_at: float
    key: str

    def is_fresh(self, now: float) -> bool:
        # Two clocks, and the one that says older counts: a wrong one costs a listing, no more.
        return is_fresh(now - min(self.began, self.stored_at), self.took)


def read_snapshot(store: OffloadStore, session: str, now: float) -> SessionListing | None:
    """Return the newest listing that is still fresh and readable, if there is one.

    `now` is in seconds since the epoch. Costs one listing and one read; a failing store has none.
    """
    with suppress(OffloadError):
        for found in sorted(_standing(store, session), reverse=True)[:_KEPT]:
            if found.is_fresh(now) and (body := _read(store, found.key)) is not None:
                return SessionListing(found.began, found.took, body.names, body.sizes, body.times)
    return None


def write_snapshot(store: OffloadStore, session: str, listing: SessionListing, now: float) -> None:
    """Publish a listing if it is worth it and no fresh one stands there; delete all but the newest two.

    A store that fails or refuses is left as it is.
    """
    if len(listing.names) < _MIN_RECORDS:
        return
    with suppress(OffloadError):
        standing = list(_standing(store, session))
        if any(found.is_fresh(now) for found in standing):
            return
        body = _Body(_VERSION, list(listing.names), list(listing.sizes), list(listing.times))
        packed = msgspec.msgpack.encode(body)
        key = SNAPSHOT.key(
            session=encode_part(session),
            began=round(listing.began * 1000),
            took=round(listing.took * 1000),
            letters=_random_letters(),
        )
        store.put(key, zstandard.ZstdCompressor(write_checksum=True).compress(packed))
        standing.append(_Standing(listing.began, listing.took, now, key))
        for old in sorted(standing)[:-_KEPT]:
            store.delete(old.key)


def delete_snapshots(store: OffloadStore, session: str) -> None:
    """Delete every snapshot of `session`. Raises `StoreError` as the store does."""
    for stored in list(store.keys(_prefix(session))):
        store.delete(stored.key)


def _prefix(session: str) -> str:
    return SNAPSHOT.prefix(encode_part(session))


def _standing(store: OffloadStore, session: str) -> Iterator[_Standing]:
    for stored in store.keys(_prefix(session)):
        match = SNAPSHOT.match(stored.key)
        if match:
            began, took = int(match["began"]) / 1000, int(match["took"]) / 1000
            yield _Standing(began, took, stored.modified, stored.key)


def _read(store: OffloadStore, key: str) -> _Body | None:
    """Return what a snapshot holds, None if it is gone, damaged, too large or of another version."""
    try:
        packed = store.get(key)
        # The claims are checked before memory is taken for them.
        if not 0 < zstandard.frame_content_size(packed) <= min(_MAX_BYTES, _MAX_RATIO * len(packed)):
            return None
        data = zstandard.ZstdDecompressor().decompress(packed)
        unread = msgspec.msgpack.decode(data, type=_Unread)
        counts = {_length_of(lists) for lists in (unread.names, unread.sizes, unread.times)}
        if unread.version != _VERSION or len(counts) > 1 or max(counts) * _MIN_PACKED > len(packed):
            return None
        times = msgspec.msgpack.decode(unread.times, type=list[float])
        sizes = msgspec.msgpack.decode(unread.sizes, type=list[int])
        return _Body(_VERSION, msgspec.msgpack.decode(unread.names, type=list[str]), sizes, times)
    except (OffloadError, zstandard.ZstdError, msgspec.MsgspecError, RecursionError):
        return None


def _length_of(packed: msgspec.Raw) -> int:
    """Return how many elements a list of msgpack claims to have. Raises `ValidationError` if it is none."""
    head = bytes(memoryview(packed)[:5])
    if head[0] >> 4 == 0x9:  # noqa: PLR2004 # the three heads that msgpack has for a list
        return head[0] & 0xF
    if head[0] not in (0xDC, 0xDD):
        raise msgspec.ValidationError("not a list")
    return int.from_bytes(head[1 : 3 if head[0] == 0xDC else 5])  # noqa: PLR2004 # the same


def _random_letters() -> str:
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(10))
