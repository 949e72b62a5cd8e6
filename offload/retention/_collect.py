"""Garbage collection: which records are marked for deletion, deleted, undeleted or protected."""

from __future__ import annotations

import math
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from copy import copy
from functools import partial
from itertools import groupby
from typing import Any, Literal, NamedTuple

from offload import layout
from offload import policy as policies
from offload.codec import find_codec
from offload.errors import (
    ConfigError,
    CorruptError,
    ExistsError,
    NotFoundError,
    OffloadError,
    StoreError,
    check_kind,
)
from offload.events import EventBus
from offload.events.observer import Observer
from offload.index.entries import Tombstone
from offload.index.floors import SETTLED_SECONDS
from offload.index.objects import (
    DeletedRecord,
    SessionObjects,
    list_session,
    list_sessions,
    session_parts,
)
from offload.index.packs import delete_derived
from offload.jobs.each import run_each
from offload.record import RecordInfo
from offload.retention._aside import aside_key, is_entry, original_key, replaced, set_aside
from offload.retention._report import GcReport, Protection, size_of
from offload.retention.marks import UNMARKED, Marks, read_all_marks, read_marks
from offload.session.lineage import (
    entry_of,
    kept_entries,
    last_use,
    own_entries,
    parse_branch,
    records_of_branch,
    records_until,
)
from offload.session.names import check_name
from offload.session.reader import SessionReader
from offload.session.session import note_deletions
from offload.store import OffloadStore, StoredObject, delete_many, has, put_many, update_index

_ABANDONED_SECONDS = 3600


def collect(
    store: OffloadStore,
    retention: policies.Retention | None = None,
    *,
    session: str | None = None,
    dry_run: bool = False,
    events: EventBus | None = None,
    executor: Executor | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, GcReport], object] | None = None,
) -> GcReport:
    """Delete records past their time to live or over a quota, and complete earlier deletions.

    Journal entries of a branch are deleted after the grace period, unless a fork needs them.

    Any number of gc processes may run at once, next to readers and writers, and may be killed: the next one
    continues. All of them should use the same grace period.

    Args:
        store: the store.
        retention: the quotas and the grace period; the default has no quota.
        session: only this session; without it all sessions, and the quotas of the store.
        dry_run: write nothing; "now" is then this machine's clock.
        events: receives an event with the figures of the report.
        executor: any executor of `concurrent.futures`, whose workers take one session each; by default this
            thread takes all. A session whose worker fails is in `failures` of the report, and then no quota
            of the store is applied.
        storage_options: for workers in other processes, which open the store by its URL and have the
            credentials of their own environment otherwise.
        on_progress: called after each session with the number of those done and the report so far.

    Raises:
        ConfigError: an invalid argument, the store reports no modification times, or workers in other
            processes cannot open it.
        StoreError: the store failed; the next gc continues.
    """
    part = None if session is None else layout.encode_part(check_name(session))
    now = time.time() if dry_run else store_time(store)
    run, told = _Run(store, retention, now, GcReport(is_dry_run=dry_run)), on_progress or (lambda *_: None)
    if part is not None:
        run.collect_journals(part)
        run.collect_session(list_session(store, part))
    elif executor is None:
        run.collect_journals()
        run.marks = read_all_marks(store) if dry_run else None
        for done, objects in enumerate(list_sessions(store), 1):
            run.collect_session(objects)
            told(done, run.report)
        run.collect_store()
    else:
        work = partial(_collect_one, retention, now, dry_run)
        parts = session_parts(store, layout.RECORD, layout.PIN, layout.JOURNAL)
        options = [storage_options]
        collected = run_each(work, parts, [store], executor=executor, storage_options=options)
        for done, (each, found) in enumerate(collected, 1):
            run.add(each, found)
            told(done, run.report)
        if not run.report.failures:
            run.collect_store()
    if not dry_run:
        update_index(store)
    Observer(session, events).collected(run.report.figures())
    return run.report


