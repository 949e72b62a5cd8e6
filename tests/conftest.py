"""Fixtures that several folders of tests share: an S3 server on the loopback interface."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

import botocore.session
import pytest
from moto.server import ThreadedMotoServer
from relay import Proxy, Relay

_numbers = itertools.count()


@dataclass(frozen=True)
class Bucket:
    """A fresh bucket, and a client of its own to look into it past the store."""

    name: str
    storage_options: dict[str, Any]
    client: Any = field(repr=False)

    @property
    def url(self) -> str:
        return f"s3://{self.name}/prefix"

    def read(self, key: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=self.name, Key=f"prefix/{key}")["Body"].read()
        return body

    def empty(self) -> None:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        for page in pages:
            found = [{"Key": item["Key"]} for item in page.get("Contents", ())]
            if found:
                self.client.delete_objects(Bucket=self.name, Delete={"Objects": found})

    def write(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=f"prefix/{key}", Body=data)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def s3_raw_client(s3_endpoint: str) -> Any:
    """A client that shares no code with the store."""
    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=s3_endpoint,
        aws_access_key_id="key",
        aws_secret_access_key="secret",  # noqa: S106  # the test server takes any
        region_name="us-east-1",
    )


@pytest.fixture(scope="class")
def s3_bucket(s3_endpoint: str, s3_raw_client: Any) -> Bucket:
    """A new bucket for a class of tests, or for a test outside a class."""
    name = f"bucket-{next(_numbers)}"
    s3_raw_client.create_bucket(Bucket=name)
    options = {"key": "key", "secret": "secret", "endpoint_url": s3_endpoint}
    return Bucket(name, options, s3_raw_client)


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[Proxy]:
    proxy = Proxy(s3_endpoint)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundRelay", (Relay,), {"proxy": proxy}))
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield proxy
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep credentials, and the question for them at a cloud's metadata address, out of the tests."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
