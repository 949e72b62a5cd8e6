"""The journal of a conversation: what another process needs to go on with it.

It lies in a session of its own beside the one that it tells of, so the model's tools do not show it.
Each entry is a record that is written once: the messages that are new, or, where the conversation was
changed otherwise than by growing, all that are in it. So a turn writes what is new in it, and who goes on
reads from the last whole entry on. An entry holds JSON lines: its head, then a message on each. Its label
is what it holds and its number: `begun-0` (all, by who read nothing before), `grown-1`, `whole-2`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from offload.codec import Content, get_codec
from offload.compaction._archive import as_data, decoded, encoded
from offload.errors import CollisionError, NotFoundError, OffloadError
from offload.hooks import Hooks
from offload.record import RecordInfo, decode_text
from offload.session import Draft, Session
from offload.store import OffloadStore

_SUFFIX = ".journal"
_LABEL = re.compile(r"(begun|whole|grown)-(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Line:
    """A message and what it is."""

    item_type: str
    message: Any


@dataclass(frozen=True, slots=True)
class Told:
    """A conversation as a journal tells it.

    Attributes:
        lines: its messages, in order.
        ratios: model → tokens that its provider counts for one that is estimated.
    """

    lines: list[Line] = field(default_factory=list)
    ratios: Mapping[str, float] = field(default_factory=dict)


class Journal:
    """Writes a conversation down as it grows, and tells it again.

    Args:
        store: where it is kept.
        session: the session whose conversation it is.
        hooks: the caller's own functions; `redact` is applied to each text by itself.
    """

    def __init__(self, store: OffloadStore, session: str, hooks: Hooks) -> None:
        self._session = Session(store, session + _SUFFIX, get_codec("zstd"))
        self._hooks = hooks
        self._entries = 0
        self._is_begun = False
        # How many lines are in the store; None is not known, so that the next entry is a whole one.
        self._written: int | None = None

    def write(self, lines: Sequence[Line], ratios: Mapping[str, float], *, is_changed: bool = False) -> None:
        """Store what of a conversation is new, if anything is.

        Who has not read the journal before begins it anew. After a failure all is written next time.

        Args:
            lines: the whole conversation.
            ratios: as in `Told`.
            is_changed: whether other than new lines changed.

        Raises:
            MessageError: a message has no JSON.
            OffloadError: what the store raised.
        """
        if self._written is None:
            self._entries = max(self._entries, _after(self._entries_found()))
        start = 0 if is_changed or self._written is None else self._written
        if start == len(lines) and not is_changed:
            return
        kind = ("whole" if self._is_begun else "begun") if start == 0 else "grown"
        label = f"{kind}-{self._entries}"
        self._entries, self._written = self._entries + 1, None
        rows: list[Any] = [{"ratios": dict(ratios)}]
        rows += [{"type": line.item_type, "message": line.message} for line in lines[start:]]
        content = Content.of("\n".join(map(self._json, rows)), 0)
        [outcome] = self._session.write([Draft("user_message", label, label, content, None, str)])
        if isinstance(outcome, OffloadError):
            raise outcome
        self._written, self._is_begun = len(lines), True

    def read(self) -> Told:
        """Return the conversation as it was when the last entry was written; empty if there is none.

        Raises:
            CollisionError: two agents went on with the conversation at once.
            NotFoundError: an entry was collected.
            OffloadError: an entry is damaged, or cannot be read.
        """
        found = self._entries_found()
        told = Told()
        for _, content in self._session.load_many(self._latest(found)):
            head, *rows = (json.loads(row, object_hook=decoded) for row in decode_text(content).split("\n"))
            lines = [Line(row["type"], row["message"]) for row in rows]
            told = Told([*told.lines, *lines], head["ratios"])
        self._entries = _after(found)
        self._written, self._is_begun = len(told.lines), bool(found)
        return told

    def _json(self, row: Any) -> str:
        return json.dumps(self._redacted(encoded(as_data(row))), ensure_ascii=False)

    def _redacted(self, value: Any) -> Any:
        """Return `value` with each text redacted by itself: a pattern must not reach over its quotes."""
        if isinstance(value, str):
            return self._hooks.redacted(value)
        if isinstance(value, list):
            return [self._redacted(part) for part in value]
        if isinstance(value, dict):
            return {name: self._redacted(part) for name, part in value.items()}
        return value

    def _entries_found(self) -> list[_Entry]:
        """Return the entries of the journal in order, from a fresh listing."""
        labelled = ((_LABEL.fullmatch(info.tool_name or ""), info) for info in self._session.infos())
        return sorted(
            (_Entry(int(label[2]), label[1], info) for label, info in labelled if label), key=_number
        )

    def _latest(self, found: Sequence[_Entry]) -> list[RecordInfo]:
        """Return the entries that tell the conversation as it is.

        Raises `CollisionError` if two tell it since it was begun, and `NotFoundError` if one is missing.
        """
        begun = max((entry.number for entry in found if entry.kind == "begun"), default=0)
        numbers = [entry.number for entry in found if entry.number >= begun]
        if len(set(numbers)) < len(numbers):
            raise CollisionError(f"two agents went on at once: {self._session.name!r} tells of both")
        whole = max((entry.number for entry in found if entry.kind != "grown"), default=-1)
        latest = [entry for entry in found if entry.number >= whole]
        if latest and (whole < 0 or latest[-1].number - whole >= len(latest)):
            raise NotFoundError(f"{self._session.name!r} lacks entries, which were collected: begin anew")
        return [entry.info for entry in latest]


class _Entry(NamedTuple):
    number: int
    kind: str
    info: RecordInfo


def _number(entry: _Entry) -> int:
    return entry.number


def _after(found: Sequence[_Entry]) -> int:
    """Return the number of the entry that comes after those that were found."""
    return found[-1].number + 1 if found else 0
