"""The journal of a deleted session, set aside until the grace period is over.

Each object is first stored under another key, which no reader of a journal sees, and then deleted unless a
fork needs it. A session has one journal aside: a killed move, of which one side has a part, is continued.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from offload.errors import CollisionError, NotFoundError
from offload.records.journal.chain import parse_branch
from offload.storage.layout import BRANCH, CALLS, DELETED, FORK, JOURNAL, Family, name_of, session_part
from offload.storage.store import OffloadStore, StoredObject, create, delete_many

_FOLDERS = {"j": JOURNAL, "c": CALLS, "r": BRANCH}


def set_aside(store: OffloadStore, keys: Sequence[str], kept: Collection[str] = ()) -> None:
    """Store entries, answered calls and branches under other keys; delete all but `kept`, the last first."""
    for key in keys:
        store.put(aside_key(key), store.get(key), overwrite=True)
    delete_many(store, [key for key in reversed(keys) if key not in kept])


def replaced(store: OffloadStore, part: str, keys: Iterable[str]) -> list[str]:
    """Return the keys of what an earlier deletion set aside and one of `keys` must delete for good.

    None unless the session has begun another journal since.
    """
    found, new = aside_of(store.keys(DELETED.prefix(part))), {*map(aside_key, keys)}
    return [] if _is_one(found, new) else [key for key in found if key not in new]


def bring_back(store: OffloadStore, part: str) -> int:
    """Store what `set_aside` took from a session again; return the number of journal entries.

    Raises `CollisionError` if the session has another journal: both would be in doubt.
    """
    found = aside_of(store.keys(DELETED.prefix(part)))
    if not _is_one(found, [aside_key(stored.key) for stored in store.keys(JOURNAL.prefix(part))]):
        raise CollisionError(
            "nothing was undeleted: the session was used since it was deleted, and has a new journal; "
            "undelete its records by their ids"
        )
    for key in found:
        original = original_key(key)
        create(store, original, store.get(key))
        if BRANCH.match(original):
            # Last: a gc that frees the fork deletes the mark unless it sees the branch.
            place = parse_branch(original)
            create(store, FORK.key(session=place.parent, receiver=part, base=f"{place.base:09}"))
    delete_many(store, found)
    return len(_entries(found))


def _is_one(found: Iterable[str], others: Iterable[str]) -> bool:
    """Return whether two sets of keys have parts of one journal: one has all entries of the other."""
    entries, more = _entries(found), _entries(others)
    return entries <= more or more <= entries


def _entries(keys: Iterable[str]) -> set[str]:
    return {key for key in keys if is_entry(key)}


def is_entry(key: str) -> bool:
    """Return whether a key is that of a journal entry that is set aside."""
    match = DELETED.match(key)
    return match is not None and match["folder"] == "j"


def aside_of(listed: Iterable[StoredObject]) -> list[str]:
    """Return the keys of objects that are set aside, among some."""
    return [stored.key for stored in listed if DELETED.match(stored.key)]


def aside_key(key: str) -> str:
    """Return the key under which an object is set aside."""
    return DELETED.key(session=session_part(key), folder=key[0], object=name_of(key))


def original_key(key: str) -> str:
    """Return the key that an object had before it was set aside. Raises `NotFoundError`."""
    match = DELETED.match(key)
    family: Family | None = match and _FOLDERS.get(match["folder"])
    if match is None or family is None:
        raise NotFoundError(f"{key} is not the key of an object that was set aside")
    return family.prefix(match["session"]) + match["object"]
