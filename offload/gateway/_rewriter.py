"""Replaces old large results in requests."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Literal

from offload.engine.binding import ThinkingRefusal, binding_of
from offload.errors import OffloadError
from offload.gateway._incoming import Incoming
from offload.gateway._outgoing import Outgoing, as_before, outgoing, with_all_thinking, without_thinking_from
from offload.gateway._parsed import READ_BACK, ElsewhereError, Parsed, read_request
from offload.gateway._sent import NotRecalledError, ThreadId
from offload.gateway._status import Status, Unchanged
from offload.gateway._threads import Thread, Threads, name_of
from offload.gateway._turns import DEADLINE, Rewriting, SlowError, Turns, Workers
from offload.records.observer import error_text

NO_READ_BACK = (
    f"requests without a tool whose name ends in {READ_BACK} pass unchanged, since the model could not read "
    "back what is replaced. Add `offload mcp` to the client, see docs/gateway.md"
)
ELSEWHERE = (
    "requests that continue a conversation which the provider keeps pass unchanged, unless this process saw "
    "its beginning in a message thread, see docs/gateway.md"
)
# Who answers the model's calls of the retrieval tools: the gateway, unless the client has them; the client
# alone; nobody.
ToolsMode = Literal["gateway", "client", "none"]


class _UnchangedError(Exception):
    """Nothing more is replaced in a request.

    It passes as the client has it, unless its model binds thinking to what was sent.
    """

    def __init__(self, why: Unchanged) -> None:
        super().__init__(why)
        self.why = why


class Rewriter:
    """Makes the requests to send of those that come.

    Args:
        workers: do the work.
        threads: the conversations.
        turns: when it is done.
        status: counts it.
        needs_read_back: whether requests without a tool to read back pass unchanged.
    """

    def __init__(
        self,
        workers: Workers,
        threads: Threads,
        turns: Turns,
        status: Status,
        *,
        needs_read_back: bool,
    ) -> None:
        self._workers = workers
        self._threads = threads
        self._turns = turns
        self._status = status
        self._needs_read_back = needs_read_back

    async def rewrite(self, incoming: Incoming) -> Outgoing:
        """Return the request to send; with the same body if nothing is replaced or anything fails.

        What was replaced before is replaced again, also if the store is slow or fails. Raises
        `NotRecalledError` if the store does not say in time what that is.
        """
        rewriting = Rewriting()
        try:
            request = await self._renewed(rewriting, incoming)
        except NotRecalledError:
            self._status.passed(Unchanged.NOT_RECALLED)
            raise
        except Exception as error:  # noqa: BLE001 # a request is sent in any case
            why = self._why(error)
            if_bound = isinstance(error, _UnchangedError) and not incoming.lacks_tools
        else:
            self._note(request)
            return request
        self._status.passed(why)
        again = await self._workers.reading(partial(_repeated, rewriting, why, if_bound=if_bound))
        return again or Outgoing(incoming.body, why=why)

    async def counted(self, incoming: Incoming) -> Outgoing:
        """Return a request whose tokens are counted, with what was replaced before in front of thinking."""
        rewriting, why = Rewriting(), Unchanged.COUNTED
        with suppress(Exception):
            await self._read(rewriting, incoming)
        again = await self._workers.reading(
            partial(_repeated, rewriting, why, if_bound=not incoming.lacks_tools)
        )
        return Outgoing(incoming.body if again is None else again.body, why=why)

    async def repaired(self, request: Outgoing, refusal: ThinkingRefusal) -> Outgoing | None:
        """Return a refused request without the thinking from the first refused message on, or with all of it.

        None if that is the same, or if its client lets the provider drop it.
        """
        parsed = request.parsed
        # Messages that the provider keeps cannot be changed.
        if request.thread is None or parsed is None or parsed.drops_thinking or parsed.first:
            return None
        if refusal.kind == "missing":
            return await self._workers.reading(with_all_thinking, request)
        return await self._workers.reading(without_thinking_from, request, refusal.first or 0)

    async def _renewed(self, rewriting: Rewriting, incoming: Incoming) -> Outgoing:
        """Return a request with what is new replaced too. Raises any error, see `_find` and `Turns.taken`.

        One without the tools that its conversation has gets only what was sent before.
        """
        thread, parsed = await self._find(rewriting, incoming)
        if parsed.is_aside:
            result = thread.as_sent(parsed, await self._turns.taken(rewriting, thread, parsed))
            return await self._workers.reading(outgoing, thread, parsed, result)
        if incoming.lacks_tools and not thread.is_forgotten(parsed):
            raise _UnchangedError(Unchanged.NO_TOOLS_NOW)
        result = await self._turns.taken(rewriting, thread, parsed)
        if incoming.lacks_tools:
            raise _UnchangedError(Unchanged.NO_TOOLS_NOW)
        return await self._workers.reading(outgoing, thread, parsed, result)

    async def _read(self, rewriting: Rewriting, incoming: Incoming) -> tuple[Parsed, ThreadId]:
        """Read a request; return it and the id of its conversation, which may be in memory.

        Raises `_UnchangedError`, or any other error.
        """
        befores, kept = self._threads.befores(incoming), self._threads.kept(incoming.session)
        try:
            parsed = await self._workers.reading(read_request, incoming.body, incoming.api, befores, kept)
        except ElsewhereError:
            self._status.say_once(ELSEWHERE)
            raise _UnchangedError(Unchanged.KEPT_ELSEWHERE) from None
        if parsed is None:
            raise _UnchangedError(Unchanged.NOTHING_THERE)
        parsed.left_out = incoming.left_out
        name = ThreadId(incoming.session, name_of(parsed, incoming.headers))
        rewriting.parsed, rewriting.thread = parsed, self._threads.get(name)
        if parsed.is_aside:
            rewriting.thread = self._threads.beside(name, parsed, incoming)
        return parsed, name

    async def _find(self, rewriting: Rewriting, incoming: Incoming) -> tuple[Thread, Parsed]:
        """Read a request and find its conversation. Raises `_UnchangedError`, or any other error."""
        parsed, name = await self._read(rewriting, incoming)
        is_aside = parsed.is_aside and rewriting.thread is not None
        can_leave = parsed.can_read_back or incoming.lacks_tools or not self._needs_read_back
        # Thinking may be refused in any request: its client may have changed a message before it.
        keeps_sent = binding_of(self._threads.policy.history, parsed.model).keeps_sent
        if not is_aside and (can_leave or keeps_sent):
            rewriting.thread = self._threads.opened(name, parsed, incoming)
        if self._status.has_stopped:
            raise _UnchangedError(Unchanged.HARM)
        if rewriting.thread is None or not (is_aside or can_leave):
            self._status.say_once(NO_READ_BACK)
            raise _UnchangedError(Unchanged.NO_READ_BACK)
        return rewriting.thread, parsed

    def _why(self, error: Exception) -> Unchanged:
        """Return why a request passes after `error`, and note it."""
        if isinstance(error, _UnchangedError):
            return error.why
        if isinstance(error, TimeoutError | SlowError):
            self._status.count("late", int(isinstance(error, TimeoutError)))
            self._status.say_once(f"nothing new is replaced while the store takes longer than {DEADLINE:g} s")
            return Unchanged.SLOW
        if isinstance(error, ValueError | RecursionError):
            return Unchanged.NOT_UNDERSTOOD
        text = error_text(error) if isinstance(error, OffloadError) else type(error).__name__
        self._status.failed(f"a request passed unchanged: {text}")
        return Unchanged.FAILED

    def _note(self, request: Outgoing) -> None:
        for problem in () if request.edited is None else request.edited.problems:
            self._status.failed(problem)
        if request.why is not None:
            self._status.passed(request.why)
            return
        self._status.count("rewritten")
        self._status.count("results_replaced", len(request.records))
        self._status.count("tokens_removed", request.tokens_removed)


def _repeated(rewriting: Rewriting, why: Unchanged, *, if_bound: bool) -> Outgoing | None:
    """Return a request with nothing replaced but what was before; None if it just passes.

    It does if its conversation is not in memory; and `if_bound`, if its model binds no thinking.
    """
    parsed, thread = rewriting.parsed, rewriting.thread
    if parsed is None or thread is None or (if_bound and not thread.binding(parsed).keeps_sent):
        return None
    if rewriting.recalled is not None:
        return outgoing(thread, parsed, rewriting.recalled, why)
    return as_before(thread, parsed, why)
