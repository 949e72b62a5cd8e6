"""Fixtures that several folders of tests share: stores, the command, S3 servers on the loopback interface."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import botocore
import pytest
import servers
import strength
from command import Run, runner
from moto import backends
from moto.s3 import models
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from relay import Proxy, serving
from servers import Bucket, Server, new_bucket

from offload_backends._bucket import store as bucket_store, uploads
from offload_backends.memory import MemoryStore

__all__ = ["Bucket"]

_LAST_LINE = "-----END CERTIFICATE-----\n"


def pytest_configure(config: pytest.Config) -> None:
    strength.set_by(config.option)
    # Collecting makes a million objects that stay, so each search for garbage among them finds nothing.
    gc.disable()


def pytest_collection_finish() -> None:
    """Let no search for garbage visit what all tests share: a million objects of modules and tests."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are processors, because tests of servers and faults often wait."""
    return (os.cpu_count() or 1) + 1


def put_at_once(put: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `put` as one step: moto lets other threads in between its check of a condition and its write."""
    lock = threading.Lock()

    def locked(response: Any) -> Any:
        with lock:
            return put(response)

    return locked


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def medium() -> MemoryStore:
    """The store that a wrapper of a test wraps."""
    return MemoryStore()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test alone; no variable names a store, a session or a key."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("OFFLOAD_KEY", "OFFLOAD_STORE", "OFFLOAD_SESSION"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def run(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line, in the process of the test."""
    return runner(capsys, monkeypatch)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    S3Response.put_object = put_at_once(S3Response.put_object)  # type: ignore[assignment,method-assign] # its own type is narrower
    # For each request it looks at every folder of moto.
    services = frozenset(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: services
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with servers.rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(scope="class")
def s3_bucket(s3_endpoint: str) -> Bucket:
    """A new bucket for a class of tests, or for a test outside a class."""
    return new_bucket(s3_endpoint)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let objects of more than 2 MiB be uploaded in parts of 1 MiB, which moto takes too."""
    monkeypatch.setattr(uploads, "_PART", 2**20)
    monkeypatch.setattr(bucket_store, "_ONE_PUT", 2 * 2**20)
    monkeypatch.setattr(models, "S3_UPLOAD_PART_MIN_SIZE", 2**20)


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[Proxy]:
    with serving(Proxy(s3_endpoint)) as proxy:
        yield proxy


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test what the servers wrote that it used."""
    report = yield
    used = getattr(item, "funcargs", {}).values()
    for server in (value for value in used if isinstance(value, Server)):
        if report.failed:
            tail = server.log.read_text(errors="replace")[-4000:]
            report.sections.append((f"{server.log.parent.name} log", tail))
    return report


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with one certificate: clients of S3 read all for a quarter of their time, and need none here."""
    all_of_them = Path(botocore.__file__).with_name("cacert.pem").read_text("utf-8")
    file = tmp_path_factory.mktemp("certificates") / "one.pem"
    file.write_text(all_of_them[: all_of_them.index(_LAST_LINE)] + _LAST_LINE)
    return file


@pytest.fixture(autouse=True)
def _no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch, certificate: Path) -> None:
    """Keep credentials, and the question for them at a cloud's metadata address, out of the tests."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
