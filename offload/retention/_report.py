"""Reports: the effects of a gc, and the storage use of sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from offload.index.objects import list_sessions
from offload.layout import Reason
from offload.record import RecordInfo
from offload.retention.marks import UNMARKED, read_all_marks
from offload.store import OffloadStore

Protection = Literal["pinned", "active", "shared", "forked"]


@dataclass(frozen=True, slots=True)
class GcReport:
    """The effects of a gc, or with `is_dry_run` the effects it would have.

    Attributes:
        is_dry_run: whether nothing was written.
        marked: records that are now marked for deletion, and no longer listed or opened, by reason.
        deleted: records whose bytes were deleted, since their grace period is over.
        undeleted: marked records that are readable again, since they were pinned in time.
        protected: records that would have been marked, by what protects them.
        forks: the names of the forks that read protected records.
    """

    is_dry_run: bool = False
    marked: dict[Reason, list[RecordInfo]] = field(default_factory=dict)
    deleted: list[RecordInfo] = field(default_factory=list)
    undeleted: list[RecordInfo] = field(default_factory=list)
    protected: dict[Protection, list[RecordInfo]] = field(default_factory=dict)
    forks: set[str] = field(default_factory=set)

    @property
    def bytes_freed(self) -> int:
        """Stored bytes of the deleted records."""
        return size_of(self.deleted)

    def groups(self) -> list[tuple[str, str | None, list[RecordInfo]]]:
        """Return the records by effect, which is the name of an attribute, and reason."""
        return [
            *(("marked", reason, infos) for reason, infos in self.marked.items()),
            ("deleted", None, self.deleted),
            ("undeleted", None, self.undeleted),
            *(("protected", reason, infos) for reason, infos in self.protected.items()),
        ]

    def figures(self) -> dict[str, int]:
        """Return the number of records of each kind, and the bytes freed."""
        return {
            "is_dry_run": self.is_dry_run,
            "marked": sum(map(len, self.marked.values())),
            "deleted": len(self.deleted),
            "undeleted": len(self.undeleted),
            "bytes_freed": self.bytes_freed,
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """The storage use of a session.

    Attributes:
        session: its name; a name too long for a key ends in an ellipsis.
        records: the number of readable records.
        stored_bytes: their bytes in the store.
        marked: the number of records that are marked for deletion but not deleted yet.
        marked_bytes: their bytes.
        pinned: the number of pinned records; all of them in a pinned session.
        last_use: the time of its last use by the store's clock, 0 if unknown.
    """

    session: str
    records: int
    stored_bytes: int
    marked: int
    marked_bytes: int
    pinned: int
    last_use: float


def size_of(infos: Iterable[RecordInfo]) -> int:
    """Return the stored bytes of records."""
    return sum(info.stored_bytes for info in infos)


def usage(store: OffloadStore) -> Iterator[Usage]:
    """Yield the storage use of each session of `store`, in key order; two listings of it in all."""
    marked_sessions = read_all_marks(store)
    for objects in list_sessions(store):
        marks = marked_sessions.get(objects.part, UNMARKED)
        marked = [record.info for record in objects.deleted if record.info.stored_bytes]
        yield Usage(
            session=objects.name,
            records=len(objects.records),
            stored_bytes=size_of(objects.records),
            marked=len(marked),
            marked_bytes=size_of(marked),
            pinned=sum(marks.is_pinned(info.ref) for info in objects.records),
            last_use=max(objects.newest, marks.last_use),
        )
