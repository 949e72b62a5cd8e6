"""Grants: a session lets another session read a record, and revokes that.

A grant is a mark of the owner and a link in the receiver's records. The mark is written first and deleted
last, so that each link has the mark that protects its record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

import msgspec

from offload.errors import CollisionError, CorruptError, EncryptionError, NotFoundError, OffloadError
from offload.records.index.catalog import Catalog
from offload.records.record import RecordInfo
from offload.records.session.encryption import check_object
from offload.records.session.links import Link, owner_in
from offload.records.session.names import check_known, check_name
from offload.records.session.reader import SessionReader
from offload.storage.layout import GRANT, LINK, RECORD, encode_part, is_link, is_ref, name_of, ref_of
from offload.storage.store import OffloadStore, create, has

# The links to more records are found by one listing.
_FEW = 8


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
    return _Grants(store, session, [ref], to).grant(ref)


def share_each(
    store: OffloadStore, session: str, refs: Collection[str], to: str
) -> Iterator[tuple[str, OffloadError | None]]:
    """Share records as `share` does, with few listings for all; yield each ref, with its error if it has one.

    Raises `NotFoundError` if the session does not exist, `ConfigError` for invalid names and `StoreError`.
    """
    if not refs:
        return
    grants = _Grants(store, session, refs, to)
    for ref in refs:
        try:
            grants.grant(ref)
        except (NotFoundError, CollisionError, CorruptError, EncryptionError) as error:
            yield ref, error
        else:
            yield ref, None


class _Grants:
    """Grants of some records of one session to another. Raises as `share` does."""

    def __init__(self, store: OffloadStore, session: str, refs: Iterable[str], to: str) -> None:
        self._store, self._to = store, check_name(to)
        self._reader = SessionReader(store, check_known(store, session))
        self._receiver = Catalog(store, to)
        known = {ref for ref in refs if is_ref(ref)}
        self._reader.catalog.refresh(known)
        self._receiver.floor.learn()
        self._receiver.refresh(known)
        self._links = _links(store, known, to)

    def grant(self, ref: str) -> bool:
        """Share a record; return whether it is shared now."""
        owner, info = owner_of(self._reader, self._reader.find(ref))
        if owner.name == self._to:
            return False
        check_object(self._store, info.key)
        collision = CollisionError(f"another session shares its record {ref!r} with {self._to!r}")
        # That of a copy has another key.
        if any(_linked_session(self._store, link) not in (owner.name, None) for link in self._links[ref]):
            raise collision
        mark = _grant_key(owner.name, ref, self._to)
        create(self._store, mark)
        link = self._link_key(info)
        is_new = create(self._store, link, msgspec.json.encode(Link(owner.name)))
        if not is_new and _linked_session(self._store, link) != owner.name:
            self._store.delete(mark)
            raise collision
        return True

    def _link_key(self, info: RecordInfo) -> str:
        generation = self._receiver.next_generation(info.ref)
        match = RECORD.match(info.key)
        parts = {} if match is None else match.groupdict()
        parts |= {"session": encode_part(self._to), "generation": generation if generation > 1 else None}
        return LINK.key(**parts | {"ttl": None})


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
    for link in _links(store, [ref], to)[ref]:
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


def _links(store: OffloadStore, refs: Collection[str], to: str) -> Mapping[str, list[str]]:
    """Return the keys of the links to some records in a session, by ref."""
    prefix, links = RECORD.prefix(encode_part(to)), defaultdict[str, list[str]](list)
    for some in [prefix] if len(refs) > _FEW else [prefix + ref for ref in refs]:
        for stored in store.keys(some):
            # A longer ref may begin with this one.
            if is_link(stored.key) and (ref := ref_of(name_of(stored.key))) in refs:
                links[ref].append(stored.key)
    return links


def _linked_session(store: OffloadStore, link: str) -> str | None:
    """Return the session that a link names; None if it is damaged or missing.

    Raises `EncryptionError` if it is encrypted.
    """
    try:
        data = store.get(link)
    except NotFoundError:
        return None
    try:
        return owner_in(data, link)
    except CorruptError:
        return None
