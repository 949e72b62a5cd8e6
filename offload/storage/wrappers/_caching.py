"""A store that caches reads of the wrapped store in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from offload.base.threads.locks import Recent
from offload.errors import OffloadError, check_number
from offload.storage.layout import check_key
from offload.storage.store import (
    OffloadStore,
    check_range,
    delete_many,
    folders,
    get_many,
    put_many,
    put_stream,
)
from offload.storage.wrappers._base import WrapperStore

# One object may take this share of the cache, so that it cannot evict all others.
_LARGEST_SHARE = 4
# Approximate overhead of an entry, so that many small objects are not free.
_ENTRY_BYTES = 256


class CachingStore(WrapperStore):
    """Caches objects of the wrapped store, up to `max_bytes`; the least recently used are evicted.

    Only whole objects are cached, if they take at most a quarter of `max_bytes`. Ranges of a cached
    object are cut from it; other ranges are fetched and not cached.
    Listings come from the wrapped store.

    A read through the cache can miss one thing: another writer's delete or replacement of a cached
    object. It then returns the bytes of one earlier version, never a mixture. A put or delete through
    this store evicts the object before it returns, even if the wrapped store raised. To check the content
    of the store itself, verify it without the cache.

    Args:
        inner: the store that is wrapped.
        max_bytes: maximum size of the cache, more than 0.

    Raises:
        ConfigError: `max_bytes` is not a positive integer.
    """

    def __init__(self, inner: OffloadStore, *, max_bytes: int = 64 * 1024**2) -> None:
        super().__init__(inner)
        check_number("max_bytes", max_bytes, 1)
        self._largest = max_bytes // _LARGEST_SHARE
        self._cache = MemoryCache(max_bytes)

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        with self._changing([check_key(key)]):
            self.inner.put(key, data, overwrite=overwrite)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        check_key(key)
        check_range(start, end)
        cached = self._cache.get(key)
        if cached is not None:
            return cached[start:end]
        with self._cache.filling(key) as fill:
            data = self.inner.get(key, start=start, end=end)
            if _is_whole(data, start, end) and len(data) <= self._largest:
                fill(data)
        return data

    def delete(self, key: str) -> None:
        with self._changing([check_key(key)]):
            self.inner.delete(key)

    def folders(self, prefix: str = "") -> Iterator[str]:
        return folders(self.inner, prefix)

    def put_many(
        self, items: Iterable[tuple[str, bytes]], *, overwrite: bool = False
    ) -> list[OffloadError | None]:
        items = list(items)
        with self._changing([key for key, _ in items]):
            return put_many(self.inner, items, overwrite=overwrite)

    def get_many(self, keys: Sequence[str]) -> Iterator[bytes | OffloadError]:
        results: dict[str, bytes | OffloadError] = {}
        for key in keys:
            cached = self._cache.get(key)
            if cached is not None:
                results[key] = cached
        with closing(self._fetch([key for key in dict.fromkeys(keys) if key not in results])) as fetched:
            for key in keys:
                if key not in results:
                    results[key] = next(fetched)
                yield results[key]

    def delete_many(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        with self._changing(keys):
            delete_many(self.inner, keys)

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        with self._changing([check_key(key)]):
            put_stream(self.inner, key, pieces, size)

    def _fetch(self, keys: Sequence[str]) -> Generator[bytes | OffloadError, None, None]:
        with ExitStack() as stack:
            fills = [stack.enter_context(self._cache.filling(key)) for key in keys]
            for fill, data in zip(fills, get_many(self.inner, keys), strict=True):
                if isinstance(data, bytes) and len(data) <= self._largest:
                    fill(data)
                yield data

    @contextmanager
    def _changing(self, keys: Sequence[str]) -> Iterator[None]:
        """Evict `keys` after a change, those too that were read during it."""
        try:
            yield
        finally:
            for key in keys:
                self._cache.drop(key)


def _is_whole(data: bytes, start: int, end: int | None) -> bool:
    if start < 0:
        return len(data) < -start
    return start == 0 and (end is None or len(data) < end)


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
