"""What every wrapper has in common, and the one that refuses changes."""

from __future__ import annotations

from typing import Any

import pytest

from offload.errors import InvalidKeyError, StorePermissionError
from offload.store import OffloadStore, SupportsBulk, SupportsStreams
from offload.testing import StoreConformance
from offload.testing.faults import FaultyBulkStore
from offload.wrappers import (
    BulkWrapperStore,
    CachingStore,
    EncryptingStore,
    ReadOnlyStore,
    RetryingStore,
    WrapperStore,
)
from offload_backends.memory import MemoryStore

WRAPPERS = [WrapperStore, RetryingStore, ReadOnlyStore, CachingStore, lambda s: EncryptingStore(s, b"k" * 32)]


@pytest.fixture
def medium():
    return MemoryStore()


class Plain(MemoryStore):
    """Has the four verbs alone."""

    put_stream: Any = None


class Bulk(Plain):
    """Has bulk verbs and no streams."""

    put_many = get_many = delete_many = FaultyBulkStore.delete_many


@pytest.mark.parametrize(
    ("inner", "is_bulk", "is_stream"),
    [
        (Plain, False, False),
        (Bulk, True, False),
        (MemoryStore, False, True),
        (lambda: FaultyBulkStore(MemoryStore()), True, True),
    ],
)
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_a_wrapper_has_bulk_verbs_and_streams_exactly_if_the_store_in_it_has(wrap, inner, is_bulk, is_stream):
    plain = wrap(Plain())

    wrapper = wrap(wrap(inner()))

    assert isinstance(wrapper, SupportsBulk) is is_bulk
    assert isinstance(wrapper, SupportsStreams) is is_stream
    assert isinstance(wrapper, type(plain))
    assert type(wrapper) is type(wrap(inner()))
    assert repr(wrapper).startswith(f"{type(plain).__name__}({type(plain).__name__}(")


def test_bulk_verbs_never_go_past_the_verbs_that_a_wrapper_overrides():
    class Renaming(WrapperStore):
        """Has no extension."""

    assert not isinstance(Renaming(FaultyBulkStore(MemoryStore())), SupportsBulk | SupportsStreams)

    class BulkRenaming(Renaming, BulkWrapperStore, extends=Renaming):
        """Has one now."""

    class Further(Renaming):
        """Does not inherit it."""

    bulk = FaultyBulkStore(MemoryStore())

    assert isinstance(Renaming(bulk), BulkRenaming)
    assert not isinstance(Renaming(bulk), SupportsStreams)
    assert type(Renaming(MemoryStore())) is Renaming
    assert type(Further(bulk)) is Further
    assert not isinstance(Further(bulk), SupportsBulk)


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
        SUITE.test_what_another_writer_put_is_read,
        SUITE.test_keys_sort_by_code_point_of_the_whole_key,
        SUITE.test_a_prefix_is_compared_as_text,
        lambda store: SUITE.test_a_range_is_what_slicing_gives(store, b"0123456789"),
        lambda store: SUITE.test_a_listing_starts_after_a_key_there_or_not(store, "b"),
        lambda store: SUITE.test_a_missing_key_is_not_found_whatever_the_range(store, "a"),
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


def test_a_read_only_store_refuses_each_of_many_puts_in_its_place():
    inner = FaultyBulkStore(MemoryStore())

    store: Any = ReadOnlyStore(inner)
    errors = store.put_many([("a", b"1"), ("../b", b"2")])

    assert [type(error) for error in errors] == [StorePermissionError, InvalidKeyError]
    assert inner.operations == 0


def test_a_read_only_store_asks_for_no_piece_of_a_stream():
    pieces = iter([b"0", b"1"])

    store: Any = ReadOnlyStore(MemoryStore())
    with pytest.raises(StorePermissionError):
        store.put_stream("a", pieces, 2)
    with pytest.raises(InvalidKeyError):
        store.put_stream("../a", pieces, 2)

    assert list(pieces) == [b"0", b"1"]
