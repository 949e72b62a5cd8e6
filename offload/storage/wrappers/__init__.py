"""Stores that wrap another store: each adds one behavior, and they stack.

    EncryptingStore(CachingStore(RetryingStore(open_store(url))))

The order matters: a cache inside of an encrypting store holds no plain bytes.
"""

from offload.storage.wrappers._base import WrapperStore
from offload.storage.wrappers._caching import CachingStore
from offload.storage.wrappers._encrypting import EncryptingStore, encryption_of
from offload.storage.wrappers._read_only import ReadOnlyStore
from offload.storage.wrappers._retrying import RetryingStore

__all__ = [
    "CachingStore",
    "EncryptingStore",
    "ReadOnlyStore",
    "RetryingStore",
    "WrapperStore",
    "encryption_of",
]
