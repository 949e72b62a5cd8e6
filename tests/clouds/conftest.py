"""Fixtures of the tests of Google Cloud Storage and Azure Blob Storage: servers and containers."""

from __future__ import annotations

from collections.abc import Iterator

import cloud_servers
import pytest
from cloud_servers import AzureContainer, Container, GoogleBucket, new_container
from relay import Proxy, serving
from servers import Server

WHY = "`make test-clouds` runs it"


@pytest.fixture(scope="session")
def google_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("gcsfs", reason=WHY)
    with cloud_servers.google(tmp_path_factory.mktemp("google")) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    pytest.importorskip("adlfs", reason=WHY)
    with cloud_servers.azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def careless_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of Google's kind that ignores conditions."""
    pytest.importorskip("gcsfs", reason=WHY)
    pytest.importorskip("gcp_storage_emulator", reason=WHY)
    with cloud_servers.google_without_conditions(tmp_path_factory.mktemp("careless")) as server:
        yield server


@pytest.fixture(scope="class")
def google_bucket(google_server: Server) -> Container:
    return new_container(GoogleBucket, google_server.endpoint)


@pytest.fixture(scope="class")
def azure_container(azure_server: Server) -> Container:
    return new_container(AzureContainer, azure_server.endpoint)


@pytest.fixture(scope="class")
def careless_bucket(careless_server: Server) -> Container:
    return new_container(GoogleBucket, careless_server.endpoint)


@pytest.fixture(scope="class", params=["google_bucket", "azure_container"])
def container(request: pytest.FixtureRequest) -> Container:
    """A new container of each cloud in turn, for a class of tests, or for a test outside a class."""
    found: Container = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(container: Container) -> Iterator[Proxy]:
    """A proxy before the server of the container."""
    with serving(Proxy(container.endpoint)) as proxy:
        yield proxy
