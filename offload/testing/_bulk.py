"""Tests of the sentences of `SupportsBulk`, which the library keeps for a store without bulk verbs."""

from __future__ import annotations

from offload.errors import ExistsError, InvalidKeyError, NotFoundError
from offload.store import OffloadStore, delete_many, get_many, put_many
from offload.testing._suite import Suite, keys_of


class BulkConformance(Suite):
    """Tests of bulk verbs."""

    def test_many_puts_store_each_item(self, store: OffloadStore) -> None:
        items = [(f"m/{n:03}", b"%d" % n) for n in range(150)]

        assert put_many(store, items) == [None] * 150
        assert [(key, self.raw_get(store, key)) for key in keys_of(store)] == items

    def test_a_failed_item_is_told_in_its_place_and_stops_no_other(self, store: OffloadStore) -> None:
        self.raw_put(store, "b", b"first")

        results = put_many(store, [("a", b"1"), ("b", b"2"), ("../c", b"3"), ("d", b"4")])

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

    def test_many_gets_answer_in_order(self, store: OffloadStore) -> None:
        for key in ("a", "b"):
            self.raw_put(store, key, key.encode() * 3)

        results = get_many(store, ["b", "none", "a", "B", "b"])

        assert [r if isinstance(r, bytes) else type(r) for r in results] == [
            b"bbb",
            NotFoundError,
            b"aaa",
            InvalidKeyError,
            b"bbb",
        ]

    def test_many_deletes_take_any_iterable_and_absent_keys(self, store: OffloadStore) -> None:
        for key in ("a", "b", "c"):
            self.raw_put(store, key, b"x")

        delete_many(store, (key for key in ("a", "none", "c")))

        assert keys_of(store) == ["b"]

    def test_many_overwrites_replace_what_is_there(self, store: OffloadStore) -> None:
        self.raw_put(store, "b", b"first")

        results = put_many(store, [("a", b"1"), ("b", b"second"), ("../c", b"3")], overwrite=True)

        assert [type(result) for result in results] == [type(None), type(None), InvalidKeyError]
        assert [(key, self.raw_get(store, key)) for key in keys_of(store)] == [("a", b"1"), ("b", b"second")]

    def test_nothing_in_bulk_is_nothing(self, store: OffloadStore) -> None:
        assert put_many(store, []) == []
        assert list(get_many(store, [])) == []
        delete_many(store, [])
        assert keys_of(store) == []
