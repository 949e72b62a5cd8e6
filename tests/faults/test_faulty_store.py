"""The store that fails when it is told to: it fails then, as told, and never else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import pytest

from offload import ConfigError, ExistsError, NotFoundError, StorePermissionError, StoreUnavailableError
from offload.errors import OffloadError
from offload.storage.store import OffloadStore, SupportsBulk, SupportsStreams
from offload.testing import FaultyBulkStore, FaultyStore
from offload_backends.memory import MemoryStore

VERBS: dict[str, Callable[[OffloadStore], Any]] = {
    "put": lambda store: store.put("new", b"0123"),
    "get": lambda store: store.get("old"),
    "keys": lambda store: [found.key for found in store.keys()],
    "delete": lambda store: store.delete("old"),
}


def inner() -> MemoryStore:
    store = MemoryStore()
    store.put("old", b"old")
    return store


def contents(store: OffloadStore) -> dict[str, bytes]:
    return {found.key: store.get(found.key) for found in store.keys()}


@pytest.mark.parametrize("verb", VERBS)
def test_an_operation_that_fails_before_changes_nothing(verb: str) -> None:
    medium = inner()

    with pytest.raises(StoreUnavailableError, match=f"{verb} of"):
        VERBS[verb](FaultyStore(medium))

    assert contents(medium) == {"old": b"old"}


@pytest.mark.parametrize(
    ("verb", "left"), [("put", {"old": b"old", "new": b"0123"}), ("delete", {}), ("get", {"old": b"old"})]
)
def test_an_operation_that_fails_after_was_applied(verb: str, left: dict[str, bytes]) -> None:
    medium = inner()

    with pytest.raises(StoreUnavailableError):
        VERBS[verb](FaultyStore(medium, moment="after"))

    assert contents(medium) == left


def test_a_listing_that_fails_after_has_shown_its_entries() -> None:
    listing = FaultyStore(inner(), moment="after").keys()

    assert next(listing).key == "old"
    with pytest.raises(StoreUnavailableError):
        next(listing)


def test_an_error_of_the_inner_store_is_lost_like_any_other_answer() -> None:
    with pytest.raises(StoreUnavailableError):
        FaultyStore(inner(), moment="after").put("old", b"x")
    with pytest.raises(ExistsError):
        FaultyStore(inner(), moment="after", nth=2).put("old", b"x")


def test_a_torn_put_leaves_half_and_only_puts_are_counted() -> None:
    medium = inner()
    store = FaultyStore(medium, moment="torn")

    assert store.get("old") == b"old"
    with pytest.raises(StoreUnavailableError):
        store.put("new", b"0123")

    assert contents(medium) == {"old": b"old", "new": b"01"}
    assert (store.operations, store.failures) == (1, 1)


@pytest.mark.parametrize(("is_lasting", "failed"), [(False, [3]), (True, [3, 4, 5])])
def test_it_fails_once_or_from_the_nth_on(is_lasting: bool, failed: list[int]) -> None:
    store = FaultyStore(inner(), nth=3, is_lasting=is_lasting)

    assert [n for n in range(1, 6) if outcome(lambda: store.get("old")) is StoreUnavailableError] == failed
    assert (store.operations, store.failures) == (5, len(failed))


def test_a_chosen_verb_alone_is_counted() -> None:
    store = FaultyStore(inner(), verb="delete")

    for verb in ("put", "get", "keys"):
        VERBS[verb](store)

    assert store.operations == 0
    assert outcome(lambda: store.delete("old")) is StoreUnavailableError


def test_a_healed_store_fails_no_more() -> None:
    store = FaultyStore(inner(), is_lasting=True, error=StorePermissionError)

    assert outcome(lambda: store.get("old")) is StorePermissionError
    store.heal()
    assert store.get("old") == b"old"


def test_each_item_in_bulk_is_an_operation_and_fails_in_its_place() -> None:
    medium = inner()
    store = FaultyBulkStore(medium, nth=2, is_lasting=False)

    outcomes = store.put_many([("a", b"1"), ("b", b"2"), ("old", b"3"), ("c", b"4")])

    assert [type(o) for o in outcomes] == [type(None), StoreUnavailableError, ExistsError, type(None)]
    assert contents(medium) == {"a": b"1", "c": b"4", "old": b"old"}
    assert [o if isinstance(o, bytes) else type(o) for o in store.get_many(["a", "b"])] == [
        b"1",
        NotFoundError,
    ]
    store.delete_many(["a", "c"])
    assert contents(medium) == {"old": b"old"}


PIECES = [b"01", b"", b"2345"]


@pytest.mark.parametrize("kind", [FaultyStore, FaultyBulkStore])
@pytest.mark.parametrize(
    ("moment", "left"),
    [
        ("before", {"old": b"old"}),
        ("after", {"old": b"old", "new": b"012345"}),
        ("torn", {"old": b"old", "new": b"012"}),
    ],
)
def test_a_stream_fails_as_a_put_does(
    kind: type[FaultyStore], moment: Literal["before", "after", "torn"], left: dict[str, bytes]
) -> None:
    for medium in (inner(), WithoutStreams()):
        medium.put("old", b"old", overwrite=True)
        store = kind(medium, moment=moment, verb="put")

        with pytest.raises(StoreUnavailableError, match="put of"):
            store.put_stream("new", PIECES, 6)

        assert contents(medium) == left
        assert (store.operations, store.failures) == (1, 1)


def test_a_stream_that_is_not_to_fail_is_the_inner_stores() -> None:
    medium = inner()
    store = FaultyStore(medium, verb="put", nth=4)

    store.put_stream("new", PIECES, 6)
    with pytest.raises(ExistsError):
        store.put_stream("new", PIECES, 6)
    with pytest.raises(ConfigError):
        store.put_stream("other", PIECES, 7)

    assert contents(medium) == {"old": b"old", "new": b"012345"}
    assert isinstance(store, SupportsStreams)


class WithoutStreams(MemoryStore):
    """Has the four verbs alone."""

    put_stream: Any = None


def test_only_the_bulk_store_claims_bulk_verbs() -> None:
    assert isinstance(FaultyBulkStore(inner()), SupportsBulk)
    assert not isinstance(FaultyStore(inner()), SupportsBulk)
    assert isinstance(FaultyStore(inner()), OffloadStore)


def test_threads_share_one_count() -> None:
    store = FaultyStore(inner(), nth=700)
    failed: list[object] = []

    def read() -> None:
        failed.extend(o for _ in range(200) if (o := outcome(lambda: store.get("old"))) is not None)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (store.operations, store.failures) == (1600, 1)
    assert failed == [StoreUnavailableError]


@pytest.mark.parametrize(
    "wrong",
    [{"nth": 0}, {"nth": "1"}, {"moment": "later"}, {"verb": "list"}, {"verb": "get", "moment": "torn"}],
)
def test_a_fault_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FaultyStore(inner(), **wrong)


def outcome(operation: Callable[[], object]) -> type[OffloadError] | None:
    try:
        operation()
    except OffloadError as error:
        return type(error)
    return None
