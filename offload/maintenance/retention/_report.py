"""One gc: what its steps need, and its report; the storage use of sessions."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from offload.engine.policy import Retention
from offload.errors import ConfigError, OffloadError, StoreError
from offload.maintenance.jobs.each import each_session
from offload.maintenance.retention.marks import UNMARKED, Marks, read_all_marks, read_marks
from offload.records.index.objects import SessionObjects, session_name
from offload.records.record import RecordInfo
from offload.storage.layout import CLOCK, DeletionReason, is_link
from offload.storage.store import OffloadStore

Protection = Literal["pinned", "active", "shared", "forked"]


@dataclass(slots=True)
class GcReport:
    """The effects of a gc, or with `is_dry_run` the effects it would have.

    Attributes:
        is_dry_run: whether nothing was written.
        marked: records that are now marked for deletion, and no longer listed or opened, by reason.
        deleted: records whose bytes were deleted, since their grace period is over.
        undeleted: marked records that are readable again, since they were pinned in time.
        protected: records that would have been marked, by the reason for their protection.
        forks: the names of the forks that read protected records.
        failures: the errors of workers by the session that they had; run gc again.
        entries: the number of deleted journal entries, of deleted sessions and of branches.
        entries_lost: the number of journal entries that an earlier deletion of the session had set aside, and
            that cannot be undeleted any more, since it has begun another journal, which is deleted now.
        waiting: the number of records that were marked before, and whose grace period is not over.
    """

    is_dry_run: bool = False
    marked: dict[DeletionReason, list[RecordInfo]] = field(default_factory=dict)
    deleted: list[RecordInfo] = field(default_factory=list)
    undeleted: list[RecordInfo] = field(default_factory=list)
    protected: dict[Protection, list[RecordInfo]] = field(default_factory=dict)
    forks: set[str] = field(default_factory=set)
    failures: list[tuple[str, OffloadError]] = field(default_factory=list)
    entries: int = 0
    entries_lost: int = 0
    waiting: int = 0

    def add(self, other: GcReport) -> None:
        """Add the effects of another part of the same gc."""
        for reason, infos in other.marked.items():
            self.marked.setdefault(reason, []).extend(infos)
        for protection, infos in other.protected.items():
            self.protected.setdefault(protection, []).extend(infos)
        self.deleted.extend(other.deleted)
        self.undeleted.extend(other.undeleted)
        self.forks.update(other.forks)
        self.entries += other.entries
        self.entries_lost += other.entries_lost
        self.waiting += other.waiting

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
        """Return the number of records of each kind and of journal entries, and the bytes freed."""
        return {
            "is_dry_run": self.is_dry_run,
            "marked": sum(map(len, self.marked.values())),
            "deleted": len(self.deleted),
            "undeleted": len(self.undeleted),
            "bytes_freed": self.bytes_freed,
            "entries": self.entries,
        }


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """The storage use of a session.

    Attributes:
        session: its name.
        records: the number of readable records that it stored; those that others share with it count there.
        stored_bytes: the bytes of its objects in the store.
        marked: the number of records that are marked for deletion but not deleted yet.
        marked_bytes: the bytes of these.
        pinned: the number of pinned records; all of them in a pinned session.
        last_use: the time of its last use by the store's clock, 0 if unknown.
        is_deleted: whether all of its records are deleted.
    """

    session: str
    records: int
    stored_bytes: int
    marked: int
    marked_bytes: int
    pinned: int
    last_use: float
    is_deleted: bool


def size_of(infos: Iterable[RecordInfo]) -> int:
    """Return the stored bytes of records."""
    return sum(info.stored_bytes for info in infos)


def store_usage(
    store: OffloadStore,
    *,
    executor: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[StoreUsage]:
    """Yield the storage use of each session of `store`, in key order.

    Args:
        store: the store.
        executor: its workers list one session each; by default this thread lists the store.
        storage_options: for workers in other processes; see `collect`.

    Raises:
        ConfigError: workers in other processes cannot open the store by its URL.
        StoreError: the store failed, or a worker was lost.
    """
    work = partial(_usage_of, read_all_marks(store) if executor is None else None)
    for _, used in each_session(work, store, executor, storage_options):
        if isinstance(used, OffloadError):
            raise used
        yield used


def _usage_of(
    all_marks: Mapping[str, Marks] | None, store: OffloadStore, objects: SessionObjects
) -> StoreUsage:
    part = objects.part
    marks = read_marks(store, part) if all_marks is None else all_marks.get(part, UNMARKED)
    marked = [record.info for record in objects.deleted if record.info.stored_bytes]
    own = [info for info in objects.records if not is_link(info.key)]
    return StoreUsage(
        session=session_name(store, part),
        records=len(own),
        stored_bytes=size_of(objects.records),
        marked=len(marked),
        marked_bytes=size_of(marked),
        pinned=sum(marks.is_pinned(info.ref) for info in own),
        last_use=max(objects.newest, marks.last_use),
        is_deleted=bool(objects.deleted) and not objects.records,
    )


# A probe of the clock, a mark of a fork or of a closed session that is older was left by a killed process.
ABANDONED_SECONDS = 3600


@dataclass(slots=True)
class Run:
    """One gc or deletion; its writes may be repeated, interrupted, or done by several processes at once.

    Attributes:
        now: the time by the store's clock, 0 for a deletion, which needs none.
        all_marks: the marks of all sessions; None if they may change, so that those of a session are listed.
        readers: by the key part of a session, the names of its forks by the record that they read, None
            without a fork.
    """

    store: OffloadStore
    report: GcReport
    retention: Retention = field(default_factory=Retention)
    now: float = 0.0
    all_marks: Mapping[str, Marks] | None = None
    readers: dict[str, dict[str, set[str]] | None] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether this run deletes, and does not only report."""
        return not self.report.is_dry_run

    def is_over(self, began: float) -> bool:
        """Return whether a grace period that began at a time is over."""
        return not self.retention.grace or self.now - began >= self.retention.grace

    def marks_of(self, part: str) -> Marks:
        return read_marks(self.store, part) if self.all_marks is None else self.all_marks.get(part, UNMARKED)


def store_time(store: OffloadStore) -> float:
    """Return the time by the clock of `store`, from a fresh object.

    Raises `ConfigError` if it has none, and `StoreError` after a stall of an hour between its operations.
    """
    key = CLOCK.key(digits=secrets.token_hex(8))
    store.put(key, b"")
    probes = {stored.key: stored.modified for stored in store.keys(CLOCK.prefix())}
    if key not in probes:
        raise StoreError(f"another gc deleted the probe of the clock of {store.url}; run gc again")
    now = probes[key]
    for probe, at in probes.items():
        if probe == key or at < now - ABANDONED_SECONDS:
            store.delete(probe)
    check_times(store, [now])
    return now


def check_times(store: OffloadStore, times: Iterable[float]) -> None:
    """Raise `ConfigError` if one of some times of objects is none."""
    if any(modified <= 0 for modified in times):
        raise ConfigError(f"{store.url} reports no modification times of its objects, so gc cannot run on it")
