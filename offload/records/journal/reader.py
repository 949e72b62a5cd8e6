"""Reads a journal: its requests, what each entry changed, and the conversation as it is now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from offload.base.text import decode_text, encode_text
from offload.errors import (
    CollisionError,
    ConfigError,
    CorruptError,
    NotFoundError,
    OffloadError,
    check_texts,
)
from offload.messages import from_json
from offload.messages.context import ItemType
from offload.messages.context.wait import Wait
from offload.records.journal.chain import LeftBranch, chain_of, left_branches, needed
from offload.records.journal.format import JournalEntry, entry_bytes, own_entries
from offload.storage.layout import encode_part, is_ref
from offload.storage.store import OffloadStore, get_many

T = TypeVar("T")
_EDIT_NUMBERS = 3
_MOST_RATIO = 1000


class JournalMessage(NamedTuple):
    """A message of a journal, and its type; the `digest` of its text, and the `size` in characters."""

    item_type: ItemType
    message: Any
    digest: bytes = b""
    size: int = 0


def digest_of(text: str) -> bytes:
    """Return the digest by which another process knows the text of a message in a journal."""
    return hashlib.blake2b(encode_text(text), digest_size=16).digest()


class JournalState(NamedTuple):
    """A conversation, and what is known of it.

    Attributes:
        ratios: by model, the tokens that its provider counts for one estimated token.
        compactions: how many compactions removed messages.
        requested: time of the last request in seconds, by the writer's clock; None if unknown.
        tokens_offloaded: as in the last request, see `RequestFigures`.
        wait: when a compaction is tried again after one that was not enough.
        model: the model that replied last, as the host named it; None if it did not.
        records: ids of records that the session created, those that its entries name.
    """

    messages: Sequence[JournalMessage] = ()
    ratios: Mapping[str, float] = {}
    compactions: int = 0
    requested: float | None = None
    tokens_offloaded: int = 0
    wait: Wait = Wait()
    model: str | None = None
    records: Collection[str] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """The facts that the heads of the entries store."""
        facts: dict[str, Any] = {
            "ratios": dict(self.ratios),
            "compactions": self.compactions,
            "wait": [*map(int, self.wait)] if self.wait.until else 0,
        }
        facts |= {"model": self.model} if self.model else {}
        return facts if self.requested is None else facts | {"requested": int(self.requested)}

    def news(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts that differ from `known` ones; a zero is the default."""
        return {name: fact for name, fact in self.facts.items() if fact != known.get(name, 0)}


class SentList(NamedTuple):
    """The messages of a request, of which a writer asks for those alone that it does not have.

    Attributes:
        unchanged: how many are as they were in the sender's last call, if no other wrote since.
        marks: returns of each message from an index on the message itself, or its mark: an object that
            another one replaces once the message changes.
        line: returns the type of the message at an index, and the message.
    """

    unchanged: int
    marks: Callable[[int], Sequence[object]]
    line: Callable[[int], tuple[ItemType, Any]]


class JournalChange(NamedTuple):
    """The change by an entry: its head, and the new messages, or all of them."""

    entry: JournalEntry
    head: Mapping[str, Any]
    new: Sequence[JournalMessage]

    @property
    def edits(self) -> Sequence[Sequence[int]]:
        """The places of its edits: the start, how many messages are removed, and how many are new."""
        edits: Sequence[Sequence[int]] = self.head.get("edits", ())
        return edits

    @property
    def is_whole(self) -> bool:
        """Whether the entry has all messages."""
        return self.entry.kind != "grown"

    def after(self, before: Sequence[T], new: Sequence[T]) -> list[T]:
        """Return the messages after the entry, or other objects for them; given those before and the new."""
        if self.is_whole:
            return [*new]
        out: list[T] = []
        at = used = 0
        for start, removed, added in self.edits:
            out += [*before[at:start], *new[used : used + added]]
            at, used = start + removed, used + added
        return [*out, *before[at:], *new[used:]]


