"""`OffloadByteStore` against LangChain's own suites, and where they end."""

from __future__ import annotations

import pytest

pytest.importorskip("langchain", reason="in the environment of the group integration-langchain")
pytest.importorskip("langchain_tests", reason="in the environment of the group integration-langchain")

from frameworks.objects_story import NAMES, ObjectsStory
from langchain_tests.integration_tests.base_store import BaseStoreAsyncTests, BaseStoreSyncTests

from offload.integrations.langchain import OffloadByteStore
from offload_backends.memory import MemoryStore


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


def test_values_are_listed_by_the_start_of_their_keys_and_deleted(byte_store):
    names = ["plain", "long" * 100, "long" * 99 + "LONG"]
    byte_store.mset([(name, b"1") for name in names])

    assert sorted(byte_store.yield_keys(prefix="long")) == sorted(names[1:])
    byte_store.mdelete(names)
    assert list(byte_store.yield_keys()) == []


def test_a_value_is_replaced_and_of_two_in_one_call_the_later_one_wins(byte_store):
    byte_store.mset([("a", b"1"), ("b", b"2")])
    byte_store.mset([("a", b"3"), ("c", b"4"), ("a", b"5")])

    assert byte_store.mget(["a", "b", "c"]) == [b"5", b"2", b"4"]


class TestObjects(ObjectsStory):
    names = (*NAMES, "\ud800")

    def space(self, store, owner="alice"):
        return OffloadByteStore(store, namespace=owner)

    def write(self, space, name, data):
        space.mset([(name, data)])

    def read(self, space, name):
        return space.mget([name])[0]

    def listed(self, space):
        return list(space.yield_keys())
