"""Buckets on a server of each service: S3, or Google and Azure in the environment that has their servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec

import cloud_servers
import pytest
from cloud_servers import AzureContainer, Container, GoogleBucket, S3Bucket, new_container
from relay import Proxy, serving
from servers import Server

from offload import open_store
from offload.storage.store import OffloadStore

SERVERS = ["google_server", "azure_server"] if find_spec("gcp_storage_emulator") else ["s3_endpoint"]
KINDS: dict[str, Callable[[str, str], AzureContainer | GoogleBucket | S3Bucket]] = {
    "s3_endpoint": S3Bucket,
    "azure_server": AzureContainer,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the test of the suite that stores a thousand objects; test_s3_listing.py has pages of three."""
    for item in items:
        if item.path.parent.name == "buckets" and "test_more_than_a_thousand_keys" in item.name:
            item.add_marker(pytest.mark.slow)


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
        server: Server | str = request.getfixturevalue(fixture)
        endpoint = server if isinstance(server, str) else server.endpoint
        return new_container(KINDS.get(fixture, GoogleBucket), endpoint)

    return new


@pytest.fixture(scope="class")
def careless_bucket(new_container_on: Callable[[str], Container]) -> Container:
    return new_container_on("careless_server")


@pytest.fixture(scope="class", params=SERVERS)
def container(request: pytest.FixtureRequest, new_container_on: Callable[[str], Container]) -> Container:
    """A new container of each service in turn, for a class of tests, or for a test outside a class."""
    return new_container_on(request.param)


@pytest.fixture
def proxy(container: Container) -> Iterator[Proxy]:
    """A proxy before the server of the container."""
    with serving(Proxy(container.endpoint)) as proxy:
        yield proxy


# A client takes a third of a second to build, so one store serves all tests.
@pytest.fixture(scope="class")
def connected(container: Container) -> OffloadStore:
    return open_store(container.url, storage_options=container.storage_options)


@pytest.fixture
def store(container: Container, proxy: Proxy) -> OffloadStore:
    """A store with the object `here`, through the proxy; it has asked what a client asks once in its life."""
    options = replace(container, endpoint=proxy.url).storage_options
    store = open_store(container.url, storage_options=options)
    if "here" not in container.keys():
        store.put("here", b"x" * 100)
    store.get("here")
    proxy.requests.clear()
    return store
