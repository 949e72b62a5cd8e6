from __future__ import annotations

from types import SimpleNamespace

import pytest
from kit.store import CountedStore

from offload.errors import (
    ConfigError,
    ExistsError,
    NotFoundError,
    StoreError,
    StorePermissionError,
    StoreUnavailableError,
)
from offload.storage.wrappers import RetryingStore, _retrying
from offload.testing.faults import FaultyBulkStore, FaultyStore
from offload_backends.memory import MemoryStore


class Time:
    """A clock that moves only while someone sleeps."""

    def __init__(self):
        self.now = 1000.0
        self.pauses = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def time(monkeypatch):
    time = Time()
    monkeypatch.setattr(_retrying, "time", time)
    return time


@pytest.fixture
def retrying(time, monkeypatch):
    def wrap(inner, jitter=0.5, **options):
        monkeypatch.setattr(_retrying, "random", SimpleNamespace(random=lambda: jitter))
        return RetryingStore(inner, **options)

    return wrap


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.put("b", b"x"),
        lambda store: store.get("a"),
        lambda store: list(store.keys()),
        lambda store: store.delete("a"),
    ],
)
def test_a_store_that_answers_at_last_was_available(retrying, time, medium, call):
    inner = FaultyStore(medium)
    medium.put("a", b"0123456789")

    call(retrying(inner))

    assert (inner.failures, inner.operations) == (1, 2)
    assert len(time.pauses) == 1


def test_arguments_reach_every_try(medium, retrying):
    inner = FaultyStore(medium)
    medium.put("a", b"0123456789")

    assert retrying(inner).get("a", start=2, end=5) == b"234"
    retrying(inner).put("a", b"new", overwrite=True)
    assert medium.get("a") == b"new"


@pytest.mark.parametrize("error", [StorePermissionError, StoreError, NotFoundError])
def test_an_error_that_waiting_does_not_mend_passes_at_once(retrying, time, error):
    inner = FaultyStore(MemoryStore(), error=error)

    with pytest.raises(error):
        retrying(inner).get("a")

    assert (inner.operations, time.pauses) == (1, [])


def test_pauses_are_drawn_from_a_growing_range_and_end_at_the_deadline(retrying, time):
    inner = FaultyStore(MemoryStore(), is_lasting=True)

    with pytest.raises(StoreUnavailableError):
        retrying(inner, deadline=4.0, first_pause=0.2, max_pause=1.6).get("a")

    assert time.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 0.8, 0.8, 0.8])
    assert time.now < 1004.0
    assert inner.operations == 8


@pytest.mark.parametrize("options", [{"deadline": 0}, {"jitter": 1.0, "first_pause": 40, "max_pause": 40}])
def test_no_try_begins_after_the_deadline(retrying, time, options):
    inner = FaultyStore(MemoryStore(), is_lasting=True)

    with pytest.raises(StoreUnavailableError):
        retrying(inner, **options).put("a", b"x")

    assert (inner.operations, time.pauses) == (1, [])


def test_a_create_whose_answer_was_lost_is_a_success_and_reading_back_is_tried_again_too(medium, retrying):
    inner = FaultyStore(medium, verb="put", moment="after")
    outer = FaultyStore(inner, verb="get")

    retrying(outer).put("a", b"mine")

    assert (inner.failures, outer.failures) == (1, 1)
    assert medium.get("a") == b"mine"


def test_a_create_that_met_anothers_object_on_a_retry_or_any_at_once_is_refused(medium, retrying):
    inner = FaultyStore(medium, verb="put")
    medium.put("a", b"theirs")
    with pytest.raises(ExistsError):
        retrying(inner).put("a", b"mine")
    assert inner.failures == 1
    assert medium.get("a") == b"theirs"

    read_back = FaultyStore(medium, verb="get")
    with pytest.raises(ExistsError):
        retrying(read_back).put("a", b"theirs")
    assert read_back.operations == 0


def test_reading_back_has_what_is_left_of_the_one_deadline(retrying, time):
    inner = FaultyStore(MemoryStore(), verb="put", moment="after")
    outer = FaultyStore(inner, verb="get", is_lasting=True)

    with pytest.raises(StoreUnavailableError):
        retrying(outer, deadline=10.0).put("a", b"mine")

    assert time.now < 1010.0


def test_an_object_deleted_before_it_could_be_read_back_existed(retrying):
    class Vanishing(MemoryStore):
        def get(self, key, *, start=0, end=None):
            self.delete(key)
            return super().get(key, start=start, end=end)

    with pytest.raises(ExistsError):
        retrying(FaultyStore(Vanishing(), verb="put", moment="after")).put("a", b"mine")


class Breaking(MemoryStore):
    """Ends every listing with an error after two keys, until none is left."""

    def keys(self, prefix="", *, after=""):
        found = list(super().keys(prefix, after=after))
        yield from found[:2]
        if found[2:]:
            raise StoreUnavailableError("the page did not come")


