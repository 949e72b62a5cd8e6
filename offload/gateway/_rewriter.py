"""Replaces old large results in requests: the conversations of a gateway, and one offloader for each."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from math import inf
from typing import Any, Literal, NamedTuple, TypeVar, TypeVarTuple

from offload.engine.failures import AboveCeilingError
from offload.engine.refusals import BoundRefusal
from offload.engine.results import OffloadResult, Remembered
from offload.errors import OffloadError, StoreError, StoreUnavailableError
from offload.events.observer import error_text
from offload.gateway._clock import Held, StoreClock
from offload.gateway._journals import ConversationJournal, JournalQueue
from offload.gateway._requests import (
    MAX_WAIT,
    READ_BACK,
    Api,
    ElsewhereError,
    NotRecalledError,
    Received,
    Request,
    Thread,
    changed,
    conversation_of,
    read_request,
)
from offload.gateway._sent import Place, SentStore
from offload.gateway._status import NOTHING_DUE, Status
from offload.messages import Usage
from offload.messages.base import Block
from offload.messages.thinking import bare_of, content_digest, signed_thinking
from offload.messages.usage import usage_of
from offload.offloader import Offloader
from offload.policy import CacheModel, OffloadPolicy
from offload.policy.cache import CACHES
from offload.policy.defaults import NEVER
from offload.record import RecordInfo

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Coding agents mark the ends of their last two requests.
_MARKS = 2
# The store holds a request up no longer, and the work of others neither.
DEADLINE = 1.0
# One with signed thinking waits longer: what is not replaced now never is, or the thinking after it is lost.
# So does one whose own work takes long, as on a busy machine.
BOUND_DEADLINE = 10.0
_QUEUE_SECONDS = 10.0
# Of work that the store may hold up, of work behind the replies, and of reading.
_THREADS, _SPARE, _READERS = 4, 4, 2
# A check of the records that takes longer than so many seconds is repeated after so many times as long.
_CHECK_SECONDS, _CHECK_SHARE = 0.1, 50
# Bodies of the conversations that are held in memory, and the least that one counts.
_MOST_BYTES, _LEAST_BYTES = 256 * 1024 * 1024, 64 * 1024
NO_READ_BACK = (
    f"requests without a tool whose name ends in {READ_BACK} pass unchanged, since the model could not read "
    "back what is replaced. Add `offload mcp` to the client, see docs/gateway.md"
)
ABOVE_CEILING = (
    "texts above max_view_tokens were sent in full: they are kept by the policy, or could not be stored"
)
ELSEWHERE = (
    "requests that continue a conversation which the provider keeps pass unchanged, unless this process saw "
    "its beginning in a message thread, see docs/gateway.md"
)
# The model's reply, for a look at what the next request replaces.
_REPLY = {"role": "assistant", "content": ""}
_SLOW = "the store is slow"
NO_TOOLS_NOW = "without the tools of its conversation"
NOT_RECALLED = "the store did not say in time what was sent before"
# Who answers the model's calls of the retrieval tools: the gateway, unless the client has them; the client
# alone; nobody.
ToolsMode = Literal["gateway", "client", "none"]


class _UnchangedError(Exception):
    """Nothing more is replaced in a request; the text says why.

    It passes as the client has it, unless its model binds thinking to what was sent.
    """


class _SlowError(Exception):
    """The store is slow: a request has what was replaced before, and nothing more."""


class Sent(NamedTuple):
    """A request that the provider accepted: the views of its messages, and these as they were sent."""

    views: Sequence[Any]
    messages: Sequence[Any]

    def common(self, views: Sequence[Any]) -> int:
        """Return how many messages at the beginning are the same."""
        differs = (i for i in changed(self.views, views) if not _is_same(self.views[i], views[i]))
        return next(differs, min(len(self.views), len(views)))

    def repeated(self, views: Sequence[Any]) -> list[Any]:
        """Return messages with what was replaced in them before, also behind one that the client changed."""
        common = self.common(views)
        sent = zip(self.views, self.messages, views[:common], strict=False)
        repeated = [now if message is view else message for view, message, now in sent]
        if common == len(self.views):
            return [*repeated, *views[common:]]
        moved = {
            content_digest(view): (view, message)
            for view, message in zip(self.views[common:], self.messages[common:], strict=True)
            if message is not view
        }
        pairs = ((view, moved.get(content_digest(view))) for view in views[common:])
        later = (pair[1] if pair is not None and pair[0] == view else view for view, pair in pairs)
        return [*repeated, *later]

    def broken(self, views: Sequence[Any], messages: Sequence[Any]) -> int | None:
        """Return the first message whose thinking followed other messages than these, None without one.

        The last one that can be is the reply to this request.
        """
        common = self.common(views)
        others = takewhile(lambda i: i < common, changed(self.messages, messages))
        first = next((i for i in others if not _is_same(self.messages[i], messages[i])), None)
        end = min(common + (common == len(self.views)), len(messages))
        later = range(end if first is None else first, end)
        return next((i for i in later if signed_thinking(messages[i])), None)


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation of a client, in memory.

    Attributes:
        size: bytes of its latest request.
        lock: held by the one request that is being rewritten.
        began: when that began, if it has not ended; others pass while it takes too long.
        sent: the request that the provider accepted last; None if only the store knows what was sent.
        refused: keys of thinking that is left out, and that the store has not taken yet.
        thread: the id of the reply that the next request continues, if the provider keeps the conversation.
        journal: keeps its requests; None if the gateway keeps no journals.
        checking: looks whether the records behind its placeholders are there still.
        is_check_late: whether an answer waited for that and passed without it.
        next_check: when that may begin again, by a monotonic clock.
        recalled: gets the messages of a request with all that was replaced before, in a thread.
    """

    place: Place
    offloader: Offloader
    size: int = 0
    latest: Request | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    began: float = inf
    sent: Sent | None = None
    refused: set[str] = field(default_factory=set)
    checking: asyncio.Task[None] | None = None
    is_check_late: bool = False
    next_check: float = 0.0
    recalled: Callable[[OffloadResult], None] | None = None
    thread: str = ""
    journal: ConversationJournal | None = None

    def __post_init__(self) -> None:
        self.offloader.on_recalled = self.note_recalled

    def note_recalled(self, result: OffloadResult) -> None:
        """Pass on what was replaced before in the request that is being rewritten."""
        if self.recalled is not None:
            self.recalled(result)

    def may_bind(self, request: Request) -> bool:
        """Return whether the model of a request may refuse thinking after a changed message."""
        return self.offloader.policy.may_bind(request.model)

    def is_forgotten(self, request: Request) -> bool:
        """Return whether only the store knows what was replaced before in a request."""
        return self.sent is None and request.last_reply >= 0

    def seconds(self, request: Request) -> float:
        """Return how long a request waits for the store to take what is new.

        One that this process has not seen may have much that is new.
        """
        is_signed = self.may_bind(request) and bool(request.signed)
        is_long = is_signed or request.is_threaded or self.is_forgotten(request)
        return BOUND_DEADLINE if is_long else DEADLINE


