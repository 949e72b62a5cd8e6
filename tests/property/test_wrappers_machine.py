"""All wrappers at once against a dict."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test
from strength import examples

from offload.storage.store import OffloadStore
from offload.storage.wrappers import CachingStore, EncryptingStore, RetryingStore, WrapperStore
from offload.testing import FaultyBulkStore, StoreMachine
from offload_backends.memory import MemoryStore


@pytest.mark.parametrize("around", [MemoryStore, lambda: FaultyBulkStore(MemoryStore())])
def test_a_stack_of_wrappers_is_a_store(around, tmp_path):
    class Machine(StoreMachine):
        def make_store(self) -> OffloadStore:
            self.medium = around()
            return self.stack()

        def reopen_store(self, store: OffloadStore) -> OffloadStore:  # noqa: ARG002  # every stack is the same
            return self.stack()

        def stack(self) -> WrapperStore:
            retrying = RetryingStore(self.medium, first_pause=0)
            return EncryptingStore(CachingStore(retrying, max_bytes=50_000), b"k" * 32)

    run_state_machine_as_test(Machine, settings=examples(20, stateful_step_count=25))
