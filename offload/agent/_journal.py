"""The journal of a conversation: what another process needs to go on with it.

It lies in a session of its own beside the one that it tells of, so the model's tools do not show it.
Each entry is a record that is written once: the messages that are new, or, where the conversation was
changed otherwise than by growing, all that are in it. So a turn writes what is new in it, and who goes on
reads from the last whole entry on. An entry holds JSON lines: its head, then a message on each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from offload.codec import Content, get_codec
from offload.compaction._archive import decoded, encoded
from offload.errors import CollisionError, OffloadError
from offload.hooks import Hooks
from offload.record import RecordInfo, decode_text
from offload.session import Draft, Session
from offload.store import OffloadStore

_SUFFIX = ".journal"
_LABEL = re.compile(r"(whole|grown)-(\d{1,9})", re.ASCII)


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
            self._entries = max(self._entries, _after(self._found()))
        start = 0 if is_changed or self._written is None else self._written
        if start == len(lines) and not is_changed:
            return
        label = f"{'grown' if start else 'whole'}-{self._entries}"
        self._entries, self._written = self._entries + 1, None
        rows: list[Any] = [{"ratios": dict(ratios)}]
        rows += [{"type": line.item_type, "message": line.message} for line in lines[start:]]
        content = Content.of("\n".join(map(self._json, rows)), 0)
        [outcome] = self._session.write([Draft("user_message", label, label, content, None, str)])
        if isinstance(outcome, OffloadError):
            raise outcome
        self._written = len(lines)

    def read(self) -> Told:
        """Return the conversation as it was when the last entry was written; empty if there is none.

        Raises:
            CollisionError: two agents went on with the conversation at once.
            OffloadError: an entry is damaged, was collected, or cannot be read.
        """
        found = self._found()
        start = max((number for number, info in found.items() if _is_whole(info)), default=0)
        infos = [found[number] for number in sorted(found) if number >= start]
        told = Told()
        for _, content in self._session.load_many(infos):
            head, *rows = (json.loads(row, object_hook=decoded) for row in decode_text(content).split("\n"))
            lines = [Line(row["type"], row["message"]) for row in rows]
            told = Told([*told.lines, *lines], head["ratios"])
        self._entries = _after(found)
        self._written = len(told.lines)
        return told

    def _json(self, row: Any) -> str:
        value = json.loads(json.dumps(row, default=encoded))
        return json.dumps(self._redacted(value), ensure_ascii=False)

    def _redacted(self, value: Any) -> Any:
        """Return `value` with each text redacted by itself: a pattern must not reach over its quotes."""
        if isinstance(value, str):
            return self._hooks.redacted(value)
        if isinstance(value, list):
            return [self._redacted(part) for part in value]
        if isinstance(value, dict):
            return {name: self._redacted(part) for name, part in value.items()}
        return value

    def _found(self) -> dict[int, RecordInfo]:
        """Return the entries of the journal by number, from a fresh listing."""
        found: dict[int, RecordInfo] = {}
        for info in self._session.infos():
            match = _LABEL.fullmatch(info.tool_name or "")
            if match is not None and found.setdefault(int(match[2]), info) is not info:
                raise CollisionError(f"two agents went on at once: {self._session.name!r} tells of both")
        return found


def _is_whole(info: RecordInfo) -> bool:
    return str(info.tool_name).startswith("whole")


def _after(found: Mapping[int, RecordInfo]) -> int:
    """Return the number of the entry that comes after those that were found."""
    return max(found, default=-1) + 1
