"""The collection: which records go, which are spared, and how far each of them has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from offload.events import EventBus, Observer
from offload.layout import JOURNAL, Reason, encode_part
from offload.policy import Retention
from offload.record import RecordInfo
from offload.retention import _acts as acts
from offload.retention._clock import store_time
from offload.retention._holding import Grave, Holding, hold, hold_each
from offload.retention._marks import Marks, read_marks
from offload.retention._quota import Excess, Total
from offload.retention._report import GcReport, Why
from offload.session import SessionReader, check_name
from offload.store import OffloadStore, delete_many


def collect(
    store: OffloadStore,
    retention: Retention | None = None,
    *,
    session: str | None = None,
    dry_run: bool = False,
    events: EventBus | None = None,
) -> GcReport:
    """Collect what is over its time to live or a quota, and finish what was begun before.

    Any number of collectors may run at once, beside readers and writers, and be killed: the next one
    goes on. All of them should be given the same grace.

    Args:
        store: what is collected.
        retention: the quotas and the grace; the default has no quota.
        session: collect this session alone; without it all of them, and the quotas of the store.
        dry_run: write nothing; "now" is then this machine's clock.
        events: told what was done.

    Raises:
        ConfigError: the store tells no times of its objects.
        StoreError: the store failed; what was not done is done by the next collection.
    """
    part = None if session is None else encode_part(check_name(session))
    now = time.time() if dry_run else store_time(store)
    run = _Run(store, Retention() if retention is None else retention, now, GcReport(is_dry_run=dry_run))
    if part is not None:
        run.collect_session(hold(store, part))
    else:
        run.collect_store([run.collect_session(held) for held in hold_each(store)])
    Observer(session, events).collected(run.report.figures())
    return run.report


def delete(
    store: OffloadStore, session: str, refs: Sequence[str] | None = None, *, dry_run: bool = False
) -> GcReport:
    """Mark records of a session, all of them without `refs`; a collection empties them after the grace.

    Those that are pinned are spared, which the report tells. Until a record is emptied it comes back if the
    object beside it with its key and `.deleted` is removed. With all of them goes the conversation that an
    agent wrote down, at once.

    Args:
        store: where the session is.
        session: its name.
        refs: the records; None for all.
        dry_run: write nothing, tell what would go.

    Raises:
        NotFoundError: no such record; nothing is marked. `ExpiredError` if it is marked already.
        StoreError: the store failed.
    """
    part = encode_part(check_name(session))
    reader = SessionReader(store, session)
    for ref in refs or ():
        reader.find(ref)
    held, marks = hold(store, part), read_marks(store, part)
    run = _Run(store, Retention(), 0.0, GcReport(is_dry_run=dry_run))
    wanted = [info for info in held.records if refs is None or info.ref in refs]
    run.mark(held, run.unless(_pinned_by(marks), wanted), "deleted")
    if refs is None and not (dry_run or run.report.protected or marks.session_pin is not None):
        delete_many(store, [stored.key for stored in store.keys(JOURNAL.prefix(part))])
    return run.report


class _Run:
    """One collection: its time, its rules, and the report that it fills."""

    def __init__(self, store: OffloadStore, retention: Retention, now: float, report: GcReport) -> None:
        self.report = report
        self._store = store
        self._retention = retention
        self._now = now
        self._acts = not report.is_dry_run

    def collect_session(self, held: Holding) -> Total:
        """Take one session through every step; return what is left of it."""
        expired = [i for i in held.records if i.expires_at is not None and i.expires_at <= self._now]
        if expired:
            kept = _pinned_by(read_marks(self._store, held.part))
            self.mark(held, self.unless(kept, expired), "expired")
        self._mark_excess(held)
        self._bury(held)
        self._mark_torn(held)
        return Total.of(held)

    def collect_store(self, totals: list[Total]) -> None:
        """Take whole sessions, the least recently used one first, until the store is within its quota."""
        excess = Excess(totals, self._retention.store_bytes, self._retention.store_records)
        if not excess:
            return
        taken = {info.key for infos in self.report.marked.values() for info in infos}
        for total in sorted(totals, key=self._last_use):
            if not excess:
                return
            held = hold(self._store, total.part)
            held.records = [info for info in held.records if info.key not in taken]
            held.graves.clear()  # They have had their turn.
            marks = read_marks(self._store, held.part)
            going = self.unless(self._kept_by(held, marks), held.records)
            excess.shrink(self._mark_unused(held, going, marks))
            self._bury(held)

    def mark(self, held: Holding, infos: Sequence[RecordInfo], reason: Reason) -> None:
        """Mark records of a session: from now on they are graves."""
        if infos and self._acts:
            acts.mark(self._store, infos, reason)
        self._note_marked(held, infos, reason)

    def _note_marked(self, held: Holding, infos: Sequence[RecordInfo], reason: Reason) -> None:
        if not infos:
            return
        self.report.marked.setdefault(reason, []).extend(infos)
        keys = {info.key for info in infos}
        held.records = [info for info in held.records if info.key not in keys]
        held.graves += [Grave(info, frozenset([reason]), self._now) for info in infos]

    def unless(
        self, kept: Callable[[RecordInfo], Why | None], infos: Iterable[RecordInfo]
    ) -> list[RecordInfo]:
        """Return the records that nothing keeps, and report the others."""
        going = []
        for info in infos:
            why = kept(info)
            if why is None:
                going.append(info)
            else:
                self.report.protected.setdefault(why, []).append(info)
        return going

    def _mark_excess(self, held: Holding) -> None:
        """Mark the oldest records of a session until it is within its quota."""
        limits = self._retention
        excess = Excess([Total.of(held)], limits.session_bytes, limits.session_records)
        if not excess:
            return
        marks = read_marks(self._store, held.part)
        kept, going = self._kept_by(held, marks), list[RecordInfo]()
        for info in held.records:
            if not excess:
                break
            fallen = self.unless(kept, [info])
            excess.shrink(fallen)
            going += fallen
        self._mark_unused(held, going, marks)

    def _mark_unused(self, held: Holding, infos: Sequence[RecordInfo], marks: Marks) -> Sequence[RecordInfo]:
        """Mark records for a quota, unless their session is used since `marks` were read; return who goes.

        A writer who takes a record up notes the use first and asks for tombstones then, a collector the
        other way round: one of them sees the other.
        """
        if infos and self._acts:
            acts.mark(self._store, infos, "quota")
            if read_marks(self._store, held.part).last_use > marks.last_use:
                dug = [Grave(info, frozenset(["quota"]), self._now) for info in infos]
                back = acts.revive(self._store, held.part, dug)
                self.report.protected.setdefault("active", []).extend(back)
                infos = [info for info in infos if info not in back]
        self._note_marked(held, infos, "quota")
        return infos

    def _bury(self, held: Holding) -> None:
        """Empty the graves whose grace is over, but revive what was pinned before that."""
        graves = held.graves
        if self._acts and not self._retention.grace:
            graves = hold(self._store, held.part).graves  # With those just dug, and their true times.
        due = [grave for grave in graves if not grave.is_emptied and self._is_over(grave)]
        # Anew: a pin that was not there when a record was marked is seen now.
        back = self._revivable(read_marks(self._store, held.part), due) if due else []
        pinned = {grave.info.key for grave in back}
        gone = [grave for grave in due if grave.info.key not in pinned]
        revived = [grave.info for grave in back]
        emptied = [grave.info for grave in graves if grave.is_emptied] + [grave.info for grave in gone]
        if self._acts:
            revived = acts.revive(self._store, held.part, back)
            acts.empty(self._store, gone)
            acts.remove_sidecars(self._store, emptied)
        self.report.undeleted.extend(revived)
        self.report.deleted.extend(grave.info for grave in gone)

    def _is_over(self, grave: Grave) -> bool:
        grace = self._retention.grace
        return not grace or self._now - grave.at >= grace

    def _revivable(self, marks: Marks, graves: Iterable[Grave]) -> list[Grave]:
        return [grave for grave in graves if self._comes_back(marks, grave)]

    def _comes_back(self, marks: Marks, grave: Grave) -> bool:
        """Tell whether a grave is revived.

        Only a pin of the first half of the grace counts. Whoever looks for pins does so after the grace, so
        all see it or none does: a record that one collector revives is not one that another empties.
        """
        since = [marks.pins.get(grave.info.ref)]
        if "deleted" not in grave.reasons:  # For this one it takes more than a pin of the session.
            since.append(marks.session_pin)
        if grave.reasons == {"quota"}:
            since.append(marks.shares.get(grave.info.ref))
        latest = grave.at + self._retention.grace / 2
        return any(at is not None and at <= latest for at in since)

    def _mark_torn(self, held: Holding) -> None:
        """Mark what was emptied by a collector that was killed between two steps."""
        lost = [info for info in held.unmarked if info.created_at <= self._now - self._retention.grace]
        if self._acts:
            acts.mark(self._store, lost, "deleted")

    def _kept_by(self, held: Holding, marks: Marks) -> Callable[[RecordInfo], Why | None]:
        """Return what tells why a quota takes no record of a session, or None if it may."""
        pinned = _pinned_by(marks)
        is_live = self._now - max(held.newest, marks.last_use) < self._retention.live_for

        def kept(info: RecordInfo) -> Why | None:
            why = pinned(info)
            if why is None and is_live:
                return "active"
            return "shared" if why is None and info.ref in marks.shares else why

        return kept

    def _last_use(self, total: Total) -> tuple[float, str]:
        return max(total.newest, read_marks(self._store, total.part).last_use), total.part


def _pinned_by(marks: Marks) -> Callable[[RecordInfo], Why | None]:
    return lambda info: "pinned" if marks.is_pinned(info.ref) else None