class _Remains(NamedTuple):
    """The size of the records that remain in a session, and the time of the newest."""

    records: int
    stored_bytes: int
    newest: float


class _Collected(NamedTuple):
    """The effects of gc on one session, and what remains of it."""

    report: GcReport
    remains: _Remains


def _remains_of(objects: SessionObjects) -> _Remains:
    return _Remains(len(objects.records), size_of(objects.records), objects.newest)


def _collect_one(
    retention: policies.Retention | None,
    now: float,
    dry_run: bool,  # a partial passes it by position
    store: OffloadStore,
    part: str,
) -> _Collected:
    run = _Run(store, retention, now, GcReport(is_dry_run=dry_run))
    run.collect_journals(part)
    objects = list_session(store, part)
    run.collect_session(objects)
    return _Collected(run.report, _remains_of(objects))


def delete(
    store: OffloadStore, session: str, refs: Sequence[str] | None = None, *, dry_run: bool = False
) -> GcReport:
    """Mark the records `refs` of a session for deletion, without `refs` all; with `dry_run` write nothing.

    `collect` deletes their bytes after the grace period; until then `undelete` undoes the deletion. Pinned
    records are protected and reported. Without `refs` and pins the journal of the session, and the calls that
    a gateway answered in it, are deleted in the same way. Only what a fork needs is kept, and `collect`
    deletes it after that fork, unless the session was used again; a deleted fork needs it as long as it can
    be undeleted. One journal of a session can be undeleted: another that was deleted before is then deleted
    for good, and counted as `entries_lost` of the report, with `dry_run` too.

    Raises:
        ConfigError: a record belongs to a session that this one was forked from; nothing is marked.
        NotFoundError: a record does not exist; nothing is marked. `ExpiredError` if it is marked already.
        StoreError: the store failed.
    """
    part = layout.encode_part(check_name(session))
    reader = SessionReader(store, session)
    for ref in refs or ():
        owner = reader.owner_of(reader.find(ref))
        if owner != session:
            raise ConfigError(
                f"record {ref} belongs to session {owner!r}, from which {session!r} was forked, and is kept "
                "as long as a fork reads it; nothing was deleted"
            )
    run = _Run(store, None, 0.0, GcReport(is_dry_run=dry_run))
    if refs is None and not dry_run:
        _close(store, part)
    objects, marks = list_session(store, part), read_marks(store, part)
    if refs is None:
        run.remove(objects, marks)
    else:
        run.mark(objects, [info for info in objects.records if info.ref in refs], "deleted", marks)
    if not dry_run:
        update_index(store)
    return run.report


def _close(store: OffloadStore, part: str, base: int | None = None) -> str:
    """Let no fork of a session start, or none at an entry up to `base` that a rewind left; return the mark.

    Marks of forks that are listed afterwards are all that count.
    """
    key = layout.CLOSED.key(session=part, base=None if base is None else f"{base:09}")
    # Its time is that of the last deletion: the session may have been used since the one before.
    store.put(key, b"", overwrite=True)
    return key


def store_time(store: OffloadStore) -> float:
    """Return the time by the clock of `store`, from a fresh object.

    Raises `ConfigError` if it has none, and `StoreError` after a stall of an hour between its operations.
    """
    key = layout.CLOCK.key(digits=secrets.token_hex(8))
    store.put(key, b"")
    probes = {stored.key: stored.modified for stored in store.keys(layout.CLOCK.prefix())}
    if key not in probes:
        raise StoreError(f"another gc deleted the probe of the clock of {store.url}; run gc again")
    now = probes[key]
    # Probes of killed processes are deleted too.
    for probe, at in probes.items():
        if probe == key or at < now - _ABANDONED_SECONDS:
            store.delete(probe)
    _check_times(store, [now])
    return now


