"""Stores that wrap another store: each adds one behavior, and they stack.

    EncryptingStore(CachingStore(RetryingStore(open_store(url)), folder=...))

The order matters: a cache around an encrypting store holds plain bytes, so it takes no folder.
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
