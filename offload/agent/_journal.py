"""The journal of a conversation: what another process needs to go on with it.

It lies beside the records of its session, where neither a listing of sessions nor one of records looks:

    j/<session>/<number>~<kind>~<bytes>~<letters>.zst

Each entry is an object that is written once: a zstd frame of so many bytes of JSON lines, a head and then
the messages that are new, each as `[what it is, the message]`. They come at the end, but for those that
`edits` of the head names: for each stretch that was replaced, where it began, how many messages went, how
many came. `ratios` stands in the head where it changed. Of the kinds, `begun` and `whole` tell all (the
first by who read nothing before), `grown` goes on from the entry before. The letters are drawn, so that two
writers of one number are found out.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from offload.agent._entries import Entry, Line, Told, ToldLine, latest, number_after
from offload.agent._old_journal import read_old
from offload.codec._frames import SLOW_LEVEL, compress, decompress
from offload.context import ItemType
from offload.errors import CorruptError, MessageError, OffloadError
from offload.events import failure
from offload.hooks import Hooks
from offload.layout import JOURNAL, encode_part
from offload.messages import from_json, map_texts, to_json
from offload.record import decode_text, encode_text
from offload.store import OffloadStore, get_many

_LETTERS = 10
# What an entry may say: a claim is checked before memory is taken.
_MOST_BYTES = 256 * 1024 * 1024
# All is told anew once the entries since then say so many times as much: reading takes no longer than that.
_WASTE = 2
_UNWRITTEN = {"role": "user", "content": "[A message stood here that could not be written down.]"}

_Edit = tuple[int, int, int]


class _Row(NamedTuple):
    """A line in the store: None where another text stands for it, since it could not be written yet."""

    line: Line | None
    size: int


class Journal:
    """Writes a conversation down as it grows, and tells it again.

    Args:
        store: where it is kept.
        session: the session whose conversation it is.
        hooks: the caller's own functions; `redact` is applied to each text by itself.

    Attributes:
        sure: how many lines from the first on are in the store as they are.
    """

    def __init__(self, store: OffloadStore, session: str, hooks: Hooks) -> None:
        self.sure = 0
        self._store = store
        self._session = session
        self._hooks = hooks
        self._number = 0
        # Whether the number is the next one: another may have written, or a failed write be there after all.
        self._is_numbered = False
        self._is_begun = False
        # What is in the store; unless that is known, the next entry is a whole one.
        self._is_known = False
        self._rows: list[_Row] = []
        self._ratios: Mapping[str, float] = {}
        # What all rows say, and what the entries say since the last whole one.
        self._size = self._grown = 0

    def write(self, start: int, lines: Sequence[Line], ratios: Mapping[str, float]) -> list[OffloadError]:
        """Store what of a conversation is new, if anything is.

        Who has not read the journal before begins it anew. After a failure all is written next time.

        Args:
            start: how many lines from the first on are known to be as they were; at most `sure`.
            lines: all others.
            ratios: as in `Told`.

        Returns:
            What of a message could not be written; a text stands there instead.

        Raises:
            OffloadError: what the store raised.
        """
        edits, kept = _edits(self._rows[start:], lines)
        if not edits:
            return []
        if not self._is_numbered:
            self._number = max(self._number, number_after(self._found()))
        is_whole = not self._is_known or self._grown > _WASTE * self._size
        if is_whole:
            lines = [*(row.line for row in self._rows[:start] if row.line is not None), *lines]
            start, edits, kept = 0, [], [None] * len(lines)
        failed: list[OffloadError] = []
        written = [self._written(line, row, failed) for line, row in zip(lines, kept, strict=True)]
        if not is_whole and _is_in_vain(self._rows[start:], written, kept):
            return failed
        texts, rows = [text for text, _ in written if text], [row for _, row in written]
        self._put(self._head(start, edits, ratios, is_whole=is_whole), texts, is_whole=is_whole)
        self._take_note(start, rows, ratios)
        return failed

    def _head(
        self, start: int, edits: Sequence[_Edit], ratios: Mapping[str, float], *, is_whole: bool
    ) -> dict[str, Any]:
        """Return what stands before the messages of an entry: as little as tells what changed."""
        moved = [(start + at, gone, come) for at, gone, come in edits]
        inner = [edit for edit in moved if edit[0] < len(self._rows)]
        is_other = is_whole or ratios != self._ratios
        return {**({"ratios": dict(ratios)} if is_other else {}), **({"edits": inner} if inner else {})}

    def read(self) -> Told:
        """Return the conversation as it was when the last entry was written; empty if there is none.

        Raises:
            CollisionError: two agents went on with the conversation at once.
            NotFoundError: an entry was removed.
            OffloadError: an entry is damaged, or cannot be read.
        """
        found = self._found()
        self._number, self._is_numbered, self._is_begun = number_after(found), True, bool(found)
        if not found:
            return read_old(self._store, self._session)
        wanted = latest(found, self._session)
        told, ratios = list[tuple[ToldLine, int]](), dict[str, float]()
        for entry, data in zip(wanted, self._bodies(wanted), strict=True):
            head, lines = _opened(entry, data)
            told = _edited([] if entry.kind != "grown" else told, head.get("edits", ()), lines)
            ratios = head.get("ratios", ratios)
        self._is_known = True
        self._rows = [_Row(line, size) for line, size in told]
        self._size, self._grown = sum(size for _, size in told), sum(e.size for e in wanted[1:])
        self._ratios = ratios
        return Told([line for line, _ in told], ratios)

    def go_on(self, lines: Sequence[Line]) -> None:
        """Take `lines`, made of those that were read, for what is in the store."""
        pairs = zip(lines, self._rows, strict=False)
        is_same = all(row.line is not None and line.message is row.line.message for line, row in pairs)
        if self._is_known and is_same and len(lines) == len(self._rows):
            self._rows = [_Row(line, row.size) for line, row in zip(lines, self._rows, strict=True)]
            self.sure = len(lines)
        else:
            self._forget()

    def _put(self, head: Mapping[str, Any], texts: Sequence[str], *, is_whole: bool) -> None:
        kind = ("whole" if self._is_begun else "begun") if is_whole else "grown"
        data = encode_text("\n".join([_json(head), *texts]))
        if len(data) > _MOST_BYTES:
            raise MessageError(f"an entry of the journal takes {len(data)} bytes, {_MOST_BYTES} are allowed")
        letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(_LETTERS))
        key = JOURNAL.key(
            session=encode_part(self._session),
            number=f"{self._number:09}",
            kind=kind,
            bytes=len(data),
            letters=letters,
        )
        rows, size, grown = self._rows, self._size, self._grown
        self._number += 1
        self._is_numbered = False
        self._forget()
        self._store.put(key, compress(data, SLOW_LEVEL))
        self._is_numbered = self._is_begun = self._is_known = True
        self._rows, self._size, self._grown = rows, size, 0 if is_whole else grown + len(data)

    def _take_note(self, start: int, rows: list[_Row], ratios: Mapping[str, float]) -> None:
        self._size += sum(row.size for row in rows) - sum(row.size for row in self._rows[start:])
        self._rows[start:] = rows
        self._ratios = dict(ratios)
        unwritten = (place for place, row in enumerate(rows) if row.line is None)
        self.sure = start + next(unwritten, len(rows))

    def _forget(self) -> None:
        self._is_known, self._rows, self._size, self._grown, self.sure = False, [], 0, 0, 0

    def _written(self, line: Line, kept: _Row | None, failed: list[OffloadError]) -> tuple[str, _Row]:
        """Return what is to be written of a line, nothing if it is in the store, and its row."""
        if kept is not None:
            return "", kept
        unknown: list[str] = []
        try:
            data = to_json(line.message, lambda value: _named(value, unknown))
            text = _json([line.item_type, map_texts(data, self._hooks.redacted)])
        except Exception as error:  # noqa: BLE001 # a hook of the caller's own may raise anything
            failed.append(failure("a message was not written down:", error))
            text = _json([line.item_type, _UNWRITTEN])
            return text, _Row(None, len(text))
        if unknown:
            failed.append(MessageError(f"a message holds what has no JSON, named in its place: {unknown[0]}"))
        return text, _Row(line, len(text))

    def _found(self) -> list[Entry]:
        """Return the entries of the journal, from a fresh listing."""
        keys = [stored.key for stored in self._store.keys(JOURNAL.prefix(encode_part(self._session)))]
        matches = filter(None, map(JOURNAL.match, keys))
        return [Entry(int(m["number"]), m["kind"], m.string, int(m["bytes"])) for m in matches]

    def _bodies(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        """Yield the object of each entry."""
        for body in get_many(self._store, (entry.at for entry in entries)):
            if isinstance(body, OffloadError):
                raise body
            yield body


def _edits(before: Sequence[_Row], after: Sequence[Line]) -> tuple[list[_Edit], list[_Row | None]]:
    """Return what makes `after` of `before`, and for each line of it its row, None for a new one.

    An edit is where it begins in `before`, how many rows go there, and how many new lines come.
    """
    places = {id(row.line): place for place, row in enumerate(before)}
    edits: list[_Edit] = []
    kept: list[_Row | None] = []
    at = come = 0
    for line in after:
        place = places.get(id(line), -1)
        if place < at:
            kept.append(None)
            come += 1
            continue
        if come or place > at:
            edits.append((at, place - at, come))
        kept.append(before[place])
        at, come = place + 1, 0
    if come or at < len(before):
        edits.append((at, len(before) - at, come))
    return edits, kept


def _is_in_vain(
    before: Sequence[_Row], written: Sequence[tuple[str, _Row]], kept: Sequence[_Row | None]
) -> bool:
    """Tell whether all that would be written is what could not be written before."""
    fresh = [row for (_, row), known in zip(written, kept, strict=True) if known is None]
    return len(written) == len(before) and all(row.line is None for row in fresh)


_SizedLine = tuple[ToldLine, int]


def _edited(
    told: list[_SizedLine], edits: Sequence[Sequence[int]], new: list[_SizedLine]
) -> list[_SizedLine]:
    """Return what an entry makes of what was told before it."""
    out: list[_SizedLine] = []
    at = taken = 0
    for begin, gone, come in edits:
        out += [*told[at:begin], *new[taken : taken + come]]
        at, taken = begin + gone, taken + come
    return [*out, *told[at:], *new[taken:]]


def _opened(entry: Entry, data: bytes) -> tuple[dict[str, Any], list[_SizedLine]]:
    """Return the head of an entry, and its lines with what each takes. Raises `CorruptError`."""
    if entry.size > _MOST_BYTES:
        raise CorruptError(f"{entry.at}: no entry says so much")
    try:
        head, *texts = decode_text(decompress(data, entry.size)).split("\n")
        rows = [(json.loads(text, object_hook=from_json), len(text)) for text in texts]
        return json.loads(head), [(ToldLine(ItemType(kind), said), size) for (kind, said), size in rows]
    except (CorruptError, ValueError, TypeError) as error:
        raise CorruptError(f"{entry.at}: {error}") from error


def _named(value: Any, unknown: list[str]) -> str:
    unknown.append(type(value).__name__)
    return f"[{type(value).__name__}, which could not be written down]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
