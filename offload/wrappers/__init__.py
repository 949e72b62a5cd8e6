"""Stores that wrap another store: each adds one behavior, and they stack.

    EncryptingStore(CachingStore(RetryingStore(open_store(url))))

The order matters: a cache inside of an encrypting store holds no plain bytes.
"""

from offload.wrappers._base import WrapperStore
from offload.wrappers._caching import CachingStore
from offload.wrappers._encrypting import EncryptingStore, encryption_of
from offload.wrappers._read_only import ReadOnlyStore
from offload.wrappers._retrying import RetryingStore

__all__ = [
    "CachingStore",
    "EncryptingStore",
    "ReadOnlyStore",
    "RetryingStore",
    "WrapperStore",
    "encryption_of",
]
