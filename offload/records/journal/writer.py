"""Writes a journal, an entry at a time. Random letters in its key show that two writers took one number."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import is_
from typing import Any, NamedTuple

from offload.errors import MessageError, OffloadError, failure
from offload.messages import Usage, to_json
from offload.messages.access import edits
from offload.messages.context import ItemType
from offload.messages.context.ir import item_type_of
from offload.messages.stored import map_texts
from offload.records.codec._frames import compress
from offload.records.index.objects import latest_deletion
from offload.records.journal.format import JournalEntry, RequestFigures, new_entry, own_entries
from offload.records.journal.reader import Journal, JournalState, SentList, digest_of
from offload.records.observer import Activity
from offload.storage.layout import JOURNAL, encode_part
from offload.storage.store import OffloadStore

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


def _next_number(own: Sequence[JournalEntry]) -> int:
    return own[-1].number + 1 if own else 0


class _Row(NamedTuple):
    """A message as the last entry has it, without its content.

    The writer knows it by its `mark`, an object that another one replaces once the message changes. Another
    process knows it by the `digest` of its text, which has `size` characters. If `is_stored` is False, that
    is a text in its place.
    """

    mark: object
    digest: bytes
    size: int
    is_stored: bool = True


class JournalWriter:
    """Writes the journal of one session, for all that send its requests.

    Args:
        store: the store of the session.
        session: its name.
        redacted: returns what may be stored of a text; applied to each text of a message.
        clock: returns the time in seconds.
        is_new: whether the session has no journal yet.
        is_shared: whether other processes continue the journal too, in turn; it costs a listing a request.
        on_created: called with the ids of new records before an entry names them.

    Attributes:
        activity: what the offloaders of the session create and read between requests.
        used: what the provider counted for the last request, until an entry has it.
    """

    def __init__(
        self,
        store: OffloadStore,
        session: str,
        redacted: Callable[[str], str],
        clock: Callable[[], float] = time.time,
        *,
        is_new: bool = False,
        is_shared: bool = False,
        on_created: Callable[[Iterable[str]], object] | None = None,
    ) -> None:
        self.activity = Activity()
        self.used: Usage | None = None
        self._store = store
        self._session = session
        self._redacted = redacted
        self._clock = clock
        self._on_created = on_created
        self._is_shared = is_shared
        # Whether it is known what the journal has; and why it could not be read, for the next answer.
        self._is_read = is_new
        self._unread: list[OffloadError] = []
        # Who wrote last, if the unchanged messages that it counts are those of its entry.
        self._sender: object = None
        self._has_failed = False
        self._deletion = latest_deletion(store, session)
        self._number = 0
        # The number of the last entry that was written or read; -1 before the first one.
        self._landed = -1
        self._last = ""
        # When the last request was sent.
        self._requested: float | None = None
        # The ids of records that the next entry will name.
        self._left: dict[str, None] = {}
        # For the next entry of a request: new records and read-backs.
        self._created = self._read_backs = 0
        # Whether the last entry is that of a request.
        self._is_sent = False
        # The size of all rows, that of the entries since the last whole one, and how many they are.
        self._size = self._grown = self._entries = 0
        self._clear()

    def _clear(self) -> None:
        # The rows in the store, none if they are not known: then the next entry is a whole one.
        self._rows: list[_Row] = []
        # So many of them are unchanged: a text replaces the next message.
        self._stored = 0
        self._facts: Mapping[str, Any] = {}
        # The ids of records that the entries name.
        self._records: dict[str, None] = {}
        # False if another writer, or a write that seemed to fail, may have used the number.
        self._is_numbered = False
        self._is_begun = False

    def begin(self) -> None:
        """Let the next entry begin a new conversation: only `read` continues that of another process."""
        self._is_read, self._sender = True, None

    def renew(self) -> None:
        """Read the journal before the next request: it was rewound, or deleted as records were."""
        self._is_read = False

    def interrupt(self, sender: object) -> None:
        """Note that a turn of a sender ended without a request: its next one compares all messages."""
        if self._sender is sender:
            self._sender = None

    def known(self, marks: Sequence[object]) -> int:
        """Return how many messages at the beginning of a list are those of the last entry, by their marks."""
        return next(edits([row.mark for row in self._rows], marks, is_), len(marks))

    def record(
        self,
        sender: object,
        unchanged: int,
        marks: Callable[[int], Sequence[object]],
        message: Callable[[int], Any],
        *,
        tokens: int,
        tokens_before: int,
        model: str | None,
    ) -> list[OffloadError]:
        """Store a request, as `write` does; return the failures, unless the one before had some.

        Args:
            sender: as for `write`, like `tokens` and `model`.
            unchanged: see `SentList`, as for `marks`.
            marks: returns marks.
            message: returns the message at an index.
            tokens: the tokens of its messages.
            tokens_before: those that it would have if nothing had been offloaded.
            model: the model that it goes to.
        """

        def line(index: int) -> tuple[ItemType, Any]:
            one = message(index)
            return _type_of(one), one

        # A look-alike of a placeholder grows when it is offloaded.
        state = JournalState(tokens_offloaded=max(0, tokens_before - tokens))
        had_failed = self._has_failed
        failed = self.write(sender, SentList(unchanged, marks, line), state, tokens=tokens, model=model)
        return [] if had_failed else failed

    def write(
        self,
        sender: object,
        messages: SentList,
        state: JournalState,
        *,
        tokens: int | None = None,
        model: str | None = None,
    ) -> list[OffloadError]:
        """Store the changes of a conversation, if any; return the failures.

        A text replaces each message that cannot be stored. A writer that has not read the journal begins a
        new conversation. After a failure of the store, the next call writes all.

        Args:
            sender: who writes, one of those that send the requests of the session.
            messages: the messages.
            state: what else is known of the conversation.
            tokens: the tokens of the request that the messages are; None if they are not sent now. The same
                request again writes nothing.
            model: the model that the request goes to.
        """
        try:
            self.follow()
            unread, self._unread = self._unread, []
            start = min(messages.unchanged, self._stored) if self._sender is sender else 0
            self._sender = None
            failed = [*unread, *self._write(start, messages, state, tokens, model)]
            self._sender = sender
        except OffloadError as error:
            failed = [error]
        except Exception as error:  # noqa: BLE001 # a message may be an object that raises anything
            failed = [failure("not stored in the journal:", error)]
        self._has_failed = bool(failed)
        return failed

    def _write(
        self, start: int, messages: SentList, state: JournalState, tokens: int | None, model: str | None
    ) -> list[OffloadError]:
        failed: list[OffloadError] = []
        edits, rows, texts = self._compared(start, messages, failed)
        sent = self._noted(start + len(rows), state, tokens)
        state = state._replace(requested=self._requested)
        if not edits and (sent is None or self._is_sent or not self._rows):
            return failed
        if not self._is_numbered:
            self._renumber()
        if self._rows and self._is_whole_due():
            self._rows, start, failed = [], 0, []
            _, rows, texts = self._compared(start, messages, failed)
        if not self._rows:
            self._put(state.news({}), texts, self._described(sent, model), is_whole=True)
            self._rows, self._size, self._grown, self._entries = rows, _size(rows), 0, 0
        else:
            # Other messages are appended.
            inner = [(start + at, *counts) for at, *counts in edits if start + at < len(self._rows)]
            head = state.news(self._facts) | ({"edits": inner} if inner else {})
            before = self._rows
            self._grown += self._put(head, texts, self._described(sent, model), is_whole=False)
            self._size += _size(rows) - _size(before[start:])
            self._entries += 1
            before[start:] = rows
            self._rows = before
        unstored = (place for place, row in enumerate(rows) if not row.is_stored)
        self._stored = start + next(unstored, len(rows))
        self._facts, self._is_sent = state.facts, sent is not None
        return failed

    def _renumber(self) -> None:
        # A write that seemed to fail may still land: its number is not used again.
        follows = _next_number(own_entries(self._store, encode_part(self._session)))
        self._number, self._landed = max(self._number, follows), max(self._landed, follows - 1)

    def _noted(self, count: int, state: JournalState, tokens: int | None) -> RequestFigures | None:
        """Note what the next entry has besides messages; return the request, if so many messages are sent."""
        created, reads = self.activity.take()
        if self._on_created is not None:
            self._on_created(created)
        new = dict.fromkeys(ref for ref in created if ref not in self._records and ref not in self._left)
        self._left |= new
        self._created += len(new)
        self._read_backs += reads
        if tokens is None:
            return None
        self._requested = self._clock()
        return RequestFigures(
            int(self._requested * 1000),
            count,
            tokens,
            state.tokens_offloaded,
            self._created,
            self._read_backs,
            state.compactions,
        )

    def _is_whole_due(self) -> bool:
        waste = _WASTE if self._entries < _MANY_ENTRIES else _MANY_WASTE
        return self._grown > waste * self._size

    def _described(self, sent: RequestFigures | None, model: str | None) -> dict[str, str | None]:
        """Return what the key of an entry shows of a request, and of the usage of the one before."""
        used, named = self.used, encode_part(model) if sent and model else ""
        read = used.read if used and used.read is not None else ""
        return {
            "sent": "-".join(map(str, sent)) if sent else None,
            "used": f"{used.tokens}-{read}-{used.written}" if used else None,
            "model": named if 0 < len(named) <= _MAX_MODEL_CHARS else None,
        }

    def _compared(
        self, start: int, messages: SentList, failed: list[OffloadError]
    ) -> tuple[list[_Edit], list[_Row], list[str]]:
        """Return the edits of the rows from `start` on, the rows after them, and the texts of new ones."""
        before = self._rows[start:]
        marked = {id(row.mark): place for place, row in enumerate(before) if row.is_stored}
        digests: dict[bytes, list[int]] = {}
        edits, rows, texts = list[_Edit](), list[_Row](), list[str]()
        at = added = 0
        for index, mark in enumerate(messages.marks(start), start):
            place, text = marked.get(id(mark), -1), ""
            if place >= at:
                row = before[place]
            else:
                digests = digests or _places(before)
                text, is_stored = self._encode(*messages.line(index), failed)
                row = _Row(mark, digest_of(text), len(text), is_stored)
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

    def follow(self) -> list[Any]:
        """Read the journal that the session has, if that is not known; return the messages that it read.

        The next entry reports why it cannot be continued.
        """
        try:
            return [] if self._is_current() else [line.message for line in self.read().messages]
        except OffloadError as error:
            self._unread = [error]
            return []

    def _is_current(self) -> bool:
        """Return whether the journal still ends with the entry that was written or read last."""
        if not self._is_read:
            return False
        latest = latest_deletion(self._store, self._session)
        is_behind = (latest is not self._deletion or self._is_shared) and self._is_behind()
        self._deletion = latest
        return not is_behind

    def _is_behind(self) -> bool:
        # No key is between that of the entry and its beginning.
        listed = self._store.keys(JOURNAL.prefix(encode_part(self._session)), after=self._last[:-1])
        return [stored.key for stored in islice(listed, 2)] != ([self._last] if self._last else [])

    def read(self) -> JournalState:
        """Return the conversation as of the last entry, which the next one continues; empty without any.

        Raises `CollisionError` if two agents continued it at the same time, `NotFoundError` if an entry was
        deleted, and `OffloadError` if one is damaged or cannot be read.
        """
        self._is_read, self._sender = True, None
        journal = Journal(self._store, self._session)
        # After a failure a new conversation begins: it would not fit entries that cannot be read.
        self._clear()
        self._number, self._is_numbered = _next_number(journal.own), not journal.entries
        self._landed = self._number - 1
        self._last = journal.own[-1].at if journal.own else ""
        entries, state = journal.conversation(), journal.latest()
        if not entries:
            return state
        self._rows = [_Row(line.message, line.digest, line.size) for line in state.messages]
        self._facts, self._requested = state.facts, state.requested
        self._is_begun = self._is_numbered = True
        # A fork or a rewind at a request has its messages: the same request again is not a new one.
        written = [entry.sent for entry in entries if not entry.is_move]
        self._is_sent = bool(written) and written[-1] is not None
        self._records = dict.fromkeys(state.records)
        self._size, self._grown = _size(self._rows), sum(entry.size for entry in entries[1:])
        self._entries = len(entries) - 1
        return state

    def _put(
        self, head: dict[str, Any], texts: Sequence[str], more: Mapping[str, str | None], *, is_whole: bool
    ) -> int:
        """Store an entry; return its size."""
        kind = ("whole" if self._is_begun else "begun") if is_whole else "grown"
        records = [*self._records, *self._left] if is_whole else [*self._left]
        head |= {"records": records} if records else {}
        text = "\n".join([_json(head), *texts])
        number, follows = self._number, self._landed
        if follows != number - 1:
            more = {**more, "base": f"{number if follows < 0 else follows:09}"}
        key, data = new_entry(encode_part(self._session), number, kind, text, **more)
        self._number += 1
        self._is_numbered, self._rows, self._stored = False, [], 0
        self._store.put(key, compress(data))
        self._last, self._landed = key, number
        self._is_numbered = self._is_begun = True
        self._records |= self._left
        self._left, self.used = {}, None
        if more["sent"] is not None:
            self._created = self._read_backs = 0
        return len(data)

    def _encode(self, item_type: ItemType, message: Any, failed: list[OffloadError]) -> tuple[str, bool]:
        """Return the text of a message, and whether it is the message and not a text in its place."""
        unknown: list[str] = []
        try:
            data = to_json(message, lambda value: _named(value, unknown), is_exact=True)
            text = _json([item_type, map_texts(data, self._redacted)])
        except Exception as error:  # noqa: BLE001 # a hook may raise anything
            failed.append(failure("a message was not stored in the journal:", error))
            return _json([item_type, _UNSTORED]), False
        if unknown:
            failed.append(
                MessageError(f"a message holds {unknown[0]}, which has no JSON; its type name replaces it")
            )
        return text, True


def _type_of(message: Any) -> ItemType:
    try:
        return item_type_of(message)
    except Exception:  # noqa: BLE001 # an object that is not a message may raise anything
        return ItemType.USER_MESSAGE


def _places(rows: Sequence[_Row]) -> dict[bytes, list[int]]:
    """Return the places of each digest, in order."""
    places: dict[bytes, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.digest, []).append(place)
    return places


def _size(rows: Sequence[_Row]) -> int:
    return sum(row.size for row in rows)


def _named(value: Any, unknown: list[str]) -> str:
    unknown.append(type(value).__name__)
    return f"[{type(value).__name__}, which has no JSON]"
