"""The suite that every store must pass, on buckets of each service."""

from __future__ import annotations

from bucket_conformance import BucketConformance

from offload.storage.store import OffloadStore


class TestOnEachService(BucketConformance):
    """The suite, on servers that honour conditions."""

    def test_a_create_is_atomic_and_lasts(self, store: OffloadStore) -> None:
        store.put("a", b"x")

        assert store.has_atomic_create
        assert store.durability == "power"
