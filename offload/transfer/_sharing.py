"""Grants: a session lets another session read a record, and revokes that.

A grant is a mark of the owner and a link in the receiver's records. The mark is written first and deleted
last, so that each link has the mark that protects its record.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec

from offload.errors import CollisionError, CorruptError, NotFoundError
from offload.index.catalog import Catalog
from offload.layout import GRANT, LINK, RECORD, encode_part, is_link, is_ref, name_of, ref_of
from offload.record import RecordInfo
from offload.session.encryption import check_object
from offload.session.names import check_known, check_name
from offload.session.reader import LINKS, Link, SessionReader
from offload.store import OffloadStore, check_plain, create, has


def share(store: OffloadStore, session: str, ref: str, to: str) -> bool:
    """Let session `to` list, read, search and restore the record of `ref` in `session`.

    The record is not copied: `to` can read it until it is revoked or deleted. A record that another session
    shares with `session` is shared by its owner. Sharing again changes nothing, or continues. Returns whether
    it is shared now: not if it is the record of `to` itself.

    Raises:
        NotFoundError: the session or the record does not exist; `ExpiredError` if the record is deleted.
        CollisionError: another session shares a record of this ref with `to`.
        ConfigError: a session name is invalid.
        EncryptionError: the record does not fit the key of the store, so the link would not either.
        StoreError: the store failed.
    """
    reader = SessionReader(store, check_known(store, session))
    owner, info = owner_of(reader, reader.find(ref))
    if owner.name == check_name(to):
        return False
    check_object(store, info.key)
    collision = CollisionError(f"another session shares its record {ref!r} with {to!r}")
    # That of a copy has another key.
    if any(_linked_session(store, link) not in (owner.name, None) for link in _links(store, ref, to)):
        raise collision
    mark = _grant_key(owner.name, ref, to)
    create(store, mark)
    link = _link_key(store, info, to)
    is_new = create(store, link, msgspec.json.encode(Link(owner.name)))
    if not is_new and _linked_session(store, link) != owner.name:
        store.delete(mark)
        raise collision
    return True


def revoke(store: OffloadStore, session: str, ref: str, to: str) -> bool:
    """Revoke access granted with `share` and return whether there was any; `to` then does not know the ref.

    A grant of another session is kept, and the record may be deleted already. Raises `ConfigError` for an
    invalid name and `StoreError`; revoking again continues.
    """
    check_name(to)
    if not is_ref(ref):
        return False
    reader, owner = SessionReader(store, check_name(session)), session
    with suppress(NotFoundError, CorruptError):
        owner = owner_of(reader, reader.find(ref))[0].name
    for link in _links(store, ref, to):
        if _linked_session(store, link) == owner:
            store.delete(link)
    mark = _grant_key(owner, ref, to)
    was_shared = has(store, mark)
    store.delete(mark)
    return was_shared


def owner_of(reader: SessionReader, info: RecordInfo) -> tuple[SessionReader, RecordInfo]:
    """Return the session that owns a catalog entry's record, and its entry there.

    Raises `NotFoundError`, `ExpiredError` and `CorruptError` as `SessionReader.open` does for a link.
    """
    if not is_link(info.key):
        return reader, info
    owner = SessionReader(reader.store, reader.open(info).session)
    return owner, owner.find(info.ref)


def _grant_key(owner: str, ref: str, to: str) -> str:
    return GRANT.key(session=encode_part(owner), ref=ref, receiver=encode_part(to))


def _link_key(store: OffloadStore, info: RecordInfo, to: str) -> str:
    """Return the key of a new link to a record in session `to`."""
    receiver = Catalog(store, to)
    receiver.floor.learn()
    receiver.refresh([info.ref])
    generation = receiver.next_generation(info.ref)
    match = RECORD.match(info.key)
    parts = {} if match is None else match.groupdict()
    parts |= {"session": encode_part(to), "generation": generation if generation > 1 else None, "ttl": None}
    return LINK.key(**parts)


def _links(store: OffloadStore, ref: str, to: str) -> Iterator[str]:
    listed = [stored.key for stored in store.keys(RECORD.prefix(encode_part(to)) + ref)]
    # A longer ref may begin with this one.
    return (key for key in listed if is_link(key) and ref_of(name_of(key)) == ref)


def _linked_session(store: OffloadStore, link: str) -> str | None:
    """Return the session that a link names; None if it is damaged or missing.

    Raises `EncryptionError` if it is encrypted.
    """
    try:
        data = store.get(link)
    except NotFoundError:
        return None
    try:
        return LINKS.decode(data).session
    except (msgspec.MsgspecError, RecursionError):
        check_plain(data, link)
        return None
