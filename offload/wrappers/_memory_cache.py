"""An LRU cache in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from offload.locks import Recent

# Approximate overhead of an entry, so that many small objects are not free.
_ENTRY_BYTES = 256


class MemoryCache(Recent[str, bytes]):
    """A cache of at most `max_bytes`, including the overhead of its entries; thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, cost=lambda data: len(data) + _ENTRY_BYTES)
        self._drops = 0

    @contextmanager
    def filling(self, name: str) -> Iterator[Callable[[bytes], None]]:
        """Yield the function that caches bytes fetched inside the `with`.

        If any entry was dropped since the `with` began, the bytes may be outdated and are not cached.
        """
        drops = self._drops

        def fill(data: bytes) -> None:
            with self._lock:
                if self._drops == drops:
                    self.put(name, data)

        yield fill

    def drop(self, name: str) -> None:
        """Remove `name` and disable the fills that have begun."""
        with self._lock:
            self._drops += 1
            self._remove(name)
