"""What a collection tells, and what a session takes of its store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from offload.layout import Reason, decode_part
from offload.record import RecordInfo
from offload.retention._holding import hold_each, size_of
from offload.retention._marks import read_marks
from offload.store import OffloadStore

Why = Literal["pinned", "active", "shared"]


@dataclass(frozen=True, slots=True)
class GcReport:
    """What a collection did, or with `is_dry_run` would do.

    Attributes:
        is_dry_run: whether nothing was done.
        marked: records that are marked for deletion, by reason.
        deleted: marked records whose grace period was over: their bytes are gone.
        undeleted: marked records that were pinned in time.
        protected: records that would have been marked, by what protects them.
    """

    is_dry_run: bool = False
    marked: dict[Reason, list[RecordInfo]] = field(default_factory=dict)
    deleted: list[RecordInfo] = field(default_factory=list)
    undeleted: list[RecordInfo] = field(default_factory=list)
    protected: dict[Why, list[RecordInfo]] = field(default_factory=dict)

    @property
    def bytes_freed(self) -> int:
        """Stored bytes of the deleted records."""
        return size_of(self.deleted)

    def figures(self) -> dict[str, int]:
        """Return how many records there are of each kind, and the bytes freed."""
        return {
            "is_dry_run": self.is_dry_run,
            "marked": sum(map(len, self.marked.values())),
            "deleted": len(self.deleted),
            "undeleted": len(self.undeleted),
            "bytes_freed": self.bytes_freed,
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """What a session takes of its store.

    Attributes:
        session: its name; one too long for a key ends in an ellipsis.
        records: records that can be read.
        stored_bytes: their bytes in the store.
        marked: records that are marked and not emptied yet.
        marked_bytes: their bytes.
        pinned: records that are pinned, all of them in a session that is.
        last_use: when it was last used, by the store's clock; 0 if nothing tells.
    """

    session: str
    records: int
    stored_bytes: int
    marked: int
    marked_bytes: int
    pinned: int
    last_use: float


def usage(store: OffloadStore) -> Iterator[Usage]:
    """Yield what each session takes of `store`, in the order of their keys."""
    for held in hold_each(store):
        marks = read_marks(store, held.part)
        readable = [grave.info for grave in held.graves if not grave.is_emptied]
        yield Usage(
            session=decode_part(held.part),
            records=len(held.records),
            stored_bytes=size_of(held.records),
            marked=len(readable),
            marked_bytes=size_of(readable),
            pinned=sum(marks.is_pinned(info.ref) for info in held.records),
            last_use=max(held.newest, marks.last_use),
        )
