"""Entries of a journal, and the state of a conversation that they describe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offload.context import ItemType
from offload.errors import CollisionError, NotFoundError


class JournalMessage(NamedTuple):
    """A message of a journal, and its type."""

    item_type: ItemType
    message: Any


@dataclass(frozen=True, slots=True)
class JournalState:
    """A conversation as a journal describes it.

    Attributes:
        messages: its messages, in order.
        ratios: model → tokens that its provider counts for one estimated token.
    """

    messages: list[JournalMessage] = field(default_factory=list)
    ratios: Mapping[str, float] = field(default_factory=dict)


class JournalEntry(NamedTuple):
    """An entry in a listing.

    Attributes:
        number: its number in the journal, from 0.
        kind: `begun` or `whole` for the whole conversation, the first by a writer that read no earlier
            entry; `grown` for the changes since the entry before.
        at: its key or record.
        size: its size in bytes, uncompressed.
    """

    number: int
    kind: str
    at: Any
    size: int = 0


def next_number(entries: Iterable[JournalEntry]) -> int:
    """Return the number of the next entry."""
    return max((entry.number + 1 for entry in entries), default=0)


def latest(listed: Iterable[JournalEntry], session: str) -> list[JournalEntry]:
    """Return the entries that make up the conversation of `session` now, in order.

    Raises `CollisionError` if two writers continued it, and `NotFoundError` if an entry is missing.
    """
    entries = sorted(listed, key=lambda entry: entry.number)
    begun = max((entry.number for entry in entries if entry.kind == "begun"), default=0)
    numbers = [entry.number for entry in entries if entry.number >= begun]
    if len(set(numbers)) < len(numbers):
        raise CollisionError(
            f"two agents continued session {session!r} at the same time; start a new session"
        )
    whole = max((entry.number for entry in entries if entry.kind != "grown"), default=-1)
    current = [entry for entry in entries if entry.number >= whole]
    if current and (whole < 0 or current[-1].number - whole >= len(current)):
        raise NotFoundError(
            f"session {session!r} cannot be resumed: journal entries were deleted; start a new session"
        )
    return current
