"""The suite that every store must pass, on S3 through the generic store."""

from __future__ import annotations

import pytest
from bucket_conformance import BucketConformance
from buckets.conftest import SERVERS
from cloud_servers import Container

from offload.storage.store import OffloadStore
from offload_backends._fsspec import FsspecStore

pytestmark = pytest.mark.slow
if "s3_endpoint" not in SERVERS:
    pytest.skip("make test-all runs it", allow_module_level=True)


class TestFsspec(BucketConformance):
    """The suite, on S3 through the generic store."""

    @pytest.fixture(scope="class")
    @classmethod
    def connected(cls, container: Container) -> OffloadStore:
        return FsspecStore(container.url, storage_options=container.storage_options)
