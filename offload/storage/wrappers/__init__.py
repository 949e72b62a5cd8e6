"""Stores that wrap another store: each adds one behavior, and they stack.

    EncryptingStore(CachingStore(RetryingStore(open_store(url))))

The order matters: a cache inside of an encrypting store holds no plain bytes.
"""

from offload.storage.wrappers._base import WrapperStore as WrapperStore
from offload.storage.wrappers._caching import CachingStore as CachingStore
from offload.storage.wrappers._encrypting import (
    EncryptingStore as EncryptingStore,
    encryption_of as encryption_of,
)
from offload.storage.wrappers._read_only import ReadOnlyStore as ReadOnlyStore
from offload.storage.wrappers._retrying import RetryingStore as RetryingStore
