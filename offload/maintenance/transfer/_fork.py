"""Forks and rewinds: a session continues from a request of its own, or of another session, without a copy.

A fork writes a mark of the parent, then a journal entry and a branch of the new session. All have keys that a
second fork at the same place writes again, so that a fork that was killed can be repeated. A fork writes its
mark and then looks whether the parent is being deleted; a deletion closes the parent and then looks for
marks: one of them sees the other.
"""

from __future__ import annotations

import msgspec

from offload.errors import ConfigError, NotFoundError
from offload.records.codec._frames import compress
from offload.records.journal.chain import (
    Branch,
    Origin,
    entries_of_branch,
    last_use,
    parse_branch,
    records_until,
)
from offload.records.journal.format import new_entry, own_entries
from offload.records.journal.reader import Journal
from offload.records.session.encryption import check_object
from offload.records.session.names import check_known, check_name
from offload.records.session.reader import SessionReader
from offload.storage.layout import BRANCH, CLOSED, FORK, RECORD, encode_part
from offload.storage.store import OffloadStore, create, delete_many, has

# Those of all entries that begin a fork: a second fork at the same place is the same.
_LETTERS = "forkedhere"


def fork(
    store: OffloadStore, session: str, name: str, *, at: int | None = None, branch: str | None = None
) -> None:
    """Let session `name` continue from a request of `session`; nothing is copied.

    It writes at most three small objects. The new session reads the records that `session` had created by
    then, under the same ids, and its own; what `session` stores later is its own.

    Args:
        store: the store of both.
        session: the session with the request; it keeps a journal.
        name: the name of the new session.
        at: the number of the request, from 1; by default the end, with the reply to the last one.
        branch: a branch of `session` that a rewind left, see `Timeline.branches`, with this request.

    Raises:
        ConfigError: `name` is invalid, this session's name, or that of a session that exists; or `at` is not
            an integer.
        NotFoundError: `session` has no such request or branch, or it was deleted.
        EncryptionError: the request is encrypted and the store has no key, or another; or it is in clear and
            the store has a key. The fork could read nothing.
        OffloadError: the journal cannot be read.
        StoreError: the store failed; forking again continues.
    """
    check_known(store, session)
    if check_name(name) == session:
        raise ConfigError(f"a fork of session {session!r} must have another name")
    journal = Journal(store, session, branch)
    base = journal.entries[journal.place(at)]
    check_object(store, base.at)
    parent, child = encode_part(session), encode_part(name)
    place = Branch(parent, base.number)
    old, at_base = _unchanged(store, name, session), f"{base.number:09}"
    mark = FORK.key(session=parent, receiver=child, base=at_base)
    entry, content = new_entry(child, base.number + 1, "grown", letters=_LETTERS, base=at_base, parent=parent)
    key = BRANCH.key(session=child, parent=parent, base=at_base)
    more = [] if at is not None else _unnoted(store, session, place)
    # A deletion too kept all that an earlier mark names.
    is_new = create(store, mark)
    if is_new and not _is_open(store, place):
        delete_many(store, [key, entry, mark])
        raise NotFoundError(f"session {session!r} or a branch of it is being deleted; nothing was forked")
    create(store, entry, compress(content))
    create(store, key, msgspec.json.encode(Origin(session, more, name)))
    # An earlier fork goes last: until then, the first of both holds.
    for stale in {*old} - {mark, entry, key}:
        store.delete(stale)
    if not is_new and not has(store, mark):
        # A gc deleted the old mark before it could see the branch.
        fork(store, session, name, at=at, branch=branch)


def rewind(store: OffloadStore, session: str, at: int, *, branch: str | None = None) -> None:
    """Let a session continue from one of its requests; the later ones remain, as a branch, until a gc.

    It writes one small object. Arguments and errors are as for `fork`.
    """
    check_known(store, session)
    journal = Journal(store, session, branch)
    base = journal.entries[journal.place(at)]
    check_object(store, base.at)
    number = max(entry.number for entry in (*journal.entries, *journal.own)) + 1
    key, content = new_entry(encode_part(session), number, "grown", base=f"{base.number:09}")
    store.put(key, compress(content))


def _is_open(store: OffloadStore, place: Branch) -> bool:
    """Return whether no process deletes a session, or the place of a fork in it.

    A session that was used after its deletion was not deleted since: another deletion renews the mark.
    """
    for mark in store.keys(CLOSED.key(session=place.parent)):
        match = CLOSED.match(mark.key)
        if match is None or (match["base"] and int(match["base"]) < place.base):
            continue
        if match["base"] or last_use(store, place.parent) <= mark.modified:
            return False
    try:
        return bool(entries_of_branch(store, place))
    except NotFoundError:
        return False


def _unchanged(store: OffloadStore, name: str, session: str) -> list[str]:
    """Return the keys of an earlier fork of `session` by this name that has changed nothing.

    It may be one that was killed before it was whole. Raises `ConfigError` for any other session.
    """
    part, parent = encode_part(name), encode_part(session)
    records = [stored.key for stored in store.keys(RECORD.prefix(part))]
    entries = own_entries(store, part)
    is_fork = all(match is not None and match["parent"] == parent for match in map(BRANCH.match, records))
    if not is_fork or any(entry.parent != parent for entry in entries):
        raise ConfigError(f"session {name!r} exists in {store.url}; fork to a new name")
    bases = {entry.base for entry in entries} | {parse_branch(key).base for key in records}
    marks = [FORK.key(session=parent, receiver=part, base=f"{base:09}") for base in bases if base is not None]
    return [*(entry.at for entry in entries), *records, *marks]


def _unnoted(store: OffloadStore, session: str, branch: Branch) -> list[str]:
    """Return the ids of the records that a session has and its journal does not name."""
    noted = records_until(store, branch)
    return [info.ref for info in SessionReader(store, session).infos() if info.ref not in noted]
