"""The store contract as tests, one per sentence of the docstrings of `OffloadStore`.

A backend is tested by a class and a fixture:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(f"my://{tmp_path}")

Bulk verbs and streams are tested for every store, through `put_many` and its sisters, which also
serve a store without them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, get_args

import pytest

from offload.errors import ConfigError, ExistsError, InvalidKeyError, NotFoundError
from offload.storage.store import (
    Durability,
    OffloadStore,
    delete_many,
    folders,
    get_many,
    put_many,
    put_stream,
)

# Sorted by code point; by path part, or by a file system's order, the order differs.
NEIGHBOURS = ("a", "a-", "a-b", "a.", "a.b", "a=", "a_", "aa", "a~", "b-/c", "b./c", "b/c", "b=/c")
DIGITS = b"0123456789"
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
PREFIXES = (
    *("", "a", "a-", "a.", "aaa", "b", "b-", "b/", "b/c", "b/c/", "b=/c", "c"),
    *("/", "//", "..", "../", "a/../", "a//", ".", "A", "%61", "*", "\u00e9", "a\0"),
)
PLACES = (*NEIGHBOURS, "0", "a,", "b", "b-", "b-/", "b/", "b/b", "b0", "zz", "~")
PATTERN = bytes(range(251))
LARGE = PATTERN * (3 * 1024**2 // len(PATTERN) + 1)
ODD_PIECES: dict[str, list[Any]] = {
    "none": [],
    "empty": [b"", b"", b""],
    "single bytes": [b"%d" % (n % 10) for n in range(300)],
    "empty between": [b"", b"a", b"", b"", b"bc", b""],
    "large": [LARGE, LARGE],
    "large and small": [b"x", LARGE, b"", b"y", LARGE[:70_000]],
    "large ones, many": [LARGE[n:] for n in range(6)],
    "views": [memoryview(LARGE)[5:99_999], memoryview(bytearray(b"mutable")), memoryview(b"")],
}
WRONG_SIZES: list[tuple[list[bytes], int]] = [
    *(([b"0123456789"], size) for size in (8, 9, 11, 12, 100_010)),
    *(([b"01234", b"56789"], size) for size in (8, 9, 11, 12, 100_010)),
    *(([LARGE, LARGE], 2 * len(LARGE) + error) for error in (-2, -1, 1, 2, 100_000)),
    *(([b"x"], 0), ([], 1), ([b""], 1)),
]


class StoreConformance:
    """Subclass it, name the class `Test…`, and give one fixture, `store`: a store that is empty.

    Override `raw_get` and `raw_put` if the medium can be reached without the store: puts and gets are
    then checked against the medium and not against each other.

    A subclass may not redefine a test, except to mark it `xfail` with a reason.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, test in vars(cls).items():
            is_redefined = name.startswith("test_") and name in vars(StoreConformance)
            marks = getattr(test, "pytestmark", ())
            if is_redefined and not any(m.name == "xfail" and m.kwargs.get("reason") for m in marks):
                raise TypeError(
                    f"{cls.__name__}.{name} redefines a test of the suite; mark a test that the backend "
                    "cannot pass with pytest.mark.xfail(reason=...)"
                )

    @pytest.fixture
    def store(self) -> OffloadStore:
        """Return the empty store to be tested."""
        raise NotImplementedError("define a fixture `store` that returns an empty store")

    def raw_get(self, store: OffloadStore, key: str) -> bytes:
        """Return the bytes of `key` from the medium."""
        return store.get(key)

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:
        """Write `data` under `key` to the medium."""
        store.put(key, data)

    def contents(self, store: OffloadStore) -> dict[str, bytes]:
        """Return the bytes of each listed key, from the medium."""
        return {key: self.raw_get(store, key) for key in keys_of(store)}

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
            lambda key: put_stream(store, key, [b"x"], 1),
        )

        for key, verb in itertools.product(INVALID_KEYS, verbs):
            with pytest.raises(InvalidKeyError):
                verb(key)

        assert self.contents(store) == {"a/b": b"kept"}

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
    def test_a_put_reaches_the_medium(self, store: OffloadStore, data: bytes, overwrite: bool) -> None:
        store.put("a/b", data, overwrite=overwrite)

        assert self.raw_get(store, "a/b") == data

    def test_a_put_of_a_taken_key_is_refused_and_keeps_its_bytes(self, store: OffloadStore) -> None:
        self.raw_put(store, "a", b"first")

        with pytest.raises(ExistsError):
            store.put("a", b"second")

        assert self.contents(store) == {"a": b"first"}

    def test_the_same_bytes_again_are_refused_too(self, store: OffloadStore) -> None:
        store.put("a", b"first")

        with pytest.raises(ExistsError):
            store.put("a", b"first")

    @pytest.mark.parametrize("data", [b"", b"x", b"longer than before"], ids=len)
    def test_overwrite_replaces_the_whole_object(self, store: OffloadStore, data: bytes) -> None:
        self.raw_put(store, "a", b"before")

        store.put("a", data, overwrite=True)

        assert self.raw_get(store, "a") == data
        assert [entry.size for entry in store.keys()] == [len(data)]

    def test_an_empty_object_holds_its_key(self, store: OffloadStore) -> None:
        store.put("a", b"")

        assert store.get("a") == b""
        assert [(entry.key, entry.size) for entry in store.keys()] == [("a", 0)]
        with pytest.raises(ExistsError):
            store.put("a", b"x")

    def test_a_reader_never_sees_half_an_object(self, store: OffloadStore) -> None:
        versions = [bytes([n]) * 300_000 for n in (1, 2)]
        store.put("a", versions[0])

        def write() -> None:
            for data in versions * 8:
                store.put("a", data, overwrite=True)

        assert {store.get("a") for _ in _while_running(write)} <= set(versions)

    def test_a_create_has_exactly_one_winner(self, store: OffloadStore) -> None:
        def race(key: str) -> None:
            winner = _winner(store, 8, lambda number: store.put(key, b"%d" % number))
            assert self.raw_get(store, key) == b"%d" % winner

        for n in range(10):
            race(f"race/{n}")

    def test_writers_of_different_keys_do_not_lose_each_other(self, store: OffloadStore) -> None:
        def write(n: int) -> None:
            for i in range(10):
                store.put(f"p/{n}/{i}", b"%d" % i)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(8)))

        assert self.contents(store) == {f"p/{n}/{i}": b"%d" % i for n in range(8) for i in range(10)}

    # get

    @pytest.mark.parametrize("data", [MEGABYTE, DIGITS, b"0", b""], ids=len)
    def test_a_range_equals_a_slice(self, store: OffloadStore, data: bytes) -> None:
        self.raw_put(store, "a/b/c", data)

        read = {(start, end): store.get("a/b/c", start=start, end=end) for start, end in RANGES}

        assert read == {(start, end): data[start:end] for start, end in RANGES}

    @pytest.mark.parametrize(("start", "end"), [(-4, 0), (-4, 8), (-4, -2), (0, -2)])
    def test_a_suffix_takes_no_end_and_an_end_is_not_negative(
        self, store: OffloadStore, start: int, end: int
    ) -> None:
        self.raw_put(store, "a", DIGITS)

        with pytest.raises(ValueError, match="range"):
            store.get("a", start=start, end=end)

    @pytest.mark.parametrize("key", ["a", "b", "a/c", "a/b/c", "z/z/z"])
    def test_a_missing_key_is_not_found_for_any_range(self, store: OffloadStore, key: str) -> None:
        self.raw_put(store, "a/b", b"x")

        for start, end in RANGES:
            with pytest.raises(NotFoundError):
                store.get(key, start=start, end=end)

    # keys

    def test_a_store_never_written_to_lists_nothing(self, store: OffloadStore) -> None:
        assert keys_of(store) == []
        assert keys_of(store, "a/b") == []
        assert keys_of(store, "a", after="a") == []

    def test_a_listing_has_key_size_and_time(self, store: OffloadStore) -> None:
        store.put("a/b", DIGITS)

        (entry,) = store.keys()

        assert (entry.key, entry.size) == ("a/b", 10)
        assert abs(entry.modified - time.time()) < 24 * 3600

    def test_keys_sort_by_code_point_of_the_whole_key(self, store: OffloadStore) -> None:
        self._put_neighbours(store)

        assert keys_of(store) == list(NEIGHBOURS)

    def test_a_prefix_is_compared_as_text(self, store: OffloadStore) -> None:
        self._put_neighbours(store)

        listed = {prefix: keys_of(store, prefix) for prefix in PREFIXES}

        assert listed == {
            prefix: [key for key in NEIGHBOURS if key.startswith(prefix)] for prefix in PREFIXES
        }

    @pytest.mark.parametrize("prefix", ["", "a", "b", "b/"])
    def test_a_listing_starts_after_an_existing_or_absent_key(self, store: OffloadStore, prefix: str) -> None:
        self._put_neighbours(store)

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
        assert [entry.size for entry in store.keys()] == [1, 3]
        store.delete("a/b")
        assert keys_of(store) == ["a/c"]

    def test_more_than_a_thousand_keys_are_listed_from_any_place(self, store: OffloadStore) -> None:
        keys = [f"many/{n:04}" for n in range(1010)]
        assert not any(put_many(store, [(key, b"") for key in keys]))

        assert keys_of(store) == keys
        assert keys_of(store, after="many/0004") == keys[5:]
        assert keys_of(store, after="many/0999") == keys[1000:]
        assert keys_of(store, "many/10") == keys[1000:]

    def test_a_listing_is_a_lazy_iterator(self, store: OffloadStore) -> None:
        for key in ("a", "b/c", "d"):
            store.put(key, b"x")
        first, second = store.keys(), store.keys()

        assert next(first).key == next(second).key == "a"
        assert [entry.key for entry in itertools.islice(first, 1)] == ["b/c"]
        assert [entry.key for entry in second] == ["b/c", "d"]

    def test_a_listing_stays_sorted_while_others_write(self, store: OffloadStore) -> None:
        def write() -> None:
            for n in range(40):
                store.put(f"w/{n % 4}/{n:02}", b"x")
                store.delete(f"w/{n % 4}/{n - 4:02}" if n >= 4 else "w/none")

        for _ in _while_running(write):
            listed = keys_of(store)
            assert listed == sorted(set(listed))
        assert keys_of(store) == ["w/0/36", "w/1/37", "w/2/38", "w/3/39"]

    # delete

    def test_a_deleted_key_is_gone_and_free(self, store: OffloadStore) -> None:
        self.raw_put(store, "a/b", b"old")

        store.delete("a/b")

        with pytest.raises(NotFoundError):
            store.get("a/b")
        store.put("a/b", b"new")
        assert self.raw_get(store, "a/b") == b"new"

    def test_deleting_an_absent_key_is_success(self, store: OffloadStore) -> None:
        store.delete("a/b")
        store.put("a/b", b"x")

        for key in ("a", "b", "a/c", "a/b/c", "z/z/z"):
            store.delete(key)

        assert keys_of(store) == ["a/b"]

    def test_a_key_and_a_longer_one_are_two_objects(self, store: OffloadStore) -> None:
        for key in NEIGHBOURS:
            store.put(key, key.encode())
        store.delete("a")

        assert self.contents(store) == {key: key.encode() for key in NEIGHBOURS[1:]}
        assert [store.get(key) for key in NEIGHBOURS[1:]] == [key.encode() for key in NEIGHBOURS[1:]]

    # Many objects

    def test_many_puts_store_each_item(self, store: OffloadStore) -> None:
        items = [(f"m/{n:03}", b"%d" % n) for n in range(150)]

        assert put_many(store, items) == [None] * 150
        assert self.contents(store) == dict(items)

    @pytest.mark.parametrize(("overwrite", "outcome"), [(False, ExistsError), (True, type(None))])
    def test_a_failed_item_is_reported_in_its_place_and_stops_no_other(
        self, store: OffloadStore, overwrite: bool, outcome: type
    ) -> None:
        self.raw_put(store, "b", b"first")

        items = [("a", b"1"), ("b", b"second"), ("../c", b"3"), ("d", b"4")]
        results = put_many(store, items, overwrite=overwrite)

        assert [type(result) for result in results] == [type(None), outcome, InvalidKeyError, type(None)]
        b = b"second" if overwrite else b"first"
        assert self.contents(store) == {"a": b"1", "b": b, "d": b"4"}

    def test_many_gets_answer_in_order(self, store: OffloadStore) -> None:
        for key in ("a", "b"):
            self.raw_put(store, key, key.encode() * 3)

        results = get_many(store, ["b", "none", "a", "B", "b"])

        answers = [result if isinstance(result, bytes) else type(result) for result in results]
        assert answers == [b"bbb", NotFoundError, b"aaa", InvalidKeyError, b"bbb"]

    def test_many_puts_take_an_iterator_and_pass_its_error_on(self, store: OffloadStore) -> None:
        def failing() -> Iterator[tuple[str, bytes]]:
            yield "c", b"3"
            raise RuntimeError("no more items")

        assert put_many(store, iter([("a", b"1"), ("b", b"2")])) == [None, None]
        with pytest.raises(RuntimeError, match="no more items"):
            put_many(store, failing())

        assert [self.raw_get(store, key) for key in ("a", "b")] == [b"1", b"2"]
        assert set(keys_of(store)) <= {"a", "b", "c"}

    def test_many_deletes_take_any_iterable_and_absent_keys(self, store: OffloadStore) -> None:
        for key in ("a", "b", "c"):
            self.raw_put(store, key, b"x")

        delete_many(store, (key for key in ("a", "none", "c")))

        assert keys_of(store) == ["b"]

    def test_nothing_in_bulk_is_nothing(self, store: OffloadStore) -> None:
        assert put_many(store, []) == []
        assert list(get_many(store, [])) == []
        delete_many(store, [])
        assert keys_of(store) == []

    # Folders

    def test_folders_are_named_once_each_in_the_order_of_their_keys(self, store: OffloadStore) -> None:
        assert list(folders(store)) == []
        for name in ("a", "a-b", "a.b", "ab", "b"):
            for key in (f"r/{name}/x", f"r/{name}/y/z", f"s/other-{name}/x"):
                self.raw_put(store, key, b"x")
        self.raw_put(store, "r/file", b"x")
        self.raw_put(store, "file", b"x")

        assert list(folders(store, "r/")) == ["a-b", "a.b", "a", "ab", "b"]
        assert list(folders(store)) == ["r", "s"]
        assert list(folders(store, "r/a/")) == ["y"]
        assert [list(folders(store, prefix)) for prefix in ("none/", "../", "A/")] == [[], [], []]

    def test_a_folder_whose_objects_are_deleted_is_not_named(self, store: OffloadStore) -> None:
        for key in ("r/a/x", "r/b/x", "r/c/d/x"):
            store.put(key, b"x")
        for key in ("r/a/x", "r/c/d/x"):
            store.delete(key)

        assert list(folders(store, "r/")) == ["b"]

    # Streams

    @pytest.mark.parametrize("name", ODD_PIECES)
    def test_a_stream_becomes_one_object_of_all_its_pieces(self, store: OffloadStore, name: str) -> None:
        expected = b"".join(ODD_PIECES[name])

        put_stream(store, "a/b", ODD_PIECES[name], len(expected))

        assert self.contents(store) == {"a/b": expected}
        assert [entry.size for entry in store.keys()] == [len(expected)]

    def test_pieces_may_come_from_a_generator(self, store: OffloadStore) -> None:
        put_stream(store, "a", (PATTERN for _ in range(1000)), 1000 * len(PATTERN))

        assert self.raw_get(store, "a") == PATTERN * 1000

    @pytest.mark.parametrize("pieces", [[b"second"], [b"first"], []], ids=str)
    def test_a_stream_to_a_taken_key_is_refused_and_keeps_its_bytes(
        self, store: OffloadStore, pieces: list[bytes]
    ) -> None:
        self.raw_put(store, "a", b"first")

        with pytest.raises(ExistsError):
            put_stream(store, "a", pieces, len(b"".join(pieces)))

        assert self.raw_get(store, "a") == b"first"

    @pytest.mark.parametrize(("pieces", "size"), WRONG_SIZES)
    def test_pieces_of_another_size_are_refused_and_store_nothing(
        self, store: OffloadStore, pieces: list[bytes], size: int
    ) -> None:
        with pytest.raises(ConfigError):
            put_stream(store, "a/b", pieces, size)

        self._assert_free(store, "a/b")

    @pytest.mark.parametrize("error", [ArithmeticError, FileExistsError, FileNotFoundError, PermissionError])
    @pytest.mark.parametrize("pieces", [[], [b"01234"], [b"0123456789"], [LARGE, LARGE, LARGE]], ids=len)
    def test_an_exception_of_the_pieces_is_raised_and_nothing_is_stored(
        self, store: OffloadStore, pieces: list[bytes], error: type[Exception]
    ) -> None:
        raised = error("by the caller")

        with pytest.raises(error) as caught:
            put_stream(store, "a/b", _raising_after(pieces, raised), len(b"".join(pieces)))

        assert caught.value is raised
        self._assert_free(store, "a/b")

    def test_of_concurrent_streams_to_a_key_one_wins(self, store: OffloadStore) -> None:
        def write(number: int) -> None:
            put_stream(store, "a", [bytes([number]) * 50_000] * 4, 200_000)

        winner = _winner(store, 4, write)

        assert self.raw_get(store, "a") == bytes([winner]) * 200_000

    def _put_neighbours(self, store: OffloadStore) -> None:
        for key in reversed(NEIGHBOURS):
            self.raw_put(store, key, b"x")

    def _assert_free(self, store: OffloadStore, key: str) -> None:
        """Assert that the store is empty, and that `key` can be created."""
        assert keys_of(store) == []
        store.put(key, b"after all")
        assert self.raw_get(store, key) == b"after all"


def keys_of(store: OffloadStore, prefix: str = "", *, after: str = "") -> list[str]:
    """Return the keys of a listing."""
    return [entry.key for entry in store.keys(prefix, after=after)]


def _while_running(write: Callable[[], None]) -> Iterator[None]:
    """Yield again and again while another thread runs `write`."""
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(write)
        yield
        # A loop without a pause would keep the interpreter from the writer.
        while wait((writer,), timeout=0.001).not_done:
            yield
        writer.result()


def _winner(store: OffloadStore, count: int, create: Callable[[int], None]) -> int:
    """Call `create` with each number below `count` at once; return the only one that is not refused.

    Skip the test of a store whose creates may have several winners.
    """
    if not store.has_atomic_create:
        pytest.skip("the store does not claim atomic creates")
    start = threading.Barrier(count)

    def succeeds(number: int) -> bool:
        start.wait()
        try:
            create(number)
        except ExistsError:
            return False
        return True

    with ThreadPoolExecutor(count) as pool:
        outcomes = list(pool.map(succeeds, range(count)))
    assert sum(outcomes) == 1
    return outcomes.index(True)


def _raising_after(pieces: list[bytes], error: Exception) -> Iterator[bytes]:
    yield from pieces
    raise error
