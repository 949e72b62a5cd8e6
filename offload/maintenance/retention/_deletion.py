"""Deletion by a person, and its undo while the bytes of the record are still there."""

from __future__ import annotations

from collections.abc import Sequence

from offload.errors import ConfigError, ExpiredError, NotFoundError
from offload.maintenance.retention._aside import bring_back
from offload.maintenance.retention._journals import close, remove
from offload.maintenance.retention._protection import delete_tombstones, mark
from offload.maintenance.retention._report import GcReport, Run
from offload.maintenance.retention.marks import read_marks, touch
from offload.records.index.objects import DeletedRecord, list_session
from offload.records.record import RecordInfo
from offload.records.session.names import check_name
from offload.records.session.reader import SessionReader
from offload.storage import layout
from offload.storage.store import OffloadStore, update_index


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
    run = Run(store, GcReport(is_dry_run=dry_run))
    if refs is None and not dry_run:
        close(store, part)
    objects, marks = list_session(store, part), read_marks(store, part)
    if refs is None:
        remove(run, objects, marks)
    else:
        mark(run, objects, [info for info in objects.records if info.ref in refs], "deleted", marks)
    if not dry_run:
        update_index(store)
    return run.report


def undelete(store: OffloadStore, session: str, refs: Sequence[str] | None = None) -> list[RecordInfo]:
    """Make records readable again that are marked for deletion; return them, oldest first.

    It works until a `collect` deletes their bytes, which it does after the grace period: one that runs at the
    same moment may win. The session counts as used now. A record that a TTL or a quota marked is marked again
    by the next `collect`, unless it is pinned. Without `refs` the journal of a deleted session, and the calls
    that a gateway answered in it, are brought back too.

    Args:
        store: the store.
        session: the session's name.
        refs: ids of records; without it all that are marked, by `delete` or by `collect`.

    Raises:
        CollisionError: the session was used since it was deleted and has a new journal; nothing is changed.
        NotFoundError: a record is not there, or not deleted, and nothing is changed; or without `refs` there
            is none to make readable again.
        ExpiredError: the bytes of a record are deleted already; nothing is changed.
        StoreError: the store failed.
    """
    part = layout.encode_part(check_name(session))
    objects = list_session(store, part)
    live = {info.ref for info in objects.records}
    # Of the generations of a record the one with bytes, which are sorted last.
    deleted = sorted(objects.deleted, key=lambda record: record.info.stored_bytes)
    marked = {record.info.ref: record for record in deleted if record.info.ref not in live}
    if refs is None:
        chosen = [record for record in marked.values() if record.info.stored_bytes]
    else:
        chosen = [_chosen(marked.get(ref), ref, session) for ref in dict.fromkeys(refs)]
    entries = bring_back(store, part) if refs is None else 0
    if not (chosen or entries):
        gone = f"; the bytes of {len(marked):,} are deleted for good" if marked else ""
        raise NotFoundError(
            f"session {session!r:.80} of {store.url} has no deleted record that can be undeleted{gone}"
        )
    # Before the records, so that no gc that completes the deletion of the session finds them unused.
    touch(store, session, must_exist=False)
    undeleted = delete_tombstones(store, part, chosen)
    update_index(store)
    return undeleted


def _chosen(record: DeletedRecord | None, ref: str, session: str) -> DeletedRecord:
    if record is None:
        raise NotFoundError(f"session {session!r:.80} has no deleted record {ref!r:.80}")
    if not record.info.stored_bytes:
        raise ExpiredError(f"the bytes of {ref!r:.80} are deleted, so it cannot be read again")
    return record
