"""The suite that every store must pass, on a server of Google's kind that ignores conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from bucket_conformance import BucketConformance
from cloud_servers import Container
from relay import Proxy, Relay, serving

from offload.storage.store import OffloadStore

pytest.importorskip("gcp_storage_emulator", reason="make test-clouds runs it")


class WithoutConditions(Relay):
    """Passes every create on without its condition, as an emulator does that does not know it."""

    def relay(self) -> None:
        self.path = self.path.replace("&ifGenerationMatch=0", "")
        super().relay()

    do_POST = relay  # noqa: N815  # the server looks for this name


class TestOnServerThatIgnoresConditions(BucketConformance):
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
