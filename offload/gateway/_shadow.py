"""Shadow requests: some of the requests that the gateway changed are sent again as the client had them.

After the client has its reply, the original request is sent twice. The next actions of the three replies
are compared, and stored in the session. No client waits for any of it: what is too much, too dear or fails is
left out and counted. The headers of the client, with its key, are in memory until the pair is done, and
nowhere else.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

from offload.errors import OffloadError
from offload.gateway._apis import CALLS_OF
from offload.gateway._exchange import Exchange, ReplyCopy, framed
from offload.gateway._headers import RawHeaders
from offload.gateway._incoming import Api
from offload.gateway._outgoing import Outgoing
from offload.gateway._parsed import Parsed
from offload.gateway._provider import Provider
from offload.gateway._sent import ThreadId
from offload.gateway._shadow_plan import ShadowPlan
from offload.gateway._shadow_replies import (
    BoundError,
    LostError,
    ReadReply,
    UnpaidError,
    dollars_of,
    most_dollars,
    read,
    without_thinking,
)
from offload.gateway._status import Status, logger
from offload.offloader import Offloader
from offload.replay import Agreement, PriceCard, Prices, Same, ShadowPair, pairs_in
from offload.replay._actions import hidden_items
from offload.replay._agreement import agreement_of
from offload.replay._pairs import name_of_policy, put_pair

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Drawn requests under way, the bytes of their bodies, and the pairs that are sent at once.
MOST_WAITING, MOST_BYTES, MOST_AT_ONCE = 8, 64 * 1024 * 1024, 2
# A pair takes no longer. After the provider limited one, none is drawn for so long: it limits the client.
PAIR_SECONDS, PAUSE_SECONDS = 300.0, 60.0
# Tools that the provider runs, and fields: they change something, or cost more than their tokens.
_EFFECTS = re.compile(r"mcp|code_?(execution|interpreter)|image_generation|container", re.IGNORECASE)
_LIMITED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE, 529)
_STOP_SECONDS = 1.0
# Replies in a row that only read items back, if the client answers them.
_MOST_ROUNDS = 20
_ORIGINALS = 2
# The youngest hidden items of a pair that are stored.
_MOST_HIDDEN = 100


class _ShadowRequest(NamedTuple):
    """A request as the client sent it."""

    scope: Mapping[str, Any]
    headers: RawHeaders
    body: bytes


@dataclass(slots=True, eq=False)
class _DrawnRequest:
    """A drawn request on its way to a pair.

    Attributes:
        outgoing: it, as the gateway sent it; `original` as the client did.
        session: the session of the pair.
        reading: held while a reply is read, so that replies are read in their order.
        rounds: how many replies were read.
        is_done: whether an action followed, or none can.
    """

    thread: ThreadId
    api: Api
    outgoing: Outgoing
    original: _ShadowRequest
    session: str
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    rounds: int = 0
    is_done: bool = False

    @property
    def model(self) -> str:
        parsed = self.outgoing.parsed
        return (parsed.model if parsed is not None else None) or ""


class Shadow:
    """Draws requests, sends their originals, and stores what came of it; called in the event loop alone."""

    def __init__(self, plan: ShadowPlan, provider: Provider, offloader: Offloader, status: Status) -> None:
        self._plan = plan
        self._provider = provider
        self._offloader = offloader
        self._status = status
        self._random = random.Random()  # noqa: S311 # a draw
        self._prices = Prices()
        self._policy = name_of_policy(offloader.policy)
        # Those whose action is not known yet by conversation, and all under way.
        self._open: dict[ThreadId, _DrawnRequest] = {}
        self._under_way: set[_DrawnRequest] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._storing: set[Future[None]] = set()
        self._turns = asyncio.Semaphore(MOST_AT_ONCE)
        self._thread = ThreadPoolExecutor(1, "offload-gateway-shadow")
        self._same: Counter[Same] = Counter()
        self._lost: Counter[str] = Counter()
        self._dollars = self._reserved = self._paused_until = 0.0
        self._ended = ""
        self._is_ready = False

    # Facts

    async def begin(self, session: str | None) -> None:
        """Read what the pairs of a session cost and showed: a new process continues its budgets.

        A plan that can stop offloading is waited for: the first request passes as the last one did.
        """
        reading = self._behind(self._read_stored(session))
        if self._plan.stop is not None:
            await reading

    async def _read_stored(self, session: str | None) -> None:
        try:
            if session is not None:
                for pair in await self._call(lambda: [*pairs_in(self._offloader.store, session)]):
                    self._count(pair)
        except OffloadError as error:
            self._status.lost("no shadow requests are sent: the pairs of the session cannot be read", error)
            return
        self._is_ready = True

    async def close(self) -> None:
        """Give what is under way a moment, and drop the rest; what was paid for is stored."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_SECONDS)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_SECONDS)
        # At their ends, those that had paid were stored.
        if storing := [*map(asyncio.wrap_future, [*self._storing])]:
            await asyncio.wait(storing, timeout=_STOP_SECONDS)
        self._thread.shutdown(wait=False)

    @property
    def agreement(self) -> Agreement:
        """The agreement of the pairs of the session so far."""
        return agreement_of(self._same.elements())

    def facts(self) -> dict[str, Any]:
        """Return what was sent, and what came of it, for JSON."""
        return {
            "pairs": self._same.total(),
            "lost": dict(self._lost.most_common()),
            "dollars": round(self._dollars, 6),
            "budget": self._plan.budget,
            "ended": self._ended or None,
        }

    # The way of a request

    def draw(self, exchange: Exchange) -> None:
        """Decide whether the reply to a request is copied: it is drawn, or continues a drawn one."""
        outgoing, api = exchange.outgoing, exchange.api
        if outgoing is None or outgoing.thread is None or api is None:
            return
        if (drawn := self._open.get(outgoing.thread.id)) is not None:
            if _continues(outgoing, drawn.outgoing):
                exchange.copy = ReplyCopy(drawn)
        elif self._is_open and _can_be_drawn(outgoing, api) and self._random.random() < self._plan.share:
            original = _ShadowRequest(exchange.scope, exchange.repeated_headers(), exchange.body.plain)
            new = _DrawnRequest(outgoing.thread.id, api, outgoing, original, exchange.session)
            if self._has_room(new):
                exchange.copy = ReplyCopy(new)
                self._open[new.thread] = new
                self._under_way.add(new)

    def replied(self, exchange: Exchange) -> None:
        """Take the copy of an answer, once the client has all of it or gets no more."""
        if exchange.copy is not None:
            self._behind(self._follow(exchange.copy.of, exchange.copy))

    @property
    def _is_open(self) -> bool:
        return self._is_ready and not self._ended and time.monotonic() >= self._paused_until

    def _has_room(self, new: _DrawnRequest) -> bool:
        """Return whether a request can wait; one whose client sends nothing more is dropped for it."""
        idle = [drawn for drawn in self._open.values() if drawn.rounds and not drawn.reading.locked()]
        while not self._fits(new):
            if not idle:
                self._lost["too many at once"] += 1
                return False
            self._settle(idle.pop(0), "the client sent nothing after a read-back")
        return True

    def _fits(self, new: _DrawnRequest) -> bool:
        size = sum(len(drawn.original.body) for drawn in (*self._under_way, new))
        return len(self._under_way) < MOST_WAITING and size <= MOST_BYTES

    async def _follow(self, drawn: _DrawnRequest, copy: ReplyCopy) -> None:
        """Compare a drawn request if its action is in a reply; else its client answers a read-back first."""
        async with drawn.reading:
            if drawn.is_done:
                return
            drawn.rounds += 1
            try:
                reply = await self._call(read, drawn.api, copy, self._redact)
            except Exception as error:  # noqa: BLE001 # also of a hook
                self._settle(drawn, _why(error))
                return
            if reply.action is None:
                if drawn.rounds == _MOST_ROUNDS:
                    self._settle(drawn, "the model reads back without end")
                return
            drawn.is_done = True
            del self._open[drawn.thread]
        try:
            async with self._turns:
                await self._compare(drawn, reply)
        except Exception as error:  # noqa: BLE001 # also of a hook
            self._settle(drawn, _why(error))
        finally:
            self._under_way.discard(drawn)

    def _settle(self, drawn: _DrawnRequest, why: str) -> None:
        """Drop a request that has no pair, and for which nothing was paid."""
        drawn.is_done = True
        # Behind its action, another one of the conversation may have been drawn.
        if self._open.get(drawn.thread) is drawn:
            del self._open[drawn.thread]
        self._under_way.discard(drawn)
        self._lost[why] += 1
        self._status.say_once(f"a drawn request was not sent again: {why}")

    async def _compare(self, drawn: _DrawnRequest, offloaded: ReadReply) -> None:
        """Send the originals, and store the pair or why there is none. Raises any error before it pays.

        A reply that was asked for and did not arrive costs its estimate, unless it was refused.
        """
        card, parsed = self._card(drawn.model), drawn.outgoing.parsed
        views = () if parsed is None else parsed.views
        hidden = await self._call(hidden_items, views, drawn.outgoing.messages, self._redact)
        most = self._most(card, offloaded.usage, drawn.outgoing.tokens_removed)
        pair = ShadowPair(self._offloader.options.clock(), drawn.model, self._policy, hidden[-_MOST_HIDDEN:])
        replies, unknown = list[ReadReply](), 0.0
        self._reserved += most
        try:
            pair = await self._pair(drawn, pair, offloaded, replies)
        except asyncio.CancelledError:
            pair, unknown = replace(pair, lost="the gateway stopped"), most / _ORIGINALS
            raise
        except UnpaidError as error:
            pair = replace(pair, lost=str(error))
        except Exception as error:  # noqa: BLE001 # of the connection, or of a hook
            pair, unknown = replace(pair, lost=_why(error)), most / _ORIGINALS
        finally:
            self._reserved -= most
            costs = [dollars_of(card, reply.usage) for reply in replies]
            self._keep(drawn.session, replace(pair, dollars=unknown + sum(cost or 0.0 for cost in costs)))
            if None in costs:
                self._end("a reply had no usage, so that its price is unknown")

    async def _pair(
        self, drawn: _DrawnRequest, pair: ShadowPair, offloaded: ReadReply, replies: list[ReadReply]
    ) -> ShadowPair:
        """Return a pair, complete; add each reply when it arrives. Raises any error of sending."""
        async with asyncio.timeout(PAIR_SECONDS):
            pair = replace(pair, is_bare=await self._ask(drawn, replies))
        three = (offloaded, *replies)
        compared = pair.compared(*(reply.action or reply.shown for reply in three))
        return compared.showing(*(reply.shown for reply in three))

    async def _ask(self, drawn: _DrawnRequest, replies: list[ReadReply]) -> bool:
        """Send the originals, and add the replies; return whether they had to be sent without thinking."""
        original, is_bare = drawn.original, False
        while len(replies) < _ORIGINALS:
            try:
                replies.append(await self._reply(drawn.api, original))
            except BoundError:
                if is_bare:
                    raise UnpaidError("the provider refuses the thinking in the original") from None
                body = await self._call(without_thinking, drawn.api, original.body)
                original, is_bare = original._replace(body=body), True
        return is_bare

    async def _reply(self, api: Api, original: _ShadowRequest) -> ReadReply:
        copy = ReplyCopy()
        async with self._provider.sent(original.scope, *framed(original.headers, original.body)) as answer:
            copy.begin(answer.status, answer.raw_headers)
            if answer.status in _LIMITED:
                self._paused_until = time.monotonic() + PAUSE_SECONDS
            async for chunk in answer.content.iter_any():
                copy.feed(chunk)
        copy.end()
        return await self._call(read, api, copy, self._redact)

    # Money and judgement

    def _card(self, model: str) -> PriceCard:
        """Return the prices of a model. Raises `LostError` if they are not known."""
        card = self._prices.of(model)[1] if model and self._prices.knows(model) else None
        if card is None or card.output is None:
            raise LostError("the price of the model is not known")
        return card

    def _most(self, card: PriceCard, used: Any, removed: int) -> float:
        """Return the dollars to reserve for a pair. Raises `LostError` if they are unknown, or not there."""
        most = _ORIGINALS * most_dollars(card, used, removed)
        if self._dollars + self._reserved + most > self._plan.budget:
            self._end(f"the next pair may exceed the budget of ${self._plan.budget:,.2f}")
            raise LostError("the budget is used up")
        return most

    def _keep(self, session: str, pair: ShadowPair) -> None:
        """Count a pair, and store it later."""
        self._count(pair)
        logger.info("shadow: %s, $%.4f", pair.lost or "a pair", pair.dollars)
        storing = self._thread.submit(self._store, session, pair)
        self._storing.add(storing)
        storing.add_done_callback(self._storing.discard)

    def _store(self, session: str, pair: ShadowPair) -> None:
        try:
            put_pair(self._offloader.store, session, pair)
        except Exception as error:  # noqa: BLE001 # a store may raise anything
            self._status.lost("a pair of shadow requests is not stored", error)

    def _count(self, pair: ShadowPair) -> None:
        """Add a pair to the account, and stop offloading if all pairs show too much harm."""
        self._dollars += pair.dollars
        if pair.same is None:
            self._lost[pair.lost] += 1
            return
        self._same[pair.same] += 1
        found, stop = self.agreement, self._plan.stop
        if stop is not None and found.is_enough and found.low > stop and not self._status.has_stopped:
            self._end("offloading was stopped")
            self._status.stop(
                f"requests pass unchanged from now on: by {found.pairs:,} pairs of shadow requests, "
                f"offloading changes {found.low:.1%} to {found.high:.1%} of next actions, above {stop:.1%}"
            )

    def _end(self, why: str) -> None:
        if not self._ended:
            self._ended = why
            self._status.say_once(f"no more shadow requests are sent: {why}")

    def _redact(self, text: str) -> str:
        return self._offloader.options.redacted(text)

    def _behind(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _call(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


def _why(error: Exception) -> str:
    """Return why there is no pair; the text of any other error may quote content."""
    if isinstance(error, LostError):
        return str(error)
    return "the provider is slow" if isinstance(error, TimeoutError) else type(error).__name__


def _can_be_drawn(outgoing: Outgoing, api: Api) -> bool:
    """Return whether a request hides items, and its original can be sent alone and has an action alone."""
    parsed = outgoing.parsed
    if parsed is None or outgoing.tokens_removed <= 0 or api.name not in CALLS_OF:
        return False
    return not (parsed.is_threaded or parsed.is_aside or parsed.first or _has_effects(parsed))


def _has_effects(parsed: Parsed) -> bool:
    """Return whether the provider runs tools of a request: they would run twice more."""
    kinds = [name for name, value in parsed.fields.items() if value]
    for tool in parsed.tools:
        if isinstance(tool, dict):
            # A hosted shell has the type of a local one, and another environment.
            place = tool.get("environment")
            kinds += [*tool, str(tool.get("type")), str(isinstance(place, dict) and place.get("type"))]
    return any(map(_EFFECTS.match, kinds))


def _continues(outgoing: Outgoing, before: Outgoing) -> bool:
    """Return whether a request of the same conversation is a later one."""
    now, then = outgoing.parsed, before.parsed
    return now is not None and then is not None and len(now.views) > len(then.views)
