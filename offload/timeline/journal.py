"""The journal of a conversation: the state that another process needs to continue it.

It is kept next to the records of its session, under keys that no listing of sessions or records shows.
`FORMAT.md` describes its entries: each is an object that is written once, with all messages or the changes
since the entry before. Random letters in its key show that two writers took one number.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from offload.codec._frames import SLOW_LEVEL, compress
from offload.context import ContextItem, ItemType
from offload.context.wait import Wait
from offload.errors import CollisionError, CorruptError, MessageError, NotFoundError, OffloadError, failure
from offload.layout import JOURNAL, encode_part
from offload.messages import Usage, from_json, to_json
from offload.messages.stored import map_texts
from offload.record.text import decode_text, encode_text
from offload.session.lineage import (
    JournalEntry,
    Sent,
    entry_bytes,
    last_written,
    list_entries,
    needed,
    new_entry,
    own_entries,
)
from offload.session.names import is_ref
from offload.session.session import latest_deletion
from offload.settings.hooks import Hooks
from offload.store import OffloadStore, get_many

# A whole entry follows once the changes since the last one have this many times the size of all messages, or
# half of it in so many entries: few objects are read for a request, and a message is written a few times.
_WASTE = 2
_MANY_ENTRIES, _MANY_WASTE = 64, 0.5
# The name of a model is part of the key unless it is longer.
_MAX_MODEL_CHARS = 80
_UNSTORED = {"role": "user", "content": "[This message could not be stored.]"}

T = TypeVar("T")
# Start in the rows before, number of removed rows, number of new rows.
_Edit = tuple[int, int, int]
_EDIT_NUMBERS = 3
_MOST_RATIO = 1000
_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


class JournalMessage(NamedTuple):
    """A message of a journal, and its type.

    A writer knows it by its `mark`, an object that another one replaces once the message changes; None is the
    message itself.
    """

    item_type: ItemType
    message: Any
    mark: object = None


JournalLine = ContextItem | JournalMessage


class JournalState(NamedTuple):
    """A conversation, and what is known of it.

    Attributes:
        ratios: by model, the tokens that its provider counts for one estimated token.
        compactions: how many compactions removed messages.
        requested: time of the last request in seconds, by the writer's clock; None if unknown.
        records: ids of records that the session created, some or all of them.
        tokens_offloaded: as in the last request, see `Sent`.
        wait: when a compaction is tried again after one that was not enough.
        model: the model that replied last, as the host named it; None if it did not.
    """

    messages: Sequence[JournalLine]
    ratios: Mapping[str, float]
    compactions: int = 0
    requested: float | None = None
    records: Collection[str] = ()
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
    new: Sequence[JournalLine]

    @property
    def is_whole(self) -> bool:
        """Whether the entry has all rows."""
        return self.entry.kind != "grown"


def _next_number(entries: Iterable[JournalEntry]) -> int:
    return max((entry.number + 1 for entry in entries), default=0)


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


def _latest(listed: Iterable[JournalEntry], session: str) -> list[JournalEntry]:
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


class _Row(NamedTuple):
    """A message in the store: None if it could not be stored yet, and a text replaces it.

    It is known by the mark of its line, or else by the digest of its text.
    """

    line: JournalLine | None
    mark: object
    digest: bytes
    size: int


class Journal:
    """Stores a conversation as it grows, and reads it again; `redact` is applied to each text separately.

    The first `stored` messages are in the store unchanged.
    """

    def __init__(self, store: OffloadStore, session: str, hooks: Hooks) -> None:
        self.stored = 0
        self._store = store
        self._session = session
        self._hooks = hooks
        self._deletion = latest_deletion(store, session)
        self._number = 0
        self._last = ""
        # False if another writer, or a write that seemed to fail, may have used the number.
        self._is_numbered = False
        self._is_begun = False
        # The rows in the store, none if they are not known: then the next entry is a whole one.
        self._rows: list[_Row] = []
        self._facts: Mapping[str, Any] = {}
        # The ids of records that the entries name, and those that the next one will name.
        self._records: set[str] = set()
        self._left: dict[str, None] = {}
        # For the next entry of a request: new records and read-backs. The usage is of the last request.
        self._created = self._read_backs = 0
        self._used: Usage | None = None
        # Whether the last entry is that of a request.
        self._is_sent = False
        # The size of all rows, that of the entries since the last whole one, and how many they are.
        self._size = self._grown = self._entries = 0

    def write(
        self,
        start: int,
        state: JournalState,
        *,
        sent: Sent | None = None,
        model: str | None = None,
        used: Usage | None = None,
    ) -> list[OffloadError]:
        """Store the changes of a conversation, if any; return failures: a text replaces each such message.

        The first `start` messages are unchanged, at most `stored`; `state` has the others. A writer that has
        not read the journal starts a new one. After a failure of the store, the next call writes all.

        Args:
            start: how many messages are unchanged.
            state: the other messages, and what is known of the conversation.
            sent: the request that these messages are; None if they are not sent now. The same request again
                writes nothing.
            model: the model that it is sent to.
            used: what the provider counted for the request before.
        """
        self._note(state.records, sent, used)
        failed: list[OffloadError] = []
        edits, rows, texts = self._compared(self._rows[start:], state.messages, failed)
        if not edits and (sent is None or self._is_sent or not self._rows):
            return failed
        if not self._is_numbered:
            own = own_entries(self._store, encode_part(self._session))
            self._number = max(self._number, _next_number(own))
        is_whole = not self._rows or self._is_whole_due()
        if is_whole:
            lines = [row.line for row in self._rows[:start] if row.line is not None]
            failed = []
            encoded = [self._encode(line, failed) for line in (*lines, *state.messages)]
            start, edits, rows, texts = 0, [], [row for _, row in encoded], [text for text, _ in encoded]
        # Other messages are appended.
        inner = [(start + at, *counts) for at, *counts in edits if start + at < len(self._rows)]
        head = state.news({} if is_whole else self._facts) | ({"edits": inner} if inner else {})
        self._write_entry(start, rows, [head, *texts], self._described(sent, model), is_whole=is_whole)
        self._facts, self._is_sent = state.facts, sent is not None
        return failed

    def _write_entry(
        self,
        start: int,
        rows: Sequence[_Row],
        texts: Sequence[Any],
        described: Mapping[str, str | None],
        *,
        is_whole: bool,
    ) -> None:
        """Store an entry of a head and the texts of new rows; `rows` are those from `start` on after it."""
        head, *lines = texts
        records = [*self._records, *self._left] if is_whole else [*self._left]
        head |= {"records": records} if records else {}
        kind = ("whole" if self._is_begun else "begun") if is_whole else "grown"
        before = [] if is_whole else self._rows
        grown = self._put(kind, "\n".join([_json(head), *lines]), described)
        self._size = _size(rows) + (0 if is_whole else self._size - _size(before[start:]))
        self._grown = 0 if is_whole else self._grown + grown
        self._entries = 0 if is_whole else self._entries + 1
        before[start:] = rows
        self._rows = before
        self._records.update(self._left)
        self._left, self._used = {}, None
        if described["sent"] is not None:
            self._created = self._read_backs = 0
        self.stored = start + next((place for place, row in enumerate(rows) if row.line is None), len(rows))

    def _is_whole_due(self) -> bool:
        waste = _WASTE if self._entries < _MANY_ENTRIES else _MANY_WASTE
        return self._grown > waste * self._size

    def _note(self, records: Collection[str], sent: Sent | None, used: Usage | None) -> None:
        """Note the facts for the next entry that are not in its messages."""
        new = dict.fromkeys(ref for ref in records if ref not in self._records and ref not in self._left)
        self._left |= new
        self._created += len(new)
        self._read_backs += sent.read_backs if sent else 0
        self._used = used or self._used

    def _described(self, sent: Sent | None, model: str | None) -> dict[str, str | None]:
        """Return what the key of an entry shows of a request, and of the usage of the one before."""
        used, named = self._used, encode_part(model) if sent and model else ""
        counts = sent and sent._replace(records=self._created, read_backs=self._read_backs)
        read = used.read if used and used.read is not None else ""
        return {
            "sent": "-".join(map(str, counts)) if counts else None,
            "used": f"{used.tokens}-{read}-{used.written}" if used else None,
            "model": named if 0 < len(named) <= _MAX_MODEL_CHARS else None,
        }

    def _compared(
        self, before: Sequence[_Row], lines: Sequence[JournalLine], failed: list[OffloadError]
    ) -> tuple[list[_Edit], list[_Row], list[str]]:
        """Return the edits from the rows before to `lines`, the rows of these, and the texts of new ones."""
        marked = {id(row.mark): place for place, row in enumerate(before) if row.line is not None}
        digests: dict[bytes, list[int]] = {}
        edits, rows, texts = list[_Edit](), list[_Row](), list[str]()
        at = added = 0
        for line in lines:
            place, text = marked.get(id(_mark(line)), -1), ""
            if place >= at:
                row = before[place]
            else:
                digests = digests or _places(before)
                text, row = self._encode(line, failed)
                places = digests.get(row.digest, [])
                place = next(iter(places[bisect_left(places, at) :]), -1)
            rows.append(row)
            if place < at:
                texts.append(text)
                added += 1
                continue
            if added or place > at:
                edits.append((at, place - at, added))
            at, added = place + 1, 0
        if added or at < len(before):
            edits.append((at, len(before) - at, added))
        return edits, rows, texts

    def was_deleted(self) -> bool:
        """Return whether the last entry was deleted, if this process deleted records since the last answer.

        Raises `StoreError`.
        """
        latest = latest_deletion(self._store, self._session)
        is_gone = latest is not self._deletion and self.is_behind()
        self._deletion = latest
        return is_gone

    def is_behind(self) -> bool:
        """Return whether the last entry that this writer wrote or read was deleted, or is no longer the last.

        Raises `StoreError`.
        """
        # No key is between that of the entry and its beginning.
        listed = self._store.keys(JOURNAL.prefix(encode_part(self._session)), after=self._last[:-1])
        return [stored.key for stored in islice(listed, 2)] != ([self._last] if self._last else [])

    def read(self) -> JournalState:
        """Return the conversation as of the last entry; empty if there is none.

        Raises `CollisionError` if two agents continued it at the same time, `NotFoundError` if an entry was
        deleted, and `OffloadError` if one is damaged or cannot be read.
        """
        listed = list_entries(self._store, self._session)
        # After a failure a new conversation begins: it would not fit entries that cannot be read.
        self._number, self._is_numbered, self._is_begun = _next_number(listed), not listed, False
        self._rows, self._facts, self._records, self.stored = [], {}, set(), 0
        own = JOURNAL.prefix(encode_part(self._session))
        self._last = max((entry.at for entry in listed if entry.at.startswith(own)), default="")
        if not listed:
            return JournalState([], {})
        entries = _latest(listed, self._session)
        rows, facts = _folded(self._store, entries)
        state = _state(listed, rows, facts)
        self._rows, self._facts, self._is_begun, self._is_numbered = rows, state.facts, True, True
        # A fork or a rewind at a request has its messages: the same request again is not a new one.
        written = last_written(entries)
        self._is_sent = written is not None and written.sent is not None
        self._records = set(facts.get("records", ()))
        self._size, self._grown = _size(rows), sum(entry.size for entry in entries[1:])
        self._entries = len(entries) - 1
        return state

    def changes(self) -> Iterator[JournalChange]:
        """Yield what each entry of the last conversation changes; raises as `read`."""
        listed = _since_begun(list_entries(self._store, self._session), self._session)
        # The first entry of a fork or a rewind changes nothing.
        yield from changes_of(self._store, [entry for entry in listed if entry.base is None])

    def _put(self, kind: str, text: str, described: Mapping[str, str | None]) -> int:
        """Store an entry; return its size."""
        key, data = new_entry(encode_part(self._session), self._number, kind, text, **described)
        self._number += 1
        self._is_numbered, self._rows, self.stored = False, [], 0
        self._store.put(key, compress(data, SLOW_LEVEL))
        self._last = key
        self._is_numbered = self._is_begun = True
        return len(data)

    def _encode(self, line: JournalLine, failed: list[OffloadError]) -> tuple[str, _Row]:
        """Return the text and the row of a message."""
        unknown: list[str] = []
        try:
            data = to_json(line.message, lambda value: _named(value, unknown), is_exact=True)
            text = _json([line.item_type, map_texts(data, self._hooks.redacted)])
        except Exception as error:  # noqa: BLE001 # a hook may raise anything
            failed.append(failure("a message was not stored in the journal:", error))
            text = _json([line.item_type, _UNSTORED])
            return text, _Row(None, None, _digest(text), len(text))
        if unknown:
            failed.append(
                MessageError(f"a message holds {unknown[0]}, which has no JSON; its type name replaces it")
            )
        return text, _Row(line, _mark(line), _digest(text), len(text))


def _mark(line: JournalLine) -> object:
    mark = line.mark if isinstance(line, JournalMessage) else None
    return line.message if mark is None else mark


def _digest(text: str) -> bytes:
    return hashlib.blake2b(encode_text(text), digest_size=16).digest()


def _places(rows: Sequence[_Row]) -> dict[bytes, list[int]]:
    """Return the places of each digest, in order."""
    places: dict[bytes, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.digest, []).append(place)
    return places


def _size(rows: Sequence[_Row]) -> int:
    return sum(row.size for row in rows)


def apply_edits(rows: Sequence[T], edits: Sequence[Sequence[int]], new: Sequence[T]) -> list[T]:
    """Return `rows` with the changes of an entry applied."""
    out: list[T] = []
    at = used = 0
    for start, removed, added in edits:
        out += [*rows[at:start], *new[used : used + added]]
        at, used = start + removed, used + added
    return [*out, *rows[at:], *new[used:]]


def _parse(entry: JournalEntry, data: bytes) -> tuple[dict[str, Any], list[_Row]]:
    content = entry_bytes(entry, data)
    try:
        first, *texts = decode_text(content).split("\n")
        return _parse_head(first), [_parse_row(text) for text in texts]
    except ValueError as error:
        raise CorruptError(f"{entry.at}: {error}") from error
    except (TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{entry.at}: it has values that no agent stores") from error


def _parse_row(text: str) -> _Row:
    kind, message = json.loads(text, object_hook=from_json)
    return _Row(JournalMessage(ItemType(kind), message), message, _digest(text), len(text))


def _folded(
    store: OffloadStore, entries: Sequence[JournalEntry], rows: Sequence[_Row] = ()
) -> tuple[list[_Row], dict[str, Any]]:
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


def _state(listed: Sequence[JournalEntry], rows: Sequence[_Row], facts: Mapping[str, Any]) -> JournalState:
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


def changes_of(store: OffloadStore, entries: Sequence[JournalEntry]) -> Iterator[JournalChange]:
    """Yield what each of some entries changes. Raises `OffloadError` if one is damaged or cannot be read."""
    for entry, data in zip(entries, get_many(store, (e.at for e in entries)), strict=True):
        if isinstance(data, OffloadError):
            raise data
        head, new = _parse(entry, data)
        yield JournalChange(entry, head, [row.line for row in new if row.line is not None])


def latest_state(store: OffloadStore, session: str, listed: Sequence[JournalEntry]) -> JournalState:
    """Return the conversation after the last of the entries of a journal; raises as `Journal.read`."""
    return _state(listed, *_folded(store, _latest(listed, session)))


def messages_at(
    store: OffloadStore, session: str, entries: Sequence[JournalEntry], places: Sequence[int]
) -> list[list[Any]]:
    """Return the messages of a conversation after each entry at these indices; few entries are read.

    Raises `OffloadError` as `needed` does, or if an entry is damaged or cannot be read.
    """
    rows, read = list[_Row](), list[JournalEntry]()
    found = []
    for place in places:
        parts = [*needed(entries, place, session)]
        is_later = bool(read) and parts[: len(read)] == read
        rows, _ = _folded(store, parts[len(read) :] if is_later else parts, rows if is_later else ())
        read = parts
        found.append([row.line.message for row in rows if row.line is not None])
    return found


def first_messages(entry: JournalEntry, data: bytes) -> list[Any]:
    """Return the new messages of an entry with the content `data`. Raises `CorruptError`."""
    return [row.line.message for row in _parse(entry, data)[1] if row.line is not None]


def _wait(facts: Mapping[str, Any]) -> Wait:
    until, window, is_told = facts.get("wait") or (0, 0, 0)
    return Wait(until, window, bool(is_told))


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


def _named(value: Any, unknown: list[str]) -> str:
    unknown.append(type(value).__name__)
    return f"[{type(value).__name__}, which has no JSON]"
