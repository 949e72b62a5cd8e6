"""The marks of a session: pins, grants and the time of its last use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from offload.errors import NotFoundError
from offload.records.session.names import check_known, check_name
from offload.records.session.reader import SessionReader
from offload.storage.layout import (
    BRANCH,
    CLOSED,
    DELETED,
    FORK,
    GRANT,
    LAST_USE,
    PIN,
    encode_part,
    is_ref,
    session_part,
)
from offload.storage.store import OffloadStore, StoredObject, create, has


class Marks(NamedTuple):
    """The times by the store's clock of the marks of one session: `pins` and first grants (`shares`) by ref.

    `last_use` is the time of the newest mark, 0 without one; `forks` has those of forks by the key of their
    branches.
    """

    session_pin: float | None
    pins: dict[str, float]
    shares: dict[str, float]
    last_use: float
    forks: Mapping[str, float] = MappingProxyType({})

    def is_pinned(self, ref: str) -> bool:
        """Return whether the session or the record is pinned."""
        return self.session_pin is not None or ref in self.pins


UNMARKED = Marks(None, {}, {}, 0.0)


def read_marks(store: OffloadStore, part: str) -> Marks:
    """Return the marks of the session with this key part, from one listing."""
    return _marks(store.keys(PIN.prefix(part)))


def read_all_marks(store: OffloadStore) -> dict[str, Marks]:
    """Return the marks of every session that has any, by key part, from one listing of the store."""
    listed = (mark for mark in store.keys(PIN.prefix()) if mark.key.count("/") > 1)
    return {part: _marks(marks) for part, marks in groupby(listed, key=lambda mark: session_part(mark.key))}


def _marks(listed: Iterable[StoredObject]) -> Marks:
    session_pin, last_use = None, 0.0
    pins: dict[str, float] = {}
    shares: dict[str, float] = {}
    forks: dict[str, float] = {}
    for mark in listed:
        if CLOSED.match(mark.key) or DELETED.match(mark.key):
            continue  # a deletion is no use
        last_use = max(last_use, mark.modified)
        if match := PIN.match(mark.key):
            if match["ref"]:
                pins[match["ref"]] = mark.modified
            else:
                session_pin = mark.modified
        elif match := GRANT.match(mark.key):
            shares[match["ref"]] = min(mark.modified, shares.get(match["ref"], mark.modified))
        elif match := FORK.match(mark.key):
            branch = BRANCH.key(session=match["receiver"], parent=match["session"], base=match["base"])
            forks[branch] = mark.modified
    return Marks(session_pin, pins, shares, last_use, forks)


def pin(store: OffloadStore, session: str, ref: str | None = None, *, must_exist: bool = True) -> None:
    """Protect a record, or all records of a session, from gc and `delete` until `unpin`.

    Args:
        store: the store of the session.
        session: its name.
        ref: the record; without it the session with all its later records.
        must_exist: whether a session without any object is an error.

    Raises:
        ExpiredError: the record is marked for deletion; it is not pinned.
        NotFoundError: the record or the session does not exist.
        StoreError: the store failed; the pin may exist or not.
    """
    key = _pin_key(store, session, ref, must_exist=must_exist)
    is_new = create(store, key)
    if ref is None:
        return
    # Look for the record after the pin is stored: gc first marks a record and then reads the pins.
    try:
        SessionReader(store, session).find(ref)
    except NotFoundError:
        if is_new:
            store.delete(key)
        raise


def unpin(store: OffloadStore, session: str, ref: str | None = None, *, must_exist: bool = True) -> bool:
    """Undo `pin` with the same arguments; a missing pin is success.

    Returns:
        Whether there was a pin.

    Raises:
        NotFoundError: the session does not exist, and it `must_exist`.
        StoreError: the store failed; the pin may exist or not.
    """
    key = _pin_key(store, session, ref, must_exist=must_exist)
    was_pinned = has(store, key)
    store.delete(key)
    return was_pinned


def touch(store: OffloadStore, session: str, *, must_exist: bool = True) -> None:
    """Record the use of a session in which nothing new is stored.

    Raises:
        NotFoundError: the session does not exist, and it `must_exist`.
        StoreError: the store failed.
    """
    if must_exist:
        check_known(store, session)
    store.put(LAST_USE.key(session=encode_part(check_name(session))), b"", overwrite=True)


def _pin_key(store: OffloadStore, session: str, ref: str | None, *, must_exist: bool) -> str:
    if ref is not None and not is_ref(ref):
        raise NotFoundError(f"no record {ref!r:.40} in session {session!r}")
    if must_exist:
        check_known(store, session)
    return PIN.key(session=encode_part(check_name(session)), ref=ref)
