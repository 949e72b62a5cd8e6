"""Sessions whose records are all deleted, and of which gc leaves the mark of a floor: nothing stored is lost.

Each race is between a gc that stalls before one of its operations, other processes that go on for weeks, and
a writer that stores the same item again.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from kit.store import ActingStore
from pairs import each_in_turn, every_pair
from retained import DAY, ClockedStore, Paused, clocked, got_back, opened, put, ref_of

from offload import NotFoundError, OffloadError, OffloadStore, StoreError
from offload.engine.policy import Retention
from offload.maintenance.retention import collect, delete
from offload.maintenance.transfer import copy_session, share
from offload.records.index import floors
from offload.records.index.floors import LEASE_SECONDS, SETTLED_SECONDS
from offload.storage import layout
from offload.testing import FaultyBulkStore, FaultyStore
from offload_backends.memory import MemoryStore

AT_ONCE = Retention(grace=0, live_for=0)
FLOOR = "r/s/floor~2"
Act = Callable[[], object]


class Stalled:
    """A process that stalls before its operation `nth`, in a thread, until `finish`."""

    def __init__(self, store: OffloadStore, nth: int, act: Callable[[OffloadStore], object]) -> None:
        self._reached, self._goes_on = threading.Event(), threading.Event()
        self.paused = Paused(store, nth, self._stall)
        self._thread = threading.Thread(target=self._run, args=[act], daemon=True)
        self._thread.start()
        self._reached.wait()

    def _run(self, act: Callable[[OffloadStore], object]) -> None:
        # Of a gc that stalls at its first operations others delete the probe of the clock, so that it ends.
        with suppress(StoreError):
            act(self.paused)
        self._reached.set()

    def _stall(self) -> None:
        self._reached.set()
        self._goes_on.wait()

    def finish(self) -> bool:
        """Let it go on to its end; return whether it had stalled."""
        self._goes_on.set()
        self._thread.join()
        return self.paused.is_over


def forgetting(store: ClockedStore) -> list[Callable[[OffloadStore], object]]:
    """Return the steps after which nothing but a floor is left of a session, each for any process."""

    def later(view: OffloadStore) -> None:
        store.now += SETTLED_SECONDS
        collect(view)

    return [lambda view: delete(view, "s"), lambda view: collect(view, AT_ONCE), later, later]


def forget(store: ClockedStore, steps: slice = slice(None)) -> None:
    for step in forgetting(store)[steps]:
        step(store)


def stays(store: ClockedStore, placeholder: str) -> bool:
    """Return whether the item "a" is there now, and still after two later gcs."""
    for _ in range(3):
        if not got_back(store, "a", placeholder):
            return False
        store.now += 90 * DAY
        collect(store)
    return True


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClockedStore]:
    """A store whose clock is that of each process too."""
    yield from [timed(monkeypatch, clocked())]


def timed(monkeypatch: pytest.MonkeyPatch, store: ClockedStore) -> ClockedStore:
    for module in ("floors", "catalog"):
        monkeypatch.setattr(f"offload.records.index.{module}.clocks", lambda: (store.now, store.now))
    return store


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
def test_of_deleted_records_one_object_is_left_after_two_weeks_and_their_items_can_be_stored_again(
    store: ClockedStore, codec: str
) -> None:
    made = {str(n): put(opened(store, codec=codec), n) for n in range(3)}
    delete(store, "s")
    collect(store, AT_ONCE)
    for seconds, left in [(SETTLED_SECONDS - 1, 6), (1, 7), (SETTLED_SECONDS - 1, 7), (1, 1), (DAY, 1)]:
        store.now += seconds
        collect(store)
        assert len(store.snapshot()) == left

    with pytest.raises(NotFoundError):
        got_back(store, "0", made["0"])
    assert {name: put(opened(store, codec=codec), name) for name in made} == made
    assert all(got_back(store, name, placeholder) for name, placeholder in made.items())
    forget(store)
    assert list(store.snapshot()) == ["r/s/floor~3"]


def test_records_that_are_there_keep_what_is_left_of_others_in_the_session(store: ClockedStore) -> None:
    put(opened(store), "a")
    kept = put(opened(store), "b")
    delete(store, "s", [info.ref for info in opened(store).records() if info.ref != ref_of(kept)])
    collect(store, AT_ONCE)
    before = store.snapshot()
    store.now += 400 * DAY
    collect(store)
    assert store.snapshot() == before


@pytest.mark.parametrize(("codec", "phase"), each_in_turn(["zstd", "json", "raw"], range(4)))
def test_a_gc_that_stalls_for_weeks_destroys_nothing_that_a_new_process_stores_again(
    monkeypatch: pytest.MonkeyPatch, codec: str, phase: int
) -> None:
    # An rm that has not listed the session yet deletes what it finds then.
    for nth in itertools.count(1 if phase else 3):
        store = timed(monkeypatch, clocked())
        old = put(opened(store, codec=codec), "a")
        forget(store, slice(phase))
        stalled = Stalled(store, nth, forgetting(store)[phase])
        forget(store, slice(phase, None))
        assert FLOOR in store.snapshot()
        anew = put(opened(store, codec=codec), "a")
        had_stalled = stalled.finish()
        assert (anew, stays(store, anew)) == (old, True), f"at operation {nth}"
        if not had_stalled:
            break
    assert nth > 3


@pytest.mark.parametrize(
    ("phase", "is_listed", "is_after"), every_pair(range(4), [False, True], [False, True])
)
def test_a_writer_that_stalls_for_weeks_relies_on_no_key_that_was_free_meanwhile(
    monkeypatch: pytest.MonkeyPatch, phase: int, is_listed: bool, is_after: bool
) -> None:
    for at, nth in ((at, nth) for at in itertools.count(1) for nth in range(3, 12, 3)):
        store = timed(monkeypatch, clocked())
        gcs: list[Stalled] = []

        def meanwhile(store: ClockedStore = store, nth: int = nth, gcs: list[Stalled] = gcs) -> None:
            put(opened(store), "a")
            forget(store, slice(phase))
            gcs.append(Stalled(store, nth, forgetting(store)[phase]))
            forget(store, slice(phase, None))

        writer = Paused(store, 0, meanwhile, is_after=is_after)
        off = opened(writer)
        if is_listed:
            off.records()
        writer.nth = at
        anew = put(off, "a")
        for gc in gcs:
            gc.finish()
        assert stays(store, anew), f"at operations {at} and {nth}"
        if not writer.is_over:
            break
    assert at > 1


def test_a_record_below_the_floor_of_a_writer_that_knew_no_floor_is_not_relied_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for nth in itertools.count(1):
        store = timed(monkeypatch, clocked())
        put(opened(store), "a")
        delete(store, "s")
        stalled = Stalled(store, nth, forgetting(store)[1])
        forget(store)
        with monkeypatch.context() as patch:
            patch.setattr(floors.Floor, "learn", lambda _: None)
            patch.setattr(floors.Floor, "is_known", True)
            old = put(opened(store), "a")
        assert [key for key in store.snapshot() if "~tool_result~" in key and ".2~" not in key]
        for view in (opened(store), opened(store)):
            view.records()
            assert put(view, "a") == old
        had_stalled = stalled.finish()
        assert stays(store, old), f"at operation {nth}"
        if not had_stalled:
            break


@pytest.mark.parametrize(
    ("kind", "moment", "step"),
    every_pair([FaultyStore, FaultyBulkStore], ["before", "after", "torn"], [2, 3]),
)
def test_what_a_gc_that_was_killed_left_the_next_one_finishes(
    store: ClockedStore, kind: type[FaultyStore], moment: Any, step: int
) -> None:
    for nth in itertools.count(1):
        store = clocked()
        made = {str(n): put(opened(store, codec="raw"), n) for n in range(2)}
        forget(store, slice(step))
        faulty = kind(store, nth=nth, moment=moment, is_lasting=True)
        with suppress(OffloadError):
            forgetting(store)[step](faulty)
        for name, placeholder in made.items():
            with pytest.raises(NotFoundError):
                got_back(store, name, placeholder)
        collect(store)
        forget(store, slice(3, None))
        assert [key for key in store.snapshot() if not key.startswith("t/")] == [FLOOR]
        if not faulty.failures:
            break
    assert nth > 1


@pytest.mark.parametrize("step", [2, 3])
def test_two_gcs_at_once_leave_what_one_leaves_and_a_reader_is_told_that_the_record_is_gone(
    store: ClockedStore, step: int
) -> None:
    for nth in itertools.count(1):
        store = clocked()
        placeholder = put(opened(store), "a")
        reader = opened(store)
        reader.records()
        forget(store, slice(step))
        paused = Paused(store, nth, partial(other_and_read, store, step, placeholder))
        with suppress(StoreError):  # See `Stalled`.
            forgetting(store)[step](paused)
        forget(store, slice(3, None))
        assert list(store.snapshot()) == [FLOOR]
        if not paused.is_over:
            break
    assert nth > 3


def other_and_read(store: ClockedStore, step: int, placeholder: str) -> None:
    for act in (collect, forgetting(store)[step]):
        act(store)
        with pytest.raises(NotFoundError):
            got_back(store, "a", placeholder)


def test_copies_and_links_are_above_the_floor_of_their_session(store: ClockedStore) -> None:
    source = MemoryStore()
    copied = put(opened(source), "a")
    put(opened(store), "a")
    forget(store)

    assert copy_session(source, store, "s").copied == [ref_of(copied)]
    shared = ref_of(put(opened(store, "t"), "b"))
    share(store, "t", shared, "s")
    assert got_back(store, "a", copied)
    assert {layout.generation_of(key) for key in store.snapshot() if "/s/" in key and key != FLOOR} == {2}
    assert copy_session(source, store, "s").already_there == [ref_of(copied)]


def test_a_copy_that_stalls_for_a_day_ends_with_an_error_and_another_one_continues(
    store: ClockedStore,
) -> None:
    source = MemoryStore()
    copied = put(opened(source), "a")

    def stall() -> None:
        store.now += LEASE_SECONDS

    errors = 0
    for nth in range(1, 9):
        target = MemoryStore()
        try:
            copy_session(source, Paused(target, nth, stall, is_after=True), "s")
        except StoreError:
            errors += 1
            copy_session(source, target, "s")
        assert got_back(target, "a", copied)
    assert errors > 0


def test_a_clock_of_the_store_that_jumps_ahead_costs_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    store = timed(monkeypatch, clocked())
    began = store.now
    monkeypatch.setattr("offload.records.index.floors.clocks", lambda: (began, began))
    off = opened(store)
    off.records()
    old = put(opened(store), "a")
    forget(store)
    assert put(off, "a") == old
    assert stays(store, old)


def test_a_writer_lists_the_floor_once_a_day_and_not_after_a_listing(store: ClockedStore) -> None:
    noting = ActingStore(store)
    for is_listed in (True, False):
        off = opened(noting)
        if is_listed:
            off.records()
        for name, seconds in [("a", 0), ("b", LEASE_SECONDS - 1), ("c", 1), ("d", 1)]:
            store.now += seconds
            put(off, f"{name}{is_listed}")
    assert [key for verb, key in noting.asked if verb == "keys"] == ["r/s/", "r/s/f", "r/s/f", "r/s/f"]
