"""Derived objects of a session: a title that is deleted is in none of them, even if a writer was slow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import zstandard
from retained import opened

from offload import Retention
from offload.maintenance.retention import collect, delete
from offload.storage.layout import SNAPSHOT
from offload.storage.store import OffloadStore
from offload_backends.memory import MemoryStore

AT_ONCE = Retention(grace=0, live_for=0)
PRIVATE = "the title of a private file"


@pytest.fixture(autouse=True)
def _any_session_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offload.records.index.catalog.LARGE", 2)
    monkeypatch.setattr("offload.records.index.derived._LEAST_LISTED", 2)


def contents(store: OffloadStore) -> str:
    """Return all keys and objects, each also without its compression."""
    parts = []
    for found in store.keys():
        data = store.get(found.key)
        if data.startswith(zstandard.FRAME_HEADER):
            data += zstandard.ZstdDecompressor().decompress(data)
        parts += [found.key, data.decode("utf-8", "replace")]
    return "\n".join(parts)


def snapshots(store: OffloadStore) -> list[str]:
    return [found.key for found in store.keys("i/s/") if SNAPSHOT.match(found.key)]


def put(store: OffloadStore, *titles: str) -> list[str]:
    """Store a record of each title, and list them as another process does later; return their ids."""
    off = opened(store)
    for title in titles:
        off.offload_text(f"a line of {title[:4]}\n" * 300, tool_name="Bash", tool_use_id=title, title=title)
    return [info.ref for info in off.records()]


def delete_one(store: OffloadStore, ref: str) -> None:
    delete(store, "s", refs=[ref])


def delete_all(store: OffloadStore, _: str) -> None:
    delete(store, "s")


@pytest.mark.parametrize("deleted", [delete_one, delete_all])
def test_a_title_that_gc_deletes_is_nowhere_in_the_store(
    deleted: Callable[[OffloadStore, str], None],
) -> None:
    store = MemoryStore()
    ref = put(store, "one", PRIVATE, "two", "three")[1]
    assert snapshots(store)
    assert PRIVATE in contents(store)

    deleted(store, ref)
    collect(store, AT_ONCE)

    assert PRIVATE not in contents(store)
    assert snapshots(store) == []


class Slow(MemoryStore):
    """A store in which a gc deletes a record while a snapshot of it is stored."""

    ref = ""

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        if self.ref and SNAPSHOT.match(key):
            ref, self.ref = self.ref, ""
            delete(self, "s", refs=[ref])
            collect(self, AT_ONCE)
        super().put(key, data, overwrite=overwrite)


def test_a_snapshot_that_was_stored_behind_a_gc_is_deleted_by_the_next_one() -> None:
    store = Slow()
    store.ref = put(store, "one", PRIVATE, "two", "three")[1]
    opened(store).records()
    assert PRIVATE in contents(store)

    opened(store).records()

    assert PRIVATE not in contents(store)
    assert len(snapshots(store)) == 1
