"""Marks beside a session's records: what is pinned, what is shared, when the session was last used.

g/<session>/pinned            the session is pinned
g/<session>/pinned~<ref>      a record of it is
g/<session>/used              its time is that of the last use without a new record
g/<session>/shared~<ref>~…    another session reads a record of it
"""

from __future__ import annotations

from typing import NamedTuple

from offload.errors import ExistsError, NotFoundError
from offload.layout import GRANT, LAST_USE, PIN, encode_part
from offload.session import SessionReader, check_known, check_name, is_ref
from offload.store import OffloadStore


class Marks(NamedTuple):
    """The marks of one session, each with its time by the store's clock.

    Attributes:
        session_pin: since when the session as a whole is pinned; None if it is not.
        pins: since when single records are, by ref.
        shares: since when another session reads a record, by ref.
        last_use: the time of the latest mark, 0 without one.
    """

    session_pin: float | None
    pins: dict[str, float]
    shares: dict[str, float]
    last_use: float

    def is_pinned(self, ref: str) -> bool:
        """Tell whether the session or the record is pinned."""
        return self.session_pin is not None or ref in self.pins


def read_marks(store: OffloadStore, part: str) -> Marks:
    """Return the marks of the session with this key part, from one listing."""
    session_pin, last_use = None, 0.0
    pins: dict[str, float] = {}
    shares: dict[str, float] = {}
    for mark in store.keys(PIN.prefix(part)):
        last_use = max(last_use, mark.modified)
        if match := PIN.match(mark.key):
            if match["ref"]:
                pins[match["ref"]] = mark.modified
            else:
                session_pin = mark.modified
        elif match := GRANT.match(mark.key):
            shares[match["ref"]] = min(mark.modified, shares.get(match["ref"], mark.modified))
    return Marks(session_pin, pins, shares, last_use)


def pin(store: OffloadStore, session: str, ref: str | None = None, *, must_exist: bool = True) -> None:
    """Keep a record, or all records of a session, from every collection until `unpin`.

    Args:
        store: where the session is.
        session: the session's name.
        ref: the record; without it the session with all that it will hold.
        must_exist: whether a session of which nothing is stored is an error; a new one may be pinned too.

    Raises:
        ExpiredError: the record is marked already; it is not pinned.
        NotFoundError: there is no such record, or no such session.
        StoreError: the store failed; the pin may be there or not.
    """
    key = _pin_key(session, ref)
    if must_exist:
        check_known(store, session)
    try:
        store.put(key, b"")
        is_new = True
    except ExistsError:
        is_new = False
    if ref is None:
        return
    # Looked for after the pin is there: a collector marks first and looks for pins then.
    try:
        SessionReader(store, session).find(ref)
    except NotFoundError:
        if is_new:
            store.delete(key)
        raise


def unpin(store: OffloadStore, session: str, ref: str | None = None, *, must_exist: bool = True) -> bool:
    """Take back what `pin` did with the same arguments; what is not pinned is success.

    Returns:
        Whether there was a pin.

    Raises:
        NotFoundError: there is no such session, and it `must_exist`.
        StoreError: the store failed; the pin may be there or not.
    """
    key = _pin_key(session, ref)
    if must_exist:
        check_known(store, session)
    was_pinned = any(found.key == key for found in store.keys(key))
    store.delete(key)
    return was_pinned


def touch(store: OffloadStore, session: str, *, must_exist: bool = True) -> None:
    """Note that a session is used now, though nothing new is stored in it.

    Raises:
        NotFoundError: there is no such session, and it `must_exist`.
        StoreError: the store failed.
    """
    if must_exist:
        check_known(store, session)
    store.put(LAST_USE.key(session=encode_part(check_name(session))), b"", overwrite=True)


def _pin_key(session: str, ref: str | None) -> str:
    if ref is not None and not is_ref(ref):
        raise NotFoundError(f"no record {ref!r:.40} in session {session!r}")
    return PIN.key(session=encode_part(check_name(session)), ref=ref)
