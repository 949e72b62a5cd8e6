"""By how much sessions are over a quota."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from offload.record import RecordInfo
from offload.retention._holding import Holding, size_of


class Total(NamedTuple):
    """What a session counts for in a quota.

    Attributes:
        part: its key part.
        stored_bytes: the bytes of its records.
        records: how many there are.
        newest: when the newest was stored.
    """

    part: str
    stored_bytes: int
    records: int
    newest: float

    @classmethod
    def of(cls, held: Holding) -> Self:
        """Return the total of a session's records."""
        return cls(held.part, size_of(held.records), len(held.records), held.newest)


class Excess:
    """What must go until `totals` are within a quota: true as long as anything must.

    Args:
        totals: what is there.
        max_bytes: how many stored bytes may be; None for any.
        max_records: how many records may be; None for any.
    """

    def __init__(self, totals: Iterable[Total], max_bytes: int | None, max_records: int | None) -> None:
        stored_bytes, records = 0, 0
        for total in totals:
            stored_bytes += total.stored_bytes
            records += total.records
        self._bytes = 0 if max_bytes is None else stored_bytes - max_bytes
        self._records = 0 if max_records is None else records - max_records

    def __bool__(self) -> bool:
        return self._bytes > 0 or self._records > 0

    def shrink(self, infos: Sequence[RecordInfo]) -> None:
        """Count records as gone."""
        self._bytes -= size_of(infos)
        self._records -= len(infos)
