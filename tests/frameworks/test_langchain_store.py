"""`OffloadByteStore` against LangChain's own suites, and where they end."""

from __future__ import annotations

import pytest

pytest.importorskip("langchain", reason="in the environment of the group integration-langchain")
pytest.importorskip("langchain_tests", reason="in the environment of the group integration-langchain")

from langchain_tests.integration_tests.base_store import BaseStoreAsyncTests, BaseStoreSyncTests

from offload import CorruptError, StoreUnavailableError
from offload.integrations.langchain import OffloadByteStore
from offload.testing import FaultyBulkStore, FaultyStore
from offload_backends.memory import MemoryStore

NAMES = [
    "plain",
    "",
    "..",
    "/",
    "../../etc/passwd",
    "A",
    "a",
    "con",
    "naïve",
    "\ud800",
    "long" * 100,
    "long" * 99 + "LONG",
    "very long" * 3000,
]


@pytest.fixture(params=["memory", "local", "s3"])
def byte_store(request, tmp_path):
    if request.param == "s3":
        bucket = request.getfixturevalue("s3_bucket")
        bucket.empty()
        return OffloadByteStore(bucket.url, storage_options=bucket.storage_options)
    return OffloadByteStore(MemoryStore() if request.param == "memory" else tmp_path)


class TestSync(BaseStoreSyncTests[bytes]):
    @pytest.fixture
    def kv_store(self, byte_store):
        return byte_store

    @pytest.fixture
    def three_values(self):
        return (b"one", b"", b"\x00\xff" * 1000)


@pytest.mark.anyio
class TestAsync(BaseStoreAsyncTests[bytes]):
    @pytest.fixture
    def anyio_backend(self):
        return "asyncio"

    @pytest.fixture
    def kv_store(self, byte_store):
        return byte_store

    @pytest.fixture
    def three_values(self):
        return (b"one", b"", b"\x00\xff" * 1000)


def test_any_text_is_a_key_and_no_two_share_a_value(byte_store):
    values = {name: f"value {n}".encode() for n, name in enumerate(NAMES)}

    byte_store.mset(list(values.items()))

    assert byte_store.mget(NAMES) == list(values.values())
    assert sorted(byte_store.yield_keys()) == sorted(NAMES)
    assert sorted(byte_store.yield_keys(prefix="long")) == sorted(["long" * 100, "long" * 99 + "LONG"])
    byte_store.mdelete(NAMES)
    assert list(byte_store.yield_keys()) == []


def test_a_value_is_replaced_and_of_two_in_one_call_the_later_one_wins(byte_store):
    byte_store.mset([("a", b"1"), ("b", b"2")])
    byte_store.mset([("a", b"3"), ("c", b"4"), ("a", b"5")])

    assert byte_store.mget(["a", "b", "c"]) == [b"5", b"2", b"4"]


def test_namespaces_see_nothing_of_each_other():
    store = MemoryStore()
    one, other = OffloadByteStore(store, namespace="a"), OffloadByteStore(store, namespace="ab")

    one.mset([("key", b"1")])

    assert other.mget(["key"]) == [None]
    assert list(other.yield_keys()) == []


@pytest.mark.parametrize("faulty", [FaultyStore, FaultyBulkStore])
def test_a_store_that_fails_is_never_taken_for_one_without_the_value(faulty):
    inner = MemoryStore()
    OffloadByteStore(inner).mset([("a", b"1")])

    with pytest.raises(StoreUnavailableError):
        OffloadByteStore(faulty(inner, verb="get")).mget(["a"])
    with pytest.raises(StoreUnavailableError):
        OffloadByteStore(faulty(inner, verb="put")).mset([("b", b"2")])


def test_a_damaged_value_is_an_error():
    store = MemoryStore()
    OffloadByteStore(store).mset([("a", b"1")])
    [found] = store.keys()
    store.put(found.key, b"\x00\x00\x00\x01b1", overwrite=True)

    with pytest.raises(CorruptError):
        OffloadByteStore(store).mget(["a"])
