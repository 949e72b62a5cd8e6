"""What an offloader answers with."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from offload.errors import OffloadError
from offload.policy import Decision
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

    def turns_to_pay(self, cached: float = 0.1, uncached: float = 1.25) -> int:
        """Return after how many requests the saving has paid for the change.

        Args:
            cached: price of a token that is read from the cache.
            uncached: price of a token that is read and cached anew, in the same unit.
        """
        return ceil(self.tokens_rewritten * (uncached - cached) / max(1e-9, self.tokens_freed * cached))


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """What `Offloader.offload` did.

    Attributes:
        messages: the list to send: placeholders where items were offloaded, all else the same objects.
        records: the record behind each placeholder that replaced an item, in order of the messages.
        decisions: what became of every item and why, in order of the messages; of one, its images first.
        tokens_before: tokens of the messages as they came: of texts by the session's counter, of images and
            documents whose bytes stand in them by an estimate, see `MediaFacts.tokens`.
        tokens_after: tokens of `messages`, counted alike.
        chars_freed: characters that left.
        errors: what failed in this call; the items concerned are unchanged and are tried again on the
            next call. After an error that no part of the library raised the messages are as they came,
            and the figures are 0.
        cache: what it means for the provider's cache, where items left that had been sent before; else
            None.
    """

    messages: list[Any]
    records: list[RecordInfo]
    decisions: list[Decision]
    tokens_before: int
    tokens_after: int
    chars_freed: int
    errors: list[OffloadError]
    cache: CacheReport | None = None

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
