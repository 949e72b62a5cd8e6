"""The time for which a store holds up a thread; a busy machine does not make a store slow."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from offload.errors import OffloadError
from offload.storage import store
from offload.storage.store import OffloadStore, StoredObject
from offload.storage.wrappers import WrapperStore

T = TypeVar("T")

_GROUP, _STEP_SECONDS = 256, 0.01


class StoreClock(WrapperStore):
    """A store that counts for each thread how long its operations took."""

    def __init__(self, inner: OffloadStore) -> None:
        super().__init__(inner)
        self._spent: dict[int, float] = {}
        self._began: dict[int, float] = {}

    def seconds(self, thread: int) -> float:
        """Return how long the operations of a thread took so far, with the one that has not ended."""
        began = self._began.get(thread)
        return self._spent.get(thread, 0.0) + (0.0 if began is None else time.monotonic() - began)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        thread = threading.get_ident()
        began = self._began[thread] = time.monotonic()
        try:
            yield
        finally:
            self._spent[thread] = self._spent.get(thread, 0.0) + time.monotonic() - began
            self._began.pop(thread, None)

    def _each(self, opened: Callable[[], Iterable[T]]) -> Iterator[T]:
        with self._timed():
            rows = iter(opened())
        while True:
            with self._timed():
                group = [*islice(rows, _GROUP)]
            yield from group
            if len(group) < _GROUP:
                return

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        with self._timed():
            self.inner.put(key, data, overwrite=overwrite)

    def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
        with self._timed():
            return self.inner.get(key, start=start, end=end)

    def keys(self, prefix: str = "", *, after: str = "") -> Iterator[StoredObject]:
        return self._each(lambda: self.inner.keys(prefix, after=after))

    def folders(self, prefix: str = "") -> Iterator[str]:
        return store.folders(self.inner, prefix)

    def delete(self, key: str) -> None:
        with self._timed():
            self.inner.delete(key)

    def put_many(
        self, items: Iterable[tuple[str, bytes]], *, overwrite: bool = False
    ) -> list[OffloadError | None]:
        with self._timed():
            return store.put_many(self.inner, items, overwrite=overwrite)

    def get_many(self, keys: Sequence[str]) -> Iterable[bytes | OffloadError]:
        return self._each(lambda: store.get_many(self.inner, keys))

    def delete_many(self, keys: Iterable[str]) -> None:
        with self._timed():
            store.delete_many(self.inner, keys)

    def put_stream(self, key: str, pieces: Iterable[bytes], size: int) -> None:
        with self._timed():
            store.put_stream(self.inner, key, pieces, size)


@dataclass(slots=True)
class Held:
    """The time for which a request was held up: by the work of others, and then by the store.

    Attributes:
        clock: the store of the work.
        asked: when the request came, by a monotonic clock.
        thread: the thread of its work, once that began; `before` is what the operations of the thread took
            until then, and `queued` how long the request waited for it.
    """

    clock: StoreClock
    asked: float = field(default_factory=time.monotonic)
    thread: int | None = None
    before: float = 0.0
    queued: float = 0.0

    def begin(self) -> None:
        """Note that the work begins in this thread."""
        thread = threading.get_ident()
        self.before, self.queued = self.clock.seconds(thread), time.monotonic() - self.asked
        self.thread = thread

    @property
    def seconds(self) -> float:
        """The seconds so far."""
        if self.thread is None:
            return time.monotonic() - self.asked
        return self.queued + self.clock.seconds(self.thread) - self.before

    async def waited(self, work: asyncio.Future[T], seconds: float, most: float) -> T:
        """Return what `work` returns; it continues if this raises an error.

        Raises `TimeoutError` if the store held it up for so many seconds, or if it takes the `most`.
        """
        until = time.monotonic() + most
        while not work.done():
            left = min(seconds - self.seconds, until - time.monotonic())
            if left <= 0:
                raise TimeoutError
            await asyncio.wait((work,), timeout=max(left, _STEP_SECONDS))
        return work.result()