def test_a_broken_listing_goes_on_where_it_ended_until_the_deadline(retrying, time):
    store = Breaking()
    for key in "abcdefg":
        store.put(f"p/{key}", b"x")

    listed = [found.key for found in retrying(store, deadline=0.2).keys("p/", after="p/a")]

    assert listed == ["p/b", "p/c", "p/d", "p/e", "p/f", "p/g"]
    assert time.pauses == [0.05, 0.05]
    began = time.now
    with pytest.raises(StoreUnavailableError):
        list(retrying(FaultyStore(MemoryStore(), verb="keys", is_lasting=True), deadline=5.0).keys())
    assert began < time.now < began + 5.0


def test_time_that_the_caller_takes_over_a_key_is_not_the_listings(retrying, time):
    store = Breaking()
    for key in "abcd":
        store.put(key, b"x")
    listed = []

    for found in retrying(store, deadline=1.0).keys():
        listed.append(found.key)
        time.now += 60

    assert listed == ["a", "b", "c", "d"]


def test_only_the_items_that_failed_are_put_again(medium, retrying):
    inner = FaultyBulkStore(medium, nth=2, verb="put")

    results = retrying(inner).put_many([("a", b"1"), ("b", b"2"), ("c", b"3")])

    assert results == [None, None, None]
    assert inner.operations == 4
    assert [found.key for found in medium.keys()] == ["a", "b", "c"]


def test_of_many_creates_only_one_that_was_put_again_is_read_back(medium, retrying):
    inner = FaultyBulkStore(medium, nth=2, verb="put", moment="after")
    medium.put("a", b"same")
    medium.put("c", b"theirs")

    results = retrying(inner).put_many([("a", b"same"), ("b", b"mine"), ("c", b"mine")])

    assert [type(result) for result in results] == [ExistsError, type(None), ExistsError]
    again = retrying(FaultyBulkStore(medium, verb="put")).put_many([("c", b"mine")])
    assert [type(result) for result in again] == [ExistsError]


def test_many_that_never_answer_are_told_one_by_one_at_the_deadline(medium, retrying, time):
    inner = FaultyBulkStore(medium, nth=2, verb="get", is_lasting=True)
    medium.put("a", b"1")

    results = list(retrying(inner).get_many(["a", "a", "none"]))

    assert [result if isinstance(result, bytes) else type(result) for result in results] == [
        b"1",
        StoreUnavailableError,
        StoreUnavailableError,
    ]
    assert time.now < 1030.0


def test_many_deletes_are_tried_again_with_all_their_keys(medium, retrying):
    inner = FaultyBulkStore(medium, nth=2, verb="delete")
    for key in "abc":
        medium.put(key, b"x")

    retrying(inner).delete_many(key for key in "abc")

    assert list(medium.keys()) == []


@pytest.mark.parametrize("name", ["deadline", "first_pause", "max_pause"])
@pytest.mark.parametrize("seconds", [-1, float("nan"), "1", None])
def test_seconds_are_not_negative(name, seconds):
    with pytest.raises(ConfigError, match=f"{name} must be a number of at least 0, got {seconds!r}"):
        RetryingStore(MemoryStore(), **{name: seconds})


# Streams

PIECES = [b"", b"mine", bytes(3 * 1024**2), b"x" * 2 * 1024**2, b""]
WHOLE = b"".join(PIECES)


def test_every_try_of_a_stream_asks_for_the_pieces_anew(medium, retrying, time):
    inner = FaultyStore(medium, nth=1)

    retrying(inner).put_stream("a", PIECES, len(WHOLE))

    assert medium.get("a") == WHOLE
    assert (inner.failures, inner.operations, len(time.pauses)) == (1, 2, 1)


def test_a_stream_that_was_stored_though_its_answer_was_lost_is_compared_block_by_block(retrying):
    medium = CountedStore()
    inner = FaultyStore(medium, verb="put", moment="after")

    retrying(inner).put_stream("a", PIECES, len(WHOLE))

    assert inner.failures == 1
    assert sum(medium.sizes) == len(WHOLE)
    assert max(medium.sizes) <= 4 * 1024**2
    assert medium.get("a") == WHOLE
    # Met at once, an object is refused though its bytes are the same.
    medium.sizes.clear()
    with pytest.raises(ExistsError):
        retrying(medium).put_stream("a", PIECES, len(WHOLE))
    assert medium.sizes == []


@pytest.mark.parametrize(
    "theirs",
    [b"", WHOLE[:-1], WHOLE + b"x", b"M" + WHOLE[1:], WHOLE[:-1] + b"y", WHOLE[: 4 * 1024**2]],
    ids=len,
)
def test_a_stream_that_met_anothers_object_on_a_retry_is_refused(medium, retrying, theirs):
    medium.put("a", theirs)

    with pytest.raises(ExistsError):
        retrying(FaultyStore(medium, verb="put")).put_stream("a", PIECES, len(WHOLE))

    assert medium.get("a") == theirs


def test_an_empty_stream_whose_answer_was_lost_is_a_success_and_anothers_byte_is_not(medium, retrying):
    retrying(FaultyStore(medium, verb="put", moment="after")).put_stream("a", [], 0)
    medium.put("b", b"x")
    with pytest.raises(ExistsError):
        retrying(FaultyStore(medium, verb="put")).put_stream("b", [], 0)

    assert (medium.get("a"), medium.get("b")) == (b"", b"x")
