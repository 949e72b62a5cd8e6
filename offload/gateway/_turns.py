"""When the work of a gateway runs: in which threads, in which order, and how long a request waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar, TypeVarTuple

from offload.engine.results import OffloadResult, Remembered
from offload.errors import OffloadError, StoreUnavailableError
from offload.gateway._clock import Held, StoreClock
from offload.gateway._incoming import MAX_WAIT
from offload.gateway._parsed import Parsed
from offload.gateway._sent import NotRecalledError, SentStore
from offload.gateway._status import Status
from offload.gateway._threads import Thread
from offload.records.observer import error_text

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# The store holds a request up no longer, and the work of others neither.
DEADLINE = 1.0
# One with signed thinking waits longer: what is not replaced now never is, or the thinking after it is lost.
# So does one whose own work takes long, as on a busy machine.
BOUND_DEADLINE = 10.0
_QUEUE_SECONDS = 10.0
# Of work that the store may hold up, of work behind the replies, and of reading.
_THREADS, _SPARE, _READERS = 4, 4, 2


class SlowError(Exception):
    """The store is slow: a request has what was replaced before, and nothing more."""


@dataclass(slots=True)
class Rewriting:
    """A request while it is rewritten: what is known of it so far.

    Attributes:
        recalled: its messages with all that was replaced before, once the store said what that is.
    """

    parsed: Parsed | None = None
    thread: Thread | None = None
    recalled: OffloadResult | None = None


class Workers:
    """The threads of a gateway."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS + _SPARE, "offload-gateway")
        self._readers = ThreadPoolExecutor(_READERS, "offload-gateway-read")
        self._spare = asyncio.Semaphore(_SPARE)
        self._behind: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether more work behind the replies would wait."""
        return self._spare.locked()

    async def working(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function that the store may hold up."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def reading(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function that asks no store."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, function, *args)

    async def aside(self, thread: Thread, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function that the store may hold up, between the requests of a conversation."""
        async with self._spare, thread.lock:
            return await self.working(function, *args)

    def behind(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin work that no request waits for."""
        task = asyncio.ensure_future(work)
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return task

    def close(self) -> None:
        """Start no more work."""
        for work in self._behind:
            work.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)


class Turns:
    """Lets requests wait for their turn and for the store, each no longer than it may.

    Args:
        max_wait: see `gateway_app`.
    """

    def __init__(
        self, workers: Workers, clock: StoreClock, sent: SentStore, status: Status, max_wait: float = MAX_WAIT
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._sent = sent
        self._status = status
        self._max_wait = max_wait
        self._free = asyncio.Semaphore(_THREADS)
        self._late = 0

    async def taken(self, rewriting: Rewriting, thread: Thread, parsed: Parsed) -> OffloadResult:
        """Offload what is due in a request when it is its turn.

        Raises `TimeoutError` if the store takes too long for what is new; it is stored later then. Raises
        `SlowError` if it held others up for too long, `NotRecalledError` if it takes too long to say what was
        sent before, and any other error if the request is to pass.
        """
        is_forgotten = thread.is_forgotten(parsed)
        until = time.monotonic() + self._max_wait
        await self._wait(is_forgotten=is_forgotten)
        recalled: asyncio.Future[OffloadResult] = asyncio.get_running_loop().create_future()
        held, seconds = Held(self._clock), _seconds(thread, parsed)
        most = self._max_wait if is_forgotten else max(seconds, BOUND_DEADLINE)
        begun = asyncio.ensure_future(self._begun(thread, parsed, held, recalled))
        begun.add_done_callback(lambda _: self._free.release())
        try:
            result = await held.waited(begun, seconds, most)
        except TimeoutError:
            if is_forgotten:
                await _until_first(begun, recalled, until)
            result = await waited(begun, 0)
        finally:
            rewriting.recalled = recalled.result() if recalled.done() else None
            if not begun.done():
                self._late += 1
                begun.add_done_callback(self._ended_late)
        if is_forgotten and not recalled.done() and _is_unavailable(result):
            raise NotRecalledError
        return result

    async def _wait(self, *, is_forgotten: bool) -> None:
        """Wait until the work of a request may begin. Raises `SlowError` or `NotRecalledError`."""
        if self._late >= _THREADS and not is_forgotten:
            raise SlowError
        try:
            async with asyncio.timeout(self._max_wait if is_forgotten else _QUEUE_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise NotRecalledError if is_forgotten else SlowError from None

    def _ended_late(self, work: asyncio.Future[Any]) -> None:
        self._late -= 1
        if not work.cancelled() and isinstance(error := work.exception(), OffloadError):
            self._status.failed(f"offloading failed: {error_text(error)}")

    async def _begun(
        self,
        thread: Thread,
        parsed: Parsed,
        held: Held,
        recalled: asyncio.Future[OffloadResult],
    ) -> OffloadResult:
        """Offload what is due; `recalled` gets the result with what was replaced before alone."""
        is_forgotten = thread.is_forgotten(parsed)
        if thread.began < time.monotonic() - DEADLINE / 2 and not is_forgotten:
            raise SlowError
        loop = asyncio.get_running_loop()

        def note(result: OffloadResult) -> None:
            loop.call_soon_threadsafe(_set_once, recalled, result)

        async with thread.lock:
            thread.began, thread.recalled = time.monotonic(), note
            try:
                if is_forgotten or thread.aside is not None:
                    await self._remind(thread)
                return await self._workers.working(_offloaded, thread, parsed, held)
            finally:
                thread.began, thread.recalled = inf, None

    async def _remind(self, thread: Thread) -> None:
        """Let an offloader know the records that other processes sent, without a read of each."""
        with suppress(OffloadError):  # It reads it then.
            body = await self._sent.read(thread.id)
            await self._workers.working(thread.offloader.remember, Remembered(body.heads, body.thinking))


def _offloaded(thread: Thread, parsed: Parsed, held: Held) -> OffloadResult:
    held.begin()
    return thread.offload(parsed)


def _seconds(thread: Thread, parsed: Parsed) -> float:
    """Return how long a request waits for the store to take what is new.

    One that this process has not seen may have much that is new.
    """
    is_signed = thread.binding(parsed).keeps_sent and bool(parsed.signed)
    is_long = is_signed or parsed.is_threaded or thread.is_forgotten(parsed)
    return BOUND_DEADLINE if is_long else DEADLINE


async def waited(work: asyncio.Future[T], seconds: float | None = None) -> T:
    """Return what `work` returns, or raise `TimeoutError`; it continues then."""
    async with asyncio.timeout(DEADLINE if seconds is None else seconds):
        return await asyncio.shield(work)


async def _until_first(work: asyncio.Future[Any], recalled: asyncio.Future[Any], until: float) -> None:
    """Wait until one of two futures is done. Raises `NotRecalledError` if none is at a time."""
    seconds = max(0.0, until - time.monotonic())
    await asyncio.wait((work, recalled), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if not (work.done() or recalled.done()):
        raise NotRecalledError


def _set_once(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _is_unavailable(result: OffloadResult) -> bool:
    return any(isinstance(error, StoreUnavailableError) for error in result.errors)
