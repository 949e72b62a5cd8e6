"""Work on a whole store: by this thread, by threads, by processes, with lost workers."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import zstandard
from forks import conversation, journaled, keys, played, run as agent
from kit.conversation import from_user, tool_turn
from kit.store import CountedStore
from worker import size_of

from offload import (
    ConfigError,
    CorruptError,
    NotFoundError,
    Offloader,
    OffloadError,
    OffloadPolicy,
    Retention,
    Rule,
    StoreUnavailableError,
)
from offload.maintenance.jobs import reindex, verify
from offload.maintenance.jobs.each import StoreAddress, addresses_of, run_each
from offload.maintenance.jobs.executors import executor_of_workers, executor_on
from offload.maintenance.retention import GcReport, collect, delete, pin, store_usage
from offload.maintenance.transfer import CopyReport, copy_sessions
from offload.records.index.objects import list_session, session_name, session_parts
from offload.storage import layout
from offload.storage.layout import JOURNAL, RECORD
from offload.storage.store import OffloadStore, StoredObject
from offload.storage.wrappers import EncryptingStore, RetryingStore
from offload_backends.local import LocalStore
from offload_backends.memory import MemoryStore

SMALL = OffloadPolicy(types={"tool_result": Rule(min_chars=100, preview_chars=60)}, min_saving=0)
KEYS = [f"k{n:02}" for n in range(20)]


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        yield pool


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path / "store"))
    for size, key in enumerate(KEYS):
        store.put(key, b"x" * size)
    return store


def outcomes(found: Iterator[tuple[str, int | OffloadError]]) -> list[Any]:
    return [(key, each if isinstance(each, int) else type(each)) for key, each in found]


@pytest.mark.parametrize("kind", ["this thread", "threads", "processes"])
def test_each_item_comes_with_its_result_or_error_in_order(kind, store, processes):
    items = [*KEYS, "none", "wrong", KEYS[3]]
    with ThreadPoolExecutor(4) as threads:
        executor = {"threads": threads, "processes": processes}.get(kind)
        found = outcomes(run_each(size_of, items, [store], executor=executor))

    sizes = [(key, size) for size, key in enumerate(KEYS)]
    assert found == [*sizes, ("none", NotFoundError), ("wrong", OffloadError), (KEYS[3], 3)]


def test_a_killed_worker_costs_what_it_had_and_each_item_is_named(store):
    items = [*KEYS[:5], "kill", *KEYS[5:]]
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = list(run_each(size_of, items, [store], executor=pool))

    assert [key for key, _ in found] == items
    lost = {key: str(each) for key, each in found if isinstance(each, OffloadError)}
    assert set(lost) >= {"kill"}
    assert all("the worker was lost" in text and text.endswith("run it again") for text in lost.values())
    assert all(each == KEYS.index(key) for key, each in found if key not in lost)


def test_items_are_taken_as_workers_become_free_and_what_waits_is_cancelled_when_the_caller_stops():
    taken = itertools.count()
    store = MemoryStore()
    store.put("a", b"x")
    with ThreadPoolExecutor(2) as pool:
        results = run_each(size_of, ("a" for _ in taken), [store], executor=pool)
        for _ in range(300):
            next(results)
        results.close()
    assert next(taken) <= 300 + 128 + 1

    executor = OnceExecutor()
    results = run_each(size_of, itertools.repeat("a"), [LocalStore("/x")], executor=executor)
    assert next(results) == ("a", 1)
    results.close()
    assert all(future.cancelled() for future in executor.futures[1:])
    assert len(executor.futures) > 2


class OnceExecutor(Executor):
    """Finishes its first call; all others wait for ever."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, *_: Any, **__: Any) -> Future[Any]:
        self.futures.append(Future())
        if len(self.futures) == 1:
            self.futures[0].set_result(1)
        return self.futures[-1]


