"""An LRU cache in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from offload.locks import Lock

# Approximate overhead of an entry, so that many small objects are not free.
_ENTRY_BYTES = 256


class MemoryCache:
    """A cache of at most `max_bytes`, including the overhead of its entries; thread-safe.

    Args:
        max_bytes: total size of the entries.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._drops = 0
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._lock = Lock()

    def get(self, name: str) -> bytes | None:
        """Return the bytes of `name`, or None."""
        with self._lock:
            data = self._entries.get(name)
            if data is not None:
                self._entries.move_to_end(name)
            return data

    def put(self, name: str, data: bytes) -> None:
        """Set the bytes of `name`."""
        with self._lock:
            self._keep(name, data)

    @contextmanager
    def filling(self, name: str) -> Iterator[Callable[[bytes], None]]:
        """Yield the function that caches bytes fetched inside the `with`.

        If any entry was dropped since the `with` began, the bytes may be outdated and are not cached.
        """
        drops = self._drops

        def fill(data: bytes) -> None:
            with self._lock:
                if self._drops == drops:
                    self._keep(name, data)

        yield fill

    def drop(self, name: str) -> None:
        """Remove `name` and disable the fills that have begun."""
        with self._lock:
            self._drops += 1
            self._remove(name)

    def _keep(self, name: str, data: bytes) -> None:
        self._remove(name)
        self._entries[name] = data
        self._bytes += _cost(data)
        while self._bytes > self._max_bytes:
            self._remove(next(iter(self._entries)))

    def _remove(self, name: str) -> None:
        data = self._entries.pop(name, None)
        if data is not None:
            self._bytes -= _cost(data)


def _cost(data: bytes) -> int:
    return len(data) + _ENTRY_BYTES
