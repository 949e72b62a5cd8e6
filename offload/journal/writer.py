"""Writes a journal, an entry at a time. Random letters in its key show that two writers took one number."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from offload.codec._frames import SLOW_LEVEL, compress
from offload.errors import MessageError, OffloadError, failure
from offload.index.objects import latest_deletion
from offload.journal.chain import list_entries
from offload.journal.format import JournalEntry, Sent, last_written, new_entry, own_entries
from offload.journal.reader import (
    JournalLine,
    JournalMessage,
    JournalState,
    Row,
    folded,
    latest_entries,
    row_digest,
    state_of,
)
from offload.layout import JOURNAL, encode_part
from offload.messages import Usage, to_json
from offload.messages.stored import map_texts
from offload.store import OffloadStore

# A whole entry follows once the changes since the last one have this many times the size of all messages, or
# half of it in so many entries: few objects are read for a request, and a message is written a few times.
_WASTE = 2
_MANY_ENTRIES, _MANY_WASTE = 64, 0.5
# The name of a model is part of the key unless it is longer.
_MAX_MODEL_CHARS = 80
_UNSTORED = {"role": "user", "content": "[This message could not be stored.]"}
# Start in the rows before, number of removed rows, number of new rows.
_Edit = tuple[int, int, int]
_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))


def _next_number(entries: Iterable[JournalEntry]) -> int:
    return max((entry.number + 1 for entry in entries), default=0)


class Journal:
    """Stores a conversation as it grows, and reads it again; `redacted` returns what may be stored of a text.

    The first `stored` messages are in the store unchanged.
    """

    def __init__(self, store: OffloadStore, session: str, redacted: Callable[[str], str]) -> None:
        self.stored = 0
        self._store = store
        self._session = session
        self._redacted = redacted
        self._deletion = latest_deletion(store, session)
        self._number = 0
        self._last = ""
        # False if another writer, or a write that seemed to fail, may have used the number.
        self._is_numbered = False
        self._is_begun = False
        # The rows in the store, none if they are not known: then the next entry is a whole one.
        self._rows: list[Row] = []
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
        rows: Sequence[Row],
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
        self, before: Sequence[Row], lines: Sequence[JournalLine], failed: list[OffloadError]
    ) -> tuple[list[_Edit], list[Row], list[str]]:
        """Return the edits from the rows before to `lines`, the rows of these, and the texts of new ones."""
        marked = {id(row.mark): place for place, row in enumerate(before) if row.line is not None}
        digests: dict[bytes, list[int]] = {}
        edits, rows, texts = list[_Edit](), list[Row](), list[str]()
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
        entries = latest_entries(listed, self._session)
        rows, facts = folded(self._store, entries)
        state = state_of(listed, rows, facts)
        self._rows, self._facts, self._is_begun, self._is_numbered = rows, state.facts, True, True
        # A fork or a rewind at a request has its messages: the same request again is not a new one.
        written = last_written(entries)
        self._is_sent = written is not None and written.sent is not None
        self._records = set(facts.get("records", ()))
        self._size, self._grown = _size(rows), sum(entry.size for entry in entries[1:])
        self._entries = len(entries) - 1
        return state

    def _put(self, kind: str, text: str, described: Mapping[str, str | None]) -> int:
        """Store an entry; return its size."""
        key, data = new_entry(encode_part(self._session), self._number, kind, text, **described)
        self._number += 1
        self._is_numbered, self._rows, self.stored = False, [], 0
        self._store.put(key, compress(data, SLOW_LEVEL))
        self._last = key
        self._is_numbered = self._is_begun = True
        return len(data)

    def _encode(self, line: JournalLine, failed: list[OffloadError]) -> tuple[str, Row]:
        """Return the text and the row of a message."""
        unknown: list[str] = []
        try:
            data = to_json(line.message, lambda value: _named(value, unknown), is_exact=True)
            text = _json([line.item_type, map_texts(data, self._redacted)])
        except Exception as error:  # noqa: BLE001 # a hook may raise anything
            failed.append(failure("a message was not stored in the journal:", error))
            text = _json([line.item_type, _UNSTORED])
            return text, Row(None, None, row_digest(text), len(text))
        if unknown:
            failed.append(
                MessageError(f"a message holds {unknown[0]}, which has no JSON; its type name replaces it")
            )
        return text, Row(line, _mark(line), row_digest(text), len(text))


def _mark(line: JournalLine) -> object:
    mark = line.mark if isinstance(line, JournalMessage) else None
    return line.message if mark is None else mark


def _places(rows: Sequence[Row]) -> dict[bytes, list[int]]:
    """Return the places of each digest, in order."""
    places: dict[bytes, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.digest, []).append(place)
    return places


def _size(rows: Sequence[Row]) -> int:
    return sum(row.size for row in rows)


def _named(value: Any, unknown: list[str]) -> str:
    unknown.append(type(value).__name__)
    return f"[{type(value).__name__}, which has no JSON]"
