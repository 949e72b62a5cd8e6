"""Reads a journal: the conversation after an entry, and the changes by each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from offload.context import ItemType
from offload.context.wait import Wait
from offload.errors import CollisionError, CorruptError, NotFoundError, OffloadError
from offload.journal.chain import list_entries, needed
from offload.journal.format import JournalEntry, entry_bytes
from offload.layout import is_ref
from offload.messages import from_json
from offload.record.text import decode_text, encode_text
from offload.store import OffloadStore, get_many

T = TypeVar("T")
_EDIT_NUMBERS = 3
_MOST_RATIO = 1000


class JournalMessage(NamedTuple):
    """A message of a journal, and its type.

    A writer knows it by its `mark`, an object that another one replaces once the message changes; None is the
    message itself.
    """

    item_type: ItemType
    message: Any
    mark: object = None


class JournalState(NamedTuple):
    """A conversation, and what is known of it.

    Attributes:
        ratios: by model, the tokens that its provider counts for one estimated token.
        compactions: how many compactions removed messages.
        requested: time of the last request in seconds, by the writer's clock; None if unknown.
        tokens_offloaded: as in the last request, see `Sent`.
        wait: when a compaction is tried again after one that was not enough.
        model: the model that replied last, as the host named it; None if it did not.
    """

    messages: Sequence[JournalMessage]
    ratios: Mapping[str, float]
    compactions: int = 0
    requested: float | None = None
    tokens_offloaded: int = 0
    wait: Wait = Wait()
    model: str | None = None

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


class JournalChange(NamedTuple):
    """The change by an entry: its head with the edits of the rows before, and the new rows, or all rows."""

    entry: JournalEntry
    head: Mapping[str, Any]
    new: Sequence[JournalMessage]

    @property
    def is_whole(self) -> bool:
        """Whether the entry has all rows."""
        return self.entry.kind != "grown"


class Row(NamedTuple):
    """A message in the store: None if it could not be stored yet, and a text replaces it.

    It is known by the mark of its line, or else by the digest of its text.
    """

    line: JournalMessage | None
    mark: object
    digest: bytes
    size: int


def changes_of(store: OffloadStore, entries: Sequence[JournalEntry]) -> Iterator[JournalChange]:
    """Yield what each of some entries changes. Raises `OffloadError` if one is damaged or cannot be read."""
    for entry, data in zip(entries, get_many(store, (e.at for e in entries)), strict=True):
        if isinstance(data, OffloadError):
            raise data
        head, new = _parse(entry, data)
        yield JournalChange(entry, head, [row.line for row in new if row.line is not None])


def latest_state(store: OffloadStore, session: str, listed: Sequence[JournalEntry]) -> JournalState:
    """Return the conversation after the last of the entries of a journal; raises as `JournalWriter.read`."""
    return state_of(listed, *folded(store, latest_entries(listed, session)))


def latest_changes(store: OffloadStore, session: str) -> Iterator[JournalChange]:
    """Yield what each entry of the last conversation changes; raises as `latest_state`."""
    listed = _since_begun(list_entries(store, session), session)
    # The first entry of a fork or a rewind changes nothing.
    yield from changes_of(store, [entry for entry in listed if entry.base is None])


def messages_at(
    store: OffloadStore, session: str, entries: Sequence[JournalEntry], places: Sequence[int]
) -> list[list[Any]]:
    """Return the messages of a conversation after each entry at these indices; few entries are read.

    Raises `OffloadError` as `needed` does, or if an entry is damaged or cannot be read.
    """
    rows, read = list[Row](), list[JournalEntry]()
    found = []
    for place in places:
        parts = [*needed(entries, place, session)]
        is_later = bool(read) and parts[: len(read)] == read
        rows, _ = folded(store, parts[len(read) :] if is_later else parts, rows if is_later else ())
        read = parts
        found.append([row.line.message for row in rows if row.line is not None])
    return found


def first_messages(entry: JournalEntry, data: bytes) -> list[Any]:
    """Return the new messages of an entry with the content `data`. Raises `CorruptError`."""
    return [row.line.message for row in _parse(entry, data)[1] if row.line is not None]


def _since_begun(listed: Iterable[JournalEntry], session: str) -> list[JournalEntry]:
    """Return the entries of the last conversation of `session`, in order."""
    entries = sorted(listed, key=lambda entry: entry.number)
    begun = max((entry.number for entry in entries if entry.kind == "begun"), default=0)
    entries = [entry for entry in entries if entry.number >= begun]
    if len({entry.number for entry in entries}) < len(entries):
        raise CollisionError(
            f"two agents continued session {session!r} at the same time, so it has two conversations; start "
            "a new session, or send a request in this one: it begins a new conversation that can be resumed"
        )
    return entries


def latest_entries(listed: Iterable[JournalEntry], session: str) -> list[JournalEntry]:
    """Return the entries that make up the conversation of `session` now, in order."""
    entries = _since_begun(listed, session)
    if not entries:
        return []
    try:
        return [*needed(entries, len(entries) - 1, session)]
    except NotFoundError as error:
        raise NotFoundError(
            f"session {session!r} cannot be resumed: journal entries were deleted; start a new session"
        ) from error


def folded(
    store: OffloadStore, entries: Sequence[JournalEntry], rows: Sequence[Row] = ()
) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows and facts after `entries`, the first of which is a whole one or continues from `rows`.

    Raises `OffloadError`.
    """
    rows, facts = [*rows], dict[str, Any]()
    for entry, data in zip(entries, get_many(store, (e.at for e in entries)), strict=True):
        if isinstance(data, OffloadError):
            raise data
        head, new = _parse(entry, data)
        rows = apply_edits([] if entry.kind != "grown" else rows, head.get("edits", ()), new)
        known = [] if entry.kind != "grown" else facts.get("records", [])
        facts = ({} if entry.kind != "grown" else facts) | head
        facts["records"] = [*known, *head.get("records", ())]
    return rows, facts


