"""Every wrapper is a store again, around a store in memory, in a folder, and with bulk verbs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from offload.storage.store import OffloadStore
from offload.storage.wrappers import CachingStore, EncryptingStore, RetryingStore, WrapperStore
from offload.testing import StoreConformance
from offload.testing.faults import FaultyBulkStore
from offload_backends.local import LocalStore
from offload_backends.memory import MemoryStore

KEY = bytes(range(32))


class Around(StoreConformance):
    """Puts and gets are checked against the store inside."""

    @pytest.fixture(params=["memory", pytest.param("local", marks=pytest.mark.slow), "bulk"])
    def inner(self, request: pytest.FixtureRequest, tmp_path: Path) -> OffloadStore:
        return _inside(request.param, tmp_path)

    def raw_get(self, store: OffloadStore, key: str) -> bytes:
        assert isinstance(store, WrapperStore)
        return store.inner.get(key)

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:
        assert isinstance(store, WrapperStore)
        store.inner.put(key, data)


class TestWrapperStore(Around):
    @pytest.fixture
    def store(self, inner: OffloadStore) -> OffloadStore:
        return WrapperStore(inner)


class TestRetryingStore(Around):
    @pytest.fixture
    def store(self, inner: OffloadStore) -> OffloadStore:
        return RetryingStore(inner)


class TestCachingStore(Around):
    @pytest.fixture
    def store(self, inner: OffloadStore) -> OffloadStore:
        return CachingStore(inner)


class TestEncryptingStore(Around):
    @pytest.fixture
    def store(self, inner: OffloadStore) -> OffloadStore:
        return EncryptingStore(inner, KEY)

    # Another store of that key: it remembers nothing of the one under test.
    def raw_get(self, store: OffloadStore, key: str) -> bytes:
        return EncryptingStore(_inner(store), KEY).get(key)

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:
        EncryptingStore(_inner(store), KEY).put(key, data)


class TestAllOfThem(Around):
    @pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.slow), "local", "bulk"])
    def inner(self, request: pytest.FixtureRequest, tmp_path: Path) -> OffloadStore:
        return _inside(request.param, tmp_path)

    @pytest.fixture
    def store(self, inner: OffloadStore) -> OffloadStore:
        cached = CachingStore(RetryingStore(inner))
        return WrapperStore(EncryptingStore(cached, KEY))


def _inside(kind: str, folder: Path) -> OffloadStore:
    if kind == "local":
        return LocalStore(str(folder / "store"), storage_options={"durability": "none"})
    return MemoryStore() if kind == "memory" else FaultyBulkStore(MemoryStore(), nth=sys.maxsize)


def _inner(store: OffloadStore) -> OffloadStore:
    assert isinstance(store, WrapperStore)
    return store.inner
