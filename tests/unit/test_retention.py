"""Deleted, protected and remaining records of gc. The store's clock is set by hand."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import Run
from kit.store import ActingStore
from retained import DAY, HOUR, ClockedStore, clocked, got_back, opened, put, ref_of

from offload import ConfigError, ExpiredError, NotFoundError, StoredObject
from offload.engine.policy import Retention
from offload.maintenance.retention import GcReport, collect, delete, pin, store_usage, touch, undelete, unpin
from offload.maintenance.retention._report import store_time
from offload.maintenance.transfer import share
from offload.storage.layout import encode_part
from offload.storage.wrappers import WrapperStore
from offload_backends.memory import MemoryStore

AT_ONCE = Retention(grace=0, live_for=0)
ANY_NAME = "a name of more than a key part: " + "é" * 200


def refs(infos: Any) -> list[str]:
    return [info.ref for info in infos]


def record_sizes(store: ClockedStore, ref: str) -> list[int]:
    """Return the sizes of the objects of a ref that are no tombstones, asked of the inner store."""
    tombs = (".expired", ".quota", ".deleted")
    found = store.inner.keys("r/")
    return [o.size for o in found if f"/{ref}" in o.key and not o.key.endswith(tombs)]


def fill(store: ClockedStore, session: str, names: str, *, every: float = 10) -> list[str]:
    """Store an item per letter, one after the other; return their refs."""
    made = []
    for name in names:
        made.append(ref_of(put(opened(store, session), name)))
        store.now += every
    return made


# Time to live


def test_a_record_is_marked_when_its_time_to_live_is_over_and_not_before_and_others_are_kept_for_good() -> (
    None
):
    store = clocked()
    short = put(opened(store, ttl=100), "short")
    long = put(opened(store), "long")

    store.now += 99
    assert collect(store).marked == {}
    assert got_back(store, "short", short)

    store.now += 1
    [marked] = collect(store).marked["expired"]
    assert marked.ref == ref_of(short)
    with pytest.raises(ExpiredError) as caught:
        got_back(store, "short", short)
    assert (caught.value.reason, caught.value.at) == ("expired", store.now)

    store.now += 10_000 * DAY
    assert collect(store, AT_ONCE).marked == {}
    assert refs(opened(store).records()) == [ref_of(long)]
    assert got_back(store, "long", long)


def test_a_marked_record_is_emptied_when_its_grace_is_over_and_not_before() -> None:
    store, rules = clocked(), Retention(grace=HOUR)
    ref = ref_of(put(opened(store, ttl=10), "a"))
    [size] = record_sizes(store, ref)
    store.now += 10
    collect(store, rules)

    store.now += HOUR - 1
    assert collect(store, rules).deleted == []
    assert record_sizes(store, ref) == [size]

    store.now += 1
    done = collect(store, rules)
    assert (refs(done.deleted), done.bytes_freed) == ([ref], size)
    assert record_sizes(store, ref) == [0]
    assert collect(store, rules).deleted == []


@pytest.mark.parametrize("codec", ["zstd", "json", "raw"])
@pytest.mark.parametrize("is_late", [True, False])
def test_two_objects_without_a_byte_stay_of_a_record_for_a_week_and_tell_why_it_went(
    codec: str, is_late: bool
) -> None:
    store = clocked()
    placeholder = put(opened(store, ttl=10, codec=codec), "a")
    touch(store, "s")
    store.now += 10
    collect(store, Retention() if is_late else AT_ONCE)
    store.now += DAY
    collect(store)

    for _ in range(2):
        store.now += 2 * DAY
        assert collect(store).figures() == GcReport().figures()
        assert [(key[0], len(data)) for key, data in store.snapshot().items()] == [("g", 0), *[("r", 0)] * 2]
        with pytest.raises(ExpiredError) as caught:
            got_back(store, "a", placeholder)
        assert caught.value.reason == "expired"


def test_a_header_that_is_kept_apart_goes_with_the_bytes() -> None:
    store = clocked()
    put(opened(store, ttl=10, codec="raw"), "a")
    kept = put(opened(store, codec="raw"), "b")
    assert len(list(store.keys("h/"))) == 2

    store.now += 10
    collect(store, AT_ONCE)

    assert [ref_of(kept) in found.key for found in store.keys("h/")] == [True]
    assert got_back(store, "b", kept)


# Quotas


def test_a_quota_of_records_takes_the_oldest_of_a_session_once() -> None:
    store, rules = clocked(), Retention(session_records=2, live_for=0)
    first, second, third = fill(store, "s", "abc")
    other = fill(store, "other", "ab")

    assert refs(collect(store, rules).marked["quota"]) == [first]
    assert refs(opened(store).records()) == [second, third]
    assert refs(opened(store, "other").records()) == other
    assert collect(store, rules).marked == {}


@pytest.mark.parametrize(("spare", "gone"), [(0, 1), (-1, 2), (1, 1)])
def test_a_quota_of_bytes_counts_what_is_stored_and_takes_no_more_than_it_must(spare: int, gone: int) -> None:
    store = clocked()
    made = fill(store, "s", "abc")
    last_two = sum(record_sizes(store, made[1]) + record_sizes(store, made[2]))

    done = collect(store, Retention(session_bytes=last_two + spare, live_for=0))

    assert refs(done.marked["quota"]) == made[:gone]


def test_a_live_session_keeps_all_until_it_has_not_been_used_for_a_while() -> None:
    store, rules = clocked(), Retention(session_records=1, store_records=1, live_for=DAY)
    made = fill(store, "s", "ab", every=0)

    store.now += DAY - 1
    done = collect(store, rules)
    assert (done.marked, set(refs(done.protected["active"]))) == ({}, set(made))

    touch(store, "s")
    store.now += DAY - 1
    assert collect(store, rules).marked == {}

    store.now += 1
    assert len(collect(store, rules).marked["quota"]) == 1


def pin_first(store: ClockedStore, session: str) -> None:
    pin(store, session, opened(store, session).records()[0].ref)


@pytest.mark.parametrize("use", [None, touch, pin_first])
def test_a_quota_of_the_store_takes_whole_sessions_the_least_recently_used_first(
    use: Callable[[ClockedStore, str], None] | None,
) -> None:
    store = clocked()
    first, second = fill(store, "first", "ab"), fill(store, "second", "ab")
    fill(store, "new", "ab")
    if use is not None:
        use(store, "first")

    done = collect(store, Retention(store_records=4 if use else 3, live_for=0))

    assert sorted(refs(done.marked["quota"])) == sorted(second if use else first + second)
    assert len(opened(store, "new").records()) == 2


def test_offloading_again_what_is_there_is_a_use_and_told_once_an_hour() -> None:
    store, rules = clocked(), Retention(session_records=1, live_for=DAY)
    fill(store, "s", "ab")
    assert {key[0] for key in store.snapshot()} == {"r"}
    store.now += 2 * DAY
    again = opened(store)

    put(again, "a")
    [mark] = store.keys("g/")
    assert (mark.key, mark.modified) == ("g/s/used", store.now)
    assert collect(store, rules).marked == {}

    store.now += 1
    put(again, "b")
    assert [found.modified for found in store.keys("g/")] == [store.now - 1]


def test_what_another_session_reads_is_taken_by_no_quota() -> None:
    store = clocked()
    first, second, _ = fill(store, "s", "abc")
    store.put(f"g/s/shared~{first}~{encode_part('other')}", b"")

    done = collect(store, Retention(session_records=1, store_records=1, live_for=0))

    assert second in refs(done.marked["quota"])
    assert set(refs(done.protected["shared"])) == {first}
    assert first in refs(opened(store).records())


@pytest.mark.parametrize("reason", ["expired", "quota"])
def test_what_a_quota_marked_comes_back_if_it_was_shared_meanwhile(reason: str) -> None:
    store, rules = clocked(), Retention(session_records=1, live_for=0)
    ref = ref_of(put(opened(store, ttl=10 if reason == "expired" else None), "a"))
    store.now += 10
    fill(store, "s", "b", every=0)
    collect(store, rules)
    store.put(f"g/s/shared~{ref}~first", b"")

    store.now += HOUR
    store.put(f"g/s/shared~{ref}~second", b"")
    assert refs(collect(store, rules).undeleted) == ([ref] if reason == "quota" else [])


def test_a_shared_record_that_its_reader_deleted_is_told_as_deleted_and_stays_where_it_lies() -> None:
    store = clocked()
    placeholder = put(opened(store), "a")
    share(store, "s", ref_of(placeholder), "t")
    reader = opened(store, "t")
    assert refs(reader.records()) == [ref_of(placeholder)]

    delete(store, "t")
    collect(store, AT_ONCE)

    with pytest.raises(ExpiredError):
        b"".join(reader.content(ref_of(placeholder)))
    assert got_back(store, "a", placeholder)


def test_one_session_is_collected_by_the_rules_of_its_policy_and_no_other_is_touched() -> None:
    store = clocked()
    fill(store, "s", "abc")
    fill(store, "other", "abc")
    before = {key: data for key, data in store.snapshot().items() if "/other/" in key}
    off = opened(store, retention=Retention(session_records=1, store_records=1, live_for=0))

    done = off.gc()

    assert len(done.marked["quota"]) == 2
    assert {key: data for key, data in store.snapshot().items() if "/other/" in key} == before


@pytest.mark.parametrize("names", [("a", "a-", "a.b", "a0", "A"), (ANY_NAME, ANY_NAME + "x")])
def test_sessions_of_like_names_are_collected_each_for_itself(names: tuple[str, ...]) -> None:
    store = clocked()
    for name in names:
        fill(store, name, "abc", every=0)

    done = collect(store, Retention(session_records=2, live_for=0, grace=0))
    assert len(done.deleted) == len(names)
    assert [len(opened(store, name).records()) for name in names] == [2] * len(names)

    for name in names:
        delete(store, name)
    collect(store, Retention(grace=0))
    assert not any(store.snapshot().values())


# Pins


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_is_pinned_stays_until_it_is_not(is_whole: bool) -> None:
    store, rules = clocked(), Retention(session_records=1, store_records=1, live_for=0)
    off = opened(store, ttl=10)
    placeholder = put(off, "a")
    ref = None if is_whole else ref_of(placeholder)
    fill(store, "s", "b")
    off.pin(ref)

    store.now += 10 * DAY
    done = collect(store, rules)
    assert ref_of(placeholder) in refs(done.protected["pinned"])
    assert ref_of(placeholder) in refs(opened(store).records())
    assert got_back(store, "a", placeholder)

    off.unpin(ref)
    assert ref_of(placeholder) in refs(collect(store, rules).marked["expired"])


@pytest.mark.parametrize("was_pinned", [False, True])
def test_a_record_that_is_marked_cannot_be_pinned_and_an_earlier_pin_stays(was_pinned: bool) -> None:
    store = clocked()
    ref = ref_of(put(opened(store, ttl=10), "a"))
    if was_pinned:
        pin(store, "s", ref)
        delete_past_the_pin(store, ref)
    else:
        store.now += 10
        collect(store)

    with pytest.raises(ExpiredError):
        pin(store, "s", ref)
    assert len(list(store.keys("g/"))) == was_pinned
    store.now += HOUR
    assert refs(collect(store).undeleted) == ([ref] if was_pinned else [])


def delete_past_the_pin(store: ClockedStore, ref: str) -> None:
    """Mark a record as a collector does that looked for pins before there was one."""
    [key] = [found.key for found in store.keys("r/") if ref in found.key]
    store.put(f"{key}.expired", b"")


@pytest.mark.parametrize(("after", "comes_back"), [(HOUR // 2, True), (HOUR // 2 + 1, False)])
@pytest.mark.parametrize("reason", ["expired", "quota"])
def test_a_pin_of_the_session_brings_back_what_was_marked_not_long_ago(
    after: int, comes_back: bool, reason: str
) -> None:
    store, rules = clocked(), Retention(grace=HOUR, session_records=1, live_for=0)
    ref = ref_of(put(opened(store, ttl=10 if reason == "expired" else None), "a"))
    store.now += 10
    fill(store, "s", "b", every=0)
    [marked] = collect(store, rules).marked.values()
    assert refs(marked) == [ref]

    store.now += after
    pin(store, "s")
    store.now += HOUR
    done = collect(store, rules)

    assert (refs(done.undeleted), refs(done.deleted)) == (([ref], []) if comes_back else ([], [ref]))
    assert (ref in refs(opened(store).records())) is comes_back


def test_what_is_no_record_or_no_session_is_neither_pinned_nor_used() -> None:
    store = clocked()
    put(opened(store), "a")
    before = store.snapshot()

    for ref in ("abcdefghij", "short", "../../etc/pw", "ABCDEFGHIJ", ""):
        with pytest.raises((NotFoundError, ConfigError)):
            pin(store, "s", ref)
    for act in (pin, unpin, touch):
        with pytest.raises(NotFoundError, match=f"no session 'nobody' in {store.url}"):
            act(store, "nobody")

    assert store.snapshot() == before


def test_an_offloader_may_pin_its_session_before_anything_is_stored_in_it_and_unpin_twice() -> None:
    store = clocked()
    off = opened(store, "new")
    off.unpin()
    off.touch()
    off.pin()

    assert {"g/new/used", "g/new/pinned"} == {found.key for found in store.keys()}
    assert [unpin(store, "new"), unpin(store, "new")] == [True, False]
    assert unpin(store, "new", ref_of(put(off, "a"))) is False


# Deleting


def test_deleting_marks_what_is_named_if_all_of_it_is_there_or_all() -> None:
    store = clocked()
    first, second, third = fill(store, "s", "abc")

    with pytest.raises(NotFoundError):
        delete(store, "s", [first, "abcdefghij"])
    assert refs(delete(store, "s", [second]).marked["deleted"]) == [second]
    assert refs(opened(store).records()) == [first, third]
    assert set(refs(delete(store, "s").marked["deleted"])) == {first, third}
    assert opened(store).records() == []
    with pytest.raises(ExpiredError) as caught:
        b"".join(opened(store).content(second))
    assert caught.value.reason == "deleted"


def test_an_open_session_reads_nothing_that_this_process_deleted_since() -> None:
    off = opened(clocked())
    first, second = ref_of(put(off, "a")), ref_of(put(off, "b"))
    assert "a" in off.tools.read(first)

    delete(off.store, "s", [first])

    with pytest.raises(ExpiredError):
        off.tools.read(first)
    assert "b" in off.tools.read(second)
    undelete(off.store, "s", [first])
    assert "a" in off.tools.read(first)


def test_what_is_pinned_is_not_deleted_and_keeps_no_other() -> None:
    store = clocked()
    first, second = fill(store, "s", "ab")
    pin(store, "s", first)

    done = delete(store, "s")

    assert (refs(done.marked["deleted"]), refs(done.protected["pinned"])) == ([second], [first])


# What a collection asks of the store


def test_a_dry_run_tells_what_would_go_and_writes_nothing() -> None:
    store = clocked()
    store.now = time.time() - 10 * DAY
    put(opened(store, ttl=10), "expired")
    delete(store, "s", [ref_of(put(opened(store), "deleted"))])
    fill(store, "s", "abc", every=1)
    fill(store, "t", "abc", every=1)
    rules = Retention(session_records=2, store_records=2)
    before = store.snapshot()

    read_only = ActingStore(store)
    told = collect(read_only, rules, dry_run=True)
    assert {verb for verb, _ in read_only.asked} <= {"get", "keys"}
    assert store.snapshot() == before

    store.now = time.time()
    done = collect(store, rules)
    assert told.is_dry_run
    assert replace(told, is_dry_run=False) == done
    assert {reason: len(infos) for reason, infos in done.marked.items()} == {"expired": 1, "quota": 4}
    assert len(done.deleted) == 1


class TimelessStore(WrapperStore):
    """A store without modification times, like some servers."""

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        for found in super().keys(prefix, after=after):
            yield replace(found, modified=0.0)


def test_only_a_retention_sets_limits() -> None:
    with pytest.raises(ConfigError, match="retention must be a Retention, got dict"):
        collect(MemoryStore(), {"session_records": 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_store_without_times_is_refused(dry_run: bool) -> None:
    inner = MemoryStore()
    put(opened(inner, ttl=1), "a")
    before = [found.key for found in inner.keys()]
    with pytest.raises(ConfigError, match="no modification times"):
        collect(TimelessStore(inner), AT_ONCE, dry_run=dry_run)
    assert [found.key for found in inner.keys()] == before


def test_the_time_is_the_stores_own_and_asking_leaves_nothing() -> None:
    store = clocked()
    assert collect(store, Retention(store_bytes=1, session_bytes=1)).marked == {}
    assert store.snapshot() == {}
    store.put("t/now-killed", b"")
    store.now += 2 * HOUR
    store.put("t/now-running", b"")

    assert store_time(store) == store.now != pytest.approx(time.time(), abs=DAY)
    assert list(store.snapshot()) == ["t/now-running"]


def test_sessions_with_nothing_to_collect_cost_one_listing_together() -> None:
    store = ActingStore(clocked())
    for session in "abcdef":
        put(opened(store, session), "x")
    store.asked.clear()

    collect(store, Retention(session_records=1, store_records=6))

    # Marks and journals of all sessions are listed once, too.
    assert [key for verb, key in store.asked if verb == "keys" and not key.startswith("t/")] == [
        "g/",
        "j/",
        "r/",
    ]


def test_usage_tells_what_is_there_marked_and_pinned() -> None:
    store = clocked()
    first, _, third = fill(store, "s", "abc")
    put(opened(store, "t"), "a")
    delete(store, "s", [first])
    store.now += 5
    pin(store, "s", third)

    used = {u.session: u for u in store_usage(store)}

    assert (used["s"].records, used["s"].marked, used["s"].pinned) == (2, 1, 1)
    assert used["s"].marked_bytes == sum(record_sizes(store, first))
    assert used["s"].stored_bytes + used["s"].marked_bytes == sum(o.size for o in store.keys("r/s/"))
    assert used["s"].last_use == store.now
    assert (used["t"].records, used["t"].pinned) == (1, 0)


# The command line


Answer = Callable[..., Any]


@pytest.fixture
def answer(run: Run) -> Answer:
    def answer_of(*arguments: object) -> Any:
        done = run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return answer_of


def make_old(folder: Path, seconds: float) -> None:
    at = time.time() - seconds
    for path in (folder / "r").rglob("*~*"):
        os.utime(path, (at, at))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with two old records in session `s`, one of them past its time to live."""
    put(opened(str(tmp_path), ttl=60), "short")
    put(opened(str(tmp_path)), "long")
    make_old(tmp_path, 10 * DAY)
    return tmp_path


