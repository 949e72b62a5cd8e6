"""A large session is listed rarely: what a page costs, how old it may be, what it never misses."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import zstandard
from kit.store import ActingStore, failing
from large import Clock, LargeStore, fill, info_of, key_of

from offload.errors import ConfigError, StoreUnavailableError
from offload.records.index import reindex
from offload.records.index.catalog import Catalog
from offload.storage.layout import tombstone_key
from offload.storage.store import StoredObject
from offload.storage.wrappers import ReadOnlyStore

ALL, OF_BASH, OTHERS, NONE = {0, 1, 2}, {1, 2}, {0}, set[int]()
MANY = 5500
PAGES = -(-MANY // 1000)
QUERIES = [
    ({}, ALL),
    ({"tool": "Bash"}, OF_BASH),
    ({"item_type": "user_message"}, OTHERS),
    ({"tool": "Bash", "item_type": "tool_result"}, OF_BASH),
    ({"tool": "Bash", "item_type": "user_message"}, NONE),
    ({"tool": "Bas"}, NONE),
    ({"tool": "\ud800"}, NONE),
    ({"item_type": "\ud800"}, NONE),
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("offload.records.index.catalog.time", clock)
    return clock


@pytest.fixture
def store(clock: Clock) -> LargeStore:
    return LargeStore(clock)


def shown(catalog: Catalog, **query: Any) -> list[str]:
    """Return the keys of every page, first to last."""
    keys: list[str] = []
    page = catalog.page(limit=997, **query)
    while page.infos:
        keys += [info.key for info in page.infos]
        page = catalog.page(limit=997, after=page.infos[-1].ref, **query)
    assert len(keys) == page.total
    return keys


# --- what it costs ---------------------------------------------------------------------------------


def test_a_session_of_some_thousand_records_is_listed_for_every_page_and_kept_nowhere(
    store: LargeStore,
) -> None:
    keys = fill(store, 1000)
    catalog = Catalog(store, "s")
    for _ in range(2):
        assert len(catalog.page(limit=5).infos) == 5
    assert store.spent() == ["LIST r/"] * 2
    keys += fill(store, 3000, start=1000)
    Catalog(store, "s").load()
    assert store.spent() == ["LIST r/"] * 4
    assert sorted(store.objects) == sorted(keys)


def test_a_process_opens_a_large_session_with_a_page_of_a_listing_and_a_snapshot(store: LargeStore) -> None:
    keys = fill(store, MANY)
    Catalog(store, "s").load()
    assert store.spent() == ["LIST r/"] * PAGES + ["LIST i/", "PUT i/"]
    assert shown(Catalog(store, "s")) == keys[::-1]
    assert store.spent() == ["LIST r/"] * 2 + ["LIST i/", "GET i/"]


def test_a_large_session_is_listed_once_for_all_pages_and_records_of_a_process(store: LargeStore) -> None:
    keys = fill(store, 3000)
    catalog = Catalog(store, "s")
    assert shown(catalog) == keys[::-1]
    assert store.spent() == ["LIST r/", "LIST r/", "LIST i/", "LIST r/"]
    assert shown(catalog, item_type="tool_result") == [k for k in keys[::-1] if "~tool_result~" in k]
    infos = catalog.recent()
    assert [i.key for i in infos] == keys
    assert all(catalog.find(i.ref) == [i] for i in infos)
    assert store.spent() == []


# --- how old it may be -----------------------------------------------------------------------------


def test_a_listing_is_used_for_a_hundred_times_as_long_as_it_took(store: LargeStore, clock: Clock) -> None:
    fill(store, 3000)  # Three pages and the look for a snapshot take 0.4 seconds.
    catalog = Catalog(store, "s")
    catalog.page()
    [late] = fill(store, 1, start=3000)
    clock.now += 37
    assert late not in shown(catalog)
    clock.now += 3
    assert late in shown(catalog)
    store.spent()
    clock.now -= 3600  # Put back, it makes a listing stale.
    catalog.page()
    assert "LIST r/" in store.spent()


@pytest.mark.parametrize("way", ["memory", "snapshot"])
def test_no_listing_is_used_for_more_than_ten_minutes(store: LargeStore, clock: Clock, way: str) -> None:
    store.seconds_a_page = 20.0
    fill(store, MANY)
    began = clock.now
    catalog = Catalog(store, "s")
    catalog.page()
    [late] = fill(store, 1, start=MANY)
    for age, is_shown in [(520, False), (601, True)]:
        clock.now = began + age
        asked = catalog if way == "memory" else Catalog(store, "s")
        assert (late in shown(asked)) is is_shown


def snapshot_in(store: LargeStore) -> str:
    [name] = [key for key in store.objects if key.startswith("i/s/1")]
    return name


def test_a_snapshot_of_a_writer_whose_clock_is_ahead_is_as_old_as_its_object(
    store: LargeStore, clock: Clock
) -> None:
    store.seconds_a_page = 20.0
    fill(store, MANY)
    Catalog(store, "s").load()
    name = snapshot_in(store)
    snapshot = store.objects.pop(name)
    _, took, letters = name.split("~")
    [late] = fill(store, 1, start=MANY)
    store.objects[f"i/s/{(clock.now + 3600) * 1000:.0f}~{took}~{letters}"] = snapshot
    clock.now += 3700
    assert late in shown(Catalog(store, "s"))


# --- what it never misses --------------------------------------------------------------------------


def test_what_a_process_wrote_is_listed_though_the_clock_of_who_listed_was_ahead(
    store: LargeStore, clock: Clock
) -> None:
    store.seconds_a_page = 5.0
    keys = fill(store, MANY)
    Catalog(store, "s").page()
    catalog = Catalog(store, "s")
    written = clock.now - 60
    keys += fill(store, 1, start=MANY)
    catalog.add(info_of(keys[-1], written))
    assert shown(catalog) == keys[::-1]
    assert {i.key for i in catalog.recent()} == set(keys)


def test_what_is_written_after_another_own_record_was_dropped_or_again_is_listed(
    store: LargeStore, clock: Clock
) -> None:
    keys = fill(store, 2000)
    catalog = Catalog(store, "s")
    catalog.page()
    [dropped] = fill(store, 1, start=2000)
    catalog.add(info_of(dropped, clock.now))
    assert dropped in shown(catalog)
    store.delete(dropped)
    catalog.drop(dropped)
    keys += fill(store, 1, start=2001)
    catalog.add(info_of(keys[-1], clock.now))
    assert shown(catalog) == keys[::-1]
    again = key_of(0, generation=2)
    store.put(again, b"data")
    catalog.add(info_of(again, clock.now))
    assert shown(catalog) == [again, *keys[:0:-1]]


def test_a_ref_that_no_listing_had_is_found_in_the_store(store: LargeStore) -> None:
    fill(store, 2000)
    catalog = Catalog(store, "s")
    catalog.page()
    [late] = fill(store, 1, start=2000)
    store.spent()
    assert [i.key for i in catalog.find(late.rpartition("/")[2][:10])] == [late]
    assert store.spent() == ["LIST r/"]


@pytest.mark.parametrize("how", ["deleted", "collected"])
def test_a_ghost_is_dropped_when_the_store_was_asked_for_it(store: LargeStore, how: str) -> None:
    keys = fill(store, 2000)
    catalog = Catalog(store, "s")
    ghost = catalog.page(limit=1).infos[0]
    if how == "deleted":
        store.delete(ghost.key)
    else:
        store.put(tombstone_key(ghost.key, "expired"), b"")
    assert ghost.key in shown(catalog)
    assert catalog.find(ghost.ref, is_fresh=True) == []
    for one in (catalog, Catalog(store, "s")):
        assert shown(one) == keys[-2::-1]


@pytest.mark.parametrize("shows", [lambda catalog: catalog.page(limit=MANY), Catalog.recent])
def test_a_record_that_was_seen_to_be_deleted_does_not_come_back_from_an_older_listing(
    store: LargeStore, shows: Callable[[Catalog], object]
) -> None:
    keys = fill(store, MANY)
    shown(Catalog(store, "s"))
    catalog = Catalog(store, "s")
    catalog.page(limit=1)
    store.put(tombstone_key(keys[0], "deleted"), b"")
    ref = info_of(keys[0], store.clock.now).ref
    assert catalog.find(ref, is_fresh=True) == []
    shows(catalog)
    assert catalog.find(ref) == []
    assert keys[0] not in {info.key for info in catalog.objects()}


# --- pages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [900, 2000])
def test_pages_hold_what_is_asked_for_newest_first_in_small_and_large_sessions(
    store: LargeStore, count: int
) -> None:
    keys = fill(store, count)
    for query, meant in QUERIES:
        expected = [key for n, key in enumerate(keys) if n % 3 in meant][::-1]
        assert shown(Catalog(store, "s"), **query) == expected, query
        page = Catalog(store, "s").page(
            limit=10, after=expected[4].rpartition("/")[2][:10] if expected else None, **query
        )
        assert [i.key for i in page.infos] == expected[5:15], query
        assert (page.start, page.total) == (5 if expected else 0, len(expected)), query


@pytest.mark.parametrize("count", [900, 2000])
def test_a_cursor_that_is_no_entry_or_of_another_tool_is_refused(store: LargeStore, count: int) -> None:
    keys = fill(store, count)
    for after in ("abcdefghij", "", "\ud800", "' OR 1=1 --"):
        with pytest.raises(ConfigError, match="omit it"):
            Catalog(store, "s").page(after=after)
    with pytest.raises(ConfigError, match="omit it"):
        Catalog(store, "s").page(tool="Bash", after=keys[0].rpartition("/")[2][:10])


@pytest.mark.parametrize("name", ["a" * 4096, "é/..' OR 1=1 --"])
def test_a_session_of_any_name_is_kept_apart_and_listed_under_the_whole_name(
    store: LargeStore, name: str
) -> None:
    keys, others = fill(store, 1100, name), fill(store, 1200, "other")
    assert shown(Catalog(store, name)) == keys[::-1]
    assert {i.session for i in Catalog(store, name).page().infos} == {name}
    assert shown(Catalog(store, "other")) == others[::-1]


# --- what may be wrong with a snapshot -------------------------------------------------------------


def snapshot_of(**changes: Any) -> bytes:
    body: dict[str, Any] = {"version": 1, "names": [], "sizes": [], "times": [], "titles": []} | changes
    return zstandard.compress(msgspec.msgpack.encode(body))


BAD = {
    "empty": b"",
    "noise": b"noise" * 100,
    "another version": snapshot_of(version=2),
    "not whole": snapshot_of(names=["abcdefghij~tool_result~~1~1.zst"]),
    "of other types": snapshot_of(times="never"),
    "no map": zstandard.compress(b"\xc0"),
    "a claim of 2 GiB": b"\x28\xb5\x2f\xfd\xa0\x00\x00\x00\x80\x01\x00\x00",
    "no size": zstandard.ZstdCompressor(write_content_size=False).compress(b"\xc0"),
}


def test_a_snapshot_that_cannot_be_read_is_passed_over(store: LargeStore) -> None:
    keys = fill(store, MANY)
    Catalog(store, "s").load()
    name = snapshot_in(store)
    flipped = bytearray(store.objects[name][0])
    flipped[len(flipped) // 2] ^= 1
    objects = {**store.objects}
    for kind, data in {**BAD, "one flipped bit": bytes(flipped)}.items():
        store.objects = objects | {name: (data, store.clock.now)}
        assert [i.key for i in Catalog(store, "s").page().infos] == keys[:-51:-1], kind


def test_foreign_objects_beside_snapshots_and_foreign_names_inside_one_are_no_entries(
    store: LargeStore,
) -> None:
    keys = fill(store, MANY)
    store.put("i/s/readme.md", b"text")
    Catalog(store, "s").load()
    own = keys[0].rpartition("/")[2]
    more = {"sizes": [1] * 4, "times": [1.0] * 4, "titles": [None] * 4}
    body = snapshot_of(names=["../x", "a~b", "a~b~c~d", own], **more)
    store.objects[snapshot_in(store)] = body, store.clock.now
    assert [i.key for i in Catalog(store, "s").page().infos] == [keys[0]]
    assert "i/s/readme.md" in store.objects


def test_only_the_two_newest_snapshots_stay(store: LargeStore, clock: Clock) -> None:
    fill(store, MANY)
    names: list[str] = []
    for _ in range(4):
        Catalog(store, "s").load()
        names += [key for key in store.objects if key.startswith("i/") and key not in names]
        clock.now += 3600
    assert len(names) == 4
    assert [key for key in store.objects if key.startswith("i/")] == names[-2:]


@pytest.mark.parametrize("verb", ["put", "get", "keys", "delete"])
def test_a_store_that_fails_with_snapshots_still_lists_its_sessions(clock: Clock, verb: str) -> None:
    large = LargeStore(clock)
    store = ActingStore(large, failing(StoreUnavailableError("no snapshots"), verb, part="i/"))
    keys = fill(large, MANY)
    for _ in range(3):
        assert [i.key for i in Catalog(store, "s").page().infos] == keys[:-51:-1]
        clock.now += 3600


def test_another_store_of_the_same_url_shows_nothing_of_this_one_and_one_that_is_read_is_not_written(
    clock: Clock,
) -> None:
    ours, theirs = LargeStore(clock), LargeStore(clock)
    keys, others = fill(ours, MANY), fill(theirs, 1500)
    assert shown(Catalog(ReadOnlyStore(ours), "s")) == keys[::-1]
    assert sorted(ours.objects) == sorted(keys)
    assert shown(Catalog(ours, "s")) == keys[::-1]
    assert shown(Catalog(theirs, "s")) == others[::-1]


def test_a_listing_that_fails_midway_changes_nothing(
    store: LargeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = fill(store, 2000)
    catalog = Catalog(store, "s")
    catalog.load()

    def keys_until_the_cable_is_pulled(prefix: str, *, after: str = "") -> Any:
        yield StoredObject(keys[0], 4, 1.0)
        raise StoreUnavailableError("gone")

    monkeypatch.setattr(store, "keys", keys_until_the_cable_is_pulled)
    with pytest.raises(StoreUnavailableError):
        catalog.load()
    assert [i.key for i in catalog.entries()] == keys


# --- who shares it ---------------------------------------------------------------------------------


def test_threads_and_a_forked_process_share_a_catalog(store: LargeStore) -> None:
    keys = fill(store, 2000)
    catalog = Catalog(store, "s")
    with ThreadPoolExecutor(8) as pool:
        pages = list(pool.map(lambda _: shown(catalog), range(16)))
    assert pages == [keys[::-1]] * 16
    store.spent()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=lambda: theirs.send((shown(catalog), store.spent())))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == (keys[::-1], [])
    child.join()
    assert shown(catalog) == keys[::-1]


# --- reindex ---------------------------------------------------------------------------------------


def test_reindex_lists_anew_from_the_records_alone_and_says_how_many_there_are(store: LargeStore) -> None:
    keys = fill(store, MANY)
    Catalog(store, "s").load()
    old = snapshot_in(store)
    store.delete(keys.pop())
    assert reindex(store, "s") == MANY - 1
    new = snapshot_in(store)
    assert new != old
    assert shown(Catalog(store, "s")) == keys[::-1]
    store.delete(new)
    assert reindex(store, "s") == MANY - 1
    assert shown(Catalog(store, "s")) == keys[::-1]
    assert snapshot_in(store)


def test_reindex_of_a_small_or_absent_session_leaves_no_snapshot(store: LargeStore) -> None:
    store.put("i/s/1~1~abcdefghij", b"left of larger days")
    assert reindex(store, "s") == 0
    fill(store, 3)
    assert reindex(store, "s") == 3
    assert not [key for key in store.objects if key.startswith("i/")]
