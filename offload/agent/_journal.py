"""The journal of a conversation: the state that another process needs to continue it.

It is kept next to the records of its session, under keys that no listing of sessions or records shows.
`FORMAT.md` describes its entries: each is an object that is written once, with all messages or the changes
since the entry before. Random letters in its key show that two writers took one number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from offload.codec._frames import SLOW_LEVEL, compress, decompress
from offload.context import ContextItem, ItemType
from offload.errors import CollisionError, CorruptError, MessageError, NotFoundError, OffloadError
from offload.events import failure
from offload.layout import JOURNAL, encode_part, random_letters
from offload.messages import from_json, to_json
from offload.messages.stored import map_texts
from offload.record.text import decode_text, encode_text
from offload.session.reader import SessionReader
from offload.settings.hooks import Hooks
from offload.store import OffloadStore, get_many

# The maximum size of an entry, checked before memory is allocated.
_MOST_BYTES = 256 * 1024 * 1024
# A whole entry follows once the changes since the last one have this many times its size, to bound reads.
_WASTE = 2
_UNSTORED = {"role": "user", "content": "[This message could not be stored.]"}

T = TypeVar("T")
# Start in the rows before, number of removed rows, number of new rows.
_Edit = tuple[int, int, int]
_EDIT_NUMBERS = 3
_MOST_RATIO = 1000
_json = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
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


class JournalChange(NamedTuple):
    """The change by an entry: its head with the edits of the rows before, and the new rows, or all rows."""

    is_whole: bool
    head: Mapping[str, Any]
    new: Sequence[JournalLine]


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
    whole = max((entry.number for entry in entries if entry.kind != "grown"), default=-1)
    current = [entry for entry in entries if entry.number >= whole]
    if current and (whole < 0 or current[-1].number - whole >= len(current)):
        raise NotFoundError(
            f"session {session!r} cannot be resumed: journal entries were deleted; start a new session"
        )
    return current


class _Row(NamedTuple):
    """A message in the store: None if it could not be stored yet, and a text replaces it."""

    line: JournalLine | None
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
        self._number = 0
        # False if another writer, or a write that seemed to fail, may have used the number.
        self._is_numbered = False
        self._is_begun = False
        # The rows in the store, none if they are not known: then the next entry is a whole one.
        self._rows: list[_Row] = []
        self._facts: Mapping[str, Any] = {}
        # The size of all rows, and of the entries since the last whole one.
        self._size = self._grown = 0

    def write(self, start: int, state: JournalState) -> list[OffloadError]:
        """Store the changes of a conversation, if any; return failures: a text replaces each such message.

        The first `start` messages are unchanged, at most `stored`; `state` has the others. A writer that has
        not read the journal starts a new one. After a failure of the store, the next call writes all.
        """
        lines = state.messages
        edits, kept = _edits(self._rows[start:], lines)
        if not edits:
            return []
        if not self._is_numbered:
            self._number = max(self._number, _next_number(self._listed()))
        is_whole = not self._rows or self._grown > _WASTE * self._size
        if is_whole:
            lines = [*(row.line for row in self._rows[:start] if row.line is not None), *lines]
            start, edits, kept = 0, [], [None] * len(lines)
        failed: list[OffloadError] = []
        written = [self._encode(line, row, failed) for line, row in zip(lines, kept, strict=True)]
        if not is_whole and _has_only_unstored(self._rows[start:], written, kept):
            return failed
        texts, rows = [text for text, _ in written if text], [row for _, row in written]
        # Other messages are appended.
        inner = [(start + at, *counts) for at, *counts in edits if start + at < len(self._rows)]
        head = state.news({} if is_whole else self._facts) | ({"edits": inner} if inner else {})
        kind = ("whole" if self._is_begun else "begun") if is_whole else "grown"
        before = [] if is_whole else self._rows
        grown = self._put(kind, "\n".join([_json(head), *texts]))
        self._size = _size(rows) + (0 if is_whole else self._size - _size(before[start:]))
        self._grown = 0 if is_whole else self._grown + grown
        before[start:] = rows
        self._rows, self._facts = before, state.facts
        self.stored = start + next((place for place, row in enumerate(rows) if row.line is None), len(rows))
        return failed

    def read(self) -> JournalState:
        """Return the conversation as of the last entry; empty if there is none.

        Raises `CollisionError` if two agents continued it at the same time, `NotFoundError` if an entry was
        deleted, and `OffloadError` if one is damaged or cannot be read.
        """
        listed = self._listed()
        # After a failure a new conversation begins: it would not fit entries that cannot be read.
        self._number, self._is_numbered, self._is_begun = _next_number(listed), True, False
        if not listed:
            return _read_old(self._store, self._session)
        entries = _latest(listed, self._session)
        rows, facts = list[_Row](), dict[str, Any]()
        for entry, data in zip(entries, get_many(self._store, (e.at for e in entries)), strict=True):
            if isinstance(data, OffloadError):
                raise data
            head, new = _parse(entry, data)
            rows = apply_edits([] if entry.kind != "grown" else rows, head.get("edits", ()), new)
            facts = ({} if entry.kind != "grown" else facts) | head
        requested = facts.get("requested")
        state = JournalState(
            [row.line for row in rows if row.line is not None],
            facts.get("ratios", {}),
            facts.get("compactions", 0),
            requested if type(requested) is int else None,
        )
        self._rows, self._facts, self._is_begun = rows, state.facts, True
        self._size, self._grown = _size(rows), sum(entry.size for entry in entries[1:])
        return state

    def changes(self) -> Iterator[JournalChange]:
        """Yield what each entry of the last conversation changes; raises as `read`."""
        entries = _since_begun(self._listed(), self._session)
        for entry, data in zip(entries, get_many(self._store, (e.at for e in entries)), strict=True):
            if isinstance(data, OffloadError):
                raise data
            head, new = _parse(entry, data)
            lines = [row.line for row in new if row.line is not None]
            yield JournalChange(entry.kind != "grown", head, lines)

    def _put(self, kind: str, text: str) -> int:
        """Store an entry; return its size."""
        data = encode_text(text)
        if len(data) > _MOST_BYTES:
            raise MessageError(f"a journal entry may have {_MOST_BYTES} bytes, got {len(data)}")
        key = JOURNAL.key(
            session=encode_part(self._session),
            number=f"{self._number:09}",
            kind=kind,
            bytes=len(data),
            letters=random_letters(),
        )
        self._number += 1
        self._is_numbered, self._rows, self.stored = False, [], 0
        self._store.put(key, compress(data, SLOW_LEVEL))
        self._is_numbered = self._is_begun = True
        return len(data)

    def _encode(self, line: JournalLine, kept: _Row | None, failed: list[OffloadError]) -> tuple[str, _Row]:
        """Return the text and the row of a message; "" if it is in the store already."""
        if kept is not None:
            return "", kept
        unknown: list[str] = []
        try:
            data = to_json(line.message, lambda value: _named(value, unknown))
            text = _json([line.item_type, map_texts(data, self._hooks.redacted)])
        except Exception as error:  # noqa: BLE001 # a hook may raise anything
            failed.append(failure("a message was not stored in the journal:", error))
            text = _json([line.item_type, _UNSTORED])
            return text, _Row(None, len(text))
        if unknown:
            failed.append(
                MessageError(f"a message holds {unknown[0]}, which has no JSON; its type name replaces it")
            )
        return text, _Row(line, len(text))

    def _listed(self) -> list[JournalEntry]:
        keys = [stored.key for stored in self._store.keys(JOURNAL.prefix(encode_part(self._session)))]
        matches = filter(None, map(JOURNAL.match, keys))
        return [JournalEntry(int(m["number"]), m["kind"], m.string, int(m["bytes"])) for m in matches]


def _edits(before: Sequence[_Row], after: Sequence[JournalLine]) -> tuple[list[_Edit], list[_Row | None]]:
    """Return the edits from `before` to `after`, and the row of each line of `after`, None for a new one."""
    places = {id(row.line.message): place for place, row in enumerate(before) if row.line is not None}
    edits: list[_Edit] = []
    kept: list[_Row | None] = []
    at = added = 0
    for line in after:
        place = places.get(id(line.message), -1)
        if place < at:
            kept.append(None)
            added += 1
            continue
        if added or place > at:
            edits.append((at, place - at, added))
        kept.append(before[place])
        at, added = place + 1, 0
    if added or at < len(before):
        edits.append((at, len(before) - at, added))
    return edits, kept


def _size(rows: Sequence[_Row]) -> int:
    return sum(row.size for row in rows)


def _has_only_unstored(
    before: Sequence[_Row], written: Sequence[tuple[str, _Row]], kept: Sequence[_Row | None]
) -> bool:
    """Return whether a write would only repeat messages that could not be stored before."""
    fresh = [row for (_, row), known in zip(written, kept, strict=True) if known is None]
    return len(written) == len(before) and all(row.line is None for row in fresh)


def apply_edits(rows: Sequence[T], edits: Sequence[Sequence[int]], new: Sequence[T]) -> list[T]:
    """Return `rows` with the changes of an entry applied."""
    out: list[T] = []
    at = used = 0
    for start, removed, added in edits:
        out += [*rows[at:start], *new[used : used + added]]
        at, used = start + removed, used + added
    return [*out, *rows[at:], *new[used:]]


def _parse(entry: JournalEntry, data: bytes) -> tuple[dict[str, Any], list[_Row]]:
    if entry.size > _MOST_BYTES:
        raise CorruptError(f"{entry.at}: an entry may have {_MOST_BYTES} bytes, got {entry.size}")
    try:
        first, *texts = decode_text(decompress(data, entry.size)).split("\n")
        values = [(json.loads(text, object_hook=from_json), len(text)) for text in texts]
        rows = [_Row(JournalMessage(ItemType(kind), message), size) for (kind, message), size in values]
        return _parse_head(first), rows
    except (CorruptError, ValueError) as error:
        raise CorruptError(f"{entry.at}: {error}") from error
    except (TypeError, AttributeError, RecursionError) as error:
        raise CorruptError(f"{entry.at}: it has values that no agent stores") from error


def _parse_head(text: str) -> dict[str, Any]:
    """Return the head of an entry. Raises `ValueError`, `TypeError` or `AttributeError` for any other."""
    head: dict[str, Any] = json.loads(text)
    counts = [head.get("compactions", 0), *chain.from_iterable(head.get("edits", ()))]
    is_sound = (
        all(type(count) is int and count >= 0 for count in counts)
        and all(len(edit) == _EDIT_NUMBERS for edit in head.get("edits", ()))
        and all(0 < ratio < _MOST_RATIO for ratio in head.get("ratios", {}).values())
    )
    if not is_sound:
        raise ValueError("it has values that no agent stores")
    return head


def _named(value: Any, unknown: list[str]) -> str:
    unknown.append(type(value).__name__)
    return f"[{type(value).__name__}, which has no JSON]"


def _read_old(store: OffloadStore, session: str) -> JournalState:
    """Return the conversation in a journal of release 0.1: the records of the session `<session>.journal`."""
    reader = SessionReader(store, f"{session}.journal")
    infos = [info for info in reader.infos() if info.item_type == "user_message"]
    labelled = ((_LABEL.fullmatch(info.tool_name or ""), info) for info in infos)
    entries = [JournalEntry(int(label[2]), label[1], info) for label, info in labelled if label]
    state = JournalState([], {})
    for entry in _latest(entries, session):
        _, content = reader.load(entry.at, reader.open(entry.at))
        head, *rows = (json.loads(row, object_hook=from_json) for row in decode_text(content).split("\n"))
        messages = [JournalMessage(ItemType(row["type"]), row["message"]) for row in rows]
        state = JournalState([*state.messages, *messages], head["ratios"])
    return state
