"""S3 servers other than moto on the loopback interface, buckets on any of them, and programs as servers."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from relay import Relay

ACCESS_KEY, SECRET_KEY = "key", "secret"
_START_TRIES = 1600
_bucket_numbers = itertools.count()
_WEED_SOCKETS = Path("/tmp")  # noqa: S108  # there is no option for it


@dataclass(frozen=True)
class Server:
    """A running server: where it answers, and the file that it writes its log to."""

    endpoint: str
    log: Path


@dataclass(frozen=True)
class Bucket:
    """A fresh bucket, and a client of its own to look into it past the store."""

    name: str
    storage_options: dict[str, Any]
    client: Any = field(repr=False)
    prefix: str = "prefix"

    @property
    def url(self) -> str:
        return f"s3://{self.name}/{self.prefix}"

    def read(self, key: str) -> bytes:
        answer = self.client.get_object(Bucket=self.name, Key=f"{self.prefix}/{key}")
        body: bytes = answer["Body"].read()
        return body

    def empty(self) -> None:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.name, Prefix=f"{self.prefix}/"
        )
        for page in pages:
            found = [{"Key": item["Key"]} for item in page.get("Contents", ())]
            if found:
                self.client.delete_objects(Bucket=self.name, Delete={"Objects": found})

    def write(self, key: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.name, Key=f"{self.prefix}/{key}", Body=data)


def new_bucket(endpoint: str) -> Bucket:
    """Make a bucket, past the store, on the server at `endpoint`."""
    name = f"bucket-{next(_bucket_numbers)}"
    client = raw_client(endpoint)
    client.create_bucket(Bucket=name)
    options = {"key": ACCESS_KEY, "secret": SECRET_KEY, "endpoint_url": endpoint}
    return Bucket(name, options, client)


@cache
def raw_client(endpoint: str) -> Any:
    """Return a client that shares no code with the store."""
    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name="us-east-1",
    )


class WithoutConditions(Relay):
    """Answers every conditional write with "not implemented", as OpenStack Swift does."""

    def relay(self) -> None:
        if self.headers["If-None-Match"] or self.headers["If-Match"]:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.proxy.requests.append((self.command, self.path, dict(self.headers)))
            self.refuse(501, "NotImplemented")
        else:
            super().relay()

    do_PUT = do_POST = relay  # noqa: N815  # the server looks for these names


@contextmanager
def seaweedfs(folder: Path) -> Iterator[Server]:
    """Run SeaweedFS, which honours conditions and checks the checksums of what it is sent."""
    names = ("s3", "master", "volume", "filer", "admin")
    ports = iter(free_ports(2 * len(names)))
    taken = [(name, next(ports), next(ports)) for name in names]
    identity = {
        "name": "test",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (folder / "data").mkdir()
    arguments = [
        *("-logtostderr=true", "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-dir=data"),
        *("-s3.config=s3.json", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *("-webdav=false", "-admin.ui=false", "-master.telemetry=false"),
        *(f"-{name}.port={port}" for name, port, _ in taken),
        *(f"-{name}.port.grpc={port}" for name, _, port in taken),
    ]
    try:
        with running([_installed("weed"), *arguments], taken[0][1], folder) as server:
            yield server
    finally:
        for name, http_port, grpc_port in taken:
            for socket_name in (f"{name}-{http_port}", f"{name}-grpc-{grpc_port}"):
                (_WEED_SOCKETS / f"seaweedfs-{socket_name}.sock").unlink(missing_ok=True)


@contextmanager
def rclone(folder: Path) -> Iterator[Server]:
    """Run rclone's S3 server, which takes no notice of conditions."""
    [port] = free_ports(1)
    (folder / "data").mkdir()
    arguments = [
        *("serve", "s3", "--config=", f"--addr=127.0.0.1:{port}", f"--auth-key={ACCESS_KEY},{SECRET_KEY}"),
        *("--log-level=INFO", "data"),
    ]
    with running([_installed("rclone"), *arguments], port, folder) as server:
        yield server


def _installed(program: str) -> str:
    """Return the path of a program; skip the test where it is not installed."""
    path = shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if path is None:
        pytest.skip(f"{program} is not installed: the dependency group `servers` has it")
    return path


@contextmanager
def running(command: Sequence[str], port: int, folder: Path) -> Iterator[Server]:
    """Run a program in `folder` until the block ends."""
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
    try:
        _wait_until_it_answers(process, port, log)
        yield Server(f"http://127.0.0.1:{port}", log)
    finally:
        process.kill()
        process.wait()


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(_START_TRIES):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/")
            connection.getresponse().read()
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            break
    pytest.fail(f"{process.args!r} did not start: {log.read_text(errors='replace')[-2000:]}")


def free_ports(count: int) -> list[int]:
    with ExitStack() as open_sockets:
        taken = [open_sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]
