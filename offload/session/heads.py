"""Heads of records that a process knows without reading them: another one read them before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from offload.layout import name_of
from offload.record import Header, RecordInfo
from offload.record.header import Counts


class Head(msgspec.Struct, frozen=True):
    """The header of a record and the counts of its content."""

    header: Header
    counts: Counts


class Heads:
    """Heads of records of one session, by the last part of their keys. A record never changes."""

    def __init__(self) -> None:
        self._heads: dict[str, Head] = {}

    def note(self, key: str, header: Header, counts: Counts) -> None:
        """Note the head of the record at a key."""
        self._heads[name_of(key)] = Head(header, counts)

    def learn(self, heads: Mapping[str, Head]) -> None:
        """Take heads that `of` returned, in this process or another."""
        self._heads |= {name: head for name, head in heads.items() if name not in self._heads}

    def get(self, info: RecordInfo) -> Head | None:
        """Return the head of a record if it is known, and of no other one."""
        head = self._heads.get(name_of(info.key))
        return head if head is not None and head.header.ref == info.ref else None

    def of(self, infos: Iterable[RecordInfo]) -> dict[str, Head]:
        """Return the known heads of some records, by the last part of their keys."""
        found = {name_of(info.key): self.get(info) for info in infos}
        return {name: head for name, head in found.items() if head is not None}


class Remembered(msgspec.Struct, frozen=True):
    """Objects that a new process would have to read one by one; see `Offloader.remembered`.

    Attributes:
        heads: heads of records, by the last part of their keys.
        thinking: the contents of the records of removed thinking, in the same way.
    """

    heads: dict[str, Head] = {}
    thinking: dict[str, str] = {}
