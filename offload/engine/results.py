"""Results of an offloader's calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, NamedTuple

import msgspec

from offload.base.threads.locks import Lock, cached
from offload.base.tokens import estimate_tokens
from offload.engine.policy import Decision, explain
from offload.engine.policy.reasons import Reason, ReasonKind
from offload.errors import OffloadError
from offload.messages.base import BlockIndex
from offload.messages.formats import role_or_none, scan_of
from offload.records.record import RecordInfo
from offload.records.record.header import Head

CacheCause = Literal["ours", "pause", "host", "miss"]
# Characters at each end of a text by which it is known.
_MARKED_CHARS = 8 * 1024


class CacheReport(msgspec.Struct, frozen=True):
    """Tokens that were sent before but are not served from the provider's cache, and their cost.

    Attributes:
        tokens_freed: tokens that every later request saves, because items in these messages were replaced.
        tokens_rewritten: tokens that were sent before and that the provider processes and caches again with
            this request.
        cause: the cause: "ours", replaced items changed messages that were sent before; "pause", a pause
            longer than the cache's lifetime; "host", you passed that the cache is cold; "miss", the provider
            missed its cache, so only `tokens_missed` counts.
        tokens_missed: tokens of the last request that the provider should have found in its cache, but did
            not, according to the usage that it reported.
        read: price of a token that is read from the cache, relative to an uncached input token.
        write: price of a token that is processed and cached again.
    """

    tokens_freed: int
    tokens_rewritten: int
    cause: CacheCause = "ours"
    tokens_missed: int = 0
    read: float = 0.1
    write: float = 1.25

    @property
    def cost(self) -> float:
        """Extra price of rewritten and missed tokens over reading them from the cache, in uncached tokens."""
        return (self.tokens_rewritten + self.tokens_missed) * (self.write - self.read)

    def turns_to_pay(self, cached: float | None = None, uncached: float | None = None) -> int | None:
        """Return the number of requests after which the saving exceeds the cost of the change.

        Args:
            cached: price of a token that is read from the cache; None is `read`.
            uncached: price of a token that is processed and cached again, in the same unit; None is `write`.

        Returns:
            The number of requests, 0 if the cache was cold anyway; None if it never pays, because no tokens
            are freed or cached tokens cost nothing.
        """
        cached = self.read if cached is None else cached
        uncached = self.write if uncached is None else uncached
        saved = self.tokens_freed * cached
        changed = self.tokens_rewritten if self.cause == "ours" else 0
        return ceil(changed * (uncached - cached) / saved) if saved > 0 else None


class HistoryMode(NamedTuple):
    """Whether messages that were sent may change later, and why.

    Attributes:
        rule: "append_only" or "editable".
        reason: why.
        thinking_removed: blocks of signed thinking that this call removed, since a message before them
            changed; `restore` restores them.
    """

    rule: Literal["append_only", "editable"] = "editable"
    reason: Reason = Reason(ReasonKind.UNSIGNED)
    thinking_removed: int = 0

    def __str__(self) -> str:
        """Return the line that `explain` shows."""
        blocks = f"; blocks of thinking removed: {self.thinking_removed}" if self.thinking_removed else ""
        return f"history: {self.rule}, since {self.reason}{blocks}"


_FREE = HistoryMode()


@dataclass(frozen=True)
class OffloadResult:
    """Result of `Offloader.offload`.

    Attributes:
        messages: the list to send: placeholders replace the offloaded items, all other messages are the same
            objects.
        records: the record behind each placeholder that replaced an item, in order of the messages. Results
            with the same records share the list: copy it before you change it.
        decided: a list that later turns extend, and the number of its decisions that belong to this call; use
            `decisions`.
        tokens_before: tokens of the messages as passed: texts by the session's counter, images and documents
            by an estimate, see `MediaFacts.tokens`.
        tokens_after: tokens of `messages`, counted the same way.
        chars_freed: characters that were replaced.
        errors: failures of this call; these items are unchanged, and the next call tries again. In the turn
            that added them, also kept items above `OffloadPolicy.max_view_tokens`. After an unexpected error
            the messages are unchanged and the figures are 0.
        cache: tokens that were sent before but are not served from the provider's cache; None if there are
            none.
        history: whether messages that were sent may change later, by `OffloadPolicy.history` and the model.
        unchanged: how many of the first messages are those that the call before returned; there may be more.
    """

    messages: list[Any]
    records: list[RecordInfo]
    decided: tuple[list[Decision], int]
    tokens_before: int
    tokens_after: int
    chars_freed: int
    errors: list[OffloadError]
    cache: CacheReport | None = None
    history: HistoryMode = _FREE
    unchanged: int = field(default=0, compare=False)

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}={count}" for name, count in self.figures().items())
        return f"OffloadResult({figures})"

    def _repr_html_(self) -> str:
        """Return the figures as a table, and the messages as a bar of their tokens, for a notebook."""
        from offload.records.record.display import html_bar, html_table  # noqa: PLC0415 # only a notebook needs it

        scans = [(role_or_none(message) or "other", scan_of(message)) for message in self.messages]
        sizes = [(role, scan.tokens(estimate_tokens)) for role, scan in scans]
        parts = ((role, f"messages[{at}], {role}: {size:,} tokens") for at, (role, size) in enumerate(sizes))
        bar = html_bar((*part, size) for part, (_, size) in zip(parts, sizes, strict=True))
        return html_table([self.figures()]) + bar

    @cached
    def decisions(self) -> list[Decision]:
        """The decision on every item with its reason, in order of the messages; images of a message first."""
        decisions, count = self.decided
        return decisions[:count]

    def figures(self) -> dict[str, int]:
        """Return the counts, without content."""
        return {
            "messages": len(self.messages),
            "records": len(self.records),
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "chars_freed": self.chars_freed,
            "errors": len(self.errors),
        }


class OffloadOutcome(NamedTuple):
    """Outcome of offloading one text.

    Attributes:
        text: the text for the message: its placeholder or, if it is kept, the text itself.
        info: its record; None if it is kept.
        error: why it could not be stored; None if nothing failed.
        decision: the decision on it; None for a text too long for a message, which is always offloaded.
    """

    text: str
    info: RecordInfo | None = None
    error: OffloadError | None = None
    decision: Decision | None = None


class Missing(NamedTuple):
    """A placeholder, a notice or removed thinking that could not be restored.

    Attributes:
        message: index of its message in the restored list, in which notices before it may be restored.
        block: its block in that message, as in `ItemFacts`.
        ref: the id in it; empty if the renderer found none, and for removed thinking, which may be missing
            from any message.
        error: `NotFoundError` if no record of the session has this placeholder, `ExpiredError` if the record
            was deleted, `CorruptError` if it is damaged, `StoreError` if the store failed, `MessageError` if
            a notice shares its message with other content.
    """

    message: int
    block: BlockIndex
    ref: str
    error: OffloadError


class Restored(list[Any]):
    """The messages that `Offloader.restore` returns, a list like any other.

    Attributes:
        missing: the placeholders that remain in it, in order; empty unless `on_missing="keep"`.
    """

    def __init__(self, messages: Sequence[Any] = (), missing: Sequence[Missing] = ()) -> None:
        super().__init__(messages)
        self.missing: list[Missing] = list(missing)


def is_whole(messages: Sequence[Any]) -> bool:
    """Return whether an offloader restored all of these messages; a strategy may keep removed ones elsewhere.

    Restored once more, a text that only looks like a placeholder would have no record.
    """
    return isinstance(messages, Restored) and not messages.missing


class Latest:
    """The decisions of the last call, and on the latest single texts."""

    _TEXTS = 256

    def __init__(self) -> None:
        self._lock = Lock()
        self._decided: tuple[list[Decision], int] = [], 0
        self._is_new = True
        self._texts: dict[tuple[int, int, int], Decision] = {}
        self._history: HistoryMode | None = None

    def note(self, result: OffloadResult) -> None:
        """Note the result of `offload`."""
        self._decided, self._history, self._is_new = result.decided, result.history, False

    def note_text(self, text: str, decision: Decision | None) -> None:
        """Note the decision on one text; None if the call failed before a decision."""
        with self._lock:
            self._decided = ([], 0) if decision is None else ([decision], 1)
            self._history, self._is_new = None, False
            mark = _mark(text)
            self._texts.pop(mark, None)
            if decision is not None:
                self._texts[mark] = decision
            while len(self._texts) > self._TEXTS:
                del self._texts[next(iter(self._texts))]

    def explain(self, text: str | None) -> str:
        """Return the decisions of the last call, or on one text, as a table."""
        if text is not None:
            decision = self._texts.get(_mark(text))
            if decision is None:
                return f"not among the last {self._TEXTS} texts passed to offload_text and sinks"
            return explain([decision])
        decisions, count = self._decided
        if not count and self._is_new:
            return "no decision yet: explain shows the last call of offload, offload_text or a sink"
        table = explain(decisions[:count])
        is_plain = self._history is None or self._history == _FREE
        return table if is_plain else f"{table}\n{self._history}"


def _mark(text: str) -> tuple[int, int, int]:
    """Return by what a text is known: its length and its ends, since to hash all of it takes a pass."""
    return len(text), hash(text[:_MARKED_CHARS]), hash(text[-_MARKED_CHARS:])


class Stats(msgspec.Struct, frozen=True):
    """Contents of a session and reads of this offloader.

    Attributes:
        session: the session's name.
        records: number of records.
        chars: characters of all contents.
        tokens: their tokens by the writers' counters.
        stored_bytes: bytes in the store.
        by_type: number of records per item type.
        by_tool: number of records per tool.
        reads: per ref, the number of this offloader's tool answers that showed part of the record. Not
            stored: a new process starts at zero.
        chars_read: characters of these answers. They are paid for again, so compare them with `chars`.
    """

    session: str
    records: int
    chars: int
    tokens: int
    stored_bytes: int
    by_type: dict[str, int]
    by_tool: dict[str, int]
    reads: dict[str, int]
    chars_read: int


class Remembered(msgspec.Struct, frozen=True):
    """Objects that a new process would have to read one by one; see `Offloader.remembered`.

    Attributes:
        heads: heads of records, by the last part of their keys.
        thinking: the contents of the records of removed thinking, in the same way.
    """

    heads: dict[str, Head] = {}
    thinking: dict[str, str] = {}
