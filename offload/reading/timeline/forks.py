"""The sessions that were forked from each other, as a tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from offload.reading.timeline.titles import JournalSummary
from offload.records.journal.chain import chain_of, left_branches
from offload.records.journal.format import JournalEntry, own_entries
from offload.storage.layout import FORK, decode_part
from offload.storage.store import OffloadStore

_MOST_SESSIONS = 50


class SessionFork(NamedTuple):
    """A session in the tree of its forks.

    Attributes:
        part: its key part.
        name: its name.
        at: the number of the request that it continues from; None for the first session.
        left: the numbers of the first and the last request of each branch that a rewind left, by its id.
        forks: the sessions that were forked from it.
    """

    part: str
    name: str
    at: int | None
    left: dict[str, tuple[int, int]]
    forks: list[SessionFork]


def fork_tree(store: OffloadStore, part: str, own: Sequence[JournalEntry]) -> SessionFork:
    """Return the first of the sessions that one was forked from, with its forks; at most 50 sessions.

    It takes two listings for each. Raises `StoreError`.

    Args:
        store: the store of the session.
        part: its key part.
        own: its own entries.
    """
    seen = {part}
    while own and own[0].parent and own[0].parent not in seen:
        part = own[0].parent
        own = own_entries(store, part)
        seen.add(part)
    return _tree(store, part, own, None, {part})


def forks_of(journals: Mapping[str, JournalSummary], parts: Iterable[str]) -> dict[str, list[SessionFork]]:
    """Return the forks of each session among listed journals, without branches and numbers of requests."""
    children: dict[str, list[str]] = {}
    for child, journal in journals.items():
        if journal.first.parent is not None:
            children.setdefault(journal.first.parent, []).append(child)

    def below(parent: str, seen: set[str]) -> list[SessionFork]:
        new = [child for child in children.get(parent, ()) if child not in seen][: _MOST_SESSIONS - len(seen)]
        seen.update(new)
        return [SessionFork(child, decode_part(child), None, {}, below(child, seen)) for child in new]

    return {part: below(part, {part}) for part in parts if part in children}


def _tree(
    store: OffloadStore, part: str, own: Sequence[JournalEntry], at: int | None, seen: set[str]
) -> SessionFork:
    forks = []
    marks = [mark for stored in store.keys(FORK.prefix(part)) if (mark := FORK.match(stored.key))]
    for mark in marks:
        child, base = mark["receiver"], int(mark["base"])
        if child in seen or len(seen) == _MOST_SESSIONS:
            continue
        entries = own_entries(store, child)
        # A mark of a fork that was killed, or deleted, has no entry.
        if entries and entries[0].parent == part and entries[0].base == base:
            seen.add(child)
            number = sum(entry.sent is not None for entry in chain_of(store, part, own, base))
            forks.append(_tree(store, child, entries, number, seen))
    left = {name: one.numbers for name, one in left_branches(store, part, own).items()}
    ends = {name: (numbers[0], numbers[-1]) for name, numbers in left.items()}
    return SessionFork(part, decode_part(part), at, ends, forks)
