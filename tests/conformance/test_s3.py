from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from bucket_conformance import BucketConformance

from offload_backends.s3 import S3Store

if TYPE_CHECKING:
    from conftest import Bucket


# A client takes a third of a second to build, so one store serves all tests.
@pytest.fixture(scope="class")
def connected(s3_bucket: Bucket) -> S3Store:
    return S3Store(s3_bucket.url, storage_options=s3_bucket.storage_options)


class TestS3Store(BucketConformance):
    """The suite, on S3."""
