"""Killed, stalled and concurrent gc processes: no stored record is lost, no torn record is read."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import prepared
import pytest
from pairs import every_pair
from retained import DAY, HOUR, ClockedStore, Paused, clocked, got_back, message, opened, put, ref_of, text_of

from offload import ExpiredError, NotFoundError, Offloader, OffloadError, OffloadStore, RecordInfo, open_store
from offload.engine.policy import Retention
from offload.maintenance.retention import GcReport, collect, delete, pin, undelete
from offload.maintenance.retention._protection import delete_tombstones, empty_records
from offload.records.index.objects import list_session
from offload.testing import FaultyBulkStore, FaultyStore

if TYPE_CHECKING:
    from conftest import Bucket

AT_ONCE = Retention(grace=0, live_for=0)
TTL = 100

CODECS = ("zstd", "json", "raw")
# A record of `json` is one object, as one of `zstd` is.
on_every_codec = pytest.mark.parametrize(
    "codec", ["zstd", pytest.param("json", marks=pytest.mark.slow), "raw"]
)


def in_every_state(codec: str) -> tuple[ClockedStore, dict[str, str]]:
    """Return a store in which a collection has something of everything to do, and what must survive it."""
    made, alive = _in_every_state(codec)
    store = clocked()
    for key, data in made.snapshot().items():
        store.inner.put(key, data)
    store.times, store.now = {**made.times}, made.now
    return store, alive


@cache
def _in_every_state(codec: str) -> tuple[ClockedStore, dict[str, str]]:
    store = clocked()
    put(opened(store, ttl=TTL, codec=codec), "emptied")
    store.now += TTL
    collect(store, AT_ONCE)
    revived = put(opened(store, ttl=TTL, codec=codec), "to revive")
    for name in ("to empty", "to empty too"):
        put(opened(store, ttl=TTL, codec=codec), name)
    store.now += TTL
    pin(store, "s", ref_of(revived))
    mark_past_the_pin(store, revived)
    collect(store)
    store.now += HOUR
    for session in ("s", "t"):
        put(opened(store, session, ttl=TTL, codec=codec), "to mark")
    store.now += TTL
    return store, {"to revive": revived, "new": put(opened(store, codec=codec), "new")}


def mark_past_the_pin(store: ClockedStore, placeholder: str) -> None:
    """Mark a record like a gc that read the pins before there was one."""
    [key] = [found.key for found in store.keys("r/s/") if ref_of(placeholder) in found.key]
    store.put(f"{key}.expired", b"")


def left_in(store: ClockedStore) -> dict[str, bytes]:
    """Return all objects of a store except the probes of killed gc processes."""
    return {key: data for key, data in store.snapshot().items() if not key.startswith("t/")}


@on_every_codec
def test_the_state_that_is_disturbed_has_something_of_everything(codec: str) -> None:
    store, _ = in_every_state(codec)
    done = collect(store)
    assert (len(done.marked["expired"]), len(done.deleted)) == (2, 2)
    assert len(done.undeleted) == 1


@pytest.mark.parametrize(
    ("codec", "kind", "moment", "is_lasting"),
    every_pair(CODECS, [FaultyStore, FaultyBulkStore], ["before", "after", "torn"], [False, True]),
)
def test_what_a_killed_collector_left_the_next_one_finishes(
    codec: str, kind: type[FaultyStore], moment: Literal["before", "after", "torn"], is_lasting: bool
) -> None:
    calm, _ = in_every_state(codec)
    collect(calm)
    right = left_in(calm).keys()

    for nth in itertools.count(1):
        store, alive = in_every_state(codec)
        faulty = kind(store, nth=nth, moment=moment, is_lasting=is_lasting)
        assert fails(faulty) is (faulty.failures > 0)
        for name, placeholder in alive.items():
            right_or_expired(store, name, placeholder)

        collect(store)
        assert left_in(store).keys() == right, f"where operation {nth} fails"
        assert [got_back(store, *kept) for kept in alive.items()] == [True] * len(alive)
        if not faulty.failures:
            break
    assert nth > 7


@on_every_codec
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_item_is_stored_again_whatever_a_killed_collector_left_of_it(
    codec: str, moment: Literal["before", "after"]
) -> None:
    for nth in itertools.count(1):
        store, _ = in_every_state(codec)
        faulty = FaultyStore(store, nth=nth, moment=moment, is_lasting=True)
        assert fails(faulty) is (faulty.failures > 0)
        names = ("emptied", "to empty", "to empty too")
        anew = {name: put(opened(store, ttl=TTL, codec=codec), name) for name in names}

        for _ in range(2):
            assert [got_back(store, *item) for item in anew.items()] == [True] * 3, f"where {nth} fails"
            collect(store)
        if not faulty.failures:
            break


def fails(store: OffloadStore) -> bool:
    """Run gc; return whether it failed."""
    try:
        collect(store)
    except OffloadError:
        return True
    return False


def right_or_expired(store: OffloadStore | str, name: str, placeholder: str) -> bool:
    """Restore a placeholder: True if that gives its item, False if it was collected, else it fails."""
    try:
        assert got_back(store, name, placeholder)
    except ExpiredError:
        return False
    return True


@on_every_codec
def test_a_collector_that_stalls_anywhere_destroys_nothing_that_was_stored_anew(codec: str) -> None:
    for nth in itertools.count(1):
        store = clocked()
        old = put(opened(store, ttl=TTL, codec=codec), "a")
        store.now += TTL
        collect(store)
        store.now += HOUR
        put(opened(store, ttl=TTL, codec=codec), "b")
        store.now += TTL
        anew = dict[str, str]()

        def finish_and_store_anew(store: ClockedStore = store, anew: dict[str, str] = anew) -> None:
            collect(store, AT_ONCE)
            anew.update({name: put(opened(store, codec=codec), name) for name in "ab"})

        stalled = Paused(store, nth, finish_and_store_anew)
        collect(stalled)
        store.now += 2 * HOUR
        collect(store)
        if not stalled.is_over:
            break
        assert [got_back(store, *item) for item in anew.items()] == [True, True], f"at operation {nth}"
        assert anew["a"] == old
    assert nth > 6


@on_every_codec
def test_a_collector_that_stalls_in_any_round_destroys_nothing_that_was_stored_anew(codec: str) -> None:
    for nth in itertools.count(1):
        store, was_done = clocked(), list[bool]()
        placeholder = put(opened(store, codec=codec), "a")
        for _ in range(3):
            delete(store, "s")
            collect(store, AT_ONCE)
            store.now += 40 * DAY

            def finish_and_store_anew(store: ClockedStore = store) -> None:
                collect(store)
                put(opened(store, codec=codec), "a")

            stalled = Paused(store, nth, finish_and_store_anew)
            collect(stalled)
            if not stalled.is_over:
                put(opened(store, codec=codec), "a")
            was_done.append(stalled.is_over)
            assert got_back(store, "a", placeholder), f"at operation {nth}"
            for _ in range(2):
                store.now += 40 * DAY
                collect(store)
            assert got_back(store, "a", placeholder), f"at operation {nth}"
        if not any(was_done):
            break
    assert nth > 2


@pytest.mark.parametrize(("is_whole", "grace"), [(True, HOUR), (False, HOUR), (False, 0)])
@pytest.mark.parametrize("reason", ["expired", "quota"])
def test_a_pin_holds_or_is_refused_wherever_in_a_collection_it_comes(
    is_whole: bool, grace: int, reason: str
) -> None:
    rules = Retention(grace=grace, live_for=0, session_records=None if reason == "expired" else 1)
    outcomes = set()
    for nth in itertools.count(1):
        store = clocked()
        placeholder, _ = (put(opened(store, ttl=TTL if reason == "expired" else None), n) for n in "ab")
        store.now += TTL
        put(opened(store), "c")
        said: list[str] = []

        def try_to_pin(store: ClockedStore = store, placeholder: str = placeholder, said: Any = said) -> None:
            store.now += 1
            try:
                pin(store, "s", None if is_whole else ref_of(placeholder))
                said.append("pinned")
            except ExpiredError:
                said.append("refused")
            store.now += 1

        collector = Paused(store, nth, try_to_pin)
        collect(collector, rules)
        for _ in range(3):
            store.now += 2 * HOUR
            collect(store, rules)
        if not collector.is_over:
            break
        assert right_or_expired(store, "a", placeholder) is (said == ["pinned"]), f"at operation {nth}"
        outcomes.update(said)
    assert outcomes == ({"pinned"} if is_whole else {"pinned", "refused"})


QUOTA = Retention(session_records=1, live_for=0)


def by_quota(store: ClockedStore) -> None:
    collect(store, QUOTA)


def by_quota_at_once(store: ClockedStore) -> None:
    collect(store, Retention(session_records=1, live_for=0, grace=0))


def by_deletion(store: ClockedStore) -> None:
    if opened(store).records():
        delete(store, "s")


def by_deletion_at_once(store: ClockedStore) -> None:
    by_deletion(store)
    collect(store, AT_ONCE)


in_every_way = pytest.mark.parametrize("goes", [by_quota, by_quota_at_once, by_deletion, by_deletion_at_once])


class ElsewhereStore(ClockedStore):
    """The store as another process opened it: no session of this process learns of its deletions."""

    url = "memory://elsewhere"

    def __init__(self, store: ClockedStore) -> None:
        super().__init__(store.inner)
        self.now, self.times = store.now, store.times


@on_every_codec
@in_every_way
@pytest.mark.parametrize("is_known", [True, False])
def test_a_placeholder_is_alive_when_it_is_given_wherever_in_a_call_its_record_goes(
    codec: str, goes: Callable[[ClockedStore], None], is_known: bool
) -> None:
    for nth in itertools.count(1):
        store = clocked()
        moment = Paused(store, 0, partial(goes, ElsewhereStore(store)))
        off = opened(moment, codec=codec)
        placeholder = put(off if is_known else opened(store, codec=codec), "a")
        store.now += 10
        put(opened(store, codec=codec), "b")
        moment.nth = nth

        assert put(off, "a") == placeholder
        for _ in range(2):
            assert got_back(store, "a", placeholder), f"at operation {nth}"
            store.now += 2 * HOUR
            collect(store)
        if not moment.is_over:
            break
    assert nth > 2


@on_every_codec
def test_what_a_writer_takes_up_in_a_collection_by_quota_is_spared(codec: str) -> None:
    rules = Retention(session_records=1, store_records=1, live_for=DAY)
    for nth in itertools.count(1):
        store = clocked()
        placeholder = put(opened(store, codec=codec), "a")
        store.now += 10
        put(opened(store, codec=codec), "b")
        store.now += 2 * DAY

        def take_up(store: ClockedStore = store) -> None:
            store.now += 1
            put(opened(store, codec=codec), "a")
            store.now += 1

        collector = Paused(store, nth, take_up)
        done = collect(collector, rules)
        if not collector.is_over:
            break
        assert got_back(store, "a", placeholder), f"at operation {nth}"
        assert sum(map(len, done.marked.values())) == len(list_session(store, "s").deleted)
    assert nth > 4


@in_every_way
def test_what_stands_in_a_conversation_and_is_deleted_in_this_process_is_stored_anew(
    goes: Callable[[ClockedStore], None],
) -> None:
    store = clocked()
    off = opened(store)
    messages = [message(name, text_of(name)) for name in "ab"]
    before = off.offload(messages).messages
    store.now += 10

    goes(store)

    out = off.offload(messages)
    assert (out.messages, out.errors) == (before, [])
    assert opened(store).restore(out.messages) == messages


@pytest.mark.parametrize("phase", ["marking", "marking and emptying"])
def test_a_pin_holds_or_is_refused_wherever_in_it_a_collection_comes(phase: str) -> None:
    said = []
    for nth in itertools.count(1):
        store = clocked()
        placeholder = put(opened(store, ttl=TTL), "a")
        store.now += TTL

        def collect_now(store: ClockedStore = store) -> None:
            collect(store, AT_ONCE if phase == "marking and emptying" else Retention())

        pinner = Paused(store, nth, collect_now)
        try:
            pin(pinner, "s", ref_of(placeholder))
            is_pinned = True
        except ExpiredError:
            is_pinned = False
        if not pinner.is_over:
            break
        store.now += 2 * HOUR
        collect(store)
        assert right_or_expired(store, "a", placeholder) is is_pinned, f"at operation {nth}"
        said.append(is_pinned)
    # gc wins before the pin is written, the pin wins afterwards.
    assert said == sorted(said)
    assert set(said) == {False, True}


def test_what_undelete_made_readable_remains_so_unless_gc_writes_at_that_moment() -> None:
    lost = []
    for nth in itertools.count(1):
        store = clocked()
        placeholder = put(opened(store), "a")
        delete(store, "s")
        store.now += 2 * HOUR
        readable: list[RecordInfo] = []

        def undelete_now(store: ClockedStore = store, readable: list[RecordInfo] = readable) -> None:
            with suppress(ExpiredError, NotFoundError):
                readable += undelete(store, "s")

        gc = Paused(store, nth, undelete_now)
        collect(gc)
        if not gc.is_over:
            break
        lost.append(bool(readable) and not right_or_expired(store, "a", placeholder))
    assert sum(lost) <= 1
    assert not any(lost[:4])


@on_every_codec
@pytest.mark.parametrize("is_emptied_last", [True, False])
def test_two_that_disagree_about_a_record_leave_it_collected_and_never_torn(
    codec: str, is_emptied_last: bool
) -> None:
    store = clocked()
    placeholder = put(opened(store, codec=codec), "a")
    delete(store, "s")
    records = list_session(store, "s").deleted

    for is_undeletion in (True, False) if is_emptied_last else (False, True):
        if is_undeletion:
            delete_tombstones(store, "s", records)
        else:
            empty_records(store, records)

    with pytest.raises(ExpiredError):
        got_back(store, "a", placeholder)
    assert opened(store).verify() == []


@on_every_codec
def test_an_empty_record_that_lost_its_tombstone_gets_one(codec: str) -> None:
    store = clocked()
    placeholder = put(opened(store, codec=codec), "a")
    [key] = [found.key for found in store.keys("r/")]
    store.put(key, b"", overwrite=True)

    store.now += HOUR
    collect(store)

    with pytest.raises(ExpiredError):
        got_back(store, "a", placeholder)


def not_yet(store: ClockedStore) -> GcReport:
    return collect(store)


def mark(store: ClockedStore) -> GcReport:
    store.now += TTL
    return collect(store)


def empty(store: ClockedStore) -> GcReport:
    store.now += TTL
    return collect(store, AT_ONCE)


def forget(store: ClockedStore) -> GcReport:
    empty(store)
    store.now += 40 * DAY
    return collect(store)


@on_every_codec
@pytest.mark.parametrize("phase", [not_yet, mark, empty, forget])
@pytest.mark.parametrize("times", [1, 3])
def test_an_item_that_is_offloaded_again_is_read_by_its_old_placeholder(
    codec: str, phase: Callable[[ClockedStore], GcReport], times: int
) -> None:
    store = clocked()
    old = put(opened(store, ttl=TTL, codec=codec), "a")
    for _ in range(times):
        phase(store)
        again = opened(store, ttl=TTL, codec=codec)

        assert put(again, "a") == old
        assert got_back(store, "a", old)
        assert [info.ref for info in again.records()] == [ref_of(old)]
        assert again.verify() == []


# Several at once


@on_every_codec
def test_collectors_in_many_threads_do_what_one_does(codec: str) -> None:
    calm, _ = in_every_state(codec)
    collect(calm)
    store, alive = in_every_state(codec)
    begin = threading.Barrier(6)

    def run(_: int) -> None:
        begin.wait()
        collect(store)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(6)))

    collect(store)
    assert left_in(store).keys() == left_in(calm).keys()
    assert [got_back(store, *kept) for kept in alive.items()] == [True] * len(alive)


@on_every_codec
def test_who_reads_while_records_are_collected_gets_the_text_or_is_told(codec: str) -> None:
    store = clocked()
    names = [str(n) for n in range(30)]
    made = {name: put(opened(store, ttl=TTL, codec=codec), name) for name in names}
    store.now += TTL
    begin = threading.Barrier(4)

    def read(way: int) -> set[bool]:
        known = opened(store)
        known.records()
        begin.wait()
        return {is_read(known, store, name, made[name], way) for name in names}

    with ThreadPoolExecutor(4) as pool:
        reading = [pool.submit(read, way) for way in range(3)]
        begin.wait()
        for _ in range(3):
            collect(store, AT_ONCE)
        assert all(future.result() <= {True, False} for future in reading)
    assert [right_or_expired(store, *item) for item in made.items()] == [False] * len(made)


def is_read(known: Offloader, store: OffloadStore, name: str, placeholder: str, way: int) -> bool:
    """Read an item by a newcomer, or by one who knows the session: by its messages or its ref."""
    if way == 0:
        return right_or_expired(store, name, placeholder)
    try:
        if way == 1:
            assert known.restore([message(name, placeholder)]) == [message(name, text_of(name))]
        else:
            assert b"".join(known.content(ref_of(placeholder))).decode() == text_of(name)
    except ExpiredError:
        return False
    return True


COLLECTOR = """
import sys
from offload import open_store
from offload.engine.policy import Retention
from offload.maintenance.retention import collect
store, rules = open_store(sys.argv[1]), Retention(grace=int(sys.argv[2]), live_for=0)
print("ready", flush=True)
for _ in sys.stdin:
    collect(store, rules)
    print("done", flush=True)
