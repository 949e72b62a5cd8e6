"""What holds for the files and values that a framework keeps in a store: tests derive from `ObjectsStory`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from offload import CorruptError, StoreUnavailableError
from offload.testing import FaultyBulkStore, FaultyStore

NAMES = (
    *("f", "f/1", "f/0/1", "../../etc/passwd", "/abs", "..", "", "A", "a", "ä", "a\\b", "con", "~"),
    *("x" * 500, "x" * 499 + "y", "very long" * 3000),
)


class ObjectsStory:
    """The tests; a space is what one owner has in a store."""

    names: ClassVar[Sequence[str]] = NAMES
    # Pairs of owners who might be taken for each other.
    owners: ClassVar[Sequence[tuple[Any, Any]]] = (("alice", "bob"), ("a", "ab"))
    # What a store that fails raises, and content that is damaged.
    failure: ClassVar[type[Exception]] = StoreUnavailableError
    damage: ClassVar[type[Exception]] = CorruptError
    # The verbs of the store that can fail in the framework's own calls.
    verbs: ClassVar[Sequence[str]] = ("put", "get")

    def space(self, store: Any, owner: Any = "alice") -> Any:
        """Return the integration for an owner."""
        raise NotImplementedError

    def write(self, space: Any, name: str, data: bytes) -> str | None:
        """Write under a name; return the reference by which it is read, if that is not the name."""
        raise NotImplementedError

    def read(self, space: Any, name: str) -> bytes | None:
        """Return what was written; None if nothing is there."""
        raise NotImplementedError

    def listed(self, space: Any) -> Sequence[str] | None:
        """Return the names; None if the framework lists none."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name, values in (("owners", self.owners), ("verb", self.verbs)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, values)

    def test_every_text_is_a_name_of_its_own_inside_the_space(self, store):
        space, again = self.space(store), self.space(store)
        data = [name.encode(errors="replace") for name in self.names]

        names = [self.write(space, *each) or each[0] for each in zip(self.names, data, strict=True)]

        assert [self.read(again, name) for name in names] == data
        assert (listed := self.listed(again)) is None or sorted(listed) == sorted(self.names)
        assert len({tuple(found.key.split("/")[:2]) for found in store.keys()}) == 1

    @pytest.mark.parametrize("data", [b"", bytes(range(256)) * 100])
    def test_bytes_are_stored_as_they_are(self, store, data):
        reference = self.write(self.space(store), "f", data) or "f"

        assert self.read(self.space(store), reference) == data
        [found] = store.keys()
        assert store.get(found.key).endswith(data)
        assert found.size < len(data) + 600

    def test_owners_see_nothing_of_each_other(self, store, owners):
        one, other = (self.space(store, owner) for owner in owners)
        reference = self.write(one, "f", b"1") or "f"

        assert self.read(other, reference) is None
        assert not self.listed(other)
        self.write(other, "f", b"2")
        assert self.read(one, reference) == b"1"

    @pytest.mark.parametrize("faulty", [FaultyStore, FaultyBulkStore])
    def test_a_store_that_fails_is_never_taken_for_one_without_the_name(self, store, verb, faulty):
        reference = self.write(self.space(store), "f", b"1") or "f"
        space = self.space(faulty(store, verb=verb, is_lasting=True))
        calls = {
            "put": lambda: self.write(space, "f", b"2"),
            "get": lambda: self.read(space, reference),
            "keys": lambda: self.listed(space),
        }

        with pytest.raises(self.failure) as told:
            calls[verb]()

        assert isinstance(told.value, StoreUnavailableError) or isinstance(
            told.value.__cause__, StoreUnavailableError
        )

    def test_damaged_content_is_never_read_as_if_it_were_whole(self, store):
        reference = self.write(self.space(store), "f", b"content") or "f"
        [found] = store.keys()
        store.put(found.key, b"\0", overwrite=True)

        with pytest.raises(self.damage):
            self.read(self.space(store), reference)
