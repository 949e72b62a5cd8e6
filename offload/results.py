"""What an offloader answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from offload.errors import OffloadError
from offload.policy import Decision
from offload.record import RecordInfo


@dataclass(frozen=True, slots=True)
class OffloadResult:
    """What `Offloader.offload` did.

    Attributes:
        messages: the list to send: placeholders where items were offloaded, all else the same objects.
        records: the record behind each placeholder that replaced an item, in order of the messages.
        decisions: what became of every item and why, in order.
        tokens_before: tokens of the texts of the messages as they came; images are not counted.
        tokens_after: tokens of the texts of `messages`.
        chars_freed: characters that left.
        errors: what failed in this call; the items concerned are unchanged and are tried again on the
            next call. After an error that no part of the library raised the messages are as they came,
            and the figures are 0.
    """

    messages: list[Any]
    records: list[RecordInfo]
    decisions: list[Decision]
    tokens_before: int
    tokens_after: int
    chars_freed: int
    errors: list[OffloadError]


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
    """

    session: str
    records: int
    chars: int
    tokens: int
    stored_bytes: int
    by_type: dict[str, int]
    by_tool: dict[str, int]
