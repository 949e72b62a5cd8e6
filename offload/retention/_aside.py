"""The journal of a deleted session, set aside until the grace period is over.

Each object is first stored under another key, which no reader of a journal sees, and then deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offload.errors import CollisionError, NotFoundError
from offload.layout import BRANCH, CALLS, DELETED, FORK, JOURNAL, Family, name_of, session_part
from offload.session.lineage import parse_branch
from offload.store import OffloadStore, StoredObject, create, delete_many

_FOLDERS = {"j": JOURNAL, "c": CALLS, "r": BRANCH}


def set_aside(store: OffloadStore, keys: Sequence[str]) -> None:
    """Move journal entries, answered calls and branches to other keys; the last is deleted first."""
    if keys:
        _forget_older(store, keys)
    for key in keys:
        store.put(_aside(key), store.get(key), overwrite=True)
    delete_many(store, keys[::-1])


def _forget_older(store: OffloadStore, keys: Sequence[str]) -> None:
    """Delete for good what an earlier deletion set aside, if the session has begun a new journal since."""
    found = aside_of(store.keys(DELETED.prefix(session_part(keys[0]))))
    numbers = {_number(key) for key in found}
    new = [key for key in map(_aside, filter(JOURNAL.match, keys)) if key not in found]
    if any(_number(key) in numbers for key in new):
        delete_many(store, found)


def _number(key: str) -> str:
    return name_of(key).partition("~")[0]


def bring_back(store: OffloadStore, part: str) -> int:
    """Store what `set_aside` took from a session again; return the number of journal entries.

    Raises `CollisionError` if the session has a new journal: both would be in doubt.
    """
    found = aside_of(store.keys(DELETED.prefix(part)))
    if not found:
        return 0
    if any(JOURNAL.match(stored.key) for stored in store.keys(JOURNAL.prefix(part))):
        raise CollisionError(
            "nothing was undeleted: the session was used since it was deleted, and has a new journal; "
            "undelete its records by their ids"
        )
    for key in found:
        original = _original(key)
        if BRANCH.match(original):
            place = parse_branch(original)
            create(store, FORK.key(session=place.parent, receiver=part, base=f"{place.base:09}"))
        create(store, original, store.get(key))
    delete_many(store, found)
    return sum(JOURNAL.match(_original(key)) is not None for key in found)


def aside_of(listed: Iterable[StoredObject]) -> list[str]:
    """Return the keys of objects that are set aside, among some."""
    return [stored.key for stored in listed if DELETED.match(stored.key)]


def _aside(key: str) -> str:
    return DELETED.key(session=session_part(key), folder=key[0], object=name_of(key))


def _original(key: str) -> str:
    match = DELETED.match(key)
    family: Family | None = match and _FOLDERS.get(match["folder"])
    if match is None or family is None:
        raise NotFoundError(f"{key} is not the key of an object that was set aside")
    return family.prefix(match["session"]) + match["object"]