def _check_times(store: OffloadStore, times: Iterable[float]) -> None:
    if any(modified <= 0 for modified in times):
        raise ConfigError(f"{store.url} reports no modification times of its objects, so gc cannot run on it")


class _Excess:
    """Bytes and records over a quota, None for no limit; true while there are any."""

    def __init__(self, max_bytes: int | None, max_records: int | None) -> None:
        self._bytes = -math.inf if max_bytes is None else -max_bytes
        self._records = -math.inf if max_records is None else -max_records

    def __bool__(self) -> bool:
        return self._bytes > 0 or self._records > 0

    def add(self, infos: Sequence[RecordInfo], sign: Literal[1, -1] = 1) -> None:
        """Add records, or with -1 subtract those that will be deleted."""
        self.add_total(sign * size_of(infos), sign * len(infos))

    def add_total(self, stored_bytes: int, records: int) -> None:
        """Add as many bytes and records."""
        self._bytes += stored_bytes
        self._records += records


class _Run:
    """One gc: its time, its rules and its report.

    Each write may be repeated, interrupted or done by several processes at once.
    """

    def __init__(
        self, store: OffloadStore, retention: policies.Retention | None, now: float, report: GcReport
    ) -> None:
        check_kind("retention", retention, policies.Retention)
        self.report = report
        self._store = store
        self._retention = retention = policies.Retention() if retention is None else retention
        self._now = now
        self._writes = not report.is_dry_run
        # The remains of all sessions, and of each.
        self._excess = _Excess(retention.store_bytes, retention.store_records)
        self._remains: dict[str, _Remains] = {}
        # Without writes they do not change.
        self.marks: Mapping[str, Marks] | None = None
        # By key part of a session: whether it has a fork, and the names of those that read each record.
        self._forked: dict[str, tuple[bool, dict[str, set[str]]]] = {}

    def collect_session(self, objects: SessionObjects) -> None:
        """Do every step for one session but the quotas of the store."""
        times = [info.created_at for info in (*objects.records, *objects.torn)]
        _check_times(self._store, times + [record.marked_at for record in objects.deleted])
        expired = [i for i in objects.records if i.expires_at is not None and i.expires_at <= self._now]
        if expired:
            self.mark(objects, expired, "expired", self._marks_of(objects.part))
        excess = _Excess(self._retention.session_bytes, self._retention.session_records)
        excess.add(objects.records)
        self._evict(objects, ([info] for info in objects.records), excess)
        self._empty_expired(objects)
        self._mark_lost(objects)
        if self._writes:
            # Records that a killed gc emptied without a tombstone.
            torn = [info for info in objects.torn if info.created_at <= self._now - self._retention.grace]
            self._put_tombstones(torn, "deleted")
            self._forget(objects)
        self.note(objects.part, _remains_of(objects))

    def _mark_lost(self, objects: SessionObjects) -> None:
        """Mark the records that quote one whose bytes are deleted: nobody can read them again."""
        there = {info.ref for info in objects.records}
        there |= {record.info.ref for record in objects.deleted if record.info.stored_bytes}
        emptied = {r.info.ref: min(r.reasons) for r in objects.deleted if r.info.ref not in there}
        for ref in emptied.keys() & objects.quoting.keys():
            refs = {*objects.quoting[ref]}
            lost = [info for info in objects.records if info.quotes and info.ref in refs]
            self.mark(objects, lost, emptied[ref], self._marks_of(objects.part))

    def _forget(self, objects: SessionObjects) -> None:
        """Delete what is left of deleted records below a floor that is a week old.

        The floor of a session without records is raised a week after the last deletion.
        """
        floor = max(objects.floors, default=1)
        emptied = [r for r in objects.deleted if not r.info.stored_bytes]
        below = [r for r in emptied if layout.generation_of(r.info.key) < floor]
        settled = self._now - SETTLED_SECONDS
        if below or len(objects.floors) > 1:
            if objects.floors[floor] <= settled:
                self._delete_below(objects, floor, below)
            return
        is_over = len(emptied) == len(objects.deleted) and not (objects.records or objects.torn)
        if is_over and emptied and max(record.last_tombstone.at for record in emptied) <= settled:
            highest = max(layout.generation_of(record.info.key) for record in emptied)
            self._put_empty([layout.FLOOR.key(session=objects.part, generation=highest + 1)])

    def _delete_below(self, objects: SessionObjects, floor: int, below: Sequence[DeletedRecord]) -> None:
        """Delete the objects of deleted records below a floor, and older marks of a floor."""
        # A tombstone without a record shows a deleted record, a record without a tombstone a damaged one.
        delete_many(self._store, [record.info.key for record in below])
        tombstones = [mark for record in below for mark in record.tombstones]
        old = [layout.FLOOR.key(session=objects.part, generation=n) for n in objects.floors if n < floor]
        delete_many(self._store, [layout.tombstone_key(mark.key, mark.reason) for mark in tombstones] + old)
        if len(below) == len(objects.deleted) and not (objects.records or objects.torn):
            self._delete_origins(objects.part)

    def add(self, part: str, found: _Collected | OffloadError) -> None:
        """Add the effects on a session that a worker had, or its failure."""
        if isinstance(found, OffloadError):
            self.report.failures.append((layout.decode_part(part), found))
            return
        self.report.add(found.report)
        self.note(part, found.remains)

    def note(self, part: str, remains: _Remains) -> None:
        """Note what remains of a session, for the quotas of the store."""
        if remains.records:
            self._excess.add_total(remains.stored_bytes, remains.records)
            self._remains[part] = remains

    def collect_journals(self, part: str = "") -> None:
        """Delete sessions that only their forks kept, and entries that a rewind left; of one or all."""
        marks = [*self._store.keys(layout.PIN.prefix(part))]
        aside = [mark for mark in marks if layout.DELETED.match(mark.key)]
        if self._writes:
            for _, group in groupby(aside, key=lambda mark: layout.session_part(mark.key)):
                self._free([*group])
        closed = [mark for mark in marks if layout.CLOSED.match(mark.key)]
        for mark in closed:
            if mark.key == layout.CLOSED.key(session=layout.session_part(mark.key)):
                self._remove_closed(layout.session_part(mark.key), mark)
            elif self._writes and mark.modified <= self._now - _ABANDONED_SECONDS:
                self._store.delete(mark.key)
        listed = self._store.keys(layout.JOURNAL.prefix(part))
        for name, entries in groupby(listed, key=lambda stored: layout.session_part(stored.key)):
            self._delete_left(name, [*entries])

    def _free(self, aside: Sequence[StoredObject]) -> None:
        """Delete what is set aside of a session after the grace period; a fork needs nothing from then on."""
        grace = self._retention.grace
        # Together: a part of a journal is none.
        if not grace or max(stored.modified for stored in aside) <= self._now - grace:
            self._forget_aside([stored.key for stored in aside])

    def _forget_aside(self, keys: Sequence[str]) -> None:
        delete_many(self._store, keys)
        for branch in filter(layout.BRANCH.match, map(original_key, keys)):
            if not has(self._store, branch):
                self._release(branch)

    def _release(self, branch: str) -> bool:
        """Delete the parent's mark of a fork whose branch is gone; return whether it is."""
        place, child = parse_branch(branch), layout.session_part(branch)
        mark = layout.FORK.key(session=place.parent, receiver=child, base=f"{place.base:09}")
        self._store.delete(mark)
        if is_back := has(self._store, branch):
            # The fork was repeated meanwhile: the process that acts last detects that.
            self._store.put(mark, b"", overwrite=True)
        return not is_back

    def _remove_closed(self, part: str, closed: StoredObject) -> None:
        """Delete what no fork needs any more of a session, unless it was used since it was deleted."""
        if last_use(self._store, part) < closed.modified:
            self.remove(list_session(self._store, part), read_marks(self._store, part), is_again=True)
        elif self._writes:
            self._store.delete(closed.key)

    def remove(self, objects: SessionObjects, marks: Marks, *, is_again: bool = False) -> None:
        """Mark the records of a closed session, and set its journal aside, but what pins keep or forks need.

        If `is_again`, the journal is deleted: the session was deleted, and its journal set aside, before.
        """
        part = objects.part
        is_pinned = marks.session_pin is not None or any(info.ref in marks.pins for info in objects.records)
        forked = self.forked(part, marks)
        protected = forked if is_again and forked else {}
        self.mark(objects, [info for info in objects.records if info.ref not in protected], "deleted", marks)
        if not is_pinned:
            own = own_entries(self._store, part)
            branches = [stored.key for stored in self._store.keys(f"{layout.BRANCH.prefix(part)}from~")]
            kept: set[str] = set()
            if forked is not None:
                bases = [parse_branch(branch).base for branch in marks.forks]
                kept = kept_entries(self._store, part, own, bases).union(branches)
            self._remove_journal(
                part, [*branches, *self._calls(part), *(e.at for e in own)], kept, is_again=is_again
            )
        if self._writes and (is_pinned or forked is None):
            self._store.delete(layout.CLOSED.key(session=part))

    def _calls(self, part: str) -> list[str]:
        return [stored.key for stored in self._store.keys(layout.CALLS.prefix(part))]

    def _remove_journal(self, part: str, keys: Sequence[str], kept: set[str], *, is_again: bool) -> None:
        """Set the objects of a journal aside, or delete them, but `kept`."""
        gone = [key for key in keys if key not in kept]
        lost = [] if is_again else replaced(self._store, part, keys)
        self.report.entries += sum(layout.JOURNAL.match(key) is not None for key in gone)
        self.report.entries_lost += sum(map(is_entry, lost))
        if not self._writes:
            return
        delete_derived(self._store, part)
        self._forget_aside(lost)
        if not is_again:
            set_aside(self._store, keys, kept)
            self._store.delete(layout.LAST_USE.key(session=part))
            return
        delete_many(self._store, gone[::-1])
        for branch in filter(layout.BRANCH.match, gone):
            if not has(self._store, aside_key(branch)):
                self._release(branch)

    def _delete_left(self, part: str, listed: Sequence[StoredObject]) -> None:
        """Delete the entries of a journal that rewinds left before the grace period and no fork needs."""
        matches = [(layout.JOURNAL.match(stored.key), stored.modified) for stored in listed]
        own = [entry_of(match) for match, _ in matches if match]
        times = [modified for match, modified in matches if match]
        rewinds = [place for place, entry in enumerate(own) if entry.is_rewind]
        if not rewinds:
            return
        grace = self._retention.grace
        recent = [place for place in rewinds if place and grace and self._now - times[place] < grace]
        kept = kept_entries(self._store, part, own, [None, *(own[place - 1].number for place in recent)])
        left = [entry for entry in own if entry.at not in kept]
        if not left:
            return
        closed = _close(self._store, part, left[-1].number) if self._writes else None
        forks = read_marks(self._store, part).forks
        kept = kept_entries(self._store, part, own, [parse_branch(branch).base for branch in forks])
        left = [entry for entry in left if entry.at not in kept]
        self.report.entries += len(left)
        if closed is not None:
            delete_many(self._store, [entry.at for entry in left])
            self._store.delete(closed)

    def collect_store(self) -> None:
        """Mark whole sessions, the least recently used first, until the store is within its quota."""
        waiting = deque(sorted(self._remains, key=self._last_use) if self._excess else ())
        marked = {info.key for infos in self.report.marked.values() for info in infos}
        while self._excess and waiting:
            least_used = self._next(waiting)
            # A dry run lists the store once more, since each session alone would be a request.
            listed = {} if self._writes else self._listed({*least_used})
            for part in least_used:
                objects = listed.get(part) or list_session(self._store, part)
                objects.records = [info for info in objects.records if info.key not in marked]
                objects.deleted.clear()  # `collect_session` has handled them.
                self._evict(objects, [objects.records], self._excess)
                self._empty_expired(objects)

    def _listed(self, parts: set[str]) -> dict[str, SessionObjects]:
        return {objects.part: objects for objects in list_sessions(self._store) if objects.part in parts}

    def _next(self, waiting: deque[str]) -> list[str]:
        """Take the sessions that would end the excess, if nothing protects their records."""
        excess, taken = copy(self._excess), list[str]()
        while excess and waiting:
            taken.append(waiting.popleft())
            remains = self._remains[taken[-1]]
            excess.add_total(-remains.stored_bytes, -remains.records)
        return taken

    def mark(
        self, objects: SessionObjects, infos: Sequence[RecordInfo], reason: layout.Reason, marks: Marks
    ) -> None:
        unprotected = self._unprotected(objects, infos, reason, marks)
        if unprotected and self._writes:
            self._put_tombstones(unprotected, reason)
        self._note_marked(objects, unprotected, reason)

    def forked(self, part: str, marks: Marks) -> dict[str, set[str]] | None:
        """Return the names of the forks of a session by the record that they read; None if it has no fork.

        A deleted fork is one until gc frees it. One whose branch is gone was freed, or was killed before it
        was whole; its mark is deleted, once it is old. Raises `OffloadError` if a journal cannot be read:
        then nothing may be deleted.
        """
        if not marks.forks:
            return None
        known = self._forked.get(part)
        if known is None:
            readers: dict[str, set[str]] = {}
            is_forked = False
            for branch, marked_at in marks.forks.items():
                child = layout.decode_part(layout.session_part(branch))
                try:
                    refs = self._read_by(branch, marked_at)
                except CorruptError as error:
                    if not has(self._store, branch):
                        # It is deleted: damage in what it reads holds up nothing.
                        continue
                    raise CorruptError(
                        f"delete the fork {child!r} first; which records it reads is not known: {error}"
                    ) from error
                is_forked = is_forked or refs is not None
                for ref in refs or ():
                    readers.setdefault(ref, set()).add(child)
            known = self._forked[part] = (is_forked, readers)
        is_forked, readers = known
        return readers if is_forked else None

    def _read_by(self, branch: str, marked_at: float) -> set[str] | None:
        """Return the refs of the records that the fork with a branch reads; None if it is gone.

        A deleted fork reads them as long as it can be undeleted.
        """
        copies = branch, aside_key(branch)
        for key in copies:
            with suppress(NotFoundError):
                return records_of_branch(self._store, branch, key)[1]
        if any(has(self._store, key) for key in copies):
            return set()  # Its journal was deleted by hand, and no record is known to be read.
        is_recent = not self._now or marked_at > self._now - _ABANDONED_SECONDS
        if is_recent or (self._writes and not self._release(branch)):
            return records_until(self._store, parse_branch(branch))
        return None

    def undelete(self, part: str, records: Sequence[DeletedRecord]) -> list[RecordInfo]:
        """Delete the tombstones of records; return the records that are readable again."""
        if not records:
            return []
        keys = [layout.tombstone_key(r.info.key, reason) for r in records for reason in sorted(r.reasons)]
        delete_many(self._store, keys)
        # A stalled gc may have emptied a record meanwhile: the process that acts last detects that.
        torn = {info.key for info in list_session(self._store, part).torn}
        for record in records:
            if record.info.key in torn:
                self._put_tombstones([record.info], min(record.reasons))
        return [record.info for record in records if record.info.key not in torn]

    def empty(self, records: Sequence[DeletedRecord]) -> None:
        """Delete the bytes of marked records; their keys remain taken."""
        self._put_empty([record.info.key for record in records], overwrite=True)
        for part in {layout.session_part(record.info.key) for record in records}:
            delete_derived(self._store, part)
        # Another gc that saw a pin may have deleted a tombstone meanwhile.
        for reason in sorted({min(record.reasons) for record in records}):
            self._put_tombstones([r.info for r in records if min(r.reasons) == reason], reason)

    def _put_tombstones(self, infos: Sequence[RecordInfo], reason: layout.Reason) -> None:
        """Write a tombstone for each record; an existing one is kept."""
        try:
            self._put_empty([layout.tombstone_key(info.key, reason) for info in infos])
        finally:
            note_deletions(self._store, infos)

    def _put_empty(self, keys: Sequence[str], *, overwrite: bool = False) -> None:
        for error in put_many(self._store, [(key, b"") for key in keys], overwrite=overwrite):
            if error is not None and not isinstance(error, ExistsError):
                raise error

    def _note_marked(
        self, objects: SessionObjects, infos: Sequence[RecordInfo], reason: layout.Reason
    ) -> None:
        if not infos:
            return
        self.report.marked.setdefault(reason, []).extend(infos)
        keys = {info.key for info in infos}
        objects.records = [info for info in objects.records if info.key not in keys]
        objects.deleted += self._deleted_records(infos, reason)

    def _deleted_records(self, infos: Iterable[RecordInfo], reason: layout.Reason) -> list[DeletedRecord]:
        return [DeletedRecord(i, (Tombstone(i.key, i.ref, reason, self._now),)) for i in infos]

    def _unprotected(
        self, objects: SessionObjects, infos: Iterable[RecordInfo], reason: layout.Reason, marks: Marks
    ) -> list[RecordInfo]:
        """Return the records that nothing protects from deletion, and report the others."""
        is_active = self._now - max(objects.newest, marks.last_use) < self._retention.live_for
        forked = self.forked(objects.part, marks) or {}
        unprotected = []
        for info in infos:
            # A record that quotes it can be read only as long as it can.
            refs = info.ref, *objects.quoting.get(info.ref, ())
            why: Protection | None = "pinned" if any(map(marks.is_pinned, refs)) else None
            if why is None and (by := {name for ref in refs for name in forked.get(ref, ())}):
                why = "forked"
                self.report.forks.update(by)
            if why is None and reason == "quota":
                why = "active" if is_active else "shared" if marks.shares.keys() & {*refs} else None
            if why is None:
                unprotected.append(info)
            else:
                self.report.protected.setdefault(why, []).append(info)
        return unprotected

    def _evict(
        self, objects: SessionObjects, groups: Iterable[Sequence[RecordInfo]], excess: _Excess
    ) -> None:
        """Mark groups of a session's records for a quota until there is no excess.

        If the session is used meanwhile, they are undeleted. A writer that adopts a record first notes the
        use and then looks for tombstones, gc does the reverse: one of them sees the other.
        """
        if not excess:
            return
        marks = self._marks_of(objects.part)
        evicted: list[RecordInfo] = []
        for group in groups:
            if not excess:
                break
            unprotected = self._unprotected(objects, group, "quota", marks)
            excess.add(unprotected, -1)
            evicted += unprotected
        if evicted and self._writes:
            self._put_tombstones(evicted, "quota")
            if read_marks(self._store, objects.part).last_use > marks.last_use:
                undeleted = self.undelete(objects.part, self._deleted_records(evicted, "quota"))
                self.report.protected.setdefault("active", []).extend(undeleted)
                excess.add(undeleted)
                evicted = [info for info in evicted if info not in undeleted]
        self._note_marked(objects, evicted, "quota")

    def _empty_expired(self, objects: SessionObjects) -> None:
        """Delete the bytes of records whose grace period is over; undelete those that were pinned in time."""
        deleted, grace = objects.deleted, self._retention.grace
        if self._writes and not grace:
            # The new tombstones, with their times in the store.
            deleted = list_session(self._store, objects.part).deleted
        marked = [record for record in deleted if record.info.stored_bytes]
        due = [record for record in marked if not grace or self._now - record.marked_at >= grace]
        # Read again: a pin may be newer than the mark.
        marks = self._marks_of(objects.part) if due else None
        if self._writes and grace and due:
            # `undelete` may have been called since, and has said that they are readable.
            still = {record.info.key for record in list_session(self._store, objects.part).deleted}
            due = [record for record in due if record.info.key in still]
        part = objects.part
        pinned = [r for r in due if marks is not None and self._is_undeleted(objects, marks, r)]
        emptied = [record for record in due if record not in pinned]
        undeleted = [record.info for record in pinned]
        if self._writes:
            undeleted = self.undelete(objects.part, pinned)
            self.empty(emptied)
            self._delete_sidecars(emptied + [record for record in deleted if not record.info.stored_bytes])
            if not objects.records and any("deleted" in record.reasons for record in emptied):
                self._delete_marks(part)
        self.report.undeleted.extend(undeleted)
        self.report.deleted.extend(record.info for record in emptied)

    def _delete_sidecars(self, records: Iterable[DeletedRecord]) -> None:
        """Delete the separate headers of the emptied records of one session."""
        own = [record.info.key for record in records if not layout.is_link(record.info.key)]
        keys = {layout.sidecar_key(key) for key in own if find_codec(key).has_sidecar}
        if keys:
            folder = min(keys).rpartition("/")[0]
            delete_many(self._store, [o.key for o in self._store.keys(f"{folder}/") if o.key in keys])

    def _delete_marks(self, part: str) -> None:
        """Delete the marks of use and sharing, and the snapshots, of a session whose records are gone."""
        families = (layout.LAST_USE, layout.LAST_READ, layout.GRANT, layout.SNAPSHOT)
        listed = [*self._store.keys(layout.PIN.prefix(part)), *self._store.keys(layout.SNAPSHOT.prefix(part))]
        stale = [stored.key for stored in listed if any(family.match(stored.key) for family in families)]
        delete_many(self._store, stale)
        self._delete_origins(part)

    def _delete_origins(self, part: str) -> None:
        """Delete the marks of other sessions that drew refs, of a session without records, journal and fork.

        A mark is kept for the grace period: a copy writes it before the records.
        """
        listed = [*self._store.keys(f"{layout.FOREIGN.prefix(part)}foreign~")]
        old = [mark.key for mark in listed if mark.modified <= self._now - self._retention.grace]
        if old and not (
            own_entries(self._store, part) or self.forked(part, read_marks(self._store, part)) is not None
        ):
            delete_many(self._store, old)

    def _is_undeleted(self, objects: SessionObjects, marks: Marks, record: DeletedRecord) -> bool:
        """Return whether a pin or a grant undeletes a record.

        Only the first half of the grace period counts. gc reads the pins after the grace period, so all
        processes see such a pin or none does: no process empties a record that another one undeletes.
        """
        refs = record.info.ref, *objects.quoting.get(record.info.ref, ())
        times = [marks.pins.get(ref) for ref in refs]
        if "deleted" not in record.reasons:  # A session pin does not undo an explicit deletion.
            times.append(marks.session_pin)
        if record.reasons == {"quota"}:
            times += [marks.shares.get(ref) for ref in refs]
        if "deleted" not in record.reasons and (self.forked(objects.part, marks) or {}).keys() & {*refs}:
            times.append(min(marks.forks.values()))
        latest = record.marked_at + self._retention.grace / 2
        return any(at is not None and at <= latest for at in times)

    def _last_use(self, part: str) -> tuple[float, str]:
        return max(self._remains[part].newest, self._marks_of(part).last_use), part

    def _marks_of(self, part: str) -> Marks:
        """Return the marks of a session, from a fresh listing unless this run has those of all."""
        return read_marks(self._store, part) if self.marks is None else self.marks.get(part, UNMARKED)
