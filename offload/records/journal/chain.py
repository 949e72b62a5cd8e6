"""The entries that a session continues: its own, and those of the sessions that it was forked from.

A fork is two objects of its own session: a journal entry that continues from one of the parent's journal, and
a branch among its records, which names the parent. A mark of the parent, written first, protects
what the fork reads from deletion. Their size does not depend on the session. `FORMAT.md` has their forms.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import msgspec

from offload.base.text import decode_text
from offload.errors import (
    CollisionError,
    CorruptError,
    NotFoundError,
    OffloadError,
)
from offload.records.journal.format import JournalEntry, entry_bytes, own_entries
from offload.storage.layout import (
    BRANCH,
    FOREIGN,
    JOURNAL,
    LAST_USE,
    RECORD,
    decode_part,
    encode_part,
    is_hashed,
    is_link,
)
from offload.storage.store import OffloadStore, check_plain, create, get_many

# A fork of a fork has as many parents.
_MAX_FORKS = 1000


class Branch(NamedTuple):
    """The place that a session was forked at: an entry of the journal of a parent, given by its key part."""

    parent: str
    base: int


class Origin(msgspec.Struct, frozen=True):
    """The content of a branch.

    Attributes:
        session: the name of the parent.
        records: the ids of records that the fork reads, and the parent's journal lacks.
        fork: the name of the session that has the branch.
    """

    session: str
    records: list[str] = []
    fork: str = ""

    @staticmethod
    def parse(data: bytes) -> Origin:
        """Return the origin `data`. Raises `msgspec.MsgspecError` or `RecursionError` if it is none."""
        return _ORIGINS.decode(data)


# Made at import: threads that decode a type for the first time at once crash the process (msgspec 0.22).
_ORIGINS = msgspec.json.Decoder(Origin)


class LeftBranch(NamedTuple):
    """The entries before a rewind, and the numbers of the requests among them that only this branch has."""

    entries: list[JournalEntry]
    numbers: list[int]


def left_branches(store: OffloadStore, part: str, own: Sequence[JournalEntry]) -> dict[str, LeftBranch]:
    """Return each branch, the newest first, by the letters of the rewind that left it.

    A branch without a request of its own is omitted.

    Args:
        store: the store of the session.
        part: its key part.
        own: its own entries.
    """
    seen = {entry.at for entry in chain_of(store, part, own)}
    branches = {}
    for place in range(len(own) - 1, 0, -1):
        if not own[place].is_rewind:
            continue
        chain = chain_of(store, part, own[:place])
        sent = [entry.at for entry in chain if entry.sent is not None]
        if numbers := [number for number, key in enumerate(sent, 1) if key not in seen]:
            branches[own[place].letters] = LeftBranch(chain, numbers)
            seen.update(sent)
    return branches


def chain_of(
    store: OffloadStore, part: str, own: Sequence[JournalEntry], base: int | None = None
) -> list[JournalEntry]:
    """Return the entries that an entry of a session continues, in order, with it; by default its last one.

    They are followed from it back, through the sessions that this one was forked from.

    Args:
        store: the store of the session.
        part: its key part.
        own: its own entries.
        base: the number of the entry.

    Raises:
        CorruptError: there are more than 1,000 parents.
        StoreError: the store failed.
    """
    parts: list[Sequence[JournalEntry]] = []
    parents = 0
    while own:
        end = len(own) if base is None else bisect_right(own, base, key=lambda entry: entry.number)
        place = next((at for at in range(end - 1, 0, -1) if own[at].base is not None), 0)
        parts.append(own[place:end])
        # A fork may be rewound to a request before it, which its parent has.
        parent = own[place].parent
        base = own[place].base if end else base
        # A base that is not earlier would never end.
        if base is None or base >= own[place].number or (not end and parent is None):
            break
        if parent is not None:
            parents += 1
            if parents > _MAX_FORKS:
                raise CorruptError(f"session {decode_part(part)!r} has more than {_MAX_FORKS} parents")
            own = own_entries(store, parent)
    return [entry for entries in reversed(parts) for entry in entries]


def kept_entries(
    store: OffloadStore, part: str, own: Sequence[JournalEntry], bases: Iterable[int | None] = (None,)
) -> set[str]:
    """Return the keys of the entries of a session that its conversation, or living forks of it, need.

    All others may be deleted: by gc after a rewind, and by the deletion of the session. A fork lives from its
    mark of the parent until gc frees it: one that was deleted and can be undeleted is living. It needs
    all entries that its place continues, since it can be rewound to each. The entry that begins this session
    as a fork is needed too, also after a rewind to a request before it: it names the parent.

    Args:
        store: the store of the session.
        part: its key part.
        own: its own entries.
        bases: the numbers of the entries that the conversation and the forks continue; None for its last one.
    """
    kept = {entry.at for entry in own if entry.parent is not None}
    for base in bases:
        kept.update(entry.at for entry in chain_of(store, part, own, base))
    return kept


def last_use(store: OffloadStore, part: str) -> float:
    """Return when the session with a key part last stored something or noted its use; 0 if it never did.

    Tombstones, deleted records and the marks of others are no use.
    """
    stored = [
        one.modified
        for family in (RECORD, JOURNAL)
        for one in store.keys(family.prefix(part))
        if one.size or is_link(one.key)
    ]
    noted = [one.modified for one in store.keys(LAST_USE.key(session=part))]
    return max([0.0, *stored, *noted])


def entries_of_branch(store: OffloadStore, branch: Branch) -> Sequence[JournalEntry]:
    """Return the entries of the parent up to a branch; raises as `needed` if they make up no conversation."""
    entries = chain_of(store, branch.parent, own_entries(store, branch.parent), branch.base)
    name = decode_part(branch.parent)
    if not entries or entries[-1].number != branch.base:
        raise NotFoundError(f"the journal of session {name!r} was deleted")
    needed(entries, len(entries) - 1, name)
    return entries


def needed(entries: Sequence[JournalEntry], place: int, session: str) -> Sequence[JournalEntry]:
    """Return the entries that make up the conversation after the one at index `place`, as few as possible.

    Raises `CollisionError` if two agents wrote entries of one number, `NotFoundError` if one was deleted.
    """
    number = entries[place].number
    until = [entry for entry in entries if entry.number <= number]
    whole = max((entry.number for entry in until if entry.kind != "grown"), default=-1)
    parts = [entry for entry in until if entry.number >= whole]
    for before, after in pairwise(parts):
        if before.number == after.number:
            raise CollisionError(
                f"two agents continued session {session!r} at the same time, so this request is in doubt"
            )
        if not after.follows(before):
            whole = -1
    if whole < 0:
        raise NotFoundError(f"journal entries of session {session!r} that this request needs were deleted")
    return parts


def records_until(store: OffloadStore, branch: Branch) -> set[str]:
    """Return the ids of the records that the parent had created at a branch. Raises `OffloadError`."""
    found: set[str] = set()
    parts = _naming_all(entries_of_branch(store, branch))
    for entry, data in zip(parts, get_many(store, [one.at for one in parts]), strict=True):
        if isinstance(data, OffloadError):
            raise data
        found |= _records(entry, data)
    return found


def _naming_all(entries: Sequence[JournalEntry]) -> list[JournalEntry]:
    """Return those of some entries that name all records: only a whole one names earlier ones again."""
    parts, is_named_again = list[JournalEntry](), False
    for entry in reversed(entries):
        if not is_named_again:
            parts.append(entry)
        # One that begins the conversation again names none of before, which a fork can be rewound to.
        is_named_again = entry.kind == "whole" or (is_named_again and entry.kind != "begun")
    return parts


def _records(entry: JournalEntry, data: bytes) -> set[str]:
    content = entry_bytes(entry, data)
    try:
        head = json.loads(decode_text(content).partition("\n")[0])
        return set(head.get("records", ()))
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptError(f"{entry.at}: it has values that no agent stores") from error


def records_of_branch(store: OffloadStore, key: str, at: str | None = None) -> tuple[Origin, set[str]]:
    """Return the origin of a branch, and the ids of the parent's records that it lets the fork read.

    The branch of a deleted fork is set aside at another key, `at`.

    Raises `NotFoundError` if there is no such branch, and `OffloadError` if it or a journal cannot be read.
    """
    data = store.get(at or key)
    try:
        origin = Origin.parse(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        check_plain(data, key)
        raise CorruptError(f"{key} contains no session name: {error}") from error
    return origin, records_until(store, parse_branch(key)) | set(origin.records)


def origin_of(store: OffloadStore, key: str) -> str | None:
    """Return the name of the session whose refs another one has, by the key of its mark.

    None if the key is not that of such a mark, or the mark of a long name is gone or damaged: its refs are
    drawn by the other session then. Raises `StoreError`.
    """
    match = FOREIGN.match(key)
    if match is None or not is_hashed(match["origin"]):
        return None if match is None else decode_part(match["origin"])
    with suppress(NotFoundError, msgspec.MsgspecError, RecursionError):
        name = Origin.parse(store.get(key)).session
        return name if encode_part(name) == match["origin"] else None
    return None


def note_origin(store: OffloadStore, part: str, name: str) -> str:
    """Mark that a session, given by its key part, has refs that another one drew; return the key."""
    origin = encode_part(name)
    key = FOREIGN.key(session=part, origin=origin)
    create(store, key, msgspec.json.encode({"session": name}) if is_hashed(origin) else b"")
    return key


def branch_of(keys: Iterable[str]) -> str | None:
    """Return the key of the branch among the keys of a session's records; None if it was not forked."""
    return next((key for key in keys if BRANCH.match(key)), None)


def parse_branch(key: str) -> Branch:
    """Return what the key of a branch says."""
    match = BRANCH.match(key)
    if match is None:
        raise CorruptError(f"{key} is not the key of a branch")
    return Branch(match["parent"], int(match["base"]))
