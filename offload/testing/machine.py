"""A store compared with a dict under random operations, shrunk to the shortest failing sequence.

class MyMachine(StoreMachine):
    def make_store(self):
        return MyStore(f"my://{uuid.uuid4()}")

TestMyStore = MyMachine.TestCase
"""

from __future__ import annotations

from operator import mul

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from offload.errors import ExistsError, NotFoundError
from offload.storage.registry import open_store
from offload.storage.store import OffloadStore, get_many, put_many

# Few, so that operations meet. No folder has the name of a file, which a file system could not store.
_FOLDERS = ("a", "a-", "a.b", "a=", "b~")
_NAMES = ("0", "c", "c.d", "c~1", "con")

keys = st.lists(st.sampled_from(_FOLDERS), max_size=2).flatmap(
    lambda folders: st.sampled_from(_NAMES).map(lambda name: "/".join([*folders, name]))
)
contents = st.builds(mul, st.binary(min_size=1, max_size=8), st.sampled_from((0, 1, 2, 9000)))
prefixes = st.sampled_from(("", "a", "a/", "a-", "a./", "a/c", "b~/", "c", "z")) | keys
places = st.just("") | st.sampled_from(("a", "a/", "a/c", "a0", "b", "zz")) | keys
ranges = st.one_of(
    st.tuples(st.integers(-40, -1), st.none()),
    st.tuples(st.integers(0, 40), st.none() | st.integers(0, 40)),
)


class StoreMachine(RuleBasedStateMachine):
    """Runs the same operations on a store and a dict and compares every answer.

    Subclass it and define `make_store`. `hypothesis.stateful.run_state_machine_as_test` runs it in a test
    that needs fixtures.
    """

    def make_store(self) -> OffloadStore:
        """Return an empty store."""
        raise NotImplementedError("define a method `make_store` that returns an empty store")

    def reopen_store(self, store: OffloadStore) -> OffloadStore:
        """Return another store of the same objects; by default open the URL."""
        return open_store(store.url)

    @initialize()
    def _begin(self) -> None:
        self.store = self.make_store()
        self.model: dict[str, bytes] = {}

    @rule(key=keys, data=contents)
    def create(self, key: str, data: bytes) -> None:
        """A key is written once."""
        if key in self.model:
            with pytest.raises(ExistsError):
                self.store.put(key, data)
        else:
            self.store.put(key, data)
            self.model[key] = data

    @rule(key=keys, data=contents)
    def overwrite(self, key: str, data: bytes) -> None:
        """An overwrite replaces the whole object."""
        self.store.put(key, data, overwrite=True)
        self.model[key] = data

    @rule(key=keys)
    def delete(self, key: str) -> None:
        """A deleted key is absent; deleting an absent one is not an error."""
        self.store.delete(key)
        self.model.pop(key, None)

    @rule(key=keys, part=ranges)
    def read(self, key: str, part: tuple[int, int | None]) -> None:
        """A range equals a slice; an absent key is an error."""
        start, end = part
        if key in self.model:
            assert self.store.get(key, start=start, end=end) == self.model[key][start:end]
        else:
            with pytest.raises(NotFoundError):
                self.store.get(key, start=start, end=end)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), part=ranges)
    def read_what_is_there(self, data: st.DataObject, part: tuple[int, int | None]) -> None:
        """A range of an existing key is a slice of its content."""
        self.read(data.draw(st.sampled_from(sorted(self.model))), part)

    @rule(prefix=prefixes, after=places)
    def list_some(self, prefix: str, after: str) -> None:
        """A listing has the matching keys in order, with their sizes."""
        listed = [(entry.key, entry.size) for entry in self.store.keys(prefix, after=after)]
        assert listed == [
            (key, len(self.model[key]))
            for key in sorted(self.model)
            if key.startswith(prefix) and key > after
        ]

    @rule(items=st.lists(st.tuples(keys, contents), max_size=4, unique_by=lambda item: item[0]))
    def create_many(self, items: list[tuple[str, bytes]]) -> None:
        """Bulk creates return an error for a taken key, and store the others."""
        outcomes = put_many(self.store, items)
        assert [isinstance(o, ExistsError) for o in outcomes] == [key in self.model for key, _ in items]
        self.model = {**dict(items), **self.model}

    @rule(names=st.lists(keys, max_size=4))
    def read_many(self, names: list[str]) -> None:
        """Bulk reads return an error for an absent key."""
        outcomes = get_many(self.store, names)
        answers = [None if isinstance(o, NotFoundError) else o for o in outcomes]
        assert answers == [self.model.get(key) for key in names]

    @rule()
    def reopen(self) -> None:
        """A newly opened store has the same objects."""
        self.store = self.reopen_store(self.store)

    def teardown(self) -> None:
        """Compare the whole store once more."""
        if hasattr(self, "store"):
            self.list_some("", "")
            for key, data in self.model.items():
                assert self.store.get(key) == data