def state_of(listed: Sequence[JournalEntry], rows: Sequence[Row], facts: Mapping[str, Any]) -> JournalState:
    """Return the conversation of these rows and facts, after the last of the entries of a journal."""
    requested = facts.get("requested")
    return JournalState(
        [row.line for row in rows if row.line is not None],
        facts.get("ratios", {}),
        facts.get("compactions", 0),
        requested if type(requested) is int else None,
        tokens_offloaded=next((e.sent.tokens_offloaded for e in reversed(listed) if e.sent), 0),
        wait=_wait(facts),
        model=facts.get("model"),
    )


def _wait(facts: Mapping[str, Any]) -> Wait:
    until, window, is_told = facts.get("wait") or (0, 0, 0)
    return Wait(until, window, bool(is_told))


def apply_edits(rows: Sequence[T], edits: Sequence[Sequence[int]], new: Sequence[T]) -> list[T]:
    """Return `rows` with the changes of an entry applied."""
    out: list[T] = []
    at = used = 0
    for start, removed, added in edits:
        out += [*rows[at:start], *new[used : used + added]]
        at, used = start + removed, used + added
    return [*out, *rows[at:], *new[used:]]


def _parse(entry: JournalEntry, data: bytes) -> tuple[dict[str, Any], list[Row]]:
    content = entry_bytes(entry, data)
    try:
        first, *texts = decode_text(content).split("\n")
        return _parse_head(first), [_parse_row(text) for text in texts]
    except ValueError as error:
        raise CorruptError(f"{entry.at}: {error}") from error
    except (TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{entry.at}: it has values that no agent stores") from error


def _parse_row(text: str) -> Row:
    kind, message = json.loads(text, object_hook=from_json)
    return Row(JournalMessage(ItemType(kind), message), message, row_digest(text), len(text))


def _parse_head(text: str) -> dict[str, Any]:
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


def row_digest(text: str) -> bytes:
    """Return the digest by which the text of a row is known."""
    return hashlib.blake2b(encode_text(text), digest_size=16).digest()
