"""Behaviour that all wrappers share, and the read-only wrapper."""

from __future__ import annotations

from typing import Any

import pytest

from offload.errors import InvalidKeyError, StorePermissionError
from offload.storage.store import OffloadStore, SupportsBulk, SupportsStreams, get_many, put_many, put_stream
from offload.storage.wrappers import (
    CachingStore,
    EncryptingStore,
    ReadOnlyStore,
    RetryingStore,
    WrapperStore,
)
from offload.testing import StoreConformance
from offload.testing.faults import FaultyBulkStore, FaultyStore
from offload_backends.memory import MemoryStore

WRAPPERS = [WrapperStore, RetryingStore, ReadOnlyStore, CachingStore, lambda s: EncryptingStore(s, b"k" * 32)]


@pytest.mark.parametrize("inner", [MemoryStore, lambda: FaultyBulkStore(MemoryStore())])
@pytest.mark.parametrize("wrap", WRAPPERS[1:])
def test_a_wrapper_of_the_library_has_bulk_verbs_and_streams_around_any_store(wrap, inner):
    wrapper = wrap(wrap(inner()))

    assert isinstance(wrapper, SupportsBulk)
    assert isinstance(wrapper, SupportsStreams)


@pytest.mark.parametrize("inner", [MemoryStore(), FaultyBulkStore(MemoryStore(), nth=9)])
def test_many_objects_and_streams_never_bypass_the_verbs_that_a_wrapper_overrides(inner):
    class Renaming(WrapperStore):
        def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
            super().put(f"renamed/{key}", data, overwrite=overwrite)

    store = Renaming(inner)
    put_many(store, [("a", b"1"), ("b", b"2")])
    put_stream(store, "c", [b"3"], 1)

    assert not isinstance(store, SupportsBulk | SupportsStreams)
    assert [found.key for found in inner.keys()] == ["renamed/a", "renamed/b", "renamed/c"]


@pytest.mark.parametrize("wrap", [lambda store: store, *WRAPPERS])
def test_around_a_store_without_bulk_verbs_each_object_is_fetched_when_it_is_read(medium, wrap):
    put_many(wrap(medium) if wrap is not ReadOnlyStore else medium, [("a", b"1"), ("b", b"2")])
    store = FaultyStore(medium, nth=9)

    objects = get_many(wrap(store), ["a", "b"])

    assert next(objects) == b"1"
    assert store.operations == 1
    assert next(objects) == b"2"


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapper_tells_the_facts_of_the_store_in_it(wrap):
    class Far(MemoryStore):
        is_shared = True
        has_atomic_create = False

    store = wrap(Far("memory://facts/part"))

    assert isinstance(store, OffloadStore)
    assert (store.url, store.is_shared, store.has_atomic_create) == ("memory://facts/part", True, False)
    assert "MemoryStore('memory://facts/part')" in repr(store)


class Reading(StoreConformance):
    """The suite, writing past the wrapper."""

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:
        assert isinstance(store, WrapperStore)
        store.inner.put(key, data)


SUITE = Reading()


@pytest.mark.parametrize(
    "test",
    [
        SUITE.test_it_is_a_store,
        SUITE.test_an_invalid_key_is_refused_by_every_verb_and_touches_nothing,
        SUITE.test_keys_sort_by_code_point_of_the_whole_key,
        SUITE.test_a_prefix_is_compared_as_text,
        lambda store: SUITE.test_a_range_equals_a_slice(store, b"0123456789"),
        lambda store: SUITE.test_a_range_equals_a_slice(store, bytes(range(256)) * 4096),
        lambda store: SUITE.test_a_listing_starts_after_an_existing_or_absent_key(store, "b"),
        lambda store: SUITE.test_a_missing_key_is_not_found_for_any_range(store, "a"),
    ],
)
def test_a_read_only_store_reads_as_the_contract_says(test):
    test(ReadOnlyStore(MemoryStore()))


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.put("new", b"x"),
        lambda store: store.put("old", b"x", overwrite=True),
        lambda store: store.delete("old"),
        lambda store: store.delete("none"),
        lambda store: store.delete_many(["old"]),
        lambda store: store.put_stream("new", [b"x"], 1),
    ],
)
def test_a_read_only_store_refuses_every_change_and_says_why(medium, change):
    inner = FaultyBulkStore(medium)
    medium.put("old", b"kept")

    with pytest.raises(StorePermissionError, match="through a ReadOnlyStore"):
        change(ReadOnlyStore(inner))

    assert [(found.key, medium.get(found.key)) for found in medium.keys()] == [("old", b"kept")]


def test_a_read_only_store_refuses_each_of_many_puts_in_its_place_and_asks_for_no_piece_of_a_stream():
    inner, pieces = FaultyBulkStore(MemoryStore()), iter([b"0", b"1"])

    store: Any = ReadOnlyStore(inner)
    errors = store.put_many([("a", b"1"), ("../b", b"2")])
    assert [type(error) for error in errors] == [StorePermissionError, InvalidKeyError]
    assert inner.operations == 0
    for key, error in (("a", StorePermissionError), ("../a", InvalidKeyError)):
        with pytest.raises(error):
            store.put_stream(key, pieces, 2)
    assert list(pieces) == [b"0", b"1"]