@pytest.mark.parametrize(
    "wrapped",
    [MemoryStore(), RetryingStore(LocalStore("/x")), EncryptingStore(LocalStore("/x"), b"k" * 32)],
    ids=lambda store: type(store).__name__,
)
def test_a_store_that_a_url_does_not_open_is_refused_for_processes(wrapped, processes):
    with pytest.raises(ConfigError, match="use a ThreadPoolExecutor"):
        list(run_each(size_of, ["a"], [wrapped], executor=processes))


def test_credentials_are_in_no_repr_and_only_if_given(tmp_path):
    store = LocalStore(str(tmp_path), storage_options={"durability": "none"})

    assert addresses_of([store]) == [StoreAddress(store.url, b"{}")]
    [place] = addresses_of([store], [{"durability": "none"}])
    assert place.options == b'{"durability":"none"}'
    assert "durability" not in repr(place)
    with pytest.raises(ConfigError, match="must be JSON values"):
        addresses_of([store], [{"durability": object()}])


def damaged_store(folder: Path) -> OffloadStore:
    """Return a store of three sessions, with one record cut and one flipped."""
    for name in ("a", "b", "n" * 200):
        off = Offloader(folder, session=name)
        for number in range(20):
            off.offload_text(f"{number} line of output\n" * 600, tool_name="Bash", tool_use_id=f"t{number}")
    first, *_, last = sorted(folder.glob("r/*/*.zst"))
    first.write_bytes(first.read_bytes()[:-1])
    last.write_bytes(last.read_bytes()[:200] + b"!" + last.read_bytes()[201:])
    return Offloader(folder).store


def test_threads_and_processes_find_the_damage_that_one_thread_finds(tmp_path, processes):
    store, seen = damaged_store(tmp_path), []
    alone = verify(store, on_progress=lambda report: seen.append((report.sessions, report.checked)))

    whole = [(1, 16), (1, 20)]
    assert seen == [(session + n, 20 * n + records) for n in range(3) for session, records in whole]
    assert (alone.sessions, alone.checked, len(alone.damaged), alone.failures) == (3, 60, 2, [])
    assert {name for name, _ in alone.damaged} == {"a", "n" * 200}
    with ThreadPoolExecutor(3) as threads:
        for executor in (threads, processes):
            found = verify(store, executor=executor)
            assert (found.sessions, found.checked) == (3, 60)
            assert [(n, d.info, str(d.error)) for n, d in found.damaged] == [
                (n, d.info, str(d.error)) for n, d in alone.damaged
            ]
    one = verify(store, session="b")
    assert (one.sessions, one.checked, one.damaged) == (1, 20, [])
    assert verify(MemoryStore()).sessions == 0


