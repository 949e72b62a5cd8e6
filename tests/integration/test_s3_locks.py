"""Buckets that keep what is deleted or replaced: versions, Object Lock, and locks without versions."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Bucket

from offload import Offloader
from offload.engine.policy import Retention
from offload.errors import NotFoundError
from offload.maintenance.retention import collect, delete
from offload_backends.s3 import S3Store

LOG = "a line of output\n" * 2000


@pytest.fixture(params=["versions", "locks"])
def keeping(request: pytest.FixtureRequest, s3_endpoint: str) -> Bucket:
    """A bucket that keeps versions, or locks each of them for a day."""
    some: Bucket = request.getfixturevalue("s3_bucket")
    bucket = Bucket(f"{some.name}-keeping", some.storage_options, some.client)
    bucket.client.create_bucket(Bucket=bucket.name, ObjectLockEnabledForBucket=request.param == "locks")
    if request.param == "locks":
        rule = {"DefaultRetention": {"Mode": "COMPLIANCE", "Days": 1}}
        bucket.client.put_object_lock_configuration(
            Bucket=bucket.name, ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": rule}
        )
    else:
        bucket.client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
    return bucket


def versions(bucket: Bucket, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bucket.client.list_object_versions(
        Bucket=bucket.name, Prefix=f"{bucket.prefix}/{key}"
    )["Versions"]
    return found


def test_gc_deletes_from_a_bucket_that_keeps_versions_and_their_bytes_stay_there(keeping: Bucket) -> None:
    store = S3Store(keeping.url, storage_options=keeping.storage_options)
    off = Offloader(store, session="one")
    off.offload_text(LOG, tool_name="Bash")
    [record] = off.records()
    stored = store.get(record.key)

    delete(store, session="one", refs=[record.ref])
    report = collect(store, Retention(grace=0))

    assert [info.key for info in report.deleted] == [record.key]
    with pytest.raises(NotFoundError):
        off.tools.read(record.ref)
    kept = [version for version in versions(keeping, record.key) if version["Size"]]
    [body] = [
        keeping.client.get_object(Bucket=keeping.name, Key=each["Key"], VersionId=each["VersionId"])["Body"]
        for each in kept
    ]
    assert body.read() == stored
