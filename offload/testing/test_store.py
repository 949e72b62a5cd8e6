"""The conformance suite on the store named by `--offload-store`; see `offload.testing.plugin`."""

from __future__ import annotations

import itertools
import secrets
import shutil
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

import pytest

from offload.storage.registry import open_store
from offload.storage.store import OffloadStore
from offload.testing import StoreConformance
from offload.testing.plugin import options_of

_numbers = itertools.count()


@pytest.fixture(scope="session")
def scratch_url(pytestconfig: pytest.Config) -> Iterator[str]:
    """Return the URL of a new folder in the tested store; it is emptied in the end."""
    url: str | None = pytestconfig.getoption("offload_store", None)
    if url is None:
        pytest.skip("no store to test: add -p offload.testing.plugin --offload-store URL")
    name = f"conformance-{secrets.token_hex(8)}"
    yield f"{url}{'' if url.endswith('/') else '/'}{name}"
    # The parent store also lists the descriptors of the stores below it.
    store = open_store(url, storage_options=options_of(pytestconfig))
    _empty(store, f"{name}/")
    if store.url.startswith(("file://", "local://")):
        shutil.rmtree(f"{unquote(urlsplit(store.url).path)}/{name}", ignore_errors=True)


class TestStore(StoreConformance):
    """The suite, each test in a new folder."""

    @pytest.fixture
    def store(self, scratch_url: str, pytestconfig: pytest.Config) -> Iterator[OffloadStore]:
        """Return a store at a new URL."""
        url = f"{scratch_url}/{next(_numbers)}"
        opened = open_store(url, storage_options=options_of(pytestconfig))
        yield opened
        _empty(opened)


def _empty(store: OffloadStore, prefix: str = "") -> None:
    for entry in list(store.keys(prefix)):
        store.delete(entry.key)
