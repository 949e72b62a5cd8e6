from __future__ import annotations

import sys
from typing import Any

import pytest

from offload.errors import ConfigError, NotFoundError, StoreUnavailableError
from offload.storage.wrappers import CachingStore
from offload.testing import FaultyBulkStore, FaultyStore
from offload_backends._fsspec import FsspecStore
from offload_backends.memory import MemoryStore


@pytest.fixture
def inner(medium):
    """Counts the gets that reach the medium."""
    return FaultyBulkStore(medium, verb="get", nth=sys.maxsize)


def test_what_was_read_is_not_asked_for_again_and_ranges_are_cut_from_it(inner, medium):
    medium.put("a", b"0123456789")
    store = CachingStore(inner)

    assert [store.get("a"), store.get("a"), store.get("a")] == [b"0123456789"] * 3
    parts = [store.get("a", start=s, end=e) for s, e in [(2, 5), (-3, None), (4, None), (8, 99), (12, 20)]]
    assert parts == [b"234", b"789", b"456789", b"89", b""]
    assert inner.operations == 1


@pytest.mark.parametrize(
    ("part", "requests"),
    [((-11, None), 1), ((0, 11), 1), ((-10, None), 2), ((0, 10), 2), ((1, None), 2), ((0, 0), 2)],
)
def test_a_range_is_kept_only_if_it_is_shown_to_be_the_whole(inner, medium, part, requests):
    medium.put("a", b"0123456789")
    store = CachingStore(inner)
    store.get("a", start=part[0], end=part[1])

    assert store.get("a") == b"0123456789"
    assert inner.operations == requests


def test_an_empty_object_is_kept_and_an_absent_one_is_not(inner, medium):
    medium.put("empty", b"")
    store = CachingStore(inner)

    assert [store.get("empty"), store.get("empty")] == [b"", b""]
    for _ in range(2):
        with pytest.raises(NotFoundError):
            store.get("absent")
    assert inner.operations == 3
    medium.put("absent", b"there")
    assert store.get("absent") == b"there"


def changes():
    return {
        "overwrite": lambda store: store.put("a", b"new", overwrite=True),
        "delete": lambda store: (store.delete("a"), store.inner.put("a", b"new")),
        "delete many": lambda store: (store.delete_many(k for k in ["a"]), store.inner.put("a", b"new")),
        "create": lambda store: (store.inner.delete("a"), store.put("a", b"new")),
        "create many": lambda store: (store.inner.delete("a"), store.put_many([("a", b"new")])),
    }


@pytest.mark.parametrize("change", changes().values(), ids=changes())
def test_a_change_through_the_store_is_seen(inner, medium, change):
    medium.put("a", b"old")
    store = CachingStore(inner)
    store.get("a")

    change(store)

    assert store.get("a") == b"new"


def test_a_change_past_the_store_is_missed_while_the_object_is_kept(inner, medium):
    medium.put("a", b"old")
    medium.put("b", b"old")
    store = CachingStore(inner)
    list(store.get_many(["a", "b"]))

    medium.put("a", b"new", overwrite=True)
    medium.delete("b")

    assert list(store.get_many(["a", "b"])) == [b"old", b"old"]
    assert [found.key for found in store.keys()] == ["a"]


def test_a_change_whose_answer_was_lost_is_seen():
    class ReadOnTheWay(MemoryStore):
        def put(self, key, data, *, overwrite=False):
            assert store.get(key) == b"old"
            super().put(key, data, overwrite=overwrite)

    inner = ReadOnTheWay()
    MemoryStore.put(inner, "a", b"old")
    store = CachingStore(FaultyStore(inner, verb="put", moment="after"))

    with pytest.raises(StoreUnavailableError):
        store.put("a", b"new", overwrite=True)

    assert store.get("a") == b"new"


class Slow(MemoryStore):
    """Calls `meanwhile` once, after bytes were read and before they are returned."""

    def __init__(self):
        super().__init__()
        self.meanwhile = lambda: None

    def get(self, key, *, start=0, end=None):
        data = super().get(key, start=start, end=end)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return data


