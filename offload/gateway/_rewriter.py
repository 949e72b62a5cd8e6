"""Requests without their old large results: the conversations of a gateway, and one offloader for each."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar, TypeVarTuple

from offload.engine.results import OffloadResult
from offload.errors import OffloadError, StoreError
from offload.gateway._requests import READ_BACK, Api, Request, conversation_of, hint_of, read_request
from offload.gateway._status import Status
from offload.messages import Block, Usage, usage_of
from offload.offloader import Offloader
from offload.policy import CACHES, CacheModel, OffloadPolicy

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# A request waits no longer for its own work, which the store may hold up, and for that of others.
DEADLINE = 1.0
_QUEUE_SECONDS = 10.0
_THREADS, _SPARE = 4, 1
# Bodies of the conversations that are held in memory, and the least that one counts.
_MOST_BYTES, _LEAST_BYTES = 256 * 1024 * 1024, 64 * 1024
NO_READ_BACK = (
    f"requests without a tool whose name ends in {READ_BACK} pass unchanged, since the model could not read "
    "back what is replaced. Add `offload mcp` to the client, see docs/gateway.md"
)
# The model's reply, for a look at what the next request replaces.
_REPLY = {"role": "assistant", "content": ""}
_SLOW = "the store is slow"


class _UnchangedError(Exception):
    """A request passes unchanged; the text says why."""


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation of a client, in memory.

    Attributes:
        size: bytes of its latest request.
        lock: held by the one request that is being rewritten.
        began: when that began, if it has not ended; others pass while it takes too long.
    """

    name: str
    offloader: Offloader
    size: int = 0
    latest: Request | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    began: float = inf


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A request on its way to the provider.

    Attributes:
        conversation: None if the request passed without a look at its messages.
        views: its messages as the engine saw them.
        replaced: number of results that are replaced, and `tokens_removed` what that frees.
        reason: why it passes unchanged; empty if it does not.
    """

    body: bytes
    conversation: Conversation | None = None
    views: Sequence[Any] = ()
    replaced: int = 0
    tokens_removed: int = 0
    reason: str = ""


class Rewriter:
    """Replaces the old large results in requests; its arguments are those of `gateway_app`."""

    def __init__(self, offloader: Offloader, status: Status, *, needs_read_back: bool = True) -> None:
        self._offloader = offloader
        self._status = status
        self._needs_read_back = needs_read_back
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._hints: dict[tuple[str | None, ...], str] = {}
        self._size = 0
        self._threads = ThreadPoolExecutor(_THREADS + _SPARE, "offload-gateway")
        self._turns, self._spare = asyncio.Semaphore(_THREADS), asyncio.Semaphore(_SPARE)
        self._late = 0
        self._preparing: set[asyncio.Task[None]] = set()

    async def rewrite(self, body: bytes, api: Api, headers: Mapping[str, str]) -> Rewritten:
        """Return the request to send; `body` itself if nothing is replaced or anything fails."""
        try:
            rewritten = await self._in_time(lambda: self._rewritten(body, api, headers))
        except _UnchangedError as why:
            reason = str(why)
        except TimeoutError:
            self._status.count("late")
            self._status.say_once(f"requests pass unchanged while the store takes longer than {DEADLINE:g} s")
            reason = _SLOW
        except (ValueError, RecursionError):
            reason = "not understood"
        except Exception as error:  # noqa: BLE001 # a request is sent in any case
            text = str(error) if isinstance(error, OffloadError) else type(error).__name__
            self._status.failed(f"a request passed unchanged: {text}")
            reason = "failed"
        else:
            self._note(rewritten)
            return rewritten
        self._status.passed(reason)
        return Rewritten(body, reason=reason)

    def _note(self, request: Rewritten) -> None:
        if request.reason:
            self._status.passed(request.reason)
            return
        self._status.count("rewritten")
        self._status.count("results_replaced", request.replaced)
        self._status.count("tokens_removed", request.tokens_removed)

    def close(self) -> None:
        """Start no more work."""
        for work in self._preparing:
            work.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def answered(self, request: Rewritten, reply: Any) -> Usage | None:
        """Note the answer of the provider, with its usage if it has one; return the usage.

        What the next request is going to replace is stored now, while the client runs its tools, if this one
        lacks results already: then the model can read back, and the conversation is long enough.
        """
        conversation = request.conversation
        if conversation is None:
            return None if reply is None else usage_of(reply)
        if request.tokens_removed and _is_latest(conversation, request.views) and not self._spare.locked():
            work = asyncio.ensure_future(self._prepare(conversation, request.views))
            self._preparing.add(work)
            work.add_done_callback(self._preparing.discard)
        return None if reply is None else conversation.offloader.report_usage(reply)

    async def _prepare(self, conversation: Conversation, views: Sequence[Any]) -> None:
        async with self._spare, conversation.lock:
            if _is_latest(conversation, views):
                with suppress(RuntimeError):  # The gateway stops.
                    result = await self._in_thread(conversation.offloader.offload, [*views, _REPLY])
                    self._note_errors(result)

    async def _in_time(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work when it is its turn. Raises `TimeoutError` if it takes too long; it ends later then."""
        if self._late >= _THREADS:
            raise _UnchangedError(_SLOW)
        async with asyncio.timeout(_QUEUE_SECONDS):
            await self._turns.acquire()
        work = asyncio.ensure_future(start())
        work.add_done_callback(lambda _: self._turns.release())
        try:
            async with asyncio.timeout(DEADLINE):
                return await asyncio.shield(work)
        finally:
            if not work.done():
                self._late += 1
                work.add_done_callback(self._ended_late)

    def _ended_late(self, work: asyncio.Future[Any]) -> None:
        self._late -= 1
        if not work.cancelled() and isinstance(error := work.exception(), OffloadError):
            self._status.failed(f"offloading failed: {error}")

    async def _rewritten(self, body: bytes, api: Api, headers: Mapping[str, str]) -> Rewritten:
        """Rewrite a request. Raises `_UnchangedError`, or any other error, if it is to pass."""
        hint = hint_of(headers, api)
        held = self._conversations.get(self._hints.get(hint, ""))
        request = await self._in_thread(read_request, body, api, None if held is None else held.latest)
        if request is None:
            raise _UnchangedError("without tools or messages")
        if self._needs_read_back and not request.can_read_back:
            self._status.say_once(NO_READ_BACK)
            raise _UnchangedError("without tools to read back")
        name = conversation_of(request, headers)
        self._hints[hint] = name
        conversation = self._conversation(name, request, api, len(body))
        if conversation.began < time.monotonic() - DEADLINE / 2:
            raise _UnchangedError(_SLOW)
        async with conversation.lock:
            conversation.began = time.monotonic()
            try:
                return await self._in_thread(self._offload, conversation, request)
            finally:
                conversation.began = inf

    async def _in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *args)

    def _offload(self, conversation: Conversation, request: Request) -> Rewritten:
        """Return a request without what its conversation offloads. Runs in a thread."""
        conversation.latest = request
        result = conversation.offloader.offload(request.views)
        self._note_errors(result)
        text = request.with_messages(result.messages, _unseen(request, result))
        for problem in request.problems:
            self._status.failed(problem)
        if text is request.text:
            has_failed = any(isinstance(error, StoreError) for error in result.errors)
            reason = "the store failed" if has_failed else "nothing to replace"
            return Rewritten(request.text.encode(), conversation, request.views, reason=reason)
        freed = result.tokens_before - result.tokens_after
        return Rewritten(text.encode(), conversation, request.views, len(result.records), freed)

    def _note_errors(self, result: OffloadResult) -> None:
        for error in result.errors:
            if isinstance(error, StoreError):
                self._status.failed(f"results are not replaced, since the store failed: {error}")
            else:
                self._status.say_once(str(error))

    def _conversation(self, name: str, request: Request, api: Api, size: int) -> Conversation:
        """Return a conversation; those that were not used for the longest time are dropped."""
        conversation = self._conversations.pop(name, None)
        if conversation is None:
            policy = policy_for(self._offloader.policy, api, lasts_an_hour=request.lasts_an_hour)
            conversation = Conversation(name, self._offloader.with_options(policy=policy, on_error="keep"))
        self._conversations[name] = conversation
        self._size += max(size, _LEAST_BYTES) - conversation.size
        conversation.size = max(size, _LEAST_BYTES)
        while self._size > _MOST_BYTES and len(self._conversations) > 1:
            _, oldest = self._conversations.popitem(last=False)
            self._size -= oldest.size
            self._hints = {hint: name for hint, name in self._hints.items() if name != oldest.name}
        return conversation


def _is_latest(conversation: Conversation, views: Sequence[Any]) -> bool:
    return conversation.latest is not None and conversation.latest.views is views


def _unseen(request: Request, result: OffloadResult) -> set[tuple[int, Block]]:
    """Return the items that were prepared for the next request, by message and block, and are in this one.

    The client repeats a request, or the user writes before the model replies.
    """
    last = request.last_reply
    return {
        (decision.item.message, decision.item.block)
        for decision in result.decisions
        if decision.ref is not None and decision.item.message > last and decision.item.answers > 0
    }


def policy_for(policy: OffloadPolicy, api: Api, *, lasts_an_hour: bool = False) -> OffloadPolicy:
    """Return a policy for requests that a client made: results of tools alone, once the model saw them.

    All else of the client is text of a user: its instructions, its summaries and what the user wrote.
    `lasts_an_hour` says whether the requests ask for a prompt cache of an hour.
    """
    hour = f"{api.cache}-1h"
    known = hour if lasts_an_hour and hour in CACHES else api.cache
    cache = CacheModel.preset(known) if policy.cache == CacheModel() else policy.cache
    return policy.once_seen().model_copy(update={"cache": cache})
