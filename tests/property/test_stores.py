"""Every store against a dict, by random sequences of operations; and the machine against broken stores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from kit.store import CutsSuffixes, ListsByPart, OverwritesAlways
from strength import examples

from offload.storage.store import OffloadStore, StoredObject
from offload.testing import FaultyBulkStore, StoreMachine
from offload_backends._fsspec import FsspecStore
from offload_backends.local import LocalStore
from offload_backends.memory import MemoryStore
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from conftest import Bucket

LOCAL = examples(40, stateful_step_count=30)
REMOTE = examples(6, LOCAL, stateful_step_count=20)
# To see that a fault is found its shortest example is not needed.
BROKEN = settings(
    LOCAL, max_examples=500, phases=[Phase.generate], report_multiple_bugs=False, derandomize=True
)


def drive(
    make: Callable[[], OffloadStore],
    reopen: Callable[[OffloadStore], OffloadStore] | None = None,
    how: settings = LOCAL,
) -> None:
    """Run the machine on the stores that `make` returns."""

    class Machine(StoreMachine):
        def make_store(self) -> OffloadStore:
            return make()

        def reopen_store(self, store: OffloadStore) -> OffloadStore:
            return reopen(store) if reopen else super().reopen_store(store)

    run_state_machine_as_test(Machine, settings=how)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[str]:
    """Names that no store had before."""
    return (f"{tmp_path}/{n}" for n in itertools.count())


def test_memory_is_a_dict(fresh):
    drive(lambda: MemoryStore(f"memory://stores{next(fresh)}"))


@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_a_local_folder_is_a_dict(fresh, durability):
    drive(lambda: LocalStore(next(fresh), storage_options={"durability": durability}))


@pytest.mark.parametrize("scheme", ["memory", "local"])
def test_an_fsspec_file_system_is_a_dict(fresh, scheme):
    drive(lambda: FsspecStore(f"{scheme}://{next(fresh)}"), lambda store: FsspecStore(store.url))


def test_an_s3_bucket_is_a_dict(s3_bucket: Bucket):
    connected = S3Store(s3_bucket.url, storage_options=s3_bucket.storage_options)

    def make():
        s3_bucket.empty()
        return connected

    drive(make, lambda store: store, REMOTE)


class KeepsOnOverwrite(MemoryStore):
    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        if not overwrite or not any(found.key == key for found in self.keys()):
            super().put(key, data)


class TakesNoPlace(MemoryStore):
    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:  # noqa: ARG002  # that is the fault
        return super().keys(prefix)


class DeletesByPrefix(MemoryStore):
    def delete(self, key: str) -> None:
        for found in list(self.keys(key)):
            super().delete(found.key)


class LosesBulk(FaultyBulkStore):
    def put_many(self, items, **options):
        return super().put_many(items[:-1], **options) + [None] * len(items[-1:])


@pytest.mark.parametrize(
    "broken",
    [
        *(OverwritesAlways, KeepsOnOverwrite, CutsSuffixes, TakesNoPlace, ListsByPart),
        pytest.param(DeletesByPrefix, marks=pytest.mark.slow),
    ],
)
def test_the_machine_finds_a_store_that_is_no_dict(broken):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        drive(broken, lambda store: store, BROKEN)


def test_the_machine_finds_bulk_verbs_that_lose_an_item():
    drive(lambda: FaultyBulkStore(MemoryStore(), nth=10**9), lambda store: store)
    with pytest.raises(AssertionError):
        drive(lambda: LosesBulk(MemoryStore(), nth=10**9), lambda store: store, BROKEN)


def test_the_machine_finds_a_store_that_forgets_when_it_is_opened_again():
    with pytest.raises(AssertionError):
        drive(MemoryStore, how=BROKEN)
