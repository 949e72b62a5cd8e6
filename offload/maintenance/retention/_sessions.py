"""The records of one session: which are expired or over a quota, which are emptied, and what is left."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from typing import NamedTuple

from offload.maintenance.retention._protection import (
    delete_tombstones,
    empty_records,
    forks,
    is_undeleted,
    mark,
    marked_now,
    note_marked,
    put_empty,
    put_tombstones,
    unprotected,
)
from offload.maintenance.retention._report import Run, check_times, size_of
from offload.maintenance.retention.marks import read_marks
from offload.records.codec import find_codec
from offload.records.index.floors import SETTLED_SECONDS
from offload.records.index.objects import DeletedRecord, SessionObjects, list_session, list_sessions
from offload.records.journal.format import own_entries
from offload.records.record import RecordInfo
from offload.storage import layout
from offload.storage.store import delete_many


class Remains(NamedTuple):
    """The size of the records that remain in a session, and the time of the newest."""

    records: int
    stored_bytes: int
    newest: float


class Excess:
    """Bytes and records over a quota, None for no limit; true while there are any."""

    def __init__(self, max_bytes: int | None, max_records: int | None) -> None:
        self._bytes = -math.inf if max_bytes is None else -max_bytes
        self._records = -math.inf if max_records is None else -max_records

    def __bool__(self) -> bool:
        return self._bytes > 0 or self._records > 0

    def add(self, stored_bytes: int, records: int) -> None:
        self._bytes += stored_bytes
        self._records += records


def evict_records(run: Run, objects: SessionObjects) -> None:
    """Mark the oldest records of a session, until it is within its quota."""
    excess = Excess(run.retention.session_bytes, run.retention.session_records)
    excess.add(size_of(objects.records), len(objects.records))
    _evict(run, objects, ([info] for info in objects.records), excess)


def _evict(run: Run, objects: SessionObjects, groups: Iterable[Sequence[RecordInfo]], excess: Excess) -> None:
    """Mark groups of a session's records for a quota until there is no excess.

    If the session is used meanwhile, they are undeleted. A writer that adopts a record first notes the
    use and then looks for tombstones, gc does the reverse: one of them sees the other.
    """
    if not excess:
        return
    marks = run.marks_of(objects.part)
    evicted: list[RecordInfo] = []
    for group in groups:
        if not excess:
            break
        found = unprotected(run, objects, group, "quota", marks)
        excess.add(-size_of(found), -len(found))
        evicted += found
    if evicted and run.writes:
        put_tombstones(run.store, evicted, "quota")
        if read_marks(run.store, objects.part).last_use > marks.last_use:
            back = delete_tombstones(run.store, objects.part, marked_now(run, evicted, "quota"))
            run.report.protected.setdefault("active", []).extend(back)
            excess.add(size_of(back), len(back))
            evicted = [info for info in evicted if info not in back]
    note_marked(run, objects, evicted, "quota")


class StoreQuota:
    """The quota of the store: what remains of each session, and over the quota of all."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._excess = Excess(run.retention.store_bytes, run.retention.store_records)
        self._remains: dict[str, Remains] = {}

    def note(self, part: str, remains: Remains) -> None:
        if remains.records:
            self._excess.add(remains.stored_bytes, remains.records)
            self._remains[part] = remains

    def evict_sessions(self) -> Iterable[SessionObjects]:
        """Mark whole sessions, the least recently used first, until the store is within its quota."""
        run = self._run
        waiting = deque(sorted(self._remains, key=self._last_use) if self._excess else ())
        marked = {info.key for infos in run.report.marked.values() for info in infos}
        while self._excess and waiting:
            least_used = self._next(waiting)
            # A dry run lists the store once more, since each session alone would be a request.
            listed = (
                {} if run.writes else {o.part: o for o in list_sessions(run.store) if o.part in least_used}
            )
            for part in least_used:
                objects = listed.get(part) or list_session(run.store, part)
                objects.records = [info for info in objects.records if info.key not in marked]
                objects.deleted.clear()  # They were handled before.
                _evict(run, objects, [objects.records], self._excess)
                yield objects

    def _next(self, waiting: deque[str]) -> list[str]:
        """Take the sessions that would end the excess, if nothing protects their records."""
        excess, taken = copy(self._excess), list[str]()
        while excess and waiting:
            taken.append(waiting.popleft())
            remains = self._remains[taken[-1]]
            excess.add(-remains.stored_bytes, -remains.records)
        return taken

    def _last_use(self, part: str) -> tuple[float, str]:
        return max(self._remains[part].newest, self._run.marks_of(part).last_use), part


def collect_session(run: Run, objects: SessionObjects) -> Remains:
    """Do every step for one session but the quotas of the store; return what remains of it."""
    times = [info.created_at for info in (*objects.records, *objects.torn)]
    check_times(run.store, times + [record.marked_at for record in objects.deleted])
    marked = [record.marked_at for record in objects.deleted if record.info.stored_bytes]
    run.report.waiting += sum(not run.is_over(at) for at in marked)
    expired = [info for info in objects.records if info.expires_at is not None and info.expires_at <= run.now]
    if expired:
        mark(run, objects, expired, "expired", run.marks_of(objects.part))
    evict_records(run, objects)
    empty_expired(run, objects)
    _mark_lost(run, objects)
    if run.writes:
        # Records that a killed gc emptied without a tombstone.
        torn = [info for info in objects.torn if info.created_at <= run.now - run.retention.grace]
        put_tombstones(run.store, torn, "deleted")
        _forget(run, objects)
    return Remains(len(objects.records), size_of(objects.records), objects.newest)


