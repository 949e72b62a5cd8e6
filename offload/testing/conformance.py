"""The store contract as tests, one per sentence of the docstrings in `offload.store`.

A backend is proven by a class and a fixture:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(f"my://{tmp_path}")
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, get_args

import pytest

from offload.errors import ExistsError, InvalidKeyError, NotFoundError
from offload.store import Durability, OffloadStore
from offload.testing._bulk import BulkConformance
from offload.testing._listing import ListingConformance
from offload.testing._streams import StreamConformance
from offload.testing._suite import DIGITS, NEIGHBOURS, keys_of

INVALID_KEYS: tuple[Any, ...] = (
    *("", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/..", "./a", ".a", "a/.tmp-b"),
    *("A", "a b", " a", "a\\b", "c:a", "a\0b", "a\n", "a\nb", "*", "a?versionid=b", "a#b", "a%2fb"),
    *("s3://b/a", "a::b", "$home", "a|b", "a'b", 'a"b', "\u00e9", "e\u0301", "\u202ea", "\ud800"),
    *("a" * 241, "/".join(["a" * 200] * 3), "offload.json", None, 1, b"a"),
)
ODD_KEYS = (
    *("~", "~/a", "~root", "-", "-rf", "--", "_", "=", "==", "=2e=2e", "0", "a..b", "a.", "a~1"),
    *("con", "aux.txt", "nul/a", "a.lock", "a.tmp", "a" * 240, "/".join(["a" * 170] * 3)),
)
RANGES = (
    *((0, None), (0, 10), (0, 4), (3, 7), (9, 10), (0, 1), (4, None), (9, None)),
    *((0, 99), (7, 99), (10, None), (10, 12), (11, None), (99, None), (99, 120)),
    *((5, 5), (0, 0), (7, 3), (-1, None), (-4, None), (-10, None), (-99, None)),
)
MEGABYTE = bytes(range(256)) * 4096


class StoreConformance(ListingConformance, BulkConformance, StreamConformance):
    """Subclass it, name the class `Test…`, and give one fixture, `store`: a store that is empty.

    Override `raw_get` and `raw_put` where the medium can be reached past the store: puts and gets are
    then checked against the medium and not against each other.

    A subclass may not redefine a test, except to mark it `xfail` with a reason.
    """

    # The store

    def test_it_is_a_store(self, store: OffloadStore) -> None:
        assert isinstance(store, OffloadStore)
        assert isinstance(store.is_shared, bool)
        assert isinstance(store.has_atomic_create, bool)
        assert store.durability in get_args(Durability)

    def test_its_url_names_no_user_and_no_password(self, store: OffloadStore) -> None:
        host = store.url.split("://", 1)[-1].partition("/")[0]

        assert store.url
        assert "@" not in host

    def test_an_invalid_key_is_refused_by_every_verb_and_touches_nothing(self, store: OffloadStore) -> None:
        self.raw_put(store, "a/b", b"kept")
        verbs: tuple[Callable[[str], object], ...] = (
            lambda key: store.put(key, b"x"),
            lambda key: store.put(key, b"x", overwrite=True),
            store.get,
            lambda key: store.get(key, start=-1),
            store.delete,
        )

        for key, verb in itertools.product(INVALID_KEYS, verbs):
            with pytest.raises(InvalidKeyError):
                verb(key)

        assert keys_of(store) == ["a/b"]
        assert self.raw_get(store, "a/b") == b"kept"

    def test_odd_but_valid_keys_are_keys_like_any_other(self, store: OffloadStore) -> None:
        for key in ODD_KEYS:
            store.put(key, key.encode())
            assert self.raw_get(store, key) == key.encode()
            assert store.get(key) == key.encode()
            assert keys_of(store) == [key]
            store.delete(key)
        assert keys_of(store) == []

    # put

    @pytest.mark.parametrize("data", [b"", b"\0", bytes(range(256)), MEGABYTE], ids=len)
    @pytest.mark.parametrize("overwrite", [False, True])
    def test_what_is_put_is_in_the_medium(self, store: OffloadStore, data: bytes, overwrite: bool) -> None:
        store.put("a/b", data, overwrite=overwrite)

        assert self.raw_get(store, "a/b") == data

    def test_a_put_of_a_taken_key_is_refused_and_keeps_its_bytes(self, store: OffloadStore) -> None:
        self.raw_put(store, "a", b"first")

        with pytest.raises(ExistsError):
            store.put("a", b"second")

        assert self.raw_get(store, "a") == b"first"

    def test_the_same_bytes_again_are_refused_too(self, store: OffloadStore) -> None:
        store.put("a", b"first")

        with pytest.raises(ExistsError):
            store.put("a", b"first")

    @pytest.mark.parametrize("data", [b"", b"x", b"longer than before"], ids=len)
    def test_overwrite_replaces_the_whole_object(self, store: OffloadStore, data: bytes) -> None:
        self.raw_put(store, "a", b"before")

        store.put("a", data, overwrite=True)

        assert self.raw_get(store, "a") == data
        assert [found.size for found in store.keys()] == [len(data)]

    def test_an_empty_object_holds_its_key(self, store: OffloadStore) -> None:
        store.put("a", b"")

        assert store.get("a") == b""
        assert [(found.key, found.size) for found in store.keys()] == [("a", 0)]
        with pytest.raises(ExistsError):
            store.put("a", b"x")

    def test_a_key_and_a_longer_one_are_two_objects(self, store: OffloadStore) -> None:
        store.put("a", b"1")
        store.put("ab", b"2")
        store.put("a.b", b"3")

        assert [store.get(key) for key in ("a", "ab", "a.b")] == [b"1", b"2", b"3"]

    def test_a_reader_never_sees_half_an_object(self, store: OffloadStore) -> None:
        versions = [bytes([n]) * 300_000 for n in (1, 2)]
        store.put("a", versions[0])
        finished = threading.Event()

        def write() -> None:
            try:
                for data in versions * 8:
                    store.put("a", data, overwrite=True)
            finally:
                finished.set()

        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(write)
            seen = {store.get("a")}
            while not finished.is_set():
                seen.add(store.get("a"))
            writer.result()
        assert seen <= set(versions)

    def test_a_create_has_exactly_one_winner(self, store: OffloadStore) -> None:
        if not store.has_atomic_create:
            pytest.skip("the store does not claim atomic creates")
        for round_number in range(10):
            key = f"race/{round_number}"
            outcomes = _in_threads(8, partial(_create, store, key, threading.Barrier(8)))

            assert sorted(outcomes)[:-1] == [-1] * 7
            assert self.raw_get(store, key) == b"%d" % max(outcomes)

    def test_writers_of_different_keys_do_not_lose_each_other(self, store: OffloadStore) -> None:
        def write(n: int) -> None:
            for i in range(10):
                store.put(f"p/{n}/{i}", b"%d" % i)

        _in_threads(8, write)

        expected = {f"p/{n}/{i}": b"%d" % i for n in range(8) for i in range(10)}
        assert {key: self.raw_get(store, key) for key in keys_of(store)} == expected

    # get

    def test_what_another_writer_put_is_read(self, store: OffloadStore) -> None:
        self.raw_put(store, "a/b/c", MEGABYTE)

        assert store.get("a/b/c") == MEGABYTE

    @pytest.mark.parametrize("data", [DIGITS, b"0", b""], ids=len)
    def test_a_range_is_what_slicing_gives(self, store: OffloadStore, data: bytes) -> None:
        self.raw_put(store, "a", data)

        read = {(start, end): store.get("a", start=start, end=end) for start, end in RANGES}

        assert read == {(start, end): data[start:end] for start, end in RANGES}

    @pytest.mark.parametrize(("start", "end"), [(-4, 0), (-4, 8), (-4, -2), (0, -2)])
    def test_a_suffix_takes_no_end_and_an_end_is_not_negative(
        self, store: OffloadStore, start: int, end: int
    ) -> None:
        self.raw_put(store, "a", DIGITS)

        with pytest.raises(ValueError, match="range"):
            store.get("a", start=start, end=end)

    @pytest.mark.parametrize("key", ["a", "b", "a/c", "a/b/c", "z/z/z"])
    def test_a_missing_key_is_not_found_whatever_the_range(self, store: OffloadStore, key: str) -> None:
        self.raw_put(store, "a/b", b"x")

        for start, end in RANGES:
            with pytest.raises(NotFoundError):
                store.get(key, start=start, end=end)

    # delete

    def test_a_deleted_key_is_gone_and_free(self, store: OffloadStore) -> None:
        self.raw_put(store, "a/b", b"old")

        store.delete("a/b")

        with pytest.raises(NotFoundError):
            store.get("a/b")
        store.put("a/b", b"new")
        assert self.raw_get(store, "a/b") == b"new"

    def test_deleting_what_is_not_there_is_success(self, store: OffloadStore) -> None:
        store.delete("a/b")
        store.put("a/b", b"x")

        for key in ("a", "b", "a/c", "a/b/c", "z/z/z"):
            store.delete(key)

        assert keys_of(store) == ["a/b"]

    def test_deleting_a_key_leaves_its_neighbours(self, store: OffloadStore) -> None:
        for key in NEIGHBOURS:
            store.put(key, b"x")

        store.delete("a")

        assert keys_of(store) == list(NEIGHBOURS[1:])


def _in_threads(count: int, function: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(function, range(count)))


def _create(store: OffloadStore, key: str, start: threading.Barrier, number: int) -> int:
    start.wait()
    try:
        store.put(key, b"%d" % number)
    except ExistsError:
        return -1
    return number
