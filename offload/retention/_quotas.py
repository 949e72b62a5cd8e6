"""Quotas of a session and of the store: which records over one are marked for deletion."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy
from typing import NamedTuple

from offload.index.objects import SessionObjects, list_session, list_sessions
from offload.record import RecordInfo
from offload.retention._protection import marked_now, note_marked, unprotected
from offload.retention._report import size_of
from offload.retention._run import Run
from offload.retention._tombstones import delete_tombstones, put_tombstones
from offload.retention.marks import read_marks


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
        """Add as many bytes and records."""
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
        """Note what remains of a session."""
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