@dataclass(slots=True)
class _Found:
    """The facts of a request while it is rewritten.

    Attributes:
        recalled: its messages with all that was replaced before, once the store said what that is.
    """

    request: Request | None = None
    conversation: Conversation | None = None
    recalled: OffloadResult | None = None

    def repeated(self, reason: str, *, if_bound: bool) -> Rewritten | None:
        """Return the request with nothing replaced but what was before; None if it just passes.

        It does if its conversation is not in memory; and `if_bound`, if its model binds no thinking.
        """
        request, conversation = self.request, self.conversation
        if request is None or conversation is None or (if_bound and not conversation.may_bind(request)):
            return None
        if self.recalled is not None:
            return _rewritten(conversation, request, self.recalled, reason)
        return _as_before(conversation, request, reason)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A request on its way to the provider.

    Attributes:
        conversation: None if the request passed without a look at its messages.
        request: the request of the client, and `messages` its messages as they are sent.
        records: those of what is replaced, and `tokens_removed` what that frees.
        reason: why nothing is replaced now; empty if something is.
        refused: keys of the thinking that is removed since the provider refused it.
        result: the messages with their tokens, for the journal; None if their tokens are not known.
    """

    body: bytes
    conversation: Conversation | None = None
    request: Request | None = None
    messages: Sequence[Any] = ()
    records: Sequence[RecordInfo] = ()
    tokens_removed: int = 0
    reason: str = ""
    refused: frozenset[str] = frozenset()
    result: OffloadResult | None = None

    @property
    def is_threaded(self) -> bool:
        """Whether the provider keeps the conversation from this request on."""
        return self.request is not None and self.request.is_threaded


class Rewriter:
    """Replaces the old large results in requests; its arguments are those of `gateway_app`."""

    def __init__(
        self,
        offloader: Offloader,
        status: Status,
        sent: SentStore,
        *,
        tools: ToolsMode,
        max_wait: float = MAX_WAIT,
    ) -> None:
        self._offloader = offloader
        self._clock = StoreClock(offloader.store)
        self._sent = sent
        self._max_wait = max_wait
        self._status = status
        self._needs_read_back = tools != "none"
        self._conversations: OrderedDict[Place, Conversation] = OrderedDict()
        self._hints: dict[tuple[str | None, ...], Place] = {}
        # Conversations that the provider keeps, by their session and the id of the latest reply.
        self._kept_elsewhere: defaultdict[str, dict[str, Thread]] = defaultdict(dict)
        self._size = 0
        self._threads = ThreadPoolExecutor(_THREADS + _SPARE, "offload-gateway")
        self._readers = ThreadPoolExecutor(_READERS, "offload-gateway-read")
        self._turns, self._spare = asyncio.Semaphore(_THREADS), asyncio.Semaphore(_SPARE)
        self._late = 0
        self._background: set[asyncio.Task[None]] = set()
        self._journals = JournalQueue(status)

    async def rewrite(self, received: Received) -> Rewritten:
        """Return the request to send; with the same body if nothing is replaced or anything fails.

        What was replaced before is replaced again, also if the store is slow or fails. Raises
        `NotRecalledError` if the store does not say in time what that is.
        """
        found = _Found()
        try:
            rewritten = await self._renewed(found, received)
        except NotRecalledError:
            self._status.passed(NOT_RECALLED)
            raise
        except Exception as error:  # noqa: BLE001 # a request is sent in any case
            reason = self._reason(error)
            if_bound = isinstance(error, _UnchangedError) and not received.lacks_tools
        else:
            self._note(rewritten)
            return rewritten
        self._status.passed(reason)
        again = await self._reading(partial(found.repeated, reason, if_bound=if_bound))
        return again or Rewritten(received.body, reason=reason)

    async def _renewed(self, found: _Found, received: Received) -> Rewritten:
        """Return a request with what is new replaced too. Raises any error, see `_find` and `_in_time`.

        One without the tools that its conversation has gets only what was sent before.
        """
        conversation, request = await self._find(found, received)
        if not received.lacks_tools:
            return await self._in_time(found, conversation, request)
        if conversation.is_forgotten(request):
            await self._in_time(found, conversation, request)
        raise _UnchangedError(NO_TOOLS_NOW)

    async def counted(self, received: Received) -> Rewritten:
        """Return a request whose tokens are counted, with what was replaced before in front of thinking."""
        found, reason = _Found(), "tokens are counted"
        with suppress(Exception):
            await self._read(found, received)
        again = await self._reading(partial(found.repeated, reason, if_bound=not received.lacks_tools))
        return Rewritten(received.body if again is None else again.body, reason=reason)

    async def _read(self, found: _Found, received: Received) -> tuple[Request, Place]:
        """Read a request; return it and the place of its conversation, which may be in memory.

        Raises `_UnchangedError`, or any other error.
        """
        session = received.session
        hinted = self._hints.get(received.hint)
        held = None if hinted is None else self._conversations.get(hinted)
        before = None if held is None else held.latest
        threads = self._kept_elsewhere.get(session)
        try:
            request = await self._reading(read_request, received.body, received.api, before, threads)
        except ElsewhereError:
            self._status.say_once(ELSEWHERE)
            raise _UnchangedError("the provider keeps the conversation") from None
        if request is None:
            raise _UnchangedError("without tools or messages")
        request.left_out = received.left_out
        place = Place(session, conversation_of(request, received.headers))
        found.request, found.conversation = request, self._conversations.get(place)
        return request, place

    async def _find(self, found: _Found, received: Received) -> tuple[Conversation, Request]:
        """Read a request and find its conversation. Raises `_UnchangedError`, or any other error."""
        request, place = await self._read(found, received)
        can_leave = request.can_read_back or received.lacks_tools or not self._needs_read_back
        # Thinking may be refused in any request: its client may have changed a message before it.
        if can_leave or self._offloader.policy.may_bind(request.model):
            self._hints[received.hint] = place
            found.conversation = self._conversation(place, request, received.api, len(received.body))
        if not can_leave or found.conversation is None:
            self._status.say_once(NO_READ_BACK)
            raise _UnchangedError("without tools to read back")
        return found.conversation, request

    def _reason(self, error: Exception) -> str:
        """Return why a request passes after `error`, and note it."""
        if isinstance(error, _UnchangedError):
            return str(error)
        if isinstance(error, TimeoutError | _SlowError):
            self._status.count("late", int(isinstance(error, TimeoutError)))
            self._status.say_once(f"nothing new is replaced while the store takes longer than {DEADLINE:g} s")
            return _SLOW
        if isinstance(error, ValueError | RecursionError):
            return "not understood"
        text = error_text(error) if isinstance(error, OffloadError) else type(error).__name__
        self._status.failed(f"a request passed unchanged: {text}")
        return "failed"

    def _note(self, request: Rewritten) -> None:
        for problem in () if request.request is None else request.request.problems:
            self._status.failed(problem)
        if request.reason:
            self._status.passed(request.reason)
            return
        self._status.count("rewritten")
        self._status.count("results_replaced", len(request.records))
        self._status.count("tokens_removed", request.tokens_removed)

    @property
    def timelines(self) -> frozenset[str]:
        """The sessions with the timelines that were written."""
        return frozenset(self._journals.sessions)

    async def close(self) -> None:
        """Start no more work, and write what the journals wait for."""
        await self._journals.close()
        for work in self._background:
            work.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def repaired(self, request: Rewritten, refusal: BoundRefusal) -> Rewritten | None:
        """Return a refused request without the thinking from the first refused message on.

        None if it has none there, or if its client lets the provider drop it.
        """
        read = request.request
        # Messages that the provider keeps cannot be changed.
        if request.conversation is None or read is None or read.drops_thinking or read.first:
            return None
        return await self._reading(_without_thinking_from, request, refusal.first or 0)

    async def accepted(self, request: Rewritten) -> None:
        """Note that the provider accepted a request, before its answer reaches the client."""
        conversation, read = request.conversation, request.request
        if conversation is None or read is None:
            return
        if conversation.checking is not None and not conversation.is_check_late:
            try:
                await _waited(conversation.checking, DEADLINE)
            except TimeoutError:
                conversation.is_check_late = True
        conversation.sent = Sent(read.views, request.messages)
        if not request.refused:
            return
        conversation.refused |= request.refused
        self._status.count("thinking_removed", len(request.refused))
        self._status.say_once(
            f"the provider refused thinking after a changed message in conversation "
            f"{conversation.place.name}: "
            f"{len(request.refused)} blocks are left out from now on"
        )
        with suppress(TimeoutError, RuntimeError):
            async with asyncio.timeout(DEADLINE):
                await asyncio.shield(asyncio.ensure_future(self._remember(conversation, read.views)))

    async def _remember(self, conversation: Conversation, views: Sequence[Any]) -> None:
        async with self._spare, conversation.lock:
            await self._in_thread(self._store_refused, conversation, views)

    def forget(self, request: Rewritten | None) -> None:
        """Drop a conversation from memory whose reply failed: the next request does not continue this one."""
        conversation = None if request is None else request.conversation
        if conversation is not None and self._conversations.get(conversation.place) is conversation:
            self._drop(conversation.place)

    def check(self, request: Rewritten) -> None:
        """Look, while the provider answers, whether the records behind the placeholders are there."""
        conversation = request.conversation
        is_due = conversation is not None and time.monotonic() >= conversation.next_check
        if conversation is None or not request.records or not is_due:
            return
        if conversation.sent is None:
            # The request was rewritten by a listing that has just been made.
            return
        if conversation.checking is None or conversation.checking.done():
            conversation.is_check_late = False
            conversation.checking = self._in_background(self._checked(conversation))

    async def _checked(self, conversation: Conversation) -> None:
        async with self._spare, conversation.lock:
            began = time.monotonic()
            with suppress(RuntimeError):  # The gateway stops.
                await self._in_thread(self._store_again, conversation)
            took = time.monotonic() - began
            conversation.next_check = began + (took * _CHECK_SHARE if took > _CHECK_SECONDS else 0)

    def _store_again(self, conversation: Conversation) -> None:
        """Store deleted records again: the requests of the client have the originals."""
        try:
            self._status.count("stored_again", conversation.offloader.store_again())
        except Exception as error:  # noqa: BLE001 # an answer passes in any case
            self._status.lost("records could not be checked", error)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _store_refused(self, conversation: Conversation, views: Sequence[Any]) -> None:
        """Store the thinking that was refused, so that it is left out later; the next request tries again."""
        refused = conversation.refused
        held = [i for i, view in enumerate(views) if _has_any(view, refused)] if refused else []
        if not held:
            return
        try:
            conversation.offloader.remove_thinking(views[: held[-1] + 1], held[0])
            conversation.refused.clear()
        except OffloadError as error:
            self._status.lost("thinking that was refused is not stored", error)

    def replied(self, request: Rewritten | None, reply: Mapping[str, Any] | None) -> None:
        """Note the reply to a request, before the client has all of it, if the next may continue it."""
        if request is None or reply is None or request.conversation is None or request.request is None:
            return
        conversation, read = request.conversation, request.request
        name, content = reply.get("id"), reply.get("content")
        is_held = self._conversations.get(conversation.place) is conversation
        if not (read.is_threaded and is_held and isinstance(name, str) and isinstance(content, list)):
            return
        if name != conversation.thread:
            threads = self._kept_elsewhere[conversation.place.session]
            threads.pop(conversation.thread, None)
            message = {"role": "assistant", "content": content}
            threads[name] = read.continued(conversation.place.name, message)
            conversation.thread = name

    def answered(self, request: Rewritten, reply: Any) -> Usage | None:
        """Note the answer of the provider, with its usage if it has one; return the usage.

        What the next request is going to replace is stored now, while the client runs its tools, if this one
        lacks results already: then the model can read back, and the conversation is long enough. Where the
        reply may bind this request, the next one replaces nothing of it.
        """
        conversation, read = request.conversation, request.request
        if conversation is None or read is None:
            return None if reply is None else usage_of(reply)
        is_latest = conversation.latest is read and not self._spare.locked()
        if request.tokens_removed and is_latest and not conversation.may_bind(read):
            self._in_background(self._prepare(conversation, read))
        if request.records or request.reason == NOTHING_DUE:
            remembered = conversation.offloader.remembered(request.records)
            self._sent.note_records(conversation.place, remembered)
        if read.tails:
            self._in_background(self._keep_look_alikes(conversation, read))
        used = None if reply is None else conversation.offloader.report_usage(reply)
        if conversation.journal is not None and request.result is not None:
            self._journals.add(conversation.journal, read, request.result, used)
        return used

    async def _prepare(self, conversation: Conversation, request: Request) -> None:
        async with self._spare, conversation.lock:
            if conversation.latest is request:
                with suppress(RuntimeError):  # The gateway stops.
                    result = await self._in_thread(_offloaded, conversation, request, [_REPLY])
                    self._note_errors(result)

    async def _keep_look_alikes(self, conversation: Conversation, request: Request) -> None:
        """Store which texts of a request only look like placeholders; a later one with them tries again."""
        if not (texts := await self._reading(lambda: request.look_alikes)):
            return
        try:
            async with self._spare, conversation.lock:
                await self._in_thread(conversation.offloader.keep_look_alikes, texts)
        except OffloadError as error:
            self._status.failed(f"texts like placeholders are not stored: {error_text(error)}")
        except RuntimeError:  # The gateway stops.
            return

    async def _in_time(self, found: _Found, conversation: Conversation, request: Request) -> Rewritten:
        """Rewrite a request when it is its turn.

        Raises `TimeoutError` if the store takes too long for what is new; it is stored later then. Raises
        `NotRecalledError` if it takes too long to say what was sent before, and any other error if the
        request is to pass.
        """
        is_forgotten = conversation.is_forgotten(request)
        until = time.monotonic() + self._max_wait
        await self._take_turn(is_forgotten=is_forgotten)
        recalled: asyncio.Future[OffloadResult] = asyncio.get_running_loop().create_future()
        held, seconds = Held(self._clock), conversation.seconds(request)
        most = self._max_wait if is_forgotten else max(seconds, BOUND_DEADLINE)
        work = asyncio.ensure_future(self._turn(conversation, request, held, recalled))
        work.add_done_callback(lambda _: self._turns.release())
        try:
            result = await held.waited(work, seconds, most)
        except TimeoutError:
            if is_forgotten:
                await _until_first(work, recalled, until)
            result = await _waited(work, 0)
        finally:
            found.recalled = recalled.result() if recalled.done() else None
            if not work.done():
                self._late += 1
                work.add_done_callback(self._ended_late)
        if is_forgotten and not recalled.done() and _is_unavailable(result):
            raise NotRecalledError
        return await self._reading(_rewritten, conversation, request, result)

    async def _take_turn(self, *, is_forgotten: bool) -> None:
        """Wait until the work of a request may begin. Raises `_SlowError` or `NotRecalledError`."""
        if self._late >= _THREADS and not is_forgotten:
            raise _SlowError
        try:
            async with asyncio.timeout(self._max_wait if is_forgotten else _QUEUE_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise NotRecalledError if is_forgotten else _SlowError from None

    def _ended_late(self, work: asyncio.Future[Any]) -> None:
        self._late -= 1
        if not work.cancelled() and isinstance(error := work.exception(), OffloadError):
            self._status.failed(f"offloading failed: {error_text(error)}")

    async def _turn(
        self,
        conversation: Conversation,
        request: Request,
        held: Held,
        recalled: asyncio.Future[OffloadResult],
    ) -> OffloadResult:
        """Offload a request; `recalled` gets the result with what was replaced before alone."""
        is_forgotten = conversation.is_forgotten(request)
        if conversation.began < time.monotonic() - DEADLINE / 2 and not is_forgotten:
            raise _SlowError
        loop = asyncio.get_running_loop()

        def note(result: OffloadResult) -> None:
            loop.call_soon_threadsafe(_set_once, recalled, result)

        async with conversation.lock:
            conversation.began = time.monotonic()
            conversation.recalled = note
            try:
                if is_forgotten:
                    await self._remind(conversation)
                return await self._in_thread(self._offload, conversation, request, held)
            finally:
                conversation.began = inf
                conversation.recalled = None

    async def _remind(self, conversation: Conversation) -> None:
        """Let an offloader know the records that other processes sent, without a read of each."""
        with suppress(OffloadError):  # It reads it then.
            body = await self._sent.read(conversation.place)
            remembered = Remembered(body.heads, body.thinking)
            await self._in_thread(conversation.offloader.remember, remembered)

    async def _in_thread(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, function, *args)

    async def _reading(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        """Call a function that asks no store."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, function, *args)

    def _offload(self, conversation: Conversation, request: Request, held: Held) -> OffloadResult:
        """Offload what is due in a request. Runs in a thread."""
        held.begin()
        conversation.latest = request
        if conversation.may_bind(request):
            conversation.refused |= request.left_out
        if not conversation.is_forgotten(request):
            # Nothing is stored before it is known what was sent.
            self._store_refused(conversation, request.views)
        result = self._kept_valid(conversation, request, _offloaded(conversation, request))
        self._note_errors(result)
        return result

    def _kept_valid(
        self, conversation: Conversation, request: Request, result: OffloadResult
    ) -> OffloadResult:
        """Return a result without the thinking that was made behind other messages than it has.

        They were sent otherwise while the store was slow, or a record was deleted since.
        """
        if conversation.sent is None or not conversation.may_bind(request) or request.first:
            return result
        first = conversation.sent.broken(request.views, result.messages)
        if first is None:
            return result
        conversation.refused |= _keys(result.messages[first:])
        self._status.count("thinking_removed", len(conversation.refused))
        self._store_refused(conversation, request.views)
        return _offloaded(conversation, request)

    def _note_errors(self, result: OffloadResult) -> None:
        for error in result.errors:
            if isinstance(error, StoreError):
                self._status.lost("results are not replaced", error)
            elif isinstance(error, AboveCeilingError):
                # The reason in its text may name what the client calls its tools.
                self._status.say_once(ABOVE_CEILING)
            else:
                self._status.say_once(error_text(error))

    def _conversation(self, place: Place, request: Request, api: Api, size: int) -> Conversation:
        """Return a conversation; those that were not used for the longest time are dropped."""
        conversation = self._conversations.pop(place, None)
        if conversation is None:
            policy = policy_for(self._offloader.policy, api, lasts_an_hour=request.lasts_an_hour)
            if request.is_threaded:
                policy = policy.model_copy(update={"history": "append_only"})
            own = self._offloader.with_options(
                store=self._clock, session=place.session, policy=policy, on_error="keep", journal=False
            )
            conversation = Conversation(place, own)
            if self._offloader.options.journal:
                conversation.journal = ConversationJournal(self._offloader, *place)
                own.activity = conversation.journal.writer.activity
        self._conversations[place] = conversation
        size = max(size, _LEAST_BYTES) + (conversation.size if request.first else 0)
        self._size += size - conversation.size
        conversation.size = size
        while self._size > _MOST_BYTES and len(self._conversations) > 1:
            self._drop(next(iter(self._conversations)))
        return conversation

    def _drop(self, place: Place) -> None:
        dropped = self._conversations.pop(place)
        self._size -= dropped.size
        self._kept_elsewhere[place.session].pop(dropped.thread, None)
        if not self._kept_elsewhere[place.session]:
            del self._kept_elsewhere[place.session]
        self._hints = {hint: known for hint, known in self._hints.items() if known != place}


