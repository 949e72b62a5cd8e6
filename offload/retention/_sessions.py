"""The records of one session: which are expired, which are emptied, and what is left of them in the end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from offload import layout
from offload.codec import find_codec
from offload.index.floors import SETTLED_SECONDS
from offload.index.objects import DeletedRecord, SessionObjects, list_session
from offload.journal.format import own_entries
from offload.retention._protection import forks, is_undeleted, mark
from offload.retention._quotas import Remains, evict_records
from offload.retention._report import size_of
from offload.retention._run import Run, check_times
from offload.retention._tombstones import delete_tombstones, empty_records, put_empty, put_tombstones
from offload.retention.marks import read_marks
from offload.store import delete_many


def collect_session(run: Run, objects: SessionObjects) -> Remains:
    """Do every step for one session but the quotas of the store; return what remains of it."""
    times = [info.created_at for info in (*objects.records, *objects.torn)]
    check_times(run.store, times + [record.marked_at for record in objects.deleted])
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
