"""Waiting between async callers, threads and hooks, without deadlock.

Stores are sync, so an async caller waits for a thread of the library (`in_thread`), and that thread waits for
the caller's event loop if a hook is async (`call_hook`). Calls that change shared data one at a time go
through a `Gate`, which raises if a wait could never end. A forked child has only the thread that forked, so
gates held by other threads are free in it.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct, field

from offload.base.threads.locks import NO_FORK, renew_in_child
from offload.errors import ConfigError, HookTimeoutError

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future, ThreadPoolExecutor

# Concurrent calls of async callers.
_POOL_THREADS = 256
# A waiting thread checks at this interval whether the wait can end; one with a loop blocks that loop.
_CHECK_SECONDS, _LOOP_CHECK_SECONDS = 1.0, 0.05
# Maximum length of a followed chain of calls that wait for each other.
_LINKS = 16

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


# By nesting depth, so that no call waits for a pool that its own waiters fill.
_pools: dict[int, ThreadPoolExecutor] = {}
_errand: ContextVar[_Errand | None] = ContextVar("_errand", default=None)
# The calls that contain the running code, on any thread.
_calls: ContextVar[tuple[_GateCall, ...]] = ContextVar("_calls", default=())


class _Errand:
    """A call in a thread for an async caller; its async hooks run on the caller's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, outer: _Errand | None) -> None:
        self.loop = loop
        self.depth: int = 0 if outer is None or outer.is_over else outer.depth + 1
        self.is_over: bool = False
        self._is_cancelled = False
        self._answers: set[Future[Any]] = set()

    def waits_for(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self.loop is loop and not all(answer.done() for answer in tuple(self._answers))

    def cancel(self) -> None:
        """Stop waiting for hooks, because the async caller was cancelled."""
        self._is_cancelled = True
        for answer in tuple(self._answers):
            answer.cancel()

    def check(self) -> None:
        if self._is_cancelled:
            import asyncio  # noqa: PLC0415 # loaded already

            raise asyncio.CancelledError

    def result_of(self, value: Awaitable[Any], seconds: float) -> Any:
        import asyncio  # noqa: PLC0415 # loaded already
        from concurrent.futures import CancelledError  # noqa: PLC0415 # asyncio has loaded it

        answer = asyncio.run_coroutine_threadsafe(asyncio.wait_for(value, None), self.loop)
        self._answers.add(answer)
        try:
            self.check()
            return answer.result(min(seconds, threading.TIMEOUT_MAX))
        except CancelledError:
            self.check()
            raise
        finally:
            answer.cancel()
            self._answers.discard(answer)


class _GateCall(Struct, eq=False):
    """A call that entered a gate.

    Attributes:
        errand: the async caller's errand, None for a sync caller.
        hook_deadlines: deadlines of the hooks that it waits for.
        waits_at: the gate that it waits for.
        is_over: whether it has ended; threads that it started may still run.
    """

    gate: Gate
    errand: _Errand | None
    thread: int = field(default_factory=threading.get_ident)
    hook_deadlines: list[float] = field(default_factory=list)
    waits_at: Gate | None = None
    is_over: bool = False

    def is_stuck(self) -> bool:
        deadlines = tuple(self.hook_deadlines)
        return bool(deadlines) and time.monotonic() > max(deadlines)

    def waits_for(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether it waits for a hook on `loop`, directly or through other calls."""
        call: _GateCall | None = self
        for _ in range(_LINKS):
            if call is None:
                return False
            if call.errand is not None and call.errand.waits_for(loop):
                return True
            call = None if call.waits_at is None else call.waits_at.holder
        return False


class Gate:
    """Admits the calls of one object; those that change its data run one at a time.

    Messages name it as `subject`. A forked child calls `on_cut` if another thread of the parent had a call
    inside. The `holder` is the call that has exclusive access.
    """

    def __init__(self, subject: str, on_cut: Callable[[], None] | None = None) -> None:
        self.holder: _GateCall | None = None
        self._subject = subject
        self._on_cut = on_cut
        self._lock = threading.Lock()
        renew_in_child(self)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Enter as a call.

        Raises `ConfigError` if a hook or listener of a call, or a thread that one started, enters the same
        gate: it would wait for itself or recurse for ever.
        """
        outer = _calls.get()
        if any(call.gate is self and not call.is_over for call in outer):
            raise ConfigError(
                f"a hook or listener must not use the {self._subject} that calls it; "
                "have it note the work, and do that after the call"
            )
        call = _GateCall(self, _errand.get())
        token = _calls.set((*outer, call))
        try:
            yield
        finally:
            call.is_over = True
            _calls.reset(token)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Take exclusive access, inside `entered`; others wait.

        Raises `ConfigError` if the call that has access can never end.
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
        """Take exclusive access if it is free, and yield whether it was. Never wait or raise."""
        is_alone = self._lock.acquire(blocking=False)
        try:
            yield is_alone
        finally:
            if is_alone:
                self._leave()

    def renew(self) -> None:
        """Keep the access of the thread that forked, and release that of any other."""
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
            while not self._lock.acquire(timeout=_CHECK_SECONDS if loop is None else _LOOP_CHECK_SECONDS):
                self._check_wait(loop)
        finally:
            for call in calls:
                call.waits_at = None

    def _check_wait(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Raise if the wait can never end, or if the async caller was cancelled."""
        errand, holder = _errand.get(), self.holder
        if errand is not None:
            errand.check()
        if holder is None:
            return
        if loop is not None and holder.waits_for(loop):
            raise ConfigError(
                f"another call of this {self._subject} waits for an async hook on this thread's event loop; "
                "await the async form of this call"
            )
        if holder.is_stuck():
            raise ConfigError(
                f"a hook in another call of this {self._subject} exceeded its time limit; "
                "make the hook return or fail sooner"
            )

    def _leave(self) -> None:
        self.holder = None
        self._lock.release()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `function`, run in a thread; its async hooks run on the waiting loop.

    The thread is not from the loop's own pool, which hooks may need. A cancelled call stops waiting for hooks
    and gates, but finishes a write that it has begun.
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


def as_async(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the async form of a method: it runs in a thread, and async hooks run on the caller's loop."""

    @wraps(method)
    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By name: a subclass may have its own.
        call: Callable[P, T] = getattr(self, method.__name__)
        return await in_thread(call, *args, **kwargs)

    run.__name__ = f"a{method.__name__}"
    run.__qualname__ = method.__qualname__.removesuffix(method.__name__) + run.__name__
    run.__doc__ = f"Run `{method.__name__}` in a thread; async hooks run on this loop."
    return run


def call_hook(function: Callable[..., Any], *args: Any, seconds: float) -> Any:
    """Return the result of a hook; an async one may take so many seconds.

    A plain hook cannot be interrupted, but no other call waits for one that takes longer.

    Raises:
        ConfigError: the hook is async, and this thread runs an event loop.
        HookTimeoutError: the hook took longer.
        asyncio.CancelledError: the async caller was cancelled.
    """
    with host_code(seconds):
        value = function(*args)
        return _resolve_hook(value, seconds) if inspect.isawaitable(value) else value


@contextmanager
def host_code(seconds: float) -> Iterator[None]:
    """Run code of the caller in a block; calls that wait for this one are refused once it takes longer.

    It may wait for one of them, and then both would wait for ever.
    """
    calls = _calls.get()
    until = time.monotonic() + seconds
    for call in calls:
        call.hook_deadlines.append(until)
    try:
        yield
    finally:
        for call in calls:
            call.hook_deadlines.remove(until)


def _resolve_hook(value: Awaitable[Any], seconds: float) -> Any:
    with NO_FORK:
        import asyncio  # noqa: PLC0415 # 28 ms that only async hooks pay

    if _running_loop() is not None:
        if inspect.iscoroutine(value):
            value.close()
        raise ConfigError(
            "an async hook cannot run in a thread that runs an event loop; "
            "await the async method, such as aoffload() or abefore_model_call()"
        )
    errand, until = _errand.get(), time.monotonic() + seconds
    try:
        if errand is None or errand.loop.is_closed():
            return asyncio.run(asyncio.wait_for(value, seconds))
        return errand.result_of(value, seconds)
    except TimeoutError:
        if time.monotonic() < until:
            raise
        raise HookTimeoutError(f"an async hook did not return within {seconds:g} s") from None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    if "asyncio" not in sys.modules:
        return None
    import asyncio  # noqa: PLC0415 # loaded already if a loop runs

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _pool(depth: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 # only async callers need it

    pool = _pools.get(depth)
    return pool or _pools.setdefault(depth, ThreadPoolExecutor(_POOL_THREADS, f"offload-{depth}"))


def _leave_calls() -> None:
    """Keep only the calls of the thread that forked, in a forked child."""
    _pools.clear()
    for call in _calls.get():
        call.is_over = call.thread != threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_calls)