def test_gc_tells_what_would_go_and_then_does_it(folder: Path, answer: Answer) -> None:
    files = sorted(p.name for p in folder.rglob("*"))
    told = answer("gc", "--store", folder, "--dry-run", "--grace", "0s")
    assert sorted(p.name for p in folder.rglob("*")) == files

    done = answer("gc", "--store", folder, "--grace", "0s")
    assert told == done | {"is_dry_run": True}
    assert [(row["what"], row["why"]) for row in done["records"]] == [
        ("marked", "expired"),
        ("deleted", None),
    ]
    assert done["bytes_freed"] > 0
    assert sorted(p.stat().st_size == 0 for p in (folder / "r/s").iterdir()) == [False, True, True]


def test_gc_says_how_many_marked_records_wait_for_the_end_of_their_grace_period(
    folder: Path, run: Run
) -> None:
    run("gc", "--store", folder)
    said = " ".join(run("gc", "--store", folder).stdout.split())
    assert "Nothing to delete in" in said
    assert "; 1 marked record kept until the grace period is over." in said


def test_gc_keeps_a_quota_of_a_session_and_of_the_store(folder: Path, run: Run, answer: Answer) -> None:
    done = answer("gc", "--store", folder, "--session", "s", "--session-records", "1", "--live-for", "5m")
    assert [row["why"] for row in done["records"]] == ["expired"]
    done = answer("gc", "--store", folder, "--store-bytes", "1", "--live-for", "5m")
    assert [(row["what"], row["why"]) for row in done["records"]] == [("marked", "quota")]
    assert "Nothing to delete in" in run("gc", "--store", folder).stdout


