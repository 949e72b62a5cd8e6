from __future__ import annotations

import uuid

import pytest
from kit.store import steps

from offload.storage.store import OffloadStore
from offload.testing import StoreConformance
from offload_backends.memory import MemoryStore


class TestMemoryStoreOfItsOwn(StoreConformance):
    @pytest.fixture
    def store(self) -> OffloadStore:
        return MemoryStore()


class TestNamedMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self) -> OffloadStore:
        return MemoryStore(f"memory://{uuid.uuid4()}/a/part")

    # Another store of that name.
    def raw_get(self, store: OffloadStore, key: str) -> bytes:
        return MemoryStore(store.url).get(key)

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:
        MemoryStore(store.url).put(key, data)


def test_the_listing_of_a_session_costs_the_same_among_any_number_of_sessions() -> None:
    store = MemoryStore()
    costs = []
    for sessions in (10, 500):
        for session in range(sessions):
            store.put(f"r/{session}/a", b"", overwrite=True)
        costs.append(steps(lambda: [*store.keys("r/7/")]))

    assert costs[0] == costs[1]
