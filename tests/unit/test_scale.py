"""How many requests the commands of a whole store send, by the number of its sessions."""

from __future__ import annotations

import string
import sys
import tracemalloc
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest
import scale_prices
from forks import journaled, run
from kit.conversation import tool_turn
from retained import ClockedStore

from offload import MissingExtraError, NotFoundError, Offloader, Retention
from offload.cli.listing import _sessions
from offload.cli.stores import _check_session as check_session
from offload.maintenance.catalog import export_catalog
from offload.maintenance.jobs import reindex
from offload.maintenance.retention import collect, delete, store_usage
from offload.maintenance.transfer import copy_sessions, revoke
from offload.records.index import sessions
from offload.records.index.floors import SETTLED_SECONDS
from offload.storage import layout
from offload.storage.store import OffloadStore, StoredObject, folders
from offload_backends.memory import MemoryStore

T = TypeVar("T")

PAGE = 1000
COUNTS = [100, 2500]


class CountingStore(MemoryStore):
    """Counts the requests of an object store: a listing takes one for each 1,000 entries that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = self.gets = 0

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        self.gets += 1
        return super().get(key, start=start, end=end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        return self._pages(super().keys(prefix, after=after))

    def folders(self, prefix: str = "") -> Iterator[str]:
        return self._pages(dict.fromkeys(self._names(prefix)))

    def _names(self, prefix: str) -> Iterator[str]:
        parts = (stored.key.removeprefix(prefix).partition("/") for stored in super().keys(prefix))
        return (name for name, slash, _ in parts if slash)

    def _pages(self, entries: Iterable[T]) -> Iterator[T]:
        self.lists += 1
        for number, entry in enumerate(entries):
            if number and number % PAGE == 0:
                self.lists += 1
            yield entry


def store_of(count: int) -> CountingStore:
    """Return a store of sessions with two records each; its counters are 0."""
    store = CountingStore()
    for session in range(count):
        for ref in ("aaaaaaaaaa", "bbbbbbbbbb"):
            key = layout.RECORD.key(
                session=f"s{session:05}",
                ref=ref,
                item_type="tool_result",
                tool="bash",
                chars=9,
                tokens=3,
                suffix=".zst",
            )
            store.put(key, b"record")
    return store


class SharedStore(CountingStore):
    """A store on another machine."""

    is_shared = True


@pytest.mark.parametrize("count", [4, 60])
def test_the_first_search_of_a_new_process_reads_a_small_session_at_once(count):
    store = SharedStore()
    off = Offloader(store, session="s")
    for n in range(count):
        off.offload_text(f"a line of record {n} that is long enough\n" * 300, tool_use_id=f"t{n}")

    # The first one keeps the records together, and then looks whether all of them are still there.
    for gets, lists in ((count, 3), (1, 2)):
        off, store.gets, store.lists = Offloader(store, session="s"), 0, 0
        found = off.search("absent")
        assert (found.records, found.passages, dict(found.unsearched)) == (count, [], {})
        assert (store.gets, store.lists) == (gets, lists)
    assert off.search("absent").records == count
    assert (store.gets, store.lists) == (1, 3)


class PlainStore:
    """The four verbs of a store alone."""

    def __init__(self, inner: CountingStore) -> None:
        self.keys = inner.keys


@pytest.mark.parametrize("count", COUNTS)
def test_names_ls_du_and_a_mistyped_session_take_a_listing_for_each_thousand(count):
    store = store_of(count)
    records, names = ceil(2 * count / PAGE), ceil(count / PAGE)

    def listings(act):
        store.lists = 0
        return act(), store.lists

    expected = [f"s{number:05}" for number in range(count)]
    assert listings(lambda: list(sessions(store))) == (expected, names)
    rows, lists = listings(lambda: list(_sessions(store, [])))
    assert ([row["session"] for row in rows], lists) == (expected, records + 1)
    used, lists = listings(lambda: list(store_usage(store)))
    assert (len(used), {each.records for each in used}, lists) == (count, {2}, records + 1)
    store.lists = 0
    with pytest.raises(NotFoundError, match=r"did you mean 's\d{5}'\?"):
        check_session(store, "s0001x")
    assert {row["records"] for row in rows} == {2}
    assert store.lists == 3 + names
    # A sample of the records, whether they fit the key.
    assert store.gets <= 100


@pytest.mark.parametrize("count", COUNTS)
def test_gc_lists_the_store_once_or_each_session_for_workers(count):
    store = store_of(count)
    clock = 1

    collect(store, Retention(grace=3600))
    assert store.lists == clock + ceil(2 * count / PAGE) + 2
    if count > PAGE:
        return
    store.lists = 0
    with ThreadPoolExecutor(1) as pool:
        collect(store, Retention(grace=3600), executor=pool)
    assert store.lists == clock + ceil(count / PAGE) + 2 + 3 * count


def test_of_sessions_without_records_gc_leaves_an_object_each_and_lists_no_more():
    inner = CountingStore()
    store = ClockedStore(inner)
    for number in range(400):
        ref = "".join(string.ascii_lowercase[number // 26**n % 26] for n in range(10))
        store.put(f"r/s{number % 20}/{ref}~tool_result~bash~9~3.zst.deleted", b"")
        store.put(f"r/s{number % 20}/{ref}~tool_result~bash~9~3.zst", b"record")

    for left in (800, 820, 20, 20):
        store.now += SETTLED_SECONDS
        inner.lists = 0
        collect(store)
        lists = inner.lists
        assert len(store.snapshot()) == left
    clock = 1
    assert lists == clock + 1 + 2


def test_the_steps_of_the_page_erase_a_session_with_its_name():
    store = MemoryStore()
    anna, ben = journaled(store, "anna"), journaled(store, "ben")
    for off in (anna, ben):
        run(off, 4)
    shared, taken = anna.records()[0].ref, ben.records()[0].ref
    anna.share(shared, "ben")
    ben.share(taken, "anna")
    anna.fork("fork", at=3)
    anna.rewind(2)

    for session in ("fork", "anna"):
        delete(store, session)
    revoke(store, "anna", shared, "ben")
    collect(store, Retention(grace=0))
    for stored in [*store.keys()]:
        family, _, rest = stored.key.partition("/")
        if rest.startswith("anna/") or (family == "g" and stored.key.endswith("~anna")):
            store.delete(stored.key)

    assert [stored.key for stored in store.keys() if "anna" in stored.key] == []
    assert [stored.key for stored in store.keys() if b"anna" in store.get(stored.key)] == []
    assert len(ben.records()) == 3
    assert ben.verify() == []


def test_the_page_has_the_tables_that_the_benchmark_prints():
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    for table in scale_prices.tables():
        assert table in page


@pytest.mark.parametrize("count", [10, 100])
def test_a_copy_and_an_index_of_all_sessions_take_a_few_listings_for_each(count):
    source, target = CountingStore(), CountingStore()
    for session in range(count):
        Offloader(source, session=f"s{session:05}").offload_text("word " * 9000)
    source.lists = source.gets = 0

    found: list[Any] = [report for _, report in copy_sessions(source, target)]
    assert sum(len(report.copied) for report in found) == count
    assert (source.lists, source.gets, target.lists) == (2 + 5 * count, count, 3 * count)
    source.lists = 0
    assert [each for _, each in reindex(source)] == [1] * count
    assert source.lists == 1 + 2 * count


def test_ls_counts_a_record_under_two_keys_once_and_what_a_fork_reads():
    store = CountingStore()
    messages = tool_turn("t1", "word " * 9000, "Bash", {"command": "ls"})
    off = Offloader(store, session="a", journal=True)
    off.offload(messages)
    [stored] = store.keys("r/a/")
    store.put(stored.key.replace("~45000~", "~45000~9"), store.get(stored.key))
    off.fork("b")

    rows = list(_sessions(store, []))

    assert [(row["session"], row["records"]) for row in rows] == [("a", 1), ("b", 1)]
    for row in rows:
        [info] = Offloader(store, session=row["session"]).records()
        assert (row["tokens"], row["chars"]) == (info.tokens, info.chars)


class EndlessStore(MemoryStore):
    """Lists sessions of 1,000 records each, which are made as they are listed."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        if prefix != layout.RECORD.prefix():
            yield from super().keys(prefix, after=after)
            return
        for session in range(self._count):
            for ref in range(1000):
                letters = "".join(string.ascii_lowercase[ref // 26**n % 26] for n in (2, 1, 0))
                yield StoredObject(f"r/s{session:05}/aaaaaaa{letters}~tool_result~bash~9~3.zst", 9, 1.0)


def test_a_dry_run_of_gc_holds_one_session_at_a_time():
    def peak(sessions: int) -> int:
        tracemalloc.start()
        collect(EndlessStore(sessions), Retention(store_records=10**9), dry_run=True)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(1)

    assert peak(6) < 1.5 * peak(2)


def test_a_store_without_folders_is_listed_once_for_each():
    store = store_of(5)

    assert list(folders(cast("OffloadStore", PlainStore(store)), "r/")) == [
        f"s0000{number}" for number in range(5)
    ]
    assert store.lists == 6


def test_an_export_without_the_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'offload\[arrow\]'"):
        export_catalog(store_of(1), MemoryStore())