@pytest.mark.parametrize("change", ["put", "delete"])
def test_what_was_fetched_before_a_change_is_not_kept_after_it(change):
    inner = Slow()
    inner.put("a", b"old")
    store = CachingStore(inner)
    inner.meanwhile = {
        "put": lambda: store.put("a", b"new", overwrite=True),
        "delete": lambda: store.delete("a"),
    }[change]

    assert store.get("a") == b"old"

    if change == "put":
        assert store.get("a") == b"new"
    else:
        with pytest.raises(NotFoundError):
            store.get("a")


def test_the_least_recently_used_makes_room(inner, medium):
    store = CachingStore(inner, max_bytes=4 * 10_300)
    for key in "abcdef":
        medium.put(key, key.encode() * 10_000)
    for key in "abca":
        store.get(key)
    for key in "de":
        store.get(key)
    fetched = inner.operations

    store.get("a")
    assert inner.operations == fetched
    store.get("b")
    assert inner.operations == fetched + 1


def test_an_object_that_would_drive_out_the_others_is_not_kept_and_no_cache_takes_none(inner, medium):
    medium.put("a", bytes(1001))
    medium.put("b", bytes(1000))
    store = CachingStore(inner, max_bytes=4000)

    for key in "aabb":
        store.get(key)

    assert inner.operations == 3
    for max_bytes in (0, -1, "64MB", True):
        with pytest.raises(ConfigError, match="max_bytes must be an integer of at least 1, got"):
            CachingStore(inner, max_bytes=max_bytes)  # type: ignore[arg-type]


def test_memory_is_bounded_also_by_objects_of_no_size(medium):
    store = CachingStore(medium, max_bytes=10_000)
    for n in range(1000):
        medium.put(f"n/{n}", b"")
        store.get(f"n/{n}")

    for n in range(1000):
        medium.put(f"n/{n}", b"changed", overwrite=True)

    assert 10 <= sum(store.get(f"n/{n}") == b"" for n in reversed(range(1000))) <= 100


def test_many_are_answered_in_order_and_only_the_missing_fetched(inner, medium):
    for key in "abc":
        medium.put(key, key.encode())
    store = CachingStore(inner)
    store.get("b")

    results = list(store.get_many(["c", "b", "none", "a", "../", "c"]))

    assert [r if isinstance(r, bytes) else r.kind for r in results] == [
        *(b"c", b"b", "not_found", b"a", "invalid_key", b"c")
    ]
    assert inner.operations == 5
    assert list(store.get_many(["a", "b", "c"])) == [b"a", b"b", b"c"]
    assert inner.operations == 5


@pytest.mark.parametrize("options", [{"host": "one"}, {"username": "alice"}, {"client": {"region": "x"}}])
def test_two_stores_of_one_url_and_other_options_are_told_apart(options):
    both: list[Any] = [{}, options]
    stores = [FsspecStore("github://owner:repo@/x", storage_options=given) for given in both]

    assert len({CachingStore(store).identity() for store in stores}) == 2


@pytest.mark.parametrize("secret", ["password", "token", "sas_token", "account_key", "connection_string"])
def test_a_secret_is_no_part_of_what_a_store_is_told_by(secret):
    url = "sftp://host/folder"
    known, changed = ({"username": "u", secret: text} for text in ("hunter2", "hunter3"))

    identities = {FsspecStore(url, storage_options=given).identity() for given in (known, changed)}

    assert len(identities) == 1
    assert FsspecStore("sftp://u:a@host/f").identity() == FsspecStore("sftp://u:b@host/f").identity()
    assert FsspecStore("sftp://u@host/f").identity() != FsspecStore("sftp://v@host/f").identity()


def test_a_range_without_meaning_is_refused_kept_or_not(medium):
    medium.put("a", b"x")
    store = CachingStore(medium)
    for _ in range(2):
        with pytest.raises(ConfigError, match="range"):
            store.get("a", start=-1, end=2)
        store.get("a")


def test_a_stream_passes_by_the_cache_and_drops_what_was_kept_under_its_key(inner, medium):
    medium.put("a", b"old")
    store = CachingStore(inner)
    store.get("a")
    medium.delete("a")

    store.put_stream("a", [b"0123", b"456789"], 10)

    assert medium.get("a") == b"0123456789"
    assert [store.get("a"), store.get("a")] == [b"0123456789"] * 2
    assert inner.operations == 2
