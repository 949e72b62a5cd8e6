from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offload.store import OffloadStore
from offload.testing import StoreConformance
from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from conftest import Bucket


# A client takes a third of a second to build, so one store serves all tests.
@pytest.fixture(scope="class")
def connected(s3_bucket: Bucket) -> S3Store:
    return S3Store(s3_bucket.url, storage_options=s3_bucket.storage_options)


class TestS3Store(StoreConformance):
    bucket: Bucket

    @pytest.fixture
    def store(self, s3_bucket: Bucket, connected: OffloadStore) -> OffloadStore:
        self.bucket = s3_bucket
        s3_bucket.empty()
        return connected

    def raw_get(self, store: OffloadStore, key: str) -> bytes:  # noqa: ARG002  # the bucket is the medium
        return self.bucket.read(key)

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:  # noqa: ARG002  # the same
        self.bucket.write(key, data)
