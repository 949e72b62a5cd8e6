"""The retrieval tools of the gateway in the requests of clients that have none.

The tools and the lines that explain them are added to the first request of a conversation, or before the
model's first call and thinking, or never, since what precedes signed thinking must not change, and to all
requests after it. Which conversations began with them is stored, so that a restarted gateway and a replica
decide alike.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from offload.base.threads.locks import Recent
from offload.errors import OffloadError, StoreUnavailableError
from offload.gateway._apis import CALLS_OF
from offload.gateway._apis.base import ApiCalls, OwnCall, Reply, digest_of, dumped, is_text_alone
from offload.gateway._hidden import DEADLINE, HiddenCalls, HiddenState, HiddenStore, Root
from offload.gateway._incoming import MAX_WAIT, Api, Incoming
from offload.gateway._parsed import (
    MOST_ALIKE,
    READ_BACK,
    Parsed,
    is_kept_elsewhere,
    nearest_to,
    parse,
)
from offload.gateway._sent import FEW, NotRecalledError, SentStore, ThreadId
from offload.gateway._spans import Edit, Places, body_of, replaced, text_of
from offload.gateway._status import Status
from offload.gateway._threads import name_of_unprepared
from offload.gateway._turns import Workers
from offload.messages.stored import map_texts
from offload.messages.thinking import signed_thinking
from offload.offloader import Offloader

# Of one reply: how often the provider is asked again, and how long the answers may take together.
MOST_ROUNDS, MOST_SECONDS = 20, 120.0
# Of one answer of the provider: how many calls are answered, and how long each may take.
MOST_CALLS, CALL_SECONDS = 16, 20.0
_THREADS = 4
_MOST_HELD_BYTES = 64 * 1024 * 1024
CHANGED = (
    "a client changed a reply in which the gateway had answered calls: they are left out from now on, and so "
    "is the thinking after them"
)
UNDER_WAY = (
    "conversations that began without the tools of the gateway pass unchanged: tools cannot be added to a "
    "conversation that is under way"
)
NO_TOOLS = "{} get no tools of the gateway, see docs/gateway.md"
_NO_TEXT = "[a text that could not be redacted]"
_NO_ANSWER = "Error: the stored items cannot be read now. Continue without them, or try again later."
_NO_MORE = "Error: no more calls of this tool are answered in this reply. Answer with what you have."
_TOO_MANY = f"Error: at most {MOST_CALLS} calls at once. Call again with fewer."


@dataclass(slots=True)
class Visible:
    """A request as the client sent it.

    Attributes:
        chain: by index of a message, a digest of all messages before it; the last one is of all.
        root: digest of the messages up to the first one of a user, which all requests of a conversation have.
        edits: by index of a message, the changes that insert the hidden calls of the reply that begins there,
            and the index of a message behind all that they depend on.
    """

    parsed: Parsed
    chain: list[str]
    root: str
    edits: dict[int, tuple[int, list[Edit]]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.parsed.text)


@dataclass(slots=True)
class Opened:
    """A request, read.

    Attributes:
        incoming: it, with the session that they read.
        body: what is sent: with the tools, and with the hidden calls of earlier replies.
        left_out: digests of the thinking after hidden calls that could not be inserted.
        has_tools: whether its conversation has the tools of the gateway.
        is_answered: whether its model gets them too, and the gateway answers their calls.
        marking: stores that the conversation began with the tools.
        seconds: how long the answers to calls took.
        rounds: how many answers of the provider there are, with the next one.
    """

    incoming: Incoming
    calls: ApiCalls
    visible: Visible
    body: bytes = b""
    left_out: frozenset[str] = frozenset()
    has_tools: bool = True
    is_answered: bool = True
    marking: asyncio.Future[None] | None = None
    seconds: float = 0.0
    rounds: int = 1

    @property
    def root(self) -> Root:
        return Root(self.incoming.session, self.visible.root)

    @property
    def completed(self) -> Incoming:
        """The request with this body."""
        is_lacking = self.has_tools and not self.is_answered
        return self.incoming._replace(body=self.body, left_out=self.left_out, lacks_tools=is_lacking)


class OwnTools:
    """The tools that the gateway adds, if `are_added`, and answers."""

    def __init__(
        self,
        offloader: Offloader,
        workers: Workers,
        status: Status,
        sent: SentStore,
        *,
        are_added: bool,
        max_wait: float = MAX_WAIT,
    ) -> None:
        self._are_added = are_added
        self._sent = sent
        self._max_wait = max_wait
        self._offloader = offloader
        self._status = status
        self._store = HiddenStore(offloader.store, status)
        self._texts = {calls.format: _definitions(offloader, calls) for calls in CALLS_OF.values()}
        self.names = frozenset(offloader.tools.names)
        self._visible: Recent[Any, list[Visible]] = Recent(_MOST_HELD_BYTES, _size_of)
        self._reading = workers.reading
        self._threads = ThreadPoolExecutor(_THREADS, "offload-gateway-tools")

    async def close(self) -> None:
        """Start no more work."""
        await self._store.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def opened(self, incoming: Incoming, *, is_counted: bool) -> tuple[Incoming, Opened | None]:
        """Return a request as it is sent, and with its parts if it has the tools.

        One that is only counted begins nothing. Raises `NotRecalledError` if the store does not say in time
        what was sent before.
        """
        if not self._are_added:
            return incoming, None
        if incoming.api.name not in CALLS_OF:
            self._status.say_once(NO_TOOLS.format(f"requests to the API {incoming.api.name}"))
            return incoming, None
        try:
            opened = await self._reading(self._read, incoming)
            opened.has_tools = opened.has_tools and await self._found(opened, is_counted=is_counted)
            is_changed = await self._reading(self._complete, opened)
        except (ValueError, RecursionError):
            return incoming, None
        is_answered = opened.has_tools and opened.is_answered
        return opened.completed if is_changed else incoming, opened if is_answered else None

    async def _found(self, opened: Opened, *, is_counted: bool) -> bool:
        """Find the hidden calls of a request; return whether its conversation began with the tools."""
        try:
            return await self._begun(opened, is_counted=is_counted)
        except (TimeoutError, StoreUnavailableError) as error:
            self._status.failed("answered calls could not be looked up, since the store is slow")
            raise NotRecalledError from error
        except OffloadError as error:
            self._status.lost("answered calls could not be looked up", error)
            return False

    async def _begun(self, opened: Opened, *, is_counted: bool) -> bool:
        """Find what completes a request whose conversation began with the tools; return whether it did."""
        known = self._store.known(opened.root)
        begun, is_open = _beginnings(opened)
        may_begin = opened.is_answered and not self._status.has_stopped
        if begun and not (_is_passed(known, opened) or (known.is_listed and not opened.is_answered)):
            await self._list(opened, is_begun=not begun.isdisjoint(known.begun))
        if not begun.isdisjoint(known.begun):
            await self._find_hidden(opened, known)
            return True
        if not may_begin:
            return False
        if not is_open:
            self._status.say_once(UNDER_WAY)
        elif not is_counted:
            opened.marking = self._store.begin(opened.root, opened.visible.chain[-1])
        return is_open

    async def _list(self, opened: Opened, *, is_begun: bool) -> None:
        """Learn what other processes stored; without the store, what this one knows must do, if it has begun.

        Raises `OffloadError` and `TimeoutError`.
        """
        try:
            await self._store.listed(opened.root, DEADLINE if is_begun else self._max_wait)
        except (TimeoutError, OffloadError) as error:
            if not is_begun:
                raise
            self._status.lost("calls that another gateway answered are not looked up", error)

    async def _find_hidden(self, opened: Opened, known: HiddenState) -> None:
        """Find the hidden calls of the replies in a request, and thinking after those that do not fit."""
        visible = opened.visible
        views = visible.parsed.views
        places = [(i, before) for i, before in enumerate(visible.chain[:-1]) if before in known.hidden]
        known_before = [*dict.fromkeys(before for _, before in places)]
        if len(self._store.unread(opened.root, known_before)) >= FEW:
            async with asyncio.timeout(self._max_wait):
                sent = await self._sent.read(await self._reading(_id_of, opened))
            self._store.learn(opened.root, sent.calls)
        found = await self._store.read(opened.root, known_before, self._max_wait)
        left_out: set[str] = set()
        for index, before in places:
            some = found.get(before, [])
            if any(self._insert(opened, index, one) for one in some):
                # Messages that no digest counts may be between what is before a reply and the reply.
                del found[before]
            elif changed := _changed(opened, index, some):
                left_out |= {mark for one in changed for mark in one.unfounded}
                left_out |= {one.key for view in views[index + 1 :] for one in signed_thinking(view)}
                self._status.count("calls_left_out")
                self._status.say_once(CHANGED)
        opened.left_out = frozenset(left_out)

    def _insert(self, opened: Opened, index: int, hidden: HiddenCalls) -> bool:
        """Insert hidden calls into the reply that begins at a message; return whether they fit."""
        parsed, edits = opened.visible.parsed, opened.visible.edits
        if index in edits:
            return True
        places = Places(parsed.text)
        try:
            made = [*opened.calls.put_back(places, parsed, index, hidden.steps, hidden.reply or None)]
        except (ValueError, LookupError, TypeError, AttributeError):
            return False
        # A step is at most one message of the client, or some of those of the model, and its results follow.
        views, end = parsed.views, index
        while end < len(views) and opened.calls.is_reply(views[end]):
            end += 1
        edits[index] = max(end, index + len(hidden.steps)) + 2, made
        return True

    def _complete(self, opened: Opened) -> bool:
        """Make the text of a request: with the tools and all hidden calls, if it has the tools.

        What the provider refuses without a hidden call behind it goes with the call. Return whether that is
        another request than the client's.
        """
        parsed, edits = opened.visible.parsed, list[Edit]()
        if opened.has_tools:
            if opened.is_answered:
                end = parsed.end_of_tools()
                edits += [Edit(end, end, f", {self._texts[opened.calls.format]}")]
            edits += chain.from_iterable(made for _, made in opened.visible.edits.values())
        followed = {edit.start for edit in edits}
        loose = [at for at in opened.calls.loose(parsed.views) if parsed.ends[at] not in followed]
        edits += [Edit(parsed.starts[at], parsed.starts[at + 1], "") for at in loose]
        is_changed = bool(edits) or (opened.has_tools and not opened.is_answered)
        opened.body = body_of(replaced(parsed.text, edits)) if is_changed else b""
        return is_changed

    def _read(self, incoming: Incoming) -> Opened:
        """Read a request of the client. Raises `ValueError`."""
        calls = CALLS_OF[incoming.api.name]
        text, alike = text_of(incoming.body), self._visible.get(incoming.hint) or []
        nearest = nearest_to(text, [visible.parsed for visible in alike])
        before = next((visible for visible in alike if visible.parsed is nearest), None)
        opened = Opened(incoming, calls, _visible_of(text, incoming.api, calls, before))
        self._visible.put(incoming.hint, _with(alike, before, opened.visible))
        opened.has_tools = self._can_have_tools(opened)
        return opened

    def _can_have_tools(self, opened: Opened) -> bool:
        parsed = opened.visible.parsed
        has_own = any(name in self.names or name.endswith(READ_BACK) for name in parsed.tool_names)
        if not parsed.views or has_own or is_kept_elsewhere(parsed.fields):
            return False
        if parsed.is_aside:
            opened.is_answered = False
            return parsed.has_results
        if (which := opened.calls.without_tools(parsed.fields)) is not None:
            opened.is_answered = False
            self._status.say_once(NO_TOOLS.format(which))
        return True

    async def answers(
        self, opened: Opened, calls: Sequence[OwnCall], offloader: Offloader | None
    ) -> list[str]:
        """Answer the calls in one answer of the provider. An error is an answer too."""
        began = time.monotonic()
        tools = (
            offloader or self._offloader.with_options(session=opened.incoming.session, journal=False)
        ).tools
        is_late = opened.rounds >= MOST_ROUNDS or opened.seconds >= MOST_SECONDS

        async def answer(number: int, call: OwnCall) -> str:
            if number >= MOST_CALLS or is_late:
                return _NO_MORE if is_late else _TOO_MANY
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    text = await loop.run_in_executor(self._threads, tools.call, call.name, call.arguments)
                return await self._reading(self._offloader.options.redacted, text)
            except TimeoutError:
                self._status.failed("a call of the model was not answered in time, since the store is slow")
            except Exception as error:  # noqa: BLE001 # the model gets an answer in any case
                self._status.failed(f"a call of the model could not be answered: {type(error).__name__}")
            return _NO_ANSWER

        answers = await asyncio.gather(*(answer(number, call) for number, call in enumerate(calls)))
        self._status.count("calls_answered", len(calls))
        opened.seconds += time.monotonic() - began
        return answers

    async def redacted(self, call: OwnCall) -> OwnCall | None:
        """Return a call, or a text, with the arguments that may be stored; None if these are its own."""
        try:
            arguments = await self._reading(map_texts, call.arguments, self._offloader.options.redacted)
        except Exception as error:  # noqa: BLE001 # a hook may raise anything
            self._status.failed(f"redact failed for a call of the model: {type(error).__name__}")
            nothing = "{}" if isinstance(call.arguments, str) else {}
            arguments = nothing if call.name else _NO_TEXT
        return None if arguments == call.arguments else call._replace(arguments=arguments)

    def _may_store(self, value: Any) -> bool:
        """Return whether `redact` changes nothing in a JSON value."""
        try:
            return bool(map_texts(value, self._offloader.options.redacted) == value)
        except Exception as error:  # noqa: BLE001 # a hook may raise anything
            self._status.failed(f"redact failed for a reply of the model: {type(error).__name__}")
            return False

    async def grown(self, opened: Opened, reply: Reply) -> Opened:
        """Return the request that asks the provider again, with the reply so far."""
        return await self._reading(self._grown, opened, reply)

    def _grown(self, opened: Opened, reply: Reply) -> Opened:
        parsed = opened.visible.parsed
        messages = reply.messages()
        end = parsed.ends[-1]
        text = replaced(parsed.text, [Edit(end, end, "".join(f", {message}" for message in messages))])
        again, _ = parse(text, opened.incoming.api, parsed)
        visible = replace(opened.visible, parsed=again, edits=dict(opened.visible.edits))
        more = replace(opened, visible=visible, rounds=opened.rounds + 1)
        if not self._insert(more, len(parsed.views), HiddenCalls("", "", reply.steps)):
            raise ValueError("a reply cannot be continued")
        self._complete(more)
        # The next answer continues the request of the client again.
        more.visible = opened.visible
        return more

    async def passed(self, opened: Opened, reply: Reply) -> None:
        """Note a reply before the client has all of it; its hidden calls are stored first."""
        visible = opened.visible
        before = visible.chain[-1]
        messages = [json.loads(message) for message in reply.messages()]
        digest = opened.calls.digest(messages)
        self._store.known(opened.root).note_passed(before, digest)
        writing = [] if opened.marking is None else [opened.marking]
        if reply.has_hidden:
            steps = await self._reading(opened.calls.storable, reply.steps, self._may_store)
            hidden = HiddenCalls(before, digest, steps, reply.marks, reply.unfounded)
            writing.append(self._store.keep(opened.root, hidden))
            calls = self._store.noted(opened.root, visible.chain)
            self._sent.note_calls(await self._reading(_id_of, opened), calls)
        if writing:
            await asyncio.wait(writing, timeout=DEADLINE)


def _id_of(opened: Opened) -> ThreadId:
    """Return the id of the conversation of a request."""
    name = name_of_unprepared(opened.visible.parsed, opened.incoming.headers)
    return ThreadId(opened.incoming.session, name)


def _definitions(offloader: Offloader, calls: ApiCalls) -> str:
    """Return the tools as the end of a list; the first one explains the texts that replace items too."""
    first, *others = offloader.tools.definitions(calls.format)
    function = first.get("function", first)
    function["description"] = f"{function['description']}\n\n{offloader.prompt()}"
    return ", ".join(map(dumped, (first, *others)))


def _as_messages(text: str, api: Api) -> str:
    """Return a request whose messages are one text with a list of one message instead."""
    place = Places(text).find(0, (api.messages,))
    message = f'[{{"role": "user", "content": {text[place.start : place.end]}}}]'
    return text[: place.start] + message + text[place.end :]


def _visible_of(text: str, api: Api, calls: ApiCalls, before: Visible | None) -> Visible:
    parsed, known = parse(text, api, None if before is None else before.parsed)
    if isinstance(parsed.fields.get(api.messages), str):
        return _visible_of(_as_messages(text, api), api, calls, before)
    digests = [digest_of([])] if before is None else before.chain[: known + 1]
    nothing = calls.digest([])
    for view in parsed.views[len(digests) - 1 :]:
        digest = calls.digest([view])
        digests.append(digests[-1] if digest == nothing else digest_of([digests[-1], digest]))
    is_user = (isinstance(view, dict) and view.get("role") == "user" for view in parsed.views)
    first = next((index for index, user in enumerate(is_user) if user), 0)
    edits = {} if before is None else {at: made for at, made in before.edits.items() if made[0] < known}
    return Visible(parsed, digests, digests[min(first + 1, len(digests) - 1)], edits)


def _with(alike: Sequence[Visible], before: Visible | None, visible: Visible) -> list[Visible]:
    """Return some requests with another one, in place of that before it in its conversation."""
    others = [one for one in alike if one is not before or one.root != visible.root]
    some = [*others[1 - MOST_ALIKE :], visible]
    while len(some) > 1 and _size_of(some) > _MOST_HELD_BYTES:
        del some[0]
    return some


def _size_of(some: Sequence[Visible]) -> int:
    return sum(visible.size for visible in some)


def _beginnings(opened: Opened) -> tuple[set[str], bool]:
    """Return the digests of where a conversation may have begun, and whether it may begin here.

    Clients write replies of text alone themselves, as behind a summary: the first request may have some.
    """
    views, found = opened.visible.parsed.views, set[str]()
    for view, before in zip(views, opened.visible.chain, strict=False):
        if opened.calls.is_reply(view):
            found.add(before)
            if not is_text_alone(view):
                return found, False
    return found, True


def _is_passed(known: HiddenState, opened: Opened) -> bool:
    """Return whether this process passed the last reply in a request, and so knows all before it."""
    views, digests = opened.visible.parsed.views, opened.visible.chain
    end = next(i + 1 for i in reversed(range(len(views))) if opened.calls.is_reply(views[i]))
    start = end - 1
    while start and opened.calls.is_reply(views[start - 1]):
        start -= 1
    return (digests[start], opened.calls.digest(views[start:end])) in known.passed


def _changed(opened: Opened, at: int, some: Sequence[HiddenCalls]) -> list[HiddenCalls]:
    """Return the calls whose reply is the one at a message, although they cannot be inserted there.

    It has a mark of the reply; or its texts, and thinking that the client joined.
    """
    views, calls = opened.visible.parsed.views, opened.calls
    marks, digest = calls.marks(views[at]), calls.digest([views[at]])
    return [one for one in some if one.reply == digest or not set(one.marks).isdisjoint(marks)]
