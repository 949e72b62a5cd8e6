"""Who waits for whom: async callers for threads, threads for hooks and for each other.

Nobody waits for ever. Stores are sync, so an async caller waits for a thread of the library's own
(`in_thread`), and that thread for the caller's loop where a hook is async (`call_hook`). Calls that share
what one may change at a time go through a `Gate`, which raises where a wait could not end. A forked child
has the thread that forked alone: what others held there is free.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from offload.errors import ConfigError
from offload.locks import renew_in_child

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future, ThreadPoolExecutor

# Calls of async callers that run or wait for each other at once.
_POOL_THREADS = 256
# How often who waits looks whether the wait can end: a thread with a loop keeps that from running.
_LOOK_SECONDS, _LOOP_LOOK_SECONDS = 1.0, 0.05
# Calls that wait for each other one behind the other; more are not followed.
_LINKS = 16

P = ParamSpec("P")
T = TypeVar("T")


# By how many calls wait for it: none may find its pool taken by those that wait for it.
_pools: dict[int, ThreadPoolExecutor] = {}
_errand: ContextVar[_Errand | None] = ContextVar("_errand", default=None)
# The calls inside of which this code runs, on whatever thread.
_calls: ContextVar[tuple[_Call, ...]] = ContextVar("_calls", default=())


class _Errand:
    """What an async caller waits for: a call in a thread, whose async hooks run on the caller's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, outer: _Errand | None) -> None:
        self.loop = loop
        self.depth: int = 0 if outer is None or outer.is_over else outer.depth + 1
        self.is_over: bool = False
        self._is_cancelled = False
        self._answers: set[Future[Any]] = set()

    def waits_for(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether its thread waits for what only `loop` can do."""
        return self.loop is loop and not all(answer.done() for answer in tuple(self._answers))

    def cancel(self) -> None:
        """Wait for no hook any longer: the async caller is gone."""
        self._is_cancelled = True
        for answer in tuple(self._answers):
            answer.cancel()

    def check(self) -> None:
        """Raise `asyncio.CancelledError` if the async caller is gone."""
        if self._is_cancelled:
            import asyncio  # noqa: PLC0415 # loaded already

            raise asyncio.CancelledError

    def result_of(self, value: Awaitable[Any], seconds: float) -> Any:
        """Return the result of a hook that runs on the caller's loop."""
        import asyncio  # noqa: PLC0415 # loaded already
        from concurrent.futures import CancelledError  # noqa: PLC0415 # the same

        answer = asyncio.run_coroutine_threadsafe(_await(value), self.loop)
        self._answers.add(answer)
        try:
            self.check()
            return answer.result(min(seconds, threading.TIMEOUT_MAX))
        except TimeoutError:
            if answer.done():
                raise
            raise _too_late(seconds) from None
        except CancelledError:
            self.check()
            raise
        finally:
            answer.cancel()
            self._answers.discard(answer)


class _Call:
    """A call that entered a gate.

    Attributes:
        gate: the gate.
        errand: what it is a part of, None for a sync caller's.
        thread: where it runs.
        asked: until when each hook that it waits for may take.
        waits_at: the gate that it waits at.
        is_over: whether it has ended; what it started may go on.
    """

    def __init__(self, gate: Gate, errand: _Errand | None) -> None:
        self.gate = gate
        self.errand = errand
        self.thread = threading.get_ident()
        self.asked: list[float] = []
        self.waits_at: Gate | None = None
        self.is_over = False

    def is_stuck(self) -> bool:
        """Tell whether a hook takes longer than it may."""
        asked = tuple(self.asked)
        return bool(asked) and time.monotonic() > max(asked)

    def waits_for(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether it waits, or waits for a call that does, for what only `loop` can do."""
        call: _Call | None = self
        for _ in range(_LINKS):
            if call is None:
                return False
            if call.errand is not None and call.errand.waits_for(loop):
                return True
            call = None if call.waits_at is None else call.waits_at.holder
        return False


class Gate:
    """Lets the calls of one object in, those that change what they share one after the other.

    Args:
        what: what a message calls the object.
        on_cut: called in a forked child whose parent had a call inside, which the child does not go on with.

    Attributes:
        holder: the call that is alone inside.
    """

    def __init__(self, what: str, on_cut: Callable[[], None] | None = None) -> None:
        self.holder: _Call | None = None
        self._what = what
        self._on_cut = on_cut
        self._lock = threading.Lock()
        renew_in_child(self)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be a call.

        Raises:
            ConfigError: this is a hook or a listener of another call, or what one started: it would wait for
                itself, or go on for ever.
        """
        outer = _calls.get()
        if any(call.gate is self and not call.is_over for call in outer):
            raise ConfigError(
                f"a function of your own, a hook or a listener, uses the {self._what} that calls it; "
                "let it note what is to be done, and do it after the call"
            )
        call = _Call(self, _errand.get())
        token = _calls.set((*outer, call))
        try:
            yield
        finally:
            call.is_over = True
            _calls.reset(token)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only one inside; others wait. Inside of `entered`.

        Raises:
            ConfigError: the one that is waited for can never end.
        """
        self._wait()
        self.holder = call = _calls.get()[-1]
        try:
            if call.errand is not None:
                call.errand.check()
            yield
        finally:
            self._leave()

    @contextmanager
    def alone_if_free(self) -> Iterator[bool]:
        """Be the only one inside if nobody is; tell whether that is so. Never waits or raises."""
        is_alone = self._lock.acquire(blocking=False)
        try:
            yield is_alone
        finally:
            if is_alone:
                self._leave()

    def renew(self) -> None:
        """Have nobody inside but the thread that forked."""
        holder, self._lock = self.holder, threading.Lock()
        if holder is not None and holder.thread == threading.get_ident():
            self._lock.acquire()
        elif holder is not None:
            self.holder = None
            if self._on_cut is not None:
                self._on_cut()

    def _wait(self) -> None:
        if self._lock.acquire(blocking=False):
            return
        calls, loop = _calls.get(), _running_loop()
        for call in calls:
            call.waits_at = self
        try:
            while not self._lock.acquire(timeout=_LOOK_SECONDS if loop is None else _LOOP_LOOK_SECONDS):
                self._check_wait(loop)
        finally:
            for call in calls:
                call.waits_at = None

    def _check_wait(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Raise if what is waited for cannot end, or if nobody wants the result."""
        errand, holder = _errand.get(), self.holder
        if errand is not None:
            errand.check()
        if holder is None:
            return
        if loop is not None and holder.waits_for(loop):
            raise ConfigError(
                f"another call of this {self._what} waits for an async function on the event loop of this "
                "very thread; await the async form of this call"
            )
        if holder.is_stuck():
            raise ConfigError(
                f"another call of this {self._what} waits for a function of your own for longer than that "
                "may take; let the function end, or fail, sooner"
            )

    def _leave(self) -> None:
        self.holder = None
        self._lock.release()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `function` returns in a thread; async hooks that it meets run on the loop that waits.

    The thread is none of the loop's own, for which hooks may have to wait. A call that is cancelled waits
    for no hook and at no gate; what it was storing is stored.
    """
    import asyncio  # noqa: PLC0415 # 28 ms that only async callers pay, who have it loaded

    errand = _Errand(asyncio.get_running_loop(), _errand.get())
    context = copy_context()
    context.run(_errand.set, errand)
    call = partial(context.run, function, *args, **kwargs)
    try:
        return await errand.loop.run_in_executor(_pool(errand.depth), call)
    except asyncio.CancelledError:
        errand.cancel()
        raise
    finally:
        errand.is_over = True


def call_hook(function: Callable[..., Any], *args: Any, seconds: float) -> Any:
    """Return what a function of the caller's own returns, waiting for it where it is async.

    Args:
        function: the function.
        args: what it is given.
        seconds: how long it may take if it is async. A plain one cannot be interrupted, but no other call
            waits for one that takes longer.

    Raises:
        ConfigError: it is async, and this thread's event loop is what waits.
        TimeoutError: it took longer.
        asyncio.CancelledError: the async caller is gone.
    """
    calls = _calls.get()
    until = time.monotonic() + seconds
    for call in calls:
        call.asked.append(until)
    try:
        value = function(*args)
        return _resolve_hook(value, seconds) if inspect.isawaitable(value) else value
    finally:
        for call in calls:
            call.asked.remove(until)


def _resolve_hook(value: Awaitable[Any], seconds: float) -> Any:
    import asyncio  # noqa: PLC0415 # 28 ms that only async hooks pay

    if _running_loop() is not None:
        if inspect.iscoroutine(value):
            value.close()
        raise ConfigError(
            "an async function cannot run here: the event loop is this thread's; use aoffload()"
        )
    errand = _errand.get()
    if errand is None or errand.loop.is_closed():
        return asyncio.run(_within(value, seconds))
    return errand.result_of(value, seconds)


async def _await(value: Awaitable[Any]) -> Any:
    return await value


async def _within(value: Awaitable[Any], seconds: float) -> Any:
    import asyncio  # noqa: PLC0415 # loaded already

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await value
    except TimeoutError:
        if not limit.expired():
            raise
        raise _too_late(seconds) from None


def _too_late(seconds: float) -> TimeoutError:
    return TimeoutError(f"an async function did not end within {seconds:g} s")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    if "asyncio" not in sys.modules:
        return None
    import asyncio  # noqa: PLC0415 # loaded already where a loop runs

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _pool(depth: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 # only async callers need it

    pool = _pools.get(depth)
    return pool or _pools.setdefault(depth, ThreadPoolExecutor(_POOL_THREADS, f"offload-{depth}"))


def _leave_calls() -> None:
    """Have a forked child in no call but those of the thread that forked."""
    _pools.clear()
    for call in _calls.get():
        call.is_over = call.thread != threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_calls)