async def _waited(work: asyncio.Future[T], seconds: float) -> T:
    """Return what `work` returns, or raise `TimeoutError`; it continues then."""
    async with asyncio.timeout(seconds):
        return await asyncio.shield(work)


def _set_once(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


async def _until_first(work: asyncio.Future[Any], recalled: asyncio.Future[Any], until: float) -> None:
    """Wait until one of two futures is done. Raises `NotRecalledError` if none is at a time."""
    seconds = max(0.0, until - time.monotonic())
    await asyncio.wait((work, recalled), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if not (work.done() or recalled.done()):
        raise NotRecalledError


def _offloaded(conversation: Conversation, request: Request, more: Sequence[Any] = ()) -> OffloadResult:
    return conversation.offloader.offload([*request.views, *more], model=request.model)


def _rewritten(
    conversation: Conversation, request: Request, result: OffloadResult, reason: str = ""
) -> Rewritten:
    """Return a request with the messages of a result, but for what the model has not seen."""
    messages = _without(request.held_back(result.messages, _unseen(request, result)), conversation.refused)
    body = request.with_messages(messages)
    # The engine continues with its own list of errors.
    sent = None if conversation.journal is None else replace(result, messages=[*messages], errors=[])
    if request.is_changed:
        freed, records = result.tokens_before - result.tokens_after, result.records
        return Rewritten(body, conversation, request, messages, records, freed, reason=reason, result=sent)
    has_failed = any(isinstance(error, StoreError) for error in result.errors)
    reason = reason or ("the store failed" if has_failed else NOTHING_DUE)
    return Rewritten(body, conversation, request, messages, reason=reason, result=sent)


def _is_unavailable(result: OffloadResult) -> bool:
    return any(isinstance(error, StoreUnavailableError) for error in result.errors)


def _as_before(conversation: Conversation, request: Request, reason: str) -> Rewritten:
    """Return a request with nothing replaced but what was before."""
    sent = conversation.sent
    repeated = request.views if sent is None else sent.repeated(request.views)
    messages = _without(repeated, conversation.refused | request.left_out)
    body = request.with_messages(messages)
    return Rewritten(body, conversation, request, messages, reason=reason)


def _without_thinking_from(request: Rewritten, first: int) -> Rewritten | None:
    read, refused = request.request, _keys(request.messages[first:])
    if read is None or not refused:
        return None
    messages = _without(request.messages, refused)
    result = request.result and replace(request.result, messages=list(messages))
    body = read.with_messages(messages)
    return replace(request, body=body, messages=messages, refused=refused, result=result)


def _without(messages: Sequence[Any], refused: Collection[str]) -> Sequence[Any]:
    """Return messages without some of their thinking."""
    return [bare_of(message, refused) for message in messages] if refused else messages


def _keys(messages: Sequence[Any]) -> frozenset[str]:
    return frozenset(one.key for message in messages for one in signed_thinking(message))


def _has_any(message: Any, keys: Collection[str]) -> bool:
    return any(one.key in keys for one in signed_thinking(message))


def _is_same(one: Any, other: Any) -> bool:
    """Return whether the model reads the same in two messages."""
    if one == other:
        return True
    # A content may be a text or one block of text.
    forms = {type(message.get("content")) for message in (one, other)}
    return forms == {str, list} and content_digest(one) == content_digest(other)


def _unseen(request: Request, result: OffloadResult) -> set[tuple[int, Block]]:
    """Return the items that were prepared for the next request, by message and block, and are in this one.

    The client repeats a request, or the user writes before the model replies.
    """
    last = request.last_reply
    return {
        (decision.item.message, decision.item.block)
        for decision in result.decisions
        if decision.item.message > last and decision.ref is not None and decision.item.answers > 0
    }


def policy_for(policy: OffloadPolicy, api: Api, *, lasts_an_hour: bool = False) -> OffloadPolicy:
    """Return a policy for requests that a client made: tool results and arguments, once the model saw them.

    All else of the client is text of a user: its instructions, its summaries and what the user wrote. Only
    the ceiling counts for that. Arguments that may be signed are kept.
    `lasts_an_hour` says whether the requests ask for a prompt cache of an hour.
    """
    hour = f"{api.cache}-1h"
    known = hour if lasts_an_hour and hour in CACHES else api.cache
    cache = CacheModel.preset(known) if policy.cache == CacheModel() else policy.cache
    cache = cache.model_copy(update={"marks": cache.marks or _MARKS})
    seen = policy.once_seen()
    types = {**seen.types, "tool_call": NEVER} if api.signs_calls else seen.types
    return seen.model_copy(update={"cache": cache, "types": types})
