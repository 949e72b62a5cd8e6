"""The excess of sessions over a quota."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from offload.index import SessionObjects
from offload.record import RecordInfo


class Total(NamedTuple):
    """The totals of a session for a quota.

    Attributes:
        part: its key part.
        stored_bytes: the stored bytes of its records.
        records: the number of its records.
        newest: the time of its newest record.
    """

    part: str
    stored_bytes: int
    records: int
    newest: float

    @classmethod
    def of(cls, objects: SessionObjects) -> Self:
        """Return the totals of a session's readable records."""
        records = objects.records
        return cls(objects.part, size_of(records), len(records), objects.newest)


class Excess:
    """Bytes and records over a quota; true while there are any.

    Args:
        totals: the totals of the sessions that share the quota.
        max_bytes: the maximum of stored bytes; None for no limit.
        max_records: the maximum of records; None for no limit.
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

    def subtract(self, infos: Sequence[RecordInfo]) -> None:
        """Subtract records that will be deleted."""
        self._bytes -= size_of(infos)
        self._records -= len(infos)


def size_of(infos: Iterable[RecordInfo]) -> int:
    """Return the stored bytes of records."""
    return sum(info.stored_bytes for info in infos)
