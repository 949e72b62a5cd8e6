"""The protocols that each class supports, checked by mypy and at run time."""

from __future__ import annotations

import pytest

from offload.storage.store import (
    OffloadStore,
    SupportsBulk,
    SupportsFolders,
    SupportsIdentity,
    SupportsStreams,
    SupportsTimes,
)
from offload.storage.wrappers import CachingStore, EncryptingStore, ReadOnlyStore, RetryingStore, WrapperStore
from offload.testing import FaultyBulkStore, FaultyStore
from offload_backends._fsspec import FsspecStore
from offload_backends.cloud import AzureStore, GoogleStore
from offload_backends.local import LocalStore
from offload_backends.memory import MemoryStore
from offload_backends.s3 import S3Store

BUCKETS: list[type[AzureStore | GoogleStore | S3Store]] = [AzureStore, GoogleStore, S3Store]
STORES: list[type[OffloadStore]] = [LocalStore, MemoryStore, *BUCKETS, FsspecStore, WrapperStore]
WRAPPERS = [CachingStore, EncryptingStore, ReadOnlyStore, RetryingStore]
BULK: list[type[SupportsBulk]] = [LocalStore, *BUCKETS, FaultyBulkStore, *WRAPPERS]
STREAMS: list[type[SupportsStreams]] = [LocalStore, *BUCKETS, FaultyStore, *WRAPPERS]
FOLDERS: list[type[SupportsFolders]] = [LocalStore, MemoryStore, *BUCKETS, FsspecStore, *WRAPPERS]
IDENTITY: list[type[SupportsIdentity]] = [MemoryStore, *BUCKETS, FsspecStore, WrapperStore]


@pytest.mark.parametrize(
    ("protocol", "classes"),
    [
        (SupportsBulk, BULK),
        (SupportsFolders, FOLDERS),
        (SupportsStreams, STREAMS),
        (SupportsIdentity, IDENTITY),
    ],
)
def test_a_class_supports_the_protocol(protocol, classes):
    assert all(issubclass(each, protocol) for each in classes)


def test_a_class_without_the_methods_does_not_support_a_protocol():
    assert not issubclass(MemoryStore, SupportsBulk)
    assert not issubclass(WrapperStore, SupportsBulk)
    assert not issubclass(FsspecStore, SupportsStreams)


def test_a_listing_shows_the_time_that_was_set_and_an_absent_key_is_no_error(tmp_path):
    for store in (MemoryStore(), LocalStore(str(tmp_path))):
        assert isinstance(store, SupportsTimes)
        store.put("a", b"x")
        store.set_time("a", 1_000_000.25)
        store.set_time("absent", 1.0)

        assert [(found.key, found.modified) for found in store.keys("a")] == [("a", 1_000_000.25)]