def test_gc_has_an_option_for_each_limit(run: Run) -> None:
    said = run("gc", "--help").stdout
    names = [f"--{name.replace('_', '-')} " for name in Retention.model_fields]

    assert [said.count(f"\n  {name}") for name in names] == [1] * len(names)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gc", "--grace", "soon"), "soon"),
        (("gc", "--session-bytes", "0"), "session"),
        (("gc", "--store-bytes", "1XB"), "1XB"),
        (("gc", "--session", "s", "--store-bytes", "5"), "omit --session"),
        (("gc", "--session", "s", "--workers", "2"), "omit --session"),
        (("gc", "--session", "s", "--on", "tcp://host:8786"), "omit --session"),
        (("du", "--workers", "2", "--on", "tcp://host:8786"), "exclude each other"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    folder: Path, run: Run, arguments: tuple[str, ...], said: str
) -> None:
    done = run(*arguments, "--store", folder)
    assert (done.returncode, said in done.stderr) == (2, True)


def test_pin_keeps_and_unpin_lets_go(folder: Path, run: Run, answer: Answer) -> None:
    [ref] = [p.name.partition("~")[0] for p in (folder / "r/s").iterdir() if "~60." in p.name]

    assert run("pin", ref, "--session", "s", "--store", folder).returncode == 0
    assert [row["what"] for row in answer("gc", "--store", folder)["records"]] == ["protected"]
    assert answer("du", "--store", folder)["total"]["pinned"] == 1
    assert run("pin", "abcdefghij", "--session", "s", "--store", folder).returncode == 1
    assert run("unpin", ref, "--session", "s", "--store", folder).returncode == 0
    assert [row["what"] for row in answer("gc", "--store", folder)["records"]] == ["marked"]
    assert run("pin", ref, "--session", "s", "--store", folder).returncode == 1


