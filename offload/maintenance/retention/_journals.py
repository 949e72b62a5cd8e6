"""Journals of deleted sessions, and entries that a rewind left: set aside, kept for forks, deleted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from offload.maintenance.retention._aside import aside_key, is_entry, original_key, replaced, set_aside
from offload.maintenance.retention._protection import forks, mark, release
from offload.maintenance.retention._report import ABANDONED_SECONDS, Run
from offload.maintenance.retention.marks import Marks, read_marks
from offload.records.index.derived import delete_derived
from offload.records.index.objects import SessionObjects, list_session
from offload.records.journal.chain import kept_entries, last_use, parse_branch
from offload.records.journal.format import entry_of, own_entries
from offload.storage import layout
from offload.storage.store import OffloadStore, StoredObject, delete_many, has


def collect_journals(run: Run, part: str = "") -> None:
    """Delete sessions that only their forks kept, and entries that a rewind left; of one or all."""
    marks = [*run.store.keys(layout.PIN.prefix(part))]
    if run.writes:
        aside = [stored for stored in marks if layout.DELETED.match(stored.key)]
        for _, group in groupby(aside, key=lambda stored: layout.session_part(stored.key)):
            objects = [*group]
            # Together: a part of a journal is none.
            if run.is_over(max(stored.modified for stored in objects)):
                _forget_aside(run.store, [stored.key for stored in objects])
    for closed in filter(lambda stored: layout.CLOSED.match(stored.key), marks):
        name = layout.session_part(closed.key)
        if closed.key == layout.CLOSED.key(session=name):
            _remove_closed(run, name, closed)
        elif run.writes and closed.modified <= run.now - ABANDONED_SECONDS:
            run.store.delete(closed.key)
    listed = run.store.keys(layout.JOURNAL.prefix(part))
    for name, entries in groupby(listed, key=lambda stored: layout.session_part(stored.key)):
        _delete_left(run, name, [*entries])


def close(store: OffloadStore, part: str, base: int | None = None) -> str:
    """Let no fork of a session start, or none at an entry up to `base` that a rewind left; return the mark.

    Marks of forks that are listed afterwards are all that count.
    """
    key = layout.CLOSED.key(session=part, base=None if base is None else f"{base:09}")
    # Its time is that of the last deletion: the session may have been used since the one before.
    store.put(key, b"", overwrite=True)
    return key


def _remove_closed(run: Run, part: str, closed: StoredObject) -> None:
    """Delete what no fork needs any more of a session, unless it was used since it was deleted."""
    if last_use(run.store, part) < closed.modified:
        remove(run, list_session(run.store, part), read_marks(run.store, part), is_again=True)
    elif run.writes:
        run.store.delete(closed.key)


def remove(run: Run, objects: SessionObjects, marks: Marks, *, is_again: bool = False) -> None:
    """Mark the records of a closed session, and set its journal aside, but what pins keep or forks need.

    If `is_again`, the journal is deleted: the session was deleted, and its journal set aside, before.
    """
    store, part = run.store, objects.part
    is_pinned = marks.session_pin is not None or any(info.ref in marks.pins for info in objects.records)
    forked = forks(run, part, marks)
    protected = forked if is_again and forked else {}
    mark(run, objects, [info for info in objects.records if info.ref not in protected], "deleted", marks)
    if not is_pinned:
        own = own_entries(store, part)
        branches = [stored.key for stored in store.keys(f"{layout.BRANCH.prefix(part)}from~")]
        calls = [stored.key for stored in store.keys(layout.CALLS.prefix(part))]
        kept: set[str] = set()
        if forked is not None:
            bases = [parse_branch(branch).base for branch in marks.forks]
            kept = kept_entries(store, part, own, bases).union(branches)
        keys = [*branches, *calls, *(entry.at for entry in own)]
        _remove_journal(run, part, keys, kept, is_again=is_again)
    if run.writes and (is_pinned or forked is None):
        store.delete(layout.CLOSED.key(session=part))


def _remove_journal(run: Run, part: str, keys: Sequence[str], kept: set[str], *, is_again: bool) -> None:
    """Set the objects of a journal aside, or delete them, but `kept`."""
    gone = [key for key in keys if key not in kept]
    lost = [] if is_again else replaced(run.store, part, keys)
    run.report.entries += sum(layout.JOURNAL.match(key) is not None for key in gone)
    run.report.entries_lost += sum(map(is_entry, lost))
    if not run.writes:
        return
    delete_derived(run.store, part)
    _forget_aside(run.store, lost)
    if not is_again:
        set_aside(run.store, keys, kept)
        run.store.delete(layout.LAST_USE.key(session=part))
        return
    delete_many(run.store, gone[::-1])
    for branch in filter(layout.BRANCH.match, gone):
        if not has(run.store, aside_key(branch)):
            release(run.store, branch)


def _forget_aside(store: OffloadStore, keys: Sequence[str]) -> None:
    """Delete what is set aside; a fork among it needs nothing from then on."""
    delete_many(store, keys)
    for branch in filter(layout.BRANCH.match, map(original_key, keys)):
        if not has(store, branch):
            release(store, branch)


def _delete_left(run: Run, part: str, listed: Sequence[StoredObject]) -> None:
    """Delete the entries of a journal that rewinds left before the grace period and no fork needs."""
    found = [(entry, stored.modified) for stored in listed if (entry := entry_of(stored.key)) is not None]
    own, times = [entry for entry, _ in found], [modified for _, modified in found]
    rewinds = [place for place, entry in enumerate(own) if entry.is_rewind]
    if not rewinds:
        return
    recent = [place for place in rewinds if place and not run.is_over(times[place])]
    kept = kept_entries(run.store, part, own, [None, *(own[place - 1].number for place in recent)])
    left = [entry for entry in own if entry.at not in kept]
    if not left:
        return
    closed = close(run.store, part, left[-1].number) if run.writes else None
    bases = [parse_branch(branch).base for branch in read_marks(run.store, part).forks]
    kept = kept_entries(run.store, part, own, bases)
    left = [entry for entry in left if entry.at not in kept]
    run.report.entries += len(left)
    if closed is not None:
        delete_many(run.store, [entry.at for entry in left])
        run.store.delete(closed)
