"""The sentences of `OffloadStore.keys`, as tests."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from offload.store import OffloadStore
from offload.testing._suite import DIGITS, NEIGHBOURS, Suite, keys_of, put_all

PREFIXES = (
    *("", "a", "a-", "a.", "aaa", "b", "b-", "b/", "b/c", "b/c/", "b=/c", "c"),
    *("/", "//", "..", "../", "a/../", "a//", ".", "A", "%61", "*", "\u00e9", "a\0"),
)
PLACES = (*NEIGHBOURS, "0", "a,", "b", "b-", "b-/", "b/", "b/b", "b0", "zz", "~")


class ListingConformance(Suite):
    """Tests of listings."""

    def test_a_store_never_written_to_lists_nothing(self, store: OffloadStore) -> None:
        assert keys_of(store) == []
        assert keys_of(store, "a/b") == []
        assert keys_of(store, "a", after="a") == []

    def test_a_listing_tells_key_size_and_time(self, store: OffloadStore) -> None:
        store.put("a/b", DIGITS)

        (found,) = store.keys()

        assert (found.key, found.size) == ("a/b", 10)
        assert abs(found.modified - time.time()) < 24 * 3600

    def test_keys_sort_by_code_point_of_the_whole_key(self, store: OffloadStore) -> None:
        for key in reversed(NEIGHBOURS):
            self.raw_put(store, key, b"x")

        assert keys_of(store) == list(NEIGHBOURS)

    def test_a_prefix_is_compared_as_text(self, store: OffloadStore) -> None:
        for key in NEIGHBOURS:
            self.raw_put(store, key, b"x")

        listed = {prefix: keys_of(store, prefix) for prefix in PREFIXES}

        assert listed == {
            prefix: [key for key in NEIGHBOURS if key.startswith(prefix)] for prefix in PREFIXES
        }

    @pytest.mark.parametrize("prefix", ["", "a", "b", "b/"])
    def test_a_listing_starts_after_a_key_there_or_not(self, store: OffloadStore, prefix: str) -> None:
        for key in NEIGHBOURS:
            self.raw_put(store, key, b"x")

        listed = {after: keys_of(store, prefix, after=after) for after in PLACES}

        assert listed == {
            after: [key for key in NEIGHBOURS if key.startswith(prefix) and key > after] for after in PLACES
        }

    def test_a_listing_shows_every_change_that_came_before_it(self, store: OffloadStore) -> None:
        assert keys_of(store) == []
        store.put("a/b", b"x")
        assert keys_of(store) == ["a/b"]
        store.put("a/c", b"x")
        assert keys_of(store) == ["a/b", "a/c"]
        store.put("a/c", b"xyz", overwrite=True)
        assert [found.size for found in store.keys()] == [1, 3]
        store.delete("a/b")
        assert keys_of(store) == ["a/c"]

    def test_more_than_a_thousand_keys_are_listed_from_any_place(self, store: OffloadStore) -> None:
        keys = [f"many/{n:04}" for n in range(1010)]
        put_all(store, [(key, b"") for key in keys])

        assert keys_of(store) == keys
        assert keys_of(store, after="many/0004") == keys[5:]
        assert keys_of(store, after="many/0999") == keys[1000:]
        assert keys_of(store, "many/10") == keys[1000:]

    def test_a_listing_is_an_iterator_that_may_be_left(self, store: OffloadStore) -> None:
        for key in ("a", "b/c", "d"):
            store.put(key, b"x")
        first, second = store.keys(), store.keys()

        assert next(first).key == next(second).key == "a"
        assert [found.key for found in itertools.islice(first, 1)] == ["b/c"]
        assert [found.key for found in second] == ["b/c", "d"]

    def test_a_listing_stays_sorted_while_others_write(self, store: OffloadStore) -> None:
        finished = threading.Event()

        def write() -> None:
            try:
                for n in range(40):
                    store.put(f"w/{n % 4}/{n:02}", b"x")
                    store.delete(f"w/{n % 4}/{n - 4:02}" if n >= 4 else "w/none")
            finally:
                finished.set()

        with ThreadPoolExecutor(1) as pool:
            writer = pool.submit(write)
            while not finished.is_set():
                listed = keys_of(store)
                assert listed == sorted(set(listed))
            writer.result()
        assert keys_of(store) == ["w/0/36", "w/1/37", "w/2/38", "w/3/39"]
