"""The conformance suite past an S3 store: it looks into the bucket with a client of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offload.store import OffloadStore
from offload.testing import StoreConformance

if TYPE_CHECKING:
    from servers import Bucket


class BucketConformance(StoreConformance):
    """The suite for a store whose medium is a bucket; a module gives the fixture `connected`."""

    bucket: Bucket

    @pytest.fixture
    def store(self, s3_bucket: Bucket, connected: OffloadStore) -> OffloadStore:
        self.bucket = s3_bucket
        s3_bucket.empty()
        return connected

    def raw_get(self, store: OffloadStore, key: str) -> bytes:  # noqa: ARG002  # the bucket is the medium
        return self.bucket.read(key)

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:  # noqa: ARG002  # the bucket is the medium
        self.bucket.write(key, data)