def test_rm_deletes_what_is_named_and_then_the_rest(folder: Path, run: Run, answer: Answer) -> None:
    refs_there = sorted(p.name.partition("~")[0] for p in (folder / "r/s").iterdir())

    done = answer("rm", refs_there[0], "--session", "s", "--store", folder, "--yes")
    assert [(row["ref"], row["why"]) for row in done["records"]] == [(refs_there[0], "deleted")]
    assert len(answer("rm", "--session", "s", "--store", folder, "--yes")["records"]) == 1
    assert run("rm", "--session", "s", "--store", folder, "--yes").returncode == 1
    assert run("rm", refs_there[0], "--store", folder).returncode == 2


def test_du_tells_each_session_and_all(folder: Path, run: Run, answer: Answer) -> None:
    put(opened(str(folder), "t"), "a")
    told = answer("du", "--store", folder)
    assert [(row["session"], row["records"]) for row in told["sessions"]] == [("t", 1), ("s", 2)]
    on_disk = sum(p.stat().st_size for p in (folder / "r").rglob("*~*"))
    assert (told["total"]["records"], told["total"]["stored_bytes"]) == (3, on_disk)
    assert "(all)" in run("du", "--store", folder).stdout
    run("rm", "--session", "t", "--store", folder, "--yes")
    assert [row["is_deleted"] for row in answer("du", "--store", folder)["sessions"]] == [False, True]
    assert "2 records in 1 session of" in run("du", "--store", folder).stdout