def empty_expired(run: Run, objects: SessionObjects) -> None:
    """Delete the bytes of records whose grace period is over; undelete those that were pinned in time."""
    store, part, deleted = run.store, objects.part, objects.deleted
    if run.writes and not run.retention.grace:
        # The new tombstones, with their times in the store.
        deleted = list_session(store, part).deleted
    due = [record for record in deleted if record.info.stored_bytes and run.is_over(record.marked_at)]
    # Read again: a pin may be newer than the mark.
    marks = run.marks_of(part) if due else None
    if run.writes and run.retention.grace and due:
        # `undelete` may have been called since, and has said that they are readable.
        still = {record.info.key for record in list_session(store, part).deleted}
        due = [record for record in due if record.info.key in still]
    pinned = [r for r in due if marks is not None and is_undeleted(run, objects, marks, r)]
    emptied = [record for record in due if record not in pinned]
    undeleted = [record.info for record in pinned]
    if run.writes:
        undeleted = delete_tombstones(store, part, pinned)
        empty_records(store, emptied)
        _delete_sidecars(run, emptied + [record for record in deleted if not record.info.stored_bytes])
        if not objects.records and any("deleted" in record.reasons for record in emptied):
            _delete_marks(run, part)
    run.report.undeleted.extend(undeleted)
    run.report.deleted.extend(record.info for record in emptied)


def _delete_sidecars(run: Run, records: Iterable[DeletedRecord]) -> None:
    """Delete the separate headers of the emptied records of one session."""
    own = [record.info.key for record in records if not layout.is_link(record.info.key)]
    keys = {layout.sidecar_key(key) for key in own if find_codec(key).has_sidecar}
    if keys:
        folder = min(keys).rpartition("/")[0]
        delete_many(run.store, [o.key for o in run.store.keys(f"{folder}/") if o.key in keys])


def _delete_marks(run: Run, part: str) -> None:
    """Delete the marks of use and sharing of a session whose records are gone."""
    families = (layout.LAST_USE, layout.LAST_READ, layout.GRANT)
    listed = run.store.keys(layout.PIN.prefix(part))
    stale = [stored.key for stored in listed if any(family.match(stored.key) for family in families)]
    delete_many(run.store, stale)
    _delete_origins(run, part)


def _delete_origins(run: Run, part: str) -> None:
    """Delete the marks of other sessions that drew refs, of a session without records, journal and fork.

    A mark is kept for the grace period: a copy writes it before the records.
    """
    listed = [*run.store.keys(f"{layout.FOREIGN.prefix(part)}foreign~")]
    old = [mark.key for mark in listed if mark.modified <= run.now - run.retention.grace]
    if old and not own_entries(run.store, part) and forks(run, part, read_marks(run.store, part)) is None:
        delete_many(run.store, old)


def _mark_lost(run: Run, objects: SessionObjects) -> None:
    """Mark the records that quote one whose bytes are deleted: nobody can read them again."""
    there = {info.ref for info in objects.records}
    there |= {record.info.ref for record in objects.deleted if record.info.stored_bytes}
    emptied = {r.info.ref: min(r.reasons) for r in objects.deleted if r.info.ref not in there}
    for ref in emptied.keys() & objects.quoting.keys():
        refs = {*objects.quoting[ref]}
        lost = [info for info in objects.records if info.quotes and info.ref in refs]
        mark(run, objects, lost, emptied[ref], run.marks_of(objects.part))


def _forget(run: Run, objects: SessionObjects) -> None:
    """Delete what is left of deleted records below a floor that is a week old.

    The floor of a session without records is raised a week after the last deletion.
    """
    floor = max(objects.floors, default=1)
    emptied = [record for record in objects.deleted if not record.info.stored_bytes]
    below = [record for record in emptied if layout.generation_of(record.info.key) < floor]
    settled = run.now - SETTLED_SECONDS
    if below or len(objects.floors) > 1:
        if objects.floors[floor] <= settled:
            _delete_below(run, objects, floor, below)
        return
    is_over = len(emptied) == len(objects.deleted) and not (objects.records or objects.torn)
    if is_over and emptied and max(record.last_tombstone.at for record in emptied) <= settled:
        highest = max(layout.generation_of(record.info.key) for record in emptied)
        put_empty(run.store, [layout.FLOOR.key(session=objects.part, generation=highest + 1)])


def _delete_below(run: Run, objects: SessionObjects, floor: int, below: Sequence[DeletedRecord]) -> None:
    """Delete the objects of deleted records below a floor, and older marks of a floor."""
    # A tombstone without a record shows a deleted record, a record without a tombstone a damaged one.
    delete_many(run.store, [record.info.key for record in below])
    tombstones = [mark for record in below for mark in record.tombstones]
    old = [layout.FLOOR.key(session=objects.part, generation=n) for n in objects.floors if n < floor]
    delete_many(run.store, [layout.tombstone_key(mark.key, mark.reason) for mark in tombstones] + old)
    if len(below) == len(objects.deleted) and not (objects.records or objects.torn):
        _delete_origins(run, objects.part)
