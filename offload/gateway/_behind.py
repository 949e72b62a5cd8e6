"""Facts of the latest conversations in memory, whose objects in the store are written behind the requests."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar, TypeVarTuple

from offload.gateway._status import Status
from offload.storage.store import OffloadStore

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MOST_HELD = 512
_STOP_SECONDS = 1.0


class WriteBehind(Generic[K, V]):
    """Holds what is known of each conversation; called in the event loop alone.

    Args:
        store: has the objects.
        status: counts failures.
        new: returns what is known of a new conversation.
        threads: the name of those that ask the store, and `most` how many they are.
    """

    def __init__(
        self, store: OffloadStore, status: Status, new: Callable[[], V], threads: str, most: int
    ) -> None:
        self._store = store
        self._status = status
        self._new = new
        self._held: OrderedDict[K, V] = OrderedDict()
        self._threads = ThreadPoolExecutor(most, threads)
        self._writing: set[asyncio.Task[None]] = set()

    def known(self, key: K) -> V:
        """Return what is known of a conversation; those that were unused for the longest time are dropped."""
        known = self._held.pop(key, None) or self._new()
        self._held[key] = known
        while len(self._held) > _MOST_HELD:
            self._held.popitem(last=False)
        return known

    async def close(self) -> None:
        """Wait a moment for what is being stored."""
        if self._writing:
            await asyncio.wait(self._writing, timeout=_STOP_SECONDS)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _written(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin to store something."""
        writing = asyncio.ensure_future(work)
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        return writing

    async def _call(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
