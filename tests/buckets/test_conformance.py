"""The suite that every store must pass, on buckets of each service."""

from __future__ import annotations

import pytest
from bucket_conformance import BucketConformance

from offload.store import OffloadStore


class TestOnEachService(BucketConformance):
    """The suite, on servers that honour conditions."""

    def test_a_create_is_atomic_and_lasts(self, store: OffloadStore) -> None:
        store.put("a", b"x")

        assert store.has_atomic_create
        assert store.durability == "power"

    # test_s3_listing.py has pages of three keys.
    @pytest.mark.slow
    def test_more_than_a_thousand_keys_are_listed_from_any_place(self, store: OffloadStore) -> None:
        super().test_more_than_a_thousand_keys_are_listed_from_any_place(store)
