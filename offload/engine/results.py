"""What an offloader answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import ceil
from typing import Any, NamedTuple

from offload.errors import OffloadError
from offload.locks import Lock
from offload.messages import Block
from offload.policy import Decision, explain
from offload.record import RecordInfo


@dataclass(frozen=True, slots=True)
class CacheReport:
    """What it costs and brings that items left which the provider may have cached.

    Attributes:
        tokens_freed: tokens that every later request saves.
        tokens_rewritten: tokens from the first changed message on that were sent before: they are to be
            read and cached anew, once.
    """

    tokens_freed: int
    tokens_rewritten: int

    def turns_to_pay(self, cached: float = 0.1, uncached: float = 1.25) -> int | None:
        """Return after how many requests the saving has paid for the change, None if it never does.

        It never does where nothing is saved: no tokens are freed, or those from the cache are free.

        Args:
            cached: price of a token that is read from the cache.
            uncached: price of a token that is read and cached anew, in the same unit.
        """
        saved = self.tokens_freed * cached
        return ceil(self.tokens_rewritten * (uncached - cached) / saved) if saved > 0 else None


@dataclass(frozen=True)
class OffloadResult:
    """What `Offloader.offload` did.

    Attributes:
        messages: the list to send: placeholders where items were offloaded, all else the same objects.
        records: the record behind each placeholder that replaced an item, in order of the messages.
        decided: the decisions in parts, which later turns share; `decisions` is the list of all.
        tokens_before: tokens of the messages as they came: of texts by the session's counter, of images and
            documents whose bytes stand in them by an estimate, see `MediaFacts.tokens`.
        tokens_after: tokens of `messages`, counted alike.
        chars_freed: characters that left.
        errors: what failed in this call; the items concerned are unchanged and are tried again on the
            next call. And what stays in view above `OffloadPolicy.max_view_tokens`, in the turn that brought
            it. After an error that no part of the library raised the messages are as they came,
            and the figures are 0.
        cache: what it means for the provider's cache, where items left that had been sent before; else
            None.
    """

    messages: list[Any]
    records: list[RecordInfo]
    decided: Sequence[Sequence[Decision]]
    tokens_before: int
    tokens_after: int
    chars_freed: int
    errors: list[OffloadError]
    cache: CacheReport | None = None

    @cached_property
    def decisions(self) -> list[Decision]:
        """What became of every item and why, in order of the messages; of one, its images first."""
        return list(chain.from_iterable(self.decided))

    def figures(self) -> dict[str, int]:
        """Return how much of everything there is, without what it says."""
        return {
            "messages": len(self.messages),
            "records": len(self.records),
            "tokens_before": self.tokens_before,
            "tokens_after": self.tokens_after,
            "chars_freed": self.chars_freed,
            "errors": len(self.errors),
        }


class Missing(NamedTuple):
    """A placeholder that could not be resolved.

    Attributes:
        message: index of its message in the list.
        block: where it stands in that message, as in `ItemFacts`.
        ref: the ref that it names; empty where the renderer failed to look for one.
        error: why: `NotFoundError` if no record of the session stands for it, `ExpiredError` if that was
            collected, `CorruptError` if it is damaged, a `StoreError` if the store could not tell.
    """

    message: int
    block: Block
    ref: str
    error: OffloadError


class Restored(list[Any]):
    """The messages that `Offloader.restore` returns, a list like any other.

    Attributes:
        missing: the placeholders that stand in it still, in order; empty unless `on_missing="keep"`.
    """

    def __init__(self, messages: Sequence[Any] = (), missing: Sequence[Missing] = ()) -> None:
        super().__init__(messages)
        self.missing = list(missing)


class Latest:
    """What became of the items of the last call, and of the latest texts that were given one by one."""

    _TEXTS = 256

    def __init__(self) -> None:
        self._lock = Lock()
        self._last: OffloadResult | None = None
        self._text: Decision | None = None
        self._texts: dict[int, Decision] = {}

    def note(self, out: OffloadResult) -> OffloadResult:
        """Note what became of messages, and return it."""
        self._last = out
        return out

    def note_text(self, text: str, decision: Decision | None) -> None:
        """Note what became of one text; None if it failed before anything was decided."""
        with self._lock:
            self._last, self._text = None, decision
            self._texts.pop(hash(text), None)
            if decision is not None:
                self._texts[hash(text)] = decision
            while len(self._texts) > self._TEXTS:
                del self._texts[next(iter(self._texts))]

    def explain(self, text: str | None) -> str:
        """Return it as a table: of the last call, or of one text."""
        if text is not None:
            found = self._texts.get(hash(text))
            if found is None:
                return f"not among the last {self._TEXTS} texts that offload_text and sinks were given"
            return explain([found])
        return explain(self._last.decisions if self._last else [self._text] if self._text else [])


@dataclass(frozen=True, slots=True)
class Stats:
    """What a session holds.

    Attributes:
        session: its name.
        records: number of records.
        chars: characters of all contents.
        tokens: their tokens by the writers' counters.
        stored_bytes: bytes in the store.
        by_type: number of records per item type.
        by_tool: number of records per tool.
        reads: by ref, how many answers of this offloader's tools showed a part of a record. Nothing of it is
            stored: a new process begins with none.
        chars_read: characters of those answers. What is read back is paid for again, so compare it with
            `chars`.
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