# Undo


def test_what_was_deleted_is_readable_again_until_its_bytes_are_gone() -> None:
    store = clocked()
    first, second = fill(store, "s", "ab")
    before = store.snapshot()
    delete(store, "s", [first])
    delete(store, "s", [second])

    assert refs(undelete(store, "s", [second])) == [second]
    assert refs(opened(store).records()) == [second]
    assert refs(undelete(store, "s")) == [first]
    store.now += 2 * HOUR
    collect(store)
    assert {key: data for key, data in store.snapshot().items() if key.startswith("r/")} == {
        key: data for key, data in before.items() if key.startswith("r/")
    }

    delete(store, "s", [first])
    store.now += 2 * HOUR
    collect(store)
    with pytest.raises(ExpiredError, match="the bytes of"):
        undelete(store, "s", [first])
    with pytest.raises(NotFoundError, match="no deleted record"):
        undelete(store, "s")


def test_a_record_that_is_there_is_not_undeleted_and_of_several_none_is() -> None:
    store = clocked()
    first, second = fill(store, "s", "ab")
    delete(store, "s", [first])
    before = store.snapshot()
    with pytest.raises(NotFoundError, match=second):
        undelete(store, "s", [first, second])
    assert store.snapshot() == before

    store.now += 2 * HOUR
    collect(store)
    fill(store, "s", "a")
    with pytest.raises(NotFoundError, match="no deleted record"):
        undelete(store, "s", [first])
    assert set(refs(opened(store).records())) == {first, second}


@pytest.mark.parametrize("text", ["20MB", "20 mb", "20000kB", "0.02G", "20000000"])
def test_a_quota_in_bytes_is_written_with_its_unit(text: str) -> None:
    assert Retention(session_bytes=text).session_bytes == 20_000_000
    assert Retention(store_bytes="1GiB").store_bytes == 2**30
