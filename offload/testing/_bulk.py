"""The sentences of `SupportsBulk`, as tests; skipped for a store without bulk verbs."""

from __future__ import annotations

from typing import cast

import pytest

from offload.errors import ExistsError, InvalidKeyError, NotFoundError
from offload.store import OffloadStore, SupportsBulk
from offload.testing._suite import Suite, keys_of


class BulkConformance(Suite):
    """Tests of bulk verbs."""

    @pytest.fixture
    def bulk(self, store: OffloadStore) -> SupportsBulk:
        """Return the store if it moves many objects at once."""
        if not isinstance(store, SupportsBulk):
            pytest.skip("the store has no bulk verbs")
        return cast("SupportsBulk", store)

    def test_many_puts_store_each_item(self, store: OffloadStore, bulk: SupportsBulk) -> None:
        items = [(f"m/{n:03}", b"%d" % n) for n in range(150)]

        assert bulk.put_many(items) == [None] * 150
        assert [(key, self.raw_get(store, key)) for key in keys_of(store)] == items

    def test_a_failed_item_is_told_in_its_place_and_stops_no_other(
        self, store: OffloadStore, bulk: SupportsBulk
    ) -> None:
        self.raw_put(store, "b", b"first")

        results = bulk.put_many([("a", b"1"), ("b", b"2"), ("../c", b"3"), ("d", b"4")])

        assert [type(result) for result in results] == [
            type(None),
            ExistsError,
            InvalidKeyError,
            type(None),
        ]
        assert [(key, self.raw_get(store, key)) for key in keys_of(store)] == [
            ("a", b"1"),
            ("b", b"first"),
            ("d", b"4"),
        ]

    def test_many_gets_answer_in_order(self, store: OffloadStore, bulk: SupportsBulk) -> None:
        for key in ("a", "b"):
            self.raw_put(store, key, key.encode() * 3)

        results = bulk.get_many(["b", "none", "a", "B", "b"])

        assert [r if isinstance(r, bytes) else type(r) for r in results] == [
            b"bbb",
            NotFoundError,
            b"aaa",
            InvalidKeyError,
            b"bbb",
        ]

    def test_many_deletes_take_any_iterable_and_absent_keys(
        self, store: OffloadStore, bulk: SupportsBulk
    ) -> None:
        for key in ("a", "b", "c"):
            self.raw_put(store, key, b"x")

        bulk.delete_many(key for key in ("a", "none", "c"))

        assert keys_of(store) == ["b"]

    def test_nothing_in_bulk_is_nothing(self, store: OffloadStore, bulk: SupportsBulk) -> None:
        assert bulk.put_many([]) == []
        assert bulk.get_many([]) == []
        bulk.delete_many([])
        assert keys_of(store) == []