class Journal:
    """The journal of a session as it was listed, with one listing for each 1,000 entries.

    If several entries continue from the same one, those that were written last count; or with a branch, one
    that a rewind left, those before this rewind.

    Args:
        store: the store of the session.
        session: its name.
        branch: the id of the branch.
        own: the session's own entries, if they are listed already.

    Attributes:
        own: the session's own entries.
        entries: the entries in order, first those of the sessions that it was forked from.

    Raises:
        NotFoundError: there is no such branch.
        StoreError: the store failed.
    """

    def __init__(
        self,
        store: OffloadStore,
        session: str,
        branch: str | None = None,
        own: Sequence[JournalEntry] | None = None,
    ) -> None:
        check_texts(branch=branch)
        self._store, self._session, self._part = store, session, encode_part(session)
        self.own: Sequence[JournalEntry] = own_entries(store, self._part) if own is None else own
        self.entries: Sequence[JournalEntry] = self._entries(branch)

    def _entries(self, branch: str | None) -> Sequence[JournalEntry]:
        if branch is None:
            return chain_of(self._store, self._part, self.own)
        known = self.left()
        if branch not in known:
            names = ", ".join(known) or "none"
            raise NotFoundError(
                f"session {self._session!r} has no branch {branch!r:.40}; rewinds left {names}"
            )
        return known[branch].entries

    def left(self) -> dict[str, LeftBranch]:
        """Return the branches that rewinds left, see `left_branches`. Raises `StoreError`."""
        return left_branches(self._store, self._part, self.own)

    def place(self, number: int | None) -> int:
        """Return the index of the entry of a request.

        Args:
            number: the number of the request, from 1; None for the end, with what follows the last request.

        Raises:
            ConfigError: `number` is not a number.
            NotFoundError: there is no such request, or none at all.
        """
        if number is not None and type(number) is not int:
            raise ConfigError(f"the number of a request must be an integer, got {number!r:.40}")
        places = [place for place, entry in enumerate(self.entries) if entry.sent is not None]
        if places and number is None:
            return len(self.entries) - 1
        if number is not None and 1 <= number <= len(places):
            return places[number - 1]
        raise NotFoundError(self.described(len(places)) + (f", got {number}" if places else ""))

    def described(self, requests: int) -> str:
        """Return that the session has so many requests; without any, why."""
        why = "has no request" if self.entries else "has no journal; see Offloader(journal=True)"
        return f"session {self._session!r} " + (f"has requests 1 to {requests}" if requests else why)

    def needed(self, place: int) -> Sequence[JournalEntry]:
        """Return the entries that make up the conversation after that at an index, as few as possible.

        Raises `CollisionError` if two agents wrote entries of one number, `NotFoundError` if one was deleted.
        """
        return needed(self.entries, place, self._session)

    def changes(self, entries: Sequence[JournalEntry]) -> Iterator[JournalChange]:
        """Yield what some of its entries change. Raises `OffloadError` if one is damaged or not readable."""
        for entry, data in zip(entries, get_many(self._store, (e.at for e in entries)), strict=True):
            if isinstance(data, OffloadError):
                raise data
            yield _parse(entry, data)

    def last_changes(self) -> Iterator[JournalChange]:
        """Yield what each entry of the last conversation changes; raises as `latest`."""
        return self.changes([entry for entry in self._since_begun() if not entry.is_move])

    def messages(self, places: Sequence[int]) -> list[list[Any]]:
        """Return the messages of the conversation after each entry at these indices; few entries are read.

        Raises `OffloadError` as `needed` does, or if an entry is damaged or cannot be read.
        """
        rows, read = list[JournalMessage](), list[JournalEntry]()
        found = []
        for place in places:
            parts = [*self.needed(place)]
            is_later = bool(read) and parts[: len(read)] == read
            changes = self.changes(parts[len(read) :] if is_later else parts)
            rows, _ = _folded(changes, rows if is_later else ())
            read = parts
            found.append([row.message for row in rows])
        return found

    def latest(self) -> JournalState:
        """Return the conversation as of the last entry; empty if there is none.

        Raises `CollisionError` if two agents continued it at the same time, `NotFoundError` if an entry was
        deleted, and `OffloadError` if one is damaged or cannot be read.
        """
        rows, facts = _folded(self.changes(self.conversation()))
        requested = facts.get("requested")
        return JournalState(
            rows,
            facts.get("ratios", {}),
            facts.get("compactions", 0),
            requested if type(requested) is int else None,
            next((entry.sent.tokens_offloaded for entry in reversed(self.entries) if entry.sent), 0),
            Wait(*facts.get("wait") or ()),
            facts.get("model"),
            facts.get("records", ()),
        )

    def conversation(self) -> Sequence[JournalEntry]:
        """Return the entries that make up the conversation now, in order; raises as `latest`."""
        entries, name = self._since_begun(), self._session
        try:
            return needed(entries, len(entries) - 1, name) if entries else ()
        except NotFoundError as error:
            raise NotFoundError(
                f"session {name!r} cannot be resumed: journal entries were deleted; start a new session"
            ) from error

    def _since_begun(self) -> list[JournalEntry]:
        """Return the entries of the last conversation, in order."""
        entries = sorted(self.entries, key=lambda entry: entry.number)
        begun = max((entry.number for entry in entries if entry.kind == "begun"), default=0)
        entries = [entry for entry in entries if entry.number >= begun]
        if len({entry.number for entry in entries}) < len(entries):
            raise CollisionError(
                f"two agents continued session {self._session!r} at the same time, so it has two "
                "conversations; start a new session, or send a request in this one: it begins a new "
                "conversation that can be resumed"
            )
        return entries


