"""Garbage collection: which records are marked for deletion, deleted, undeleted or protected."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Self

from offload.errors import ConfigError
from offload.events import EventBus, Observer
from offload.index import DeletedRecord, SessionObjects, Tombstone, list_session, list_sessions
from offload.layout import CLOCK, JOURNAL, Reason, encode_part
from offload.policy import Retention
from offload.record import RecordInfo
from offload.retention import _acts as acts
from offload.retention._marks import Marks, read_marks
from offload.retention._report import GcReport, Protection, size_of
from offload.session import SessionReader, check_name
from offload.store import OffloadStore, delete_many

_ABANDONED_SECONDS = 3600


def collect(
    store: OffloadStore,
    retention: Retention | None = None,
    *,
    session: str | None = None,
    dry_run: bool = False,
    events: EventBus | None = None,
) -> GcReport:
    """Delete records past their time to live or over a quota, and complete earlier deletions.

    Any number of gc processes may run at once, next to readers and writers, and may be killed: the next one
    continues. All of them should use the same grace period.

    Args:
        store: the store.
        retention: the quotas and the grace period; the default has no quota.
        session: only this session; without it all sessions, and the quotas of the store.
        dry_run: write nothing; "now" is then this machine's clock.
        events: receives an event with the figures of the report.

    Raises:
        ConfigError: the store reports no modification times.
        StoreError: the store failed; the next gc continues.
    """
    part = None if session is None else encode_part(check_name(session))
    now = time.time() if dry_run else store_time(store)
    run = _Run(store, Retention() if retention is None else retention, now, GcReport(is_dry_run=dry_run))
    if part is not None:
        run.collect_session(list_session(store, part))
    else:
        run.collect_store([run.collect_session(objects) for objects in list_sessions(store)])
    Observer(session, events).collected(run.report.figures())
    return run.report


def delete(
    store: OffloadStore, session: str, refs: Sequence[str] | None = None, *, dry_run: bool = False
) -> GcReport:
    """Mark records of a session for deletion, all of them without `refs`.

    `collect` deletes their bytes after the grace period; until then, deleting the object at a record's key
    and `.deleted` undoes the deletion. Pinned records are protected and reported. Without `refs` and pins the
    journal of the session is deleted at once.

    Args:
        store: the store of the session.
        session: its name.
        refs: the records; None for all.
        dry_run: write nothing.

    Raises:
        NotFoundError: a record does not exist; nothing is marked. `ExpiredError` if it is marked already.
        StoreError: the store failed.
    """
    part = encode_part(check_name(session))
    reader = SessionReader(store, session)
    for ref in refs or ():
        reader.find(ref)
    objects, marks = list_session(store, part), read_marks(store, part)
    run = _Run(store, Retention(), 0.0, GcReport(is_dry_run=dry_run))
    requested = [info for info in objects.records if refs is None or info.ref in refs]
    run.mark(objects, run.unprotected(requested, _pinned_by(marks)), "deleted")
    if refs is None and not (dry_run or run.report.protected or marks.session_pin is not None):
        delete_many(store, [stored.key for stored in store.keys(JOURNAL.prefix(part))])
    return run.report


def store_time(store: OffloadStore) -> float:
    """Return the time by the clock of `store`, in seconds since the epoch, from a fresh object.

    Raises:
        ConfigError: the store reports no modification times.
        StoreError: the store cannot be written.
    """
    key = CLOCK.key(digits=secrets.token_hex(8))
    store.put(key, b"")
    probes = {stored.key: stored.modified for stored in store.keys(CLOCK.prefix())}
    now = probes.get(key, 0.0)
    # Probes of killed processes are deleted too.
    for probe, at in probes.items():
        if probe == key or at < now - _ABANDONED_SECONDS:
            store.delete(probe)
    _check_times(store, [now])
    return now


def _check_times(store: OffloadStore, times: Iterable[float]) -> None:
    if any(modified <= 0 for modified in times):
        raise ConfigError(f"{store.url} reports no modification times of its objects, so gc cannot run on it")


class _Total(NamedTuple):
    """The totals of the readable records of one session, and the time of the newest."""

    part: str
    stored_bytes: int
    records: int
    newest: float

    @classmethod
    def of(cls, objects: SessionObjects) -> Self:
        """Return the totals of a session."""
        return cls(objects.part, size_of(objects.records), len(objects.records), objects.newest)


class _Excess:
    """Bytes and records of sessions over a quota, None for no limit; true while there are any."""

    def __init__(self, totals: Sequence[_Total], max_bytes: int | None, max_records: int | None) -> None:
        self._bytes = sum(t.stored_bytes for t in totals) - (math.inf if max_bytes is None else max_bytes)
        self._records = sum(t.records for t in totals) - (math.inf if max_records is None else max_records)

    def __bool__(self) -> bool:
        return self._bytes > 0 or self._records > 0

    def subtract(self, infos: Sequence[RecordInfo]) -> None:
        """Subtract records that will be deleted."""
        self._bytes -= size_of(infos)
        self._records -= len(infos)


class _Run:
    """One gc: its time, its rules and its report."""

    def __init__(self, store: OffloadStore, retention: Retention, now: float, report: GcReport) -> None:
        self.report = report
        self._store = store
        self._retention = retention
        self._now = now
        self._writes = not report.is_dry_run

    def collect_session(self, objects: SessionObjects) -> _Total:
        """Do every step for one session; return the total of its remaining records."""
        times = [info.created_at for info in (*objects.records, *objects.torn)]
        _check_times(self._store, times + [record.marked_at for record in objects.deleted])
        expired = [i for i in objects.records if i.expires_at is not None and i.expires_at <= self._now]
        if expired:
            pinned_by = _pinned_by(read_marks(self._store, objects.part))
            self.mark(objects, self.unprotected(expired, pinned_by), "expired")
        self._mark_excess(objects)
        self._empty_expired(objects)
        self._mark_torn(objects)
        return _Total.of(objects)

    def collect_store(self, totals: list[_Total]) -> None:
        """Mark whole sessions, the least recently used first, until the store is within its quota."""
        excess = _Excess(totals, self._retention.store_bytes, self._retention.store_records)
        if not excess:
            return
        marked = {info.key for infos in self.report.marked.values() for info in infos}
        for total in sorted(totals, key=self._last_use):
            if not excess:
                return
            objects = list_session(self._store, total.part)
            objects.records = [info for info in objects.records if info.key not in marked]
            objects.deleted.clear()  # `collect_session` has handled them.
            marks = read_marks(self._store, objects.part)
            unprotected = self.unprotected(objects.records, self._protection(objects, marks))
            excess.subtract(self._mark_unused(objects, unprotected, marks))
            self._empty_expired(objects)

    def mark(self, objects: SessionObjects, infos: Sequence[RecordInfo], reason: Reason) -> None:
        """Mark records of a session for deletion."""
        if infos and self._writes:
            acts.mark(self._store, infos, reason)
        self._note_marked(objects, infos, reason)

    def _note_marked(self, objects: SessionObjects, infos: Sequence[RecordInfo], reason: Reason) -> None:
        if not infos:
            return
        self.report.marked.setdefault(reason, []).extend(infos)
        keys = {info.key for info in infos}
        objects.records = [info for info in objects.records if info.key not in keys]
        objects.deleted += self._deleted_records(infos, reason)

    def _deleted_records(self, infos: Iterable[RecordInfo], reason: Reason) -> list[DeletedRecord]:
        return [DeletedRecord(i, (Tombstone(i.key, i.ref, reason, self._now),)) for i in infos]

    def unprotected(
        self, infos: Iterable[RecordInfo], protection: Callable[[RecordInfo], Protection | None]
    ) -> list[RecordInfo]:
        """Return the records that nothing protects, and report the others."""
        unprotected = []
        for info in infos:
            why = protection(info)
            if why is None:
                unprotected.append(info)
            else:
                self.report.protected.setdefault(why, []).append(info)
        return unprotected

    def _mark_excess(self, objects: SessionObjects) -> None:
        """Mark the oldest records of a session until it is within its quota."""
        limits = self._retention
        excess = _Excess([_Total.of(objects)], limits.session_bytes, limits.session_records)
        if not excess:
            return
        marks = read_marks(self._store, objects.part)
        protection, evicted = self._protection(objects, marks), list[RecordInfo]()
        for info in objects.records:
            if not excess:
                break
            unprotected = self.unprotected([info], protection)
            excess.subtract(unprotected)
            evicted += unprotected
        self._mark_unused(objects, evicted, marks)

    def _mark_unused(
        self, objects: SessionObjects, infos: Sequence[RecordInfo], marks: Marks
    ) -> Sequence[RecordInfo]:
        """Mark records for a quota unless their session was used after `marks` were read; return the marked.

        A writer that adopts a record first notes the use and then looks for tombstones, gc does the reverse:
        one of them sees the other.
        """
        if infos and self._writes:
            acts.mark(self._store, infos, "quota")
            if read_marks(self._store, objects.part).last_use > marks.last_use:
                undeleted = acts.undelete(self._store, objects.part, self._deleted_records(infos, "quota"))
                self.report.protected.setdefault("active", []).extend(undeleted)
                infos = [info for info in infos if info not in undeleted]
        self._note_marked(objects, infos, "quota")
        return infos

    def _empty_expired(self, objects: SessionObjects) -> None:
        """Delete the bytes of records whose grace period is over; undelete those that were pinned in time."""
        deleted = objects.deleted
        if self._writes and not self._retention.grace:
            # The new tombstones, with their times in the store.
            deleted = list_session(self._store, objects.part).deleted
        marked = [record for record in deleted if record.info.stored_bytes]
        grace = self._retention.grace
        due = [record for record in marked if not grace or self._now - record.marked_at >= grace]
        # Read again: a pin may be newer than the mark.
        marks = read_marks(self._store, objects.part) if due else None
        pinned = [record for record in due if marks is not None and self._is_undeleted(marks, record)]
        emptied = [record for record in due if record not in pinned]
        undeleted = [record.info for record in pinned]
        if self._writes:
            undeleted = acts.undelete(self._store, objects.part, pinned)
            acts.empty(self._store, emptied)
            empty = [record for record in deleted if not record.info.stored_bytes]
            acts.delete_sidecars(self._store, [record.info for record in (*empty, *emptied)])
        self.report.undeleted.extend(undeleted)
        self.report.deleted.extend(record.info for record in emptied)

    def _is_undeleted(self, marks: Marks, record: DeletedRecord) -> bool:
        """Return whether a pin or a grant undeletes a record.

        Only the first half of the grace period counts. gc reads the pins after the grace period, so all
        processes see such a pin or none does: no process empties a record that another one undeletes.
        """
        times = [marks.pins.get(record.info.ref)]
        if "deleted" not in record.reasons:  # A session pin does not undo an explicit deletion.
            times.append(marks.session_pin)
        if record.reasons == {"quota"}:
            times.append(marks.shares.get(record.info.ref))
        latest = record.marked_at + self._retention.grace / 2
        return any(at is not None and at <= latest for at in times)

    def _mark_torn(self, objects: SessionObjects) -> None:
        """Mark records that a killed gc emptied without a tombstone."""
        torn = [info for info in objects.torn if info.created_at <= self._now - self._retention.grace]
        if self._writes:
            acts.mark(self._store, torn, "deleted")

    def _protection(self, objects: SessionObjects, marks: Marks) -> Callable[[RecordInfo], Protection | None]:
        """Return a function that gives the reason a record is exempt from quotas, or None."""
        pinned_by = _pinned_by(marks)
        is_active = self._now - max(objects.newest, marks.last_use) < self._retention.live_for

        def protection(info: RecordInfo) -> Protection | None:
            why = pinned_by(info)
            if why is None and is_active:
                return "active"
            return "shared" if why is None and info.ref in marks.shares else why

        return protection

    def _last_use(self, total: _Total) -> tuple[float, str]:
        return max(total.newest, read_marks(self._store, total.part).last_use), total.part


def _pinned_by(marks: Marks) -> Callable[[RecordInfo], Protection | None]:
    return lambda info: "pinned" if marks.is_pinned(info.ref) else None
