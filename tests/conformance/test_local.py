from __future__ import annotations

from pathlib import Path

import pytest

from offload.store import OffloadStore
from offload.testing import StoreConformance
from offload_backends.local import LocalStore


def path_of(store: OffloadStore, key: str) -> Path:
    return Path(store.url.removeprefix("file://"), key)


class TestLocalStore(StoreConformance):
    @pytest.fixture(params=["fsync", "none"])
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> OffloadStore:
        options = {"durability": request.param}
        return LocalStore(str(tmp_path / "not" / "yet"), storage_options=options)

    def raw_get(self, store: OffloadStore, key: str) -> bytes:
        return path_of(store, key).read_bytes()

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:
        path = path_of(store, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