def first_messages(entry: JournalEntry, data: bytes) -> list[Any]:
    """Return the new messages of an entry with the content `data`. Raises `CorruptError`."""
    return [row.message for row in _parse(entry, data).new]


def _folded(
    changes: Iterable[JournalChange], rows: Sequence[JournalMessage] = ()
) -> tuple[list[JournalMessage], dict[str, Any]]:
    """Return the messages and facts after changes, the first of which is whole or continues from `rows`."""
    rows, facts = [*rows], dict[str, Any]()
    for change in changes:
        rows = change.after(rows, change.new)
        before = {} if change.is_whole else facts
        records = [*before.get("records", ()), *change.head.get("records", ())]
        facts = {**before, **change.head, "records": records}
    return rows, facts


def _parse(entry: JournalEntry, data: bytes) -> JournalChange:
    content = entry_bytes(entry, data)
    try:
        head, *texts = decode_text(content).split("\n")
        return JournalChange(entry, _parse_head(head), [*map(_parse_row, texts)])
    except ValueError as error:
        raise CorruptError(f"{entry.at}: {error}") from error
    except (TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{entry.at}: it has values that no agent stores") from error


def _parse_row(text: str) -> JournalMessage:
    kind, message = json.loads(text, object_hook=from_json)
    return JournalMessage(ItemType(kind), message, digest_of(text), len(text))


def _parse_head(text: str) -> Mapping[str, Any]:
    """Return the head of an entry. Raises `ValueError`, `TypeError` or `AttributeError` for any other."""
    head: dict[str, Any] = json.loads(text)
    wait = head.get("wait") or (0, 0, 0)
    counts = [head.get("compactions", 0), *wait, *chain.from_iterable(head.get("edits", ()))]
    is_sound = (
        all(type(count) is int and count >= 0 for count in counts)
        and len(wait) == len(Wait())
        and type(head.get("model", "")) is str
        and all(len(edit) == _EDIT_NUMBERS for edit in head.get("edits", ()))
        and all(is_ref(ref) for ref in head.get("records", ()))
        and all(0 < ratio < _MOST_RATIO for ratio in head.get("ratios", {}).values())
    )
    if not is_sound:
        raise ValueError("it has values that no agent stores")
    return head
