"""Garbage collection: every step of it, for one session or all, in this thread or by workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any

from offload.base.events import EventBus
from offload.engine.policy import Retention
from offload.errors import OffloadError, check_kind
from offload.maintenance.jobs.each import run_each
from offload.maintenance.retention._journals import collect_journals
from offload.maintenance.retention._report import GcReport, Run, store_time
from offload.maintenance.retention._sessions import Remains, StoreQuota, collect_session, empty_expired
from offload.maintenance.retention.marks import read_all_marks
from offload.records.index.objects import list_session, list_sessions, session_parts
from offload.records.observer import Observer
from offload.records.session.names import check_name
from offload.storage import layout
from offload.storage.store import OffloadStore, update_index


def collect(
    store: OffloadStore,
    retention: Retention | None = None,
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
    check_kind("retention", retention, Retention)
    now = time.time() if dry_run else store_time(store)
    run = Run(store, GcReport(is_dry_run=dry_run), retention or Retention(), now)
    if part is not None:
        _collect_part(run, part)
    else:
        _collect_all(run, executor, storage_options, on_progress or (lambda *_: None))
    if not dry_run:
        update_index(store)
    Observer(session, events).collected(run.report.figures())
    return run.report


def _collect_part(run: Run, part: str) -> Remains:
    collect_journals(run, part)
    return collect_session(run, list_session(run.store, part))


def _collect_all(
    run: Run,
    executor: Executor | None,
    storage_options: Mapping[str, Any] | None,
    told: Callable[[int, GcReport], object],
) -> None:
    quota = StoreQuota(run)
    if executor is None:
        collect_journals(run)
        run.all_marks = None if run.writes else read_all_marks(run.store)
        for done, objects in enumerate(list_sessions(run.store), 1):
            quota.note(objects.part, collect_session(run, objects))
            told(done, run.report)
    else:
        work = partial(_collect_one, run.retention, run.now, is_dry_run=run.report.is_dry_run)
        parts = session_parts(run.store, layout.RECORD, layout.PIN, layout.JOURNAL)
        collected = run_each(work, parts, [run.store], executor=executor, storage_options=[storage_options])
        for done, (part, found) in enumerate(collected, 1):
            if isinstance(found, OffloadError):
                run.report.failures.append((layout.decode_part(part), found))
            else:
                report, remains = found
                run.report.add(report)
                quota.note(part, remains)
            told(done, run.report)
    if not run.report.failures:
        for objects in quota.evict_sessions():
            empty_expired(run, objects)


def _collect_one(
    retention: Retention, now: float, store: OffloadStore, part: str, *, is_dry_run: bool
) -> tuple[GcReport, Remains]:
    run = Run(store, GcReport(is_dry_run=is_dry_run), retention, now)
    remains = _collect_part(run, part)
    return run.report, remains
