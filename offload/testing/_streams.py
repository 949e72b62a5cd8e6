"""Tests of the sentences of `SupportsStreams`, which the library keeps for a store without streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from offload.errors import ConfigError, ExistsError, InvalidKeyError
from offload.store import OffloadStore, put_stream
from offload.testing._suite import Suite, keys_of

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


class BrokenError(Exception):
    """What a caller's pieces raise in these tests."""


class StreamConformance(Suite):
    """Tests of streams."""

    @pytest.mark.parametrize("name", ODD_PIECES)
    def test_a_stream_becomes_one_object_of_all_its_pieces(self, store: OffloadStore, name: str) -> None:
        expected = b"".join(ODD_PIECES[name])

        put_stream(store, "a/b", ODD_PIECES[name], len(expected))

        assert self.raw_get(store, "a/b") == expected
        assert [(found.key, found.size) for found in store.keys()] == [("a/b", len(expected))]

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

    @pytest.mark.parametrize("error", [-2, -1, 1, 2, 100_000])
    @pytest.mark.parametrize("pieces", [[b"0123456789"], [b"01234", b"56789"], [LARGE, LARGE]], ids=len)
    def test_pieces_of_another_size_are_refused_and_store_nothing(
        self, store: OffloadStore, pieces: list[bytes], error: int
    ) -> None:
        with pytest.raises(ConfigError):
            put_stream(store, "a/b", pieces, len(b"".join(pieces)) + error)

        assert keys_of(store) == []
        self._is_free(store, "a/b")

    @pytest.mark.parametrize(("pieces", "size"), [([b"x"], 0), ([], 1), ([b""], 1)])
    def test_nothing_and_a_byte_are_two_sizes(
        self, store: OffloadStore, pieces: list[bytes], size: int
    ) -> None:
        with pytest.raises(ConfigError):
            put_stream(store, "a", pieces, size)

        assert keys_of(store) == []

    @pytest.mark.parametrize("error", [BrokenError, FileExistsError, FileNotFoundError, PermissionError])
    @pytest.mark.parametrize("given", [[], [b"01234"], [b"0123456789"], [LARGE, LARGE, LARGE]], ids=len)
    def test_what_the_pieces_raise_comes_through_and_nothing_is_stored(
        self, store: OffloadStore, given: list[bytes], error: type[Exception]
    ) -> None:
        raised = error("by the caller")

        with pytest.raises(error) as caught:
            put_stream(store, "a/b", _raising_after(given, raised), len(b"".join(given)))

        assert caught.value is raised
        assert keys_of(store) == []
        self._is_free(store, "a/b")

    def test_an_invalid_key_is_refused_by_a_stream_and_touches_nothing(self, store: OffloadStore) -> None:
        for key in ("", "../a", "a//b", "A", "a/.tmp-b", "offload.json", cast("str", None)):
            with pytest.raises(InvalidKeyError):
                put_stream(store, key, [b"x"], 1)

        assert keys_of(store) == []

    def test_of_concurrent_streams_to_a_key_one_wins(self, store: OffloadStore) -> None:
        if not store.has_atomic_create:
            pytest.skip("the store does not claim atomic creates")
        start = threading.Barrier(4)

        def write(number: int) -> bool:
            start.wait()
            return _succeeds(lambda: put_stream(store, "a", [bytes([number]) * 50_000] * 4, 200_000))

        with ThreadPoolExecutor(4) as pool:
            outcomes = list(pool.map(write, range(4)))

        assert sorted(outcomes) == [False, False, False, True]
        assert self.raw_get(store, "a") == bytes([outcomes.index(True)]) * 200_000

    def _is_free(self, store: OffloadStore, key: str) -> None:
        """Assert that nothing holds `key`."""
        store.put(key, b"after all")
        assert self.raw_get(store, key) == b"after all"


def _raising_after(pieces: list[bytes], error: Exception) -> Iterator[bytes]:
    yield from pieces
    raise error


def _succeeds(create: Callable[[], None]) -> bool:
    try:
        create()
    except ExistsError:
        return False
    return True
