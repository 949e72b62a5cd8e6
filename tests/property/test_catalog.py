"""The catalog against a plain listing, while others write, delete and store snapshots."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from large import Clock, LargeStore, fill, info_of, key_of
from strength import examples

from offload.records.index._listing import MAX_AGE
from offload.records.index.catalog import Catalog
from offload.storage.layout import tombstone_key

SMALL, MACHINES = 5, 3
# Records of this process are added to listings that are at most this much older.
OWN_AGE = 2 * MAX_AGE
numbers = st.integers(0, 30)
machines = st.integers(0, MACHINES - 1)


class Machines(RuleBasedStateMachine):
    """A few machines, each with a catalog of its own, on one store with a session of records."""

    @initialize(seconds=st.sampled_from([0.001, 0.3, 30.0]))
    def begin(self, seconds: float) -> None:
        self.patched = pytest.MonkeyPatch()
        self.clock = Clock()
        self.patched.setattr("offload.records.index.catalog.time", self.clock)
        self.patched.setattr("offload.records.index.catalog.LARGE", SMALL)
        self.patched.setattr("offload.records.index.derived._LEAST_LISTED", SMALL)
        self.store = LargeStore(self.clock, seconds)
        fill(self.store, SMALL + 3)
        self.catalogs = [Catalog(self.store, "s") for _ in range(MACHINES)]
        # When each record came and went, by its key; what each machine wrote.
        self.came = dict.fromkeys(self.store.objects, self.clock.now)
        self.went: dict[str, float] = {}
        self.wrote: list[set[str]] = [set() for _ in range(MACHINES)]
        self.held_up: list[tuple[str, bytes]] = []

    def teardown(self) -> None:
        if hasattr(self, "patched"):
            self.patched.undo()

    @rule(machine=machines, number=numbers)
    def write(self, machine: int, number: int) -> None:
        generation = 1
        while (key := key_of(number, generation=generation)) in self.went:
            generation += 1
        if key not in self.came:
            self.store.put(key, b"data")
            self.came[key] = self.clock.now
        self.wrote[machine].add(key)
        self.catalogs[machine].add(info_of(key, self.clock.now))

    @precondition(lambda self: self.came.keys() - self.went.keys())
    @rule(data=st.data())
    def collect(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.came.keys() - self.went.keys())))
        self.store.put(tombstone_key(key, "expired"), b"")
        self.went[key] = self.clock.now

    @rule(seconds=st.sampled_from([0.0, 1.0, 50.0, MAX_AGE, 4 * MAX_AGE]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule()
    def a_writer_of_a_snapshot_is_held_up_before_it_publishes(self) -> None:
        for key in [key for key in self.store.objects if key.startswith("i/")]:
            self.held_up.append((key, self.store.objects.pop(key)[0]))

    @rule()
    def it_goes_on(self) -> None:
        for key, snapshot in self.held_up:
            self.store.objects[key] = snapshot, self.clock.now
        self.held_up.clear()

    @rule()
    def all_snapshots_are_lost(self) -> None:
        for key in [key for key in self.store.objects if key.startswith("i/")]:
            del self.store.objects[key]

    @rule(machine=machines)
    def a_machine_starts_anew(self, machine: int) -> None:
        self.catalogs[machine] = Catalog(self.store, "s")
        self.wrote[machine].clear()

    @rule(machine=machines)
    def list_whole(self, machine: int) -> None:
        self.catalogs[machine].load()
        listed = {info.key for info in self.catalogs[machine].objects()}
        assert listed == self.came.keys() - self.went.keys()
        # Only records that this listing does not show are added to older listings.
        self.wrote[machine] &= listed

    @rule(machine=machines, limit=st.integers(1, 4))
    def list_by_pages(self, machine: int, limit: int) -> None:
        shown: list[str] = []
        page = self.catalogs[machine].page(limit=limit)
        frozen = self.clock.now
        while page.infos:
            assert page.start == len(shown)
            shown += [info.key for info in page.infos]
            self.clock.now = frozen  # The pages are of one moment.
            page = self.catalogs[machine].page(limit=limit, after=page.infos[-1].ref)
        self.check(machine, shown)

    @rule(machine=machines)
    def list_recent(self, machine: int) -> None:
        shown = [info.key for info in self.catalogs[machine].recent()]
        self.check(machine, shown)

    def check(self, machine: int, shown: list[str]) -> None:
        now = self.clock.now
        live = self.came.keys() - self.went.keys()
        assert len({key.rpartition("/")[2][:10] for key in shown}) == len(shown)
        assert set(shown) <= self.came.keys()
        assert {key for key in live if self.came[key] < now - MAX_AGE} <= set(shown)
        assert self.wrote[machine] & live <= set(shown)
        gone = {key for key in shown if self.went.get(key, now) < now - OWN_AGE}
        assert gone <= self.wrote[machine]

    @invariant()
    def nothing_that_counts_was_touched(self) -> None:
        if hasattr(self, "store"):
            assert self.came.keys() <= self.store.objects.keys()


Machines.TestCase.settings = examples(
    60,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
test_every_machine_lists_what_is_there = Machines.TestCase
