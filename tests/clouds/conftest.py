"""Fixtures of the tests of Google Cloud Storage and Azure Blob Storage: servers and containers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import cloud_servers
import pytest
from cloud_servers import AzureContainer, Container, GoogleBucket, new_container
from relay import Proxy, serving
from servers import Server


@pytest.fixture(scope="session")
def google_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with cloud_servers.google(tmp_path_factory.mktemp("google")) as server:
        yield server


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with cloud_servers.azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(scope="session")
def careless_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of Google's kind that ignores conditions."""
    with cloud_servers.google_without_conditions(tmp_path_factory.mktemp("careless")) as server:
        yield server


@pytest.fixture(scope="session")
def new_container_on(request: pytest.FixtureRequest) -> Callable[[str], Container]:
    """Return a function that makes a container on the server of a fixture."""

    def new(fixture: str) -> Container:
        server: Server = request.getfixturevalue(fixture)
        return new_container(AzureContainer if fixture == "azure_server" else GoogleBucket, server.endpoint)

    return new


@pytest.fixture(scope="class")
def careless_bucket(new_container_on: Callable[[str], Container]) -> Container:
    return new_container_on("careless_server")


@pytest.fixture(scope="class", params=["google_server", "azure_server"])
def container(request: pytest.FixtureRequest, new_container_on: Callable[[str], Container]) -> Container:
    """A new container of each cloud in turn, for a class of tests, or for a test outside a class."""
    return new_container_on(request.param)


@pytest.fixture
def proxy(container: Container) -> Iterator[Proxy]:
    """A proxy before the server of the container."""
    with serving(Proxy(container.endpoint)) as proxy:
        yield proxy