"""
# Offloads items in turn with and without a time to live, and prints the placeholder of each.
WRITER = """
import json, sys
from retained import opened, put
offloaders = [opened(sys.argv[1], ttl=ttl) for ttl in (1, 5000, None)]
print("ready", flush=True)
sys.stdin.readline()
for n in range(24):
    name = f"{sys.argv[2]} {n}"
    print(json.dumps([name, put(offloaders[n % 3], name)]), flush=True)
"""


def started(program: str, *arguments: object) -> prepared.Started:
    process = prepared.start(program, *arguments)
    assert hear(process) == "ready"
    return process


def hear(process: prepared.Started) -> str:
    return process.stdout.readline().strip()


def test_collectors_in_several_processes_do_what_one_does(tmp_path: Path) -> None:
    kept = {name: put(opened(str(tmp_path)), name) for name in ("a", "b")}
    gone = {str(n): put(opened(str(tmp_path)), n) for n in range(20)}
    collectors = [started(COLLECTOR, tmp_path, 0) for _ in range(3)]
    delete(opened(str(tmp_path)).store, "s", [ref_of(placeholder) for placeholder in gone.values()])

    for process in collectors:
        process.tell("go\n")
    assert [hear(process) for process in collectors] == ["done"] * 3
    for process in collectors:
        process.communicate()

    assert [right_or_expired(str(tmp_path), *item) for item in gone.items()] == [False] * 20
    assert [got_back(str(tmp_path), *item) for item in kept.items()] == [True, True]
    sizes = [path.stat().st_size for path in (tmp_path / "r/s").iterdir()]
    assert (sizes.count(0), len(sizes)) == (40, 42)


@pytest.mark.parametrize(
    "codec", ["zstd", *(pytest.param(codec, marks=pytest.mark.slow) for codec in ("json", "raw"))]
)
def test_a_bucket_is_collected_and_its_items_are_stored_again(s3_bucket: Bucket, codec: str) -> None:
    def off() -> Offloader:
        store = open_store(s3_bucket.url, storage_options=s3_bucket.storage_options)
        return opened(store, codec, codec=codec)

    made = {str(n): put(off(), n) for n in range(5)}
    off().pin(ref_of(made["0"]))
    delete(off().store, codec)
    begin = threading.Barrier(2)

    def run() -> GcReport:
        begin.wait()
        return collect(off().store, AT_ONCE, session=codec)

    with ThreadPoolExecutor(2) as pool:
        done = [future.result() for future in [pool.submit(run) for _ in range(2)]]

    assert {info.ref for report in done for info in report.deleted} == {ref_of(made[n]) for n in "1234"}
    page = s3_bucket.client.list_objects_v2(Bucket=s3_bucket.name, Prefix="prefix/")["Contents"]
    sizes = {item["Key"]: item["Size"] for item in page if f"/r/{codec}/" in item["Key"]}
    assert sorted(size > 0 for size in sizes.values()) == [False] * 8 + [True]
    assert not [item["Key"] for item in page if "/t/" in item["Key"]]
    assert {name: put(off(), name) for name in made} == made
    assert all(got_back(off().store, name, placeholder, codec) for name, placeholder in made.items())


def test_writers_beside_collectors_lose_nothing_whose_time_is_not_over(tmp_path: Path) -> None:
    writers = [started(WRITER, tmp_path, name) for name in "aabbccdd"]
    collectors = [started(COLLECTOR, tmp_path, 0) for _ in range(2)]
    for process in writers:
        process.tell("go\n")
    while any(process.poll() is None for process in writers):
        for process in collectors:
            process.tell("go\n")
            assert hear(process) == "done"

    said = dict[str, str]()
    for process in writers:
        output, _ = process.communicate()
        assert process.returncode == 0
        said.update(json.loads(line) for line in output.splitlines())
    for process in collectors:
        process.communicate()

    assert len(said) == 4 * 24
    for name, placeholder in said.items():
        is_short = int(name.split()[1]) % 3 == 0
        assert right_or_expired(str(tmp_path), name, placeholder) or is_short
