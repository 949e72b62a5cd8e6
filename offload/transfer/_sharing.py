"""Grants: one session lets another read a record of its own, and takes that back.

    g/<session>/shared~<ref>~<receiver>     in the owner's keys: this record is shared, and with whom
    r/<receiver>/<ref>~…~<tokens>.link      in the receiver's: the session whose record this ref means

The mark is put first and removed last: whoever finds a link finds the mark that keeps its record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from offload.errors import CollisionError, CorruptError, ExistsError, NotFoundError
from offload.index import Catalog
from offload.layout import GRANT, LINK, RECORD, encode_part, is_link, name_of, ref_of, tool_part
from offload.record import RecordInfo
from offload.session import Link, SessionReader, check_known, check_name, is_ref
from offload.store import OffloadStore


def share(store: OffloadStore, session: str, ref: str, to: str) -> None:
    """Let session `to` list, read, search and restore the record of `ref` in `session`.

    The record stays where it is: `to` sees it until it is revoked or collected. A record that `session`
    itself was given is shared by the session that owns it. Sharing again changes nothing.

    Args:
        store: where both sessions are kept.
        session: the session that reads the record.
        ref: the record.
        to: name of the session that is to read it too; it need not hold anything yet.

    Raises:
        NotFoundError: no such session, or no record of `ref` in it; `ExpiredError` if it was collected.
        CollisionError: another session shares a record of this ref with `to`.
        ConfigError: a name that cannot name a session.
        StoreError: the store could not do it; sharing again goes on.
    """
    reader = SessionReader(store, check_known(store, session))
    owner, info = owner_of(reader, reader.find(ref))
    if owner.name == check_name(to):
        return
    mark = _grant_key(owner.name, ref, to)
    with suppress(ExistsError):
        store.put(mark, b"")
    link = _link_key(store, info, to)
    try:
        store.put(link, msgspec.json.encode(Link(owner.name)))
    except ExistsError:
        if _named_by(store, link) != owner.name:
            store.delete(mark)
            raise CollisionError(f"another session shares its record {ref!r} with {to!r}") from None


def revoke(store: OffloadStore, session: str, ref: str, to: str, *, must_exist: bool = True) -> bool:
    """Take back what `share` gave: for session `to` the ref is then one that never was.

    What was not shared, or was revoked before, is no error; a grant of another session stays.

    Args:
        store: where both sessions are kept.
        session: the session that shared the record.
        ref: the record; it may be collected by now.
        to: name of the session that read it.
        must_exist: whether a `session` of which nothing is stored is an error.

    Returns:
        Whether it was shared.

    Raises:
        NotFoundError: there is no such session.
        ConfigError: a name that cannot name a session.
        StoreError: the store could not do it; revoking again goes on.
    """
    check_name(to)
    if must_exist:
        check_known(store, session)
    if not is_ref(ref):
        return False
    owner = _owner_name(SessionReader(store, check_name(session)), ref)
    for link in _links(store, ref, to):
        if _named_by(store, link) == owner:
            store.delete(link)
    mark = _grant_key(owner, ref, to)
    was_shared = any(found.key == mark for found in store.keys(mark))
    store.delete(mark)
    return was_shared


def owner_of(reader: SessionReader, info: RecordInfo) -> tuple[SessionReader, RecordInfo]:
    """Return the session that a catalog entry's record lies in, and its entry there.

    Raises `NotFoundError`, `ExpiredError` and `CorruptError` as `SessionReader.open` does for a link.
    """
    if not is_link(info.key):
        return reader, info
    owner = SessionReader(reader.store, reader.open(info).session)
    return owner, owner.find(info.ref)


def _owner_name(reader: SessionReader, ref: str) -> str:
    """Return which session's grant a revocation by `reader` is about."""
    try:
        return owner_of(reader, reader.find(ref))[0].name
    except (NotFoundError, CorruptError):
        return reader.name


def _grant_key(owner: str, ref: str, to: str) -> str:
    return GRANT.key(session=encode_part(owner), ref=ref, receiver=encode_part(to))


def _link_key(store: OffloadStore, info: RecordInfo, to: str) -> str:
    """Return the key of a link to a record: what a listing tells of it, but no generation and no ttl."""
    receiver = Catalog(store, to)
    receiver.refresh([info.ref])
    generation = receiver.next_generation(info.ref)
    return LINK.key(
        session=encode_part(to),
        ref=info.ref,
        generation=generation if generation > 1 else None,
        item_type=info.item_type,
        tool=tool_part(info.key),
        chars=info.chars,
        tokens=info.tokens,
        ttl=None,
    )


def _links(store: OffloadStore, ref: str, to: str) -> Iterator[str]:
    """Yield the keys of the links under `ref` in session `to`."""
    listed = [stored.key for stored in store.keys(RECORD.prefix(encode_part(to)) + ref)]
    # A longer ref may begin with this one.
    return (key for key in listed if is_link(key) and ref_of(name_of(key)) == ref)


def _named_by(store: OffloadStore, link: str) -> str | None:
    """Return the session that a link names; None if it names none or is gone."""
    try:
        return msgspec.json.decode(store.get(link), type=Link).session
    except (NotFoundError, msgspec.MsgspecError, RecursionError):
        return None
