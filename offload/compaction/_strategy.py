"""The protocol of compaction strategies, and the view, the plan and the result that they share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from offload.compaction._archive import MessageArchive
from offload.context import ContextCompactor, ContextEvent, EventBus, EventType
from offload.errors import OffloadError
from offload.events import error_text
from offload.messages import adapter_for
from offload.offloader import Offloader
from offload.placeholder import Notice

_log = logging.getLogger("offload")


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Outcome of one compaction.

    Attributes:
        original_token_count: tokens before.
        new_token_count: tokens after, on the same scale.
        ref: id of the record of the removed messages; None if none was removed.
        summary: a model's summary of them; empty if no model was asked.
        error: the failure that kept all messages; None if nothing failed.
    """

    original_token_count: int
    new_token_count: int
    ref: str | None = field(default=None, kw_only=True)
    summary: str = field(default="", kw_only=True)
    error: OffloadError | None = field(default=None, kw_only=True)

    @property
    def is_compacted(self) -> bool:
        """Whether messages were removed."""
        return self.ref is not None

    @property
    def saved_ratio(self) -> float:
        """The saved part of the tokens, from 0 to 1."""
        return 1 - self.new_token_count / self.original_token_count if self.original_token_count else 0.0

    def report(self, events: EventBus, count: int, noun: str, **data: Any) -> None:
        """Emit `context_compacted` for `count` removed messages or rounds."""
        figures = {
            "original_tokens": self.original_token_count,
            "new_tokens": self.new_token_count,
            "saved_ratio": self.saved_ratio,
            "summary": self.summary,
            "compacted_count": count,
        }
        detail = f"{count} {noun} removed: {self.original_token_count} tokens became {self.new_token_count}"
        events.emit(ContextEvent(EventType.CONTEXT_COMPACTED, detail, figures | data))


class CompactionStrategy(ContextCompactor[CompactionResult], Protocol):
    """Removes messages from a context in place, and restores them: a strategy for `ContextManager`."""

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with all that `compact` ever removed, as it was."""


class StoringCompactor:
    """A compactor that stores the messages that it removes in an offloader's session."""

    def __init__(self, offloader: Offloader) -> None:
        self._archive = MessageArchive(offloader)

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with all that compactions ever removed, as it was.

        SDK objects are restored as data.

        Raises:
            OffloadError: a record is damaged, was deleted, or cannot be read.
        """
        return self._archive.restore(messages)


@dataclass(frozen=True, slots=True)
class Plan:
    """Indices of the messages to remove, the notice that replaces them, the tokens of the request after."""

    removed: Sequence[int]
    notice: Notice
    tokens: int


@dataclass(frozen=True)
class View:
    """A conversation before a compaction.

    Attributes:
        tokens: the tokens of each message, by `count`.
        total: the tokens of the request: of the messages and of all that is sent with them.
        groups: indices of messages, in runs that are removed together.
    """

    messages: Sequence[Any]
    tokens: Sequence[int]
    total: int
    groups: Sequence[Sequence[int]]
    archive: MessageArchive = field(repr=False)
    count: Callable[[Any], int] = field(repr=False)

    @cached_property
    def _notice(self) -> Notice:
        return self.archive.notice(self.messages)

    def tokens_without(self, removed: Sequence[int]) -> int:
        """Return the tokens of the request without the messages at the indices `removed`."""
        return max(0, self.total - sum(self.tokens[i] for i in removed))

    def plan(self, removed: Sequence[int], summary: str = "") -> Plan:
        """Return the plan that removes some messages. Raises `OffloadError` if the store fails."""
        notice = replace(self._notice, messages=len(removed), summary=summary)
        message = adapter_for(self.messages[removed[0]]).user_message(notice.text())
        return Plan(removed, notice, self.tokens_without(removed) + self.count(message))


def warn(error: OffloadError) -> None:
    """Log a failed compaction."""
    _log.warning("nothing was compacted: %s", error_text(error))
