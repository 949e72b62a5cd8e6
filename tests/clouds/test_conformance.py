"""The suite that every store must pass, on the stores of Google and Azure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from cloud_servers import Container
from relay import Proxy, Relay, serving

from offload import open_store
from offload.store import OffloadStore
from offload.testing import StoreConformance

pytest.importorskip("gcsfs", reason="make test-clouds runs it")


class CloudConformance(StoreConformance):
    """The suite past the store; a class gives the fixture `container`."""

    medium: Container

    # A client takes a third of a second to build, so one store serves all tests.
    @pytest.fixture(scope="class")
    @classmethod
    def connected(cls, container: Container) -> OffloadStore:
        return open_store(container.url, storage_options=container.storage_options)

    @pytest.fixture
    def store(self, container: Container, connected: OffloadStore) -> OffloadStore:
        self.medium = container
        container.empty()
        return connected

    def raw_get(self, store: OffloadStore, key: str) -> bytes:  # noqa: ARG002  # the container is the medium
        return self.medium.read(key)

    def raw_put(self, store: OffloadStore, key: str, data: bytes) -> None:  # noqa: ARG002  # the container is the medium
        self.medium.write(key, data)


class TestOnClouds(CloudConformance):
    """The suite, on servers that honour conditions."""

    def test_a_create_is_atomic_and_lasts(self, store: OffloadStore) -> None:
        store.put("a", b"x")

        assert store.has_atomic_create
        assert store.durability == "power"


class WithoutConditions(Relay):
    """Passes every create on without its condition, as an emulator does that does not know it."""

    def relay(self) -> None:
        self.path = self.path.replace("&ifGenerationMatch=0", "")
        super().relay()

    do_POST = relay  # noqa: N815  # the server looks for this name


class TestOnServerThatIgnoresConditions(CloudConformance):
    """The suite, on a server of Google's kind that ignores conditions."""

    @pytest.fixture(scope="class")
    @classmethod
    def container(cls, new_container_on: Callable[[str], Container]) -> Iterator[Container]:
        bucket = new_container_on("google_server")
        with serving(Proxy(bucket.endpoint), WithoutConditions) as proxy:
            yield replace(bucket, endpoint=proxy.url)

    def test_it_says_that_a_create_is_not_atomic(self, store: OffloadStore) -> None:
        store.put("a", b"x")

        assert not store.has_atomic_create
