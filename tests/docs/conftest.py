"""Fixture of all page tests: a bucket at the address used on the pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from servers import ACCESS_KEY, SECRET_KEY, Bucket


@pytest.fixture
def environ_of(request: pytest.FixtureRequest) -> Callable[[Path], dict[str, str]]:
    """Return a function that gives the environment of a page: one that names S3 finds `s3://bucket/prefix`."""

    def environ(page: Path) -> dict[str, str]:
        if "s3://" not in page.read_text(encoding="utf-8"):
            return {}
        some: Bucket = request.getfixturevalue("s3_bucket")
        bucket = replace(some, name="bucket")
        bucket.client.create_bucket(Bucket=bucket.name)
        bucket.empty()
        return {
            "AWS_ENDPOINT_URL": some.storage_options["endpoint_url"],
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    return environ
