"""The tombstones of records: what guards a record from one, how they are written, and their end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from offload.errors import CorruptError, ExistsError, NotFoundError
from offload.maintenance.retention._aside import aside_key
from offload.maintenance.retention._report import ABANDONED_SECONDS, Protection, Run
from offload.maintenance.retention.marks import Marks
from offload.records.index.derived import delete_derived
from offload.records.index.entries import Tombstone
from offload.records.index.objects import DeletedRecord, SessionObjects, list_session, note_deletions
from offload.records.journal.chain import parse_branch, records_of_branch, records_until
from offload.records.record import RecordInfo
from offload.storage.layout import FORK, DeletionReason, decode_part, session_part, tombstone_key
from offload.storage.store import OffloadStore, delete_many, has, put_many


def put_tombstones(store: OffloadStore, infos: Sequence[RecordInfo], reason: DeletionReason) -> None:
    """Write a tombstone for each record; an existing one is kept."""
    try:
        put_empty(store, [tombstone_key(info.key, reason) for info in infos])
    finally:
        note_deletions(store, infos)


def put_empty(store: OffloadStore, keys: Sequence[str], *, overwrite: bool = False) -> None:
    """Store empty objects; without `overwrite` those that are there are kept."""
    for error in put_many(store, [(key, b"") for key in keys], overwrite=overwrite):
        if error is not None and not isinstance(error, ExistsError):
            raise error


def delete_tombstones(store: OffloadStore, part: str, records: Sequence[DeletedRecord]) -> list[RecordInfo]:
    """Delete the tombstones of records of a session; return the readable ones of these, oldest first."""
    if not records:
        return []
    delete_many(store, [tombstone_key(r.info.key, reason) for r in records for reason in sorted(r.reasons)])
    note_deletions(store, [record.info for record in records])
    objects = list_session(store, part)
    # A stalled gc may have emptied a record meanwhile: the process that acts last detects that.
    torn = {info.key for info in objects.torn}
    for record in records:
        if record.info.key in torn:
            put_tombstones(store, [record.info], min(record.reasons))
    keys = {record.info.key for record in records}
    return [info for info in objects.records if info.key in keys]


def empty_records(store: OffloadStore, records: Sequence[DeletedRecord]) -> None:
    """Delete the bytes of marked records; their keys remain taken."""
    put_empty(store, [record.info.key for record in records], overwrite=True)
    for part in {session_part(record.info.key) for record in records}:
        delete_derived(store, part)
    # Another gc that saw a pin may have deleted a tombstone meanwhile.
    for reason in sorted({min(record.reasons) for record in records}):
        put_tombstones(store, [r.info for r in records if min(r.reasons) == reason], reason)


def mark(
    run: Run, objects: SessionObjects, infos: Sequence[RecordInfo], reason: DeletionReason, marks: Marks
) -> None:
    """Mark the records among `infos` that nothing protects for deletion."""
    found = unprotected(run, objects, infos, reason, marks)
    if found and run.writes:
        put_tombstones(run.store, found, reason)
    note_marked(run, objects, found, reason)


def note_marked(
    run: Run, objects: SessionObjects, infos: Sequence[RecordInfo], reason: DeletionReason
) -> None:
    """Note in the report and in the objects of their session that records have a new tombstone."""
    if infos:
        run.report.marked.setdefault(reason, []).extend(infos)
        keys = {info.key for info in infos}
        objects.records = [info for info in objects.records if info.key not in keys]
        objects.deleted += marked_now(run, infos, reason)


def marked_now(run: Run, infos: Iterable[RecordInfo], reason: DeletionReason) -> list[DeletedRecord]:
    """Return records with the tombstones that this run wrote."""
    return [DeletedRecord(info, (Tombstone(info.key, info.ref, reason, run.now),)) for info in infos]


def unprotected(
    run: Run, objects: SessionObjects, infos: Iterable[RecordInfo], reason: DeletionReason, marks: Marks
) -> list[RecordInfo]:
    """Return the records that nothing protects from deletion, and report the others."""
    is_active = run.now - max(objects.newest, marks.last_use) < run.retention.live_for
    forked = forks(run, objects.part, marks) or {}
    found = []
    for info in infos:
        # A record that quotes it can be read only as long as it can.
        refs = info.ref, *objects.quoting.get(info.ref, ())
        why: Protection | None = "pinned" if any(map(marks.is_pinned, refs)) else None
        if why is None and (by := {name for ref in refs for name in forked.get(ref, ())}):
            why = "forked"
            run.report.forks.update(by)
        if why is None and reason == "quota":
            why = "active" if is_active else "shared" if marks.shares.keys() & {*refs} else None
        if why is None:
            found.append(info)
        else:
            run.report.protected.setdefault(why, []).append(info)
    return found


def is_undeleted(run: Run, objects: SessionObjects, marks: Marks, record: DeletedRecord) -> bool:
    """Return whether a pin or a grant undeletes a record.

    Only the first half of the grace period counts. gc reads the pins after the grace period, so all
    processes see such a pin or none does: no process empties a record that another one undeletes.
    """
    refs = record.info.ref, *objects.quoting.get(record.info.ref, ())
    times = [marks.pins.get(ref) for ref in refs]
    if "deleted" not in record.reasons:  # A session pin does not undo an explicit deletion.
        times.append(marks.session_pin)
        if (forks(run, objects.part, marks) or {}).keys() & {*refs}:
            times.append(min(marks.forks.values()))
    if record.reasons == {"quota"}:
        times += [marks.shares.get(ref) for ref in refs]
    latest = record.marked_at + run.retention.grace / 2
    return any(at is not None and at <= latest for at in times)


def forks(run: Run, part: str, marks: Marks) -> dict[str, set[str]] | None:
    """Return the names of the forks of a session by the record that they read; None if it has no fork.

    A deleted fork is one until gc frees it. One whose branch is gone was freed, or was killed before it
    was whole; its mark is deleted, once it is old. Raises `OffloadError` if a journal cannot be read:
    then nothing may be deleted.
    """
    if not marks.forks:
        return None
    if part not in run.readers:
        known = [(branch, _read_by(run, branch, marked_at)) for branch, marked_at in marks.forks.items()]
        readers: dict[str, set[str]] = {}
        for branch, refs in known:
            for ref in refs or ():
                readers.setdefault(ref, set()).add(decode_part(session_part(branch)))
        run.readers[part] = None if all(refs is None for _, refs in known) else readers
    return run.readers[part]


def _read_by(run: Run, branch: str, marked_at: float) -> set[str] | None:
    """Return the refs of the records that the fork with a branch reads; None if it is gone, or damaged.

    A deleted fork reads them as long as it can be undeleted, but damage in what it reads holds up nothing.
    """
    copies = branch, aside_key(branch)
    try:
        for key in copies:
            with suppress(NotFoundError):
                return records_of_branch(run.store, branch, key)[1]
        if any(has(run.store, key) for key in copies):
            return set()  # Its journal was deleted by hand, and no record is known to be read.
        is_recent = not run.now or marked_at > run.now - ABANDONED_SECONDS
        if is_recent or (run.writes and not release(run.store, branch)):
            return records_until(run.store, parse_branch(branch))
    except CorruptError as error:
        if has(run.store, branch):
            child = decode_part(session_part(branch))
            raise CorruptError(
                f"delete the fork {child!r} first; which records it reads is not known: {error}"
            ) from error
    return None


def release(store: OffloadStore, branch: str) -> bool:
    """Delete the parent's mark of a fork whose branch is gone; return whether it is."""
    place, child = parse_branch(branch), session_part(branch)
    key = FORK.key(session=place.parent, receiver=child, base=f"{place.base:09}")
    store.delete(key)
    if is_back := has(store, branch):
        # The fork was repeated meanwhile: the process that acts last detects that.
        store.put(key, b"", overwrite=True)
    return not is_back
