"""Undo of a deletion, while the bytes of the record are still there."""

from __future__ import annotations

from collections.abc import Sequence

from offload import layout
from offload.errors import ExpiredError, NotFoundError
from offload.index.objects import DeletedRecord, list_session
from offload.record import RecordInfo
from offload.retention._aside import bring_back
from offload.retention.marks import touch
from offload.session.names import check_name
from offload.session.session import note_deletions
from offload.store import OffloadStore, delete_many, update_index


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
    keys = [layout.tombstone_key(r.info.key, reason) for r in chosen for reason in sorted(r.reasons)]
    delete_many(store, keys)
    note_deletions(store, [record.info for record in chosen])
    update_index(store)
    wanted = {record.info.ref for record in chosen}
    return [info for info in list_session(store, part).records if info.ref in wanted]


def _chosen(record: DeletedRecord | None, ref: str, session: str) -> DeletedRecord:
    if record is None:
        raise NotFoundError(f"session {session!r:.80} has no deleted record {ref!r:.80}")
    if not record.info.stored_bytes:
        raise ExpiredError(f"the bytes of {ref!r:.80} are deleted, so it cannot be read again")
    return record