def test_a_damaged_entry_of_a_journal_is_found_by_any_workers(tmp_path, processes):
    for name in ("a", "b"):
        off = Offloader(tmp_path, session=name, journal=True)
        for count in range(1, 4):
            off.offload([{"role": "user", "content": f"{name} {n}"} for n in range(count)])
    path = sorted(tmp_path.glob("j/b/*"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    for executor in (None, processes):
        report = verify(off.store, executor=executor)
        [(name, error)] = report.damaged_entries
        assert (report.entries, name, type(error)) == (6, "b", CorruptError)
        assert path.name in str(error)
    assert verify(off.store, session="a").damaged_entries == []
    assert verify(off.store, session="a").entries == 3


def rewritten(store: MemoryStore, key: str) -> None:
    """Change a letter of an entry, with a checksum that fits."""
    content = zstandard.ZstdDecompressor().decompress(store.get(key))
    changed = content.replace(b"is made", b"is fake", 1)
    assert changed != content
    store.put(key, zstandard.ZstdCompressor(write_checksum=True).compress(changed), overwrite=True)


def renamed(store: MemoryStore, key: str) -> None:
    """Store an entry under the number of another one."""
    store.put(key.replace("j/a/000000002", "j/a/000000003"), store.get(key))


def flipped(store: MemoryStore, key: str) -> None:
    data = bytearray(store.get(key))
    data[len(data) // 3] ^= 4
    store.put(key, bytes(data), overwrite=True)


@pytest.mark.parametrize("edit", [rewritten, renamed, flipped], ids=lambda edit: edit.__name__)
def test_an_entry_that_is_not_the_one_that_was_written_is_damaged(
    edit: Callable[[MemoryStore, str], None],
) -> None:
    store, _, _ = played(4)
    edit(store, sorted(keys(store, "j/a/"))[2])

    [(name, error)] = verify(store).damaged_entries
    assert (name, type(error)) == ("a", CorruptError)


def family() -> MemoryStore:
    """Return a store with the session `a`, which was rewound, its fork `b`, and that one's fork `c`."""
    store, off, _ = played(5)
    fork = off.fork("b", at=4)
    fork.offload(conversation(5))
    fork.fork("c").offload(conversation(6))
    off.rewind(2)
    off.offload(conversation(2))
    off.offload(conversation(3))
    return store


@pytest.mark.parametrize(
    ("session", "number", "readers"),
    [("a", 0, "abc"), ("a", 1, "abc"), ("a", 3, "abc"), ("a", 6, "a"), ("b", 5, "c")],
)
def test_a_missing_entry_is_named_in_its_session_and_in_forks(
    session: str, number: int, readers: str
) -> None:
    store = family()
    assert verify(store).damaged_entries == []
    [key] = keys(store, f"j/{session}/{number:09}")
    store.delete(key)

    errors = verify(store).damaged_entries

    assert {name for name, _ in errors} == {*readers}
    for name, error in errors:
        of = "" if name == session else f", of session {session!r} that it was forked from"
        assert str(error) == f"entry {number} is missing in the journal{of}"
        assert [str(one) for _, one in verify(store, session=name).damaged_entries] == [str(error)]


def test_a_fork_without_the_entry_with_which_it_continues_is_damaged() -> None:
    store, off, _ = played(3)
    off.fork("b")
    [key] = keys(store, "j/b/")
    store.delete(key)

    [(name, error)] = verify(store).damaged_entries

    assert (name, str(error).startswith("the journal entry with which the session continues")) == ("b", True)


def test_a_fork_without_its_branch_is_damaged() -> None:
    store = family()
    [key] = keys(store, "r/b/from")
    store.delete(key)

    [(name, error)] = verify(store).damaged_entries

    assert (name, key in str(error)) == ("b", True)


def test_what_was_rewound_deleted_copied_or_written_by_two_lacks_nothing(tmp_path: Path) -> None:
    store, other = family(), MemoryStore()
    collect(store, Retention(grace=0))
    assert not keys(store, "j/a/000000004")
    assert verify(store).damaged_entries == []
    for _, outcome in copy_sessions(store, other):
        assert isinstance(outcome, CopyReport)
    for writer in [journaled(other, "a"), journaled(other, "a")]:
        writer.offload(conversation(4))
    assert verify(other).damaged_entries == []
    delete(store, "a")
    delete(store, "c")
    assert verify(store).damaged_entries == []
    store.put("g/b/closed", b"")
    store.delete(min(keys(store, "j/b/")))
    assert verify(store).damaged_entries == []


def test_links_are_verified_by_their_own_content_and_one_listing_of_the_session_that_shares() -> None:
    store = CountedStore()
    owner = journaled(store)
    agent(owner, 12)
    for stored in list_session(store, "a").records:
        owner.share(stored.ref, to="reader")
    store.requests.clear()
    assert verify(store, session="reader").links == 11
    assert store.count("get") == 11
    assert store.requests.count("keys r/a/") == 1


def test_verify_refuses_an_invalid_session_name() -> None:
    for name in (5, ""):
        with pytest.raises(
            ConfigError, match=f"session name must be a str of 1 to 1000 characters, got {name!r}"
        ):
            verify(MemoryStore(), session=name)  # type: ignore[arg-type]


def test_verify_finds_no_session_where_nothing_is_stored_of_it(tmp_path: Path) -> None:
    owner = journaled(tmp_path)
    assert owner.verify() == []
    with pytest.raises(NotFoundError, match="no session 'b' in "):
        verify(owner.store, session="b")
    agent(owner, 1)
    assert verify(owner.store, session="a").entries == 1


def test_verify_follows_shared_records_and_reads_the_branches_of_forks(tmp_path: Path) -> None:
    owner = journaled(tmp_path)
    agent(owner, 2)
    [ref, *_] = [stored.ref for stored in list_session(owner.store, "a").records]
    owner.share(ref, to="reader")
    owner.fork("fork", at=1)
    report = verify(owner.store)
    assert (report.links, report.damaged, report.lost, report.damaged_entries) == (1, [], [], [])
    delete(owner.store, "a", [ref])
    [(name, damage)] = verify(owner.store).lost
    assert (name, damage.info.ref, damage.error.kind) == ("reader", ref, "expired")
    [link] = tmp_path.rglob("*.link")
    [branch] = tmp_path.rglob("from~*")
    for file in (link, branch):
        file.write_text("{")
    report = verify(owner.store)
    assert [(name, damage.error.kind) for name, damage in report.damaged] == [("reader", "corrupt")]
    assert [(name, error.kind) for name, error in report.damaged_entries] == [("fork", "corrupt")]
    assert report.lost == []


def expired_store(folder: Path) -> OffloadStore:
    """Return a store of 12 sessions of three records, one of which is expired."""
    policy = OffloadPolicy(tools={"Old": Rule(min_tokens=1, ttl=1)})
    for number in range(12):
        off = Offloader(folder, session=f"s{number:02}", policy=policy)
        for tool in ("Old", "Bash", "Read"):
            off.offload_text(f"{tool} {number}\n" * 2000, tool_name=tool, tool_use_id=tool)
    past = time.time() - 3600
    for path in folder.glob("r/*/*"):
        os.utime(path, (past, past))
    return Offloader(folder).store


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_workers_collect_what_one_process_collects(kind, tmp_path, processes):
    rules = Retention(grace=0, live_for=0, session_records=2, store_records=20)
    alone = collect(expired_store(tmp_path / "one"), rules)
    store = expired_store(tmp_path / "many")

    with ThreadPoolExecutor(3) as threads:
        executor = threads if kind == "threads" else processes
        planned = collect(store, rules, dry_run=True, executor=executor)
        done = collect(store, rules, executor=executor)

    def by_effect(report: GcReport) -> list[Any]:
        return [(what, why, {i.key for i in infos}) for what, why, infos in report.groups()]

    assert by_effect(planned) == by_effect(done) == by_effect(alone)
    assert len(done.marked["expired"]) == 12
    assert done.failures == []
    assert sorted(stored.key for stored in store.keys("r/")) == sorted(
        path.relative_to(tmp_path / "one").as_posix() for path in (tmp_path / "one").glob("r/*/*")
    )


@pytest.mark.parametrize("count", [0, 3])
def test_workers_collect_journals_as_one_process_does(count):
    store = MemoryStore()
    off = journaled(store)
    agent(off, 5)
    off.fork("b", at=3)
    delete(store, "a")
    delete(store, "b")
    other = Offloader(store, session="rewound", policy=off.policy, journal=True)
    agent(other, 5)
    other.rewind(2)

    # What the deleted fork needs is free once a gc has freed the fork, which another worker may do.
    with ThreadPoolExecutor(count or 1) as threads:
        executor = threads if count else None
        done = [collect(store, Retention(grace=0, live_for=0), executor=executor) for _ in range(2)]

    # Three of the session that only its fork kept, three of the branch that was left.
    assert sum(report.entries for report in done) == 6
    assert {layout.session_part(stored.key) for stored in store.keys("j/")} == {"rewound"}


class UnlistedStore(LocalStore):
    """Fails to list one session."""

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        if prefix == "r/s02/":
            raise StoreUnavailableError("no listing")
        return super().keys(prefix, after=after)


def test_a_session_whose_worker_fails_is_named_and_no_quota_of_the_store_is_applied(tmp_path):
    store = UnlistedStore(expired_store(tmp_path).url)

    with ThreadPoolExecutor(1) as pool:
        report = collect(store, Retention(store_records=1), dry_run=True, executor=pool)

    assert [(name, type(error)) for name, error in report.failures] == [("s02", StoreUnavailableError)]
    assert {what: len(infos) for what, infos in report.marked.items()} == {"expired": 11}
    with ThreadPoolExecutor(1) as pool, pytest.raises(StoreUnavailableError, match="no listing"):
        list(store_usage(store, executor=pool))


def test_workers_count_the_use_that_one_process_counts(tmp_path, processes):
    store = expired_store(tmp_path)
    pin(store, "s03")

    assert [*store_usage(store, executor=processes)] == [*store_usage(store)]


def sessions_of_every_kind(place: Path) -> LocalStore:
    """Return a store with sessions of records, a fork, one that reads shared records, and a long name."""
    store = LocalStore(str(place / "store"))
    for name in ("a", "a-b", "long name " * 20, *(f"s{n:02}" for n in range(12))):
        off = Offloader(store, session=name, policy=SMALL, journal=True)
        off.offload([{"role": "user", "content": "Do it."}, *results(name, "1"), *results(name, "2")])
    Offloader(store, session="a", policy=SMALL).fork("fork")
    [info, *_] = Offloader(store, session="a").records()
    Offloader(store, session="a").share(info.ref, to="reader")
    return store


def results(name: str, number: str) -> list[Any]:
    text = f"{number} is a line of {name}\n" * 40
    return tool_turn(number, text)


def contents(store: OffloadStore) -> dict[str, Any]:
    """Return what each session of a store has, but the keys."""
    names = [session_name(store, part) for part in session_parts(store, RECORD, JOURNAL)]
    offs = {name: Offloader(store, session=name) for name in names}
    return {
        name: (
            {info.ref: b"".join(off.content(info.ref)) for info in off.records()},
            [off.timeline().at(n + 1) for n in range(len(off.timeline()))],
        )
        for name, off in offs.items()
    }


@pytest.mark.parametrize("kind", ["this thread", "threads", "processes"])
def test_workers_copy_what_one_process_copies(kind, tmp_path, processes):
    source, target = sessions_of_every_kind(tmp_path), LocalStore(str(tmp_path / "target"))
    with ThreadPoolExecutor(4) as threads:
        executor = {"threads": threads, "processes": processes}.get(kind)
        copied: Any = [*copy_sessions(source, target, executor=executor)]
        again: Any = [*copy_sessions(source, target, executor=executor)]

    assert [name for name, _ in copied][:2] == ["a-b", "a"]  # the order of keys
    assert contents(target) == contents(source)
    assert sum(len(report.copied) for _, report in copied) == 15 * 2 + 3
    assert [report.copied for _, report in again] == [[]] * len(copied)
    assert [(report.session, report.failures) for _, report in copied] == [
        (report.session, []) for _, report in again
    ]


def test_a_copy_whose_worker_is_killed_names_what_it_lost_and_is_continued(tmp_path):
    source = sessions_of_every_kind(tmp_path)
    # Fast workers may have copied all before they are killed.
    for attempt in range(5):
        target = LocalStore(str(tmp_path / f"target {attempt}"))
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            copying = copy_sessions(source, target, executor=pool)
            first = next(copying)
            for process in [*pool._processes.values()]:
                process.kill()
            found = [first, *copying]
        lost = [name for name, outcome in found if isinstance(outcome, OffloadError)]
        if lost:
            break
    assert all("run it again" in str(outcome) for _, outcome in found if isinstance(outcome, OffloadError))

    again = [*copy_sessions(source, target)]

    assert lost
    assert [name for name, _ in again] == [name for name, _ in found]
    assert contents(target) == contents(source)
    assert verify(target).damaged == []


LONG = "研究会话二零二六年十一月构建失败分析"


def deleted_first(store: OffloadStore) -> None:
    """Delete all records of the long name but the last in key order, and empty them."""
    delete(store, LONG, sorted(info.ref for info in Offloader(store, session=LONG).records())[:-1])
    collect(store, Retention(grace=0))


def damaged_first(store: OffloadStore) -> None:
    """Damage as many records as a search for the name opens, and leave one."""
    for info in sorted(Offloader(store, session=LONG).records(), key=lambda info: info.ref)[:-1]:
        store.put(info.key, b"no record" * 30, overwrite=True)


def all_deleted(store: OffloadStore) -> None:
    delete(store, LONG, [info.ref for info in Offloader(store, session=LONG).records()])
    collect(store, Retention(grace=0))


def forked_alone(store: OffloadStore) -> None:
    """Leave a fork under the long name, with no record of its own."""
    Offloader(store, session=LONG).fork(f"{LONG}2")
    store.delete(next(store.keys(RECORD.prefix(layout.encode_part(LONG)))).key)


@pytest.mark.parametrize("change", [deleted_first, damaged_first, all_deleted, forked_alone])
def test_a_name_too_long_for_a_key_costs_no_sound_record_and_no_copy_of_its_session(change: Any) -> None:
    store, target = MemoryStore(), MemoryStore()
    off = Offloader(store, session=LONG, policy=SMALL, journal=True)
    off.offload([from_user("Do it."), *(m for n in range(23) for m in results("s", str(n)))])
    change(store)
    readable = {
        name: {info.ref for info in Offloader(store, session=name).records() if is_readable(store, info)}
        for name in (LONG, f"{LONG}2")
    }

    report = verify(store)
    copied = dict(copy_sessions(store, target))

    assert len(report.damaged) == (22 if change is damaged_first else 0)
    assert not report.failures + report.damaged_entries
    assert not [outcome for outcome in copied.values() if isinstance(outcome, OffloadError)]
    for name, refs in readable.items():
        assert {info.ref for info in Offloader(target, session=name).records()} == refs
        timeline = Offloader(target, session=name).timeline()
        assert len(timeline) == len(Offloader(store, session=name).timeline())
    assert sum(map(len, readable.values())) > 0 or change is all_deleted


def is_readable(store: OffloadStore, info: Any) -> bool:
    return not any(damage.info.ref == info.ref for damage in Offloader(store, session=info.session).verify())


def test_a_session_that_cannot_be_copied_costs_no_other(tmp_path):
    source, target = sessions_of_every_kind(tmp_path), MemoryStore()
    source.put(f"r/{'x' * 40}=={'b' * 26}/from~a~000000001", b"")  # a long name that is nowhere
    [key, *_] = [stored.key for stored in source.keys("r/s03/")]
    source.put(key, b"no record" * 30, overwrite=True)

    found: Any = dict(copy_sessions(source, target))

    failed = {name: outcome for name, outcome in found.items() if isinstance(outcome, OffloadError)}
    assert [*failed] == ["x" * 40 + "…"]
    assert [failure.key for failure in found["s03"].failures] == [key]
    assert len(Offloader(target, session="s04").records()) == 2
    with pytest.raises(ConfigError, match="must not be the same store"):
        [*copy_sessions(source, LocalStore(source.url.removeprefix("file://")))]


@pytest.mark.parametrize("kind", ["this thread", "processes"])
def test_every_index_is_rebuilt_by_any_workers(kind, tmp_path, processes):
    store = sessions_of_every_kind(tmp_path)
    found = dict(reindex(store, executor=processes if kind == "processes" else None))
    expected = {name: len(records) for name, (records, _) in contents(store).items()}
    assert found == expected | {"fork": 0}  # its records are those of its parent


def test_workers_are_threads_for_a_shared_store_and_processes_for_a_local_one(tmp_path):
    class Shared(MemoryStore):
        is_shared = True

    with executor_of_workers([Shared()], 2) as pool:
        assert isinstance(pool, ThreadPoolExecutor)
    with executor_of_workers([LocalStore(str(tmp_path))], 2) as pool:
        assert isinstance(pool, ProcessPoolExecutor)
    for url in ("http://host", "host:8786", ""):
        with pytest.raises(ConfigError, match="expected a Dask scheduler"), executor_on(url):
            pass
