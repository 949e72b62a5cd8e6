from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from offload.storage.store import OffloadStore
from offload.testing import StoreConformance
from offload_backends._fsspec import FsspecStore


class TestFsspecMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> OffloadStore:
        return FsspecStore(f"memory://{uuid.uuid4()}/root")

    @pytest.mark.xfail(run=False, reason="fsspec's memory breaks if written while it lists")
    def test_a_listing_stays_sorted_while_others_write(self, store: OffloadStore) -> None:
        super().test_a_listing_stays_sorted_while_others_write(store)


class TestFsspecLocal(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> OffloadStore:
        return FsspecStore(f"local://{tmp_path}/root")

    def raw_get(self, store: OffloadStore, key: str) -> bytes:
        return Path(store.url.removeprefix("local://"), key).read_bytes()

    @pytest.mark.xfail(run=False, reason="fsspec writes local files in place")
    def test_a_reader_never_sees_half_an_object(self, store: OffloadStore) -> None:
        super().test_a_reader_never_sees_half_an_object(store)
