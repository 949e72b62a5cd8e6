"""The conformance suite past a store in a bucket: it looks into the bucket with a client of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offload.storage.store import OffloadStore
from offload.testing import StoreConformance

if TYPE_CHECKING:
    from cloud_servers import Container


class BucketConformance(StoreConformance):
    """The suite for a store in a bucket; it needs the fixtures `container` and `connected`."""

    medium: Container

    @pytest.fixture
    def store(self, container: Container, connected: OffloadStore) -> OffloadStore:
        self.medium = container
        container.empty()
        return connected

    def raw_get(self, store: OffloadStore, key: str) -> bytes:  # noqa: ARG002  # the bucket is the medium
        return self.medium.read(key)

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:  # noqa: ARG002  # the bucket is the medium
        self.medium.write(key, data)
