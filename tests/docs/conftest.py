"""Fixture of all page tests: a bucket at the address used on the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import cloud_servers
import pytest
from cloud_servers import AzureContainer, GoogleBucket
from servers import ACCESS_KEY, SECRET_KEY, Bucket, Server

Start = Callable[[Path], AbstractContextManager[Server]]
CLOUDS: dict[str, tuple[Start, type[GoogleBucket | AzureContainer], str]] = {
    'Offloader("gs://': (cloud_servers.google, GoogleBucket, "bucket"),
    'Offloader("az://': (cloud_servers.azurite, AzureContainer, "container"),
}


@pytest.fixture
def environ_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path], dict[str, str]]]:
    """Return a function that gives the environment of a page: one that names S3 finds `s3://bucket/prefix`."""
    with ExitStack() as started:

        def environ(page: Path) -> dict[str, str]:
            text = page.read_text(encoding="utf-8")
            found = _s3(request) if '"s3://' in text else {}
            for mark, (start, kind, name) in CLOUDS.items():
                if mark in text:
                    server = started.enter_context(start(tmp_path_factory.mktemp(name)))
                    container = kind(server.endpoint, name)
                    container.make()
                    found |= container.environ
            return found

        yield environ


def _s3(request: pytest.FixtureRequest) -> dict[str, str]:
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
