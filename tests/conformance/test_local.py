from __future__ import annotations

from pathlib import Path

import pytest
import systems

from offload.storage.store import OffloadStore
from offload.testing import StoreConformance
from offload_backends.local import LocalStore


def path_of(store: OffloadStore, key: str) -> Path:
    return Path(store.url.removeprefix("file://"), key)


FORMS = [
    ("everything", "fsync"),
    ("everything", "none"),
    ("a refusing rename only", "fsync"),
    *(
        pytest.param((name, durability), marks=pytest.mark.slow)
        for name in systems.FORMS
        for durability in ("fsync", "none")
        if name != "everything" and (name, durability) != ("a refusing rename only", "fsync")
    ),
]


class TestLocalStore(StoreConformance):
    @pytest.fixture(params=FORMS, ids=", ".join)
    def store(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> OffloadStore:
        system, durability = request.param
        systems.use_for_a_test(system, monkeypatch)
        options = {"durability": durability}
        return LocalStore(str(tmp_path / "not" / "yet"), storage_options=options)

    def raw_get(self, store: OffloadStore, key: str) -> bytes:
        return path_of(store, key).read_bytes()

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:
        path = path_of(store, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
