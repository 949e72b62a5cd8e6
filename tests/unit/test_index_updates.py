"""A store that keeps index files is told once that a call may have changed its records."""

from __future__ import annotations

import time
from typing import Any

import pytest

from offload import (
    AgentConfig,
    ContextManager,
    Offloader,
    OffloadPolicy,
    Retention,
    Rule,
    StoreError,
    StoreUnavailableError,
)
from offload.base.events import ContextEvent, EventType
from offload.maintenance.retention import collect, delete
from offload.maintenance.transfer import copy_session
from offload.storage.wrappers import CachingStore, EncryptingStore, ReadOnlyStore, RetryingStore, WrapperStore
from offload_backends.memory import MemoryStore

LOG = "nothing to see in this line of many\n" * 300
POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=200)})
RESULT = {"role": "tool", "tool_call_id": "c1", "content": LOG}


class ListedStore(MemoryStore):
    """A store that counts the updates of its index, and the records at the last one."""

    updates = listed = 0
    error: Exception | None = None

    def update_index(self) -> None:
        self.updates += 1
        if self.error is not None:
            raise self.error
        self.listed = sum(1 for stored in self.keys("r/") if stored.key.endswith(".zst") and stored.size)


@pytest.fixture
def store():
    return ListedStore()


@pytest.fixture
def off(store):
    return Offloader(store, session="s", policy=POLICY)


def test_each_call_that_stores_updates_the_index_once_when_it_ends(store, off):
    off.offload([RESULT])
    assert (store.updates, store.listed) == (1, 1)

    off.offload_text(LOG + "2")
    assert (store.updates, store.listed) == (2, 2)

    with off.open_sink() as sink:
        sink.write(LOG + "3")
    assert (store.updates, store.listed) == (3, 3)

    with off.open_sink() as sink:
        for n in range(40):
            sink.write(f"{n} {LOG}" * 30)
    assert (store.updates, store.listed) == (4, 4)


def test_a_fork_and_a_copy_update_the_index_of_their_target(store, off):
    off.offload([RESULT])
    other = ListedStore()

    copy_session(store, other, "s")
    off.fork("t")

    assert (other.updates, other.listed) == (1, 1)
    assert (store.updates, store.listed) == (2, 2)


def test_a_deletion_and_a_gc_update_the_index_but_a_dry_run_does_not(store, off):
    off.offload([RESULT])

    for is_dry in (True, False):
        delete(store, "s", dry_run=is_dry)
        collect(store, Retention(grace=0), dry_run=is_dry)
        off.gc(dry_run=is_dry)

    assert store.updates == 1 + 3
    assert store.listed == 0


def test_a_compaction_updates_the_index(store, off):
    manager = ContextManager(off, AgentConfig(window_tokens=600))
    for n in range(12):
        manager.add({"role": "user", "content": f"question {n} " * 20})
        manager.before_model_call()
        manager.after_model_call({"role": "assistant", "content": f"answer {n} " * 20})

    assert any("Compacted" in str(message) for message in manager.messages)
    assert store.listed == len(off.records()) > 0


@pytest.mark.parametrize(
    "wrap", [WrapperStore, RetryingStore, CachingStore, lambda s: EncryptingStore(s, b"k" * 32)]
)
def test_wrappers_pass_the_update_on(store, wrap):
    Offloader(wrap(wrap(store)), session="s", policy=POLICY).offload([RESULT])

    assert (store.updates, store.listed) == (1, 1)


def test_a_read_only_store_updates_no_index_and_a_store_without_index_files_is_left_alone(store):
    ReadOnlyStore(store).update_index()
    out: Any = Offloader(MemoryStore(), session="s", policy=POLICY).offload([RESULT])

    assert (store.updates, out.errors) == (0, [])


def test_a_retrying_store_retries_the_update(store, monkeypatch):
    store.error = StoreUnavailableError("busy")
    monkeypatch.setattr(time, "sleep", lambda _: setattr(store, "error", None))

    RetryingStore(store).update_index()

    assert store.updates == 2


@pytest.mark.parametrize("on_error", ["keep", "raise", "truncate"])
@pytest.mark.parametrize("error", [StoreError("disk full"), ValueError("a bug of the store")])
def test_a_failed_update_is_reported_and_loses_nothing(store, on_error, error, caplog):
    store.error = error
    off = Offloader(store, session="s", policy=POLICY, on_error=on_error)
    heard: list[ContextEvent] = []
    off.events.subscribe(heard.append)

    out = off.offload([RESULT])
    placeholder = off.offload_text(LOG)

    assert [str(error).split(": ")[-1] for error in out.errors] == [str(error)]
    assert "[Offloaded:" in placeholder
    assert off.restore(out.messages) == [RESULT]
    kinds = [event.data["kind"] for event in heard if event.event_type is EventType.INDEX_FAILED]
    assert kinds == [out.errors[0].kind] * 2
    assert caplog.text.count("index not updated") == 2


def test_a_sink_whose_index_failed_has_no_error(store, off):
    store.error = StoreError("disk full")

    with off.open_sink() as sink:
        sink.write(LOG)

    assert sink.error is None
    assert sink.info is not None
