"""Entries of a journal, the conversation that they describe, and the journal of release 0.1."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from offload.context import ContextItem, ItemType
from offload.errors import CollisionError, NotFoundError
from offload.messages import from_json
from offload.record import decode_text
from offload.session import SessionReader
from offload.store import OffloadStore

# The tool names of records that are entries of the old journal.
_LABEL = re.compile(r"(begun|whole|grown)-(\d{1,9})", re.ASCII)


class JournalMessage(NamedTuple):
    """A message of a journal, and its type."""

    item_type: ItemType
    message: Any


JournalLine = ContextItem | JournalMessage


class JournalState(NamedTuple):
    """A conversation, and what is known of it.

    Attributes:
        ratios: by model, the tokens that its provider counts for one estimated token.
        compactions: how many compactions removed messages.
        requested: time of the last request in seconds, by the writer's clock; None if unknown.
    """

    messages: Sequence[JournalLine]
    ratios: Mapping[str, float]
    compactions: int = 0
    requested: float | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the heads of the entries store."""
        facts = {"ratios": dict(self.ratios), "compactions": self.compactions}
        return facts if self.requested is None else facts | {"requested": int(self.requested)}

    def news(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts that differ from `known` ones; a zero is the default."""
        return {name: fact for name, fact in self.facts.items() if fact != known.get(name, 0)}


class JournalEntry(NamedTuple):
    """An entry in a listing, at a key or in a record; `size` is its bytes, uncompressed.

    Its kind is `begun` or `whole` for the whole conversation, the first by a writer that read no earlier
    entry; `grown` for the changes since the entry before.
    """

    number: int
    kind: str
    at: Any
    size: int = 0


def next_number(entries: Iterable[JournalEntry]) -> int:
    """Return the number of the next entry."""
    return max((entry.number + 1 for entry in entries), default=0)


def latest(listed: Iterable[JournalEntry], session: str) -> list[JournalEntry]:
    """Return the entries that make up the conversation of `session` now, in order."""
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


def read_old(store: OffloadStore, session: str) -> JournalState:
    """Return the conversation in a journal of release 0.1: the records of the session `<session>.journal`."""
    reader = SessionReader(store, f"{session}.journal")
    infos = [info for info in reader.infos() if info.item_type == "user_message"]
    labelled = ((_LABEL.fullmatch(info.tool_name or ""), info) for info in infos)
    entries = [JournalEntry(int(label[2]), label[1], info) for label, info in labelled if label]
    state = JournalState([], {})
    for entry in latest(entries, session):
        _, content = reader.load(entry.at, reader.open(entry.at))
        head, *rows = (json.loads(row, object_hook=from_json) for row in decode_text(content).split("\n"))
        messages = [JournalMessage(ItemType(row["type"]), row["message"]) for row in rows]
        state = JournalState([*state.messages, *messages], head["ratios"])
    return state
