"""Notes of the provider's answers, and the work behind them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from offload.gateway._edits import Edited
from offload.gateway._journals import JournalQueue
from offload.gateway._outgoing import Outgoing
from offload.gateway._sent import SentStore
from offload.gateway._status import Status, Unchanged
from offload.gateway._threads import Sent, Thread, Threads
from offload.gateway._turns import Workers, waited
from offload.messages import Usage
from offload.messages.usage import usage_of

T = TypeVar("T")

# A check of the records that takes longer than so many seconds is repeated after so many times as long.
_CHECK_SECONDS, _CHECK_SHARE = 0.1, 50


class Notes:
    """Notes which requests the provider accepted, and what it answered; no answer waits for the work."""

    def __init__(self, workers: Workers, threads: Threads, sent: SentStore, status: Status) -> None:
        self._workers = workers
        self._threads = threads
        self._sent = sent
        self._status = status
        self._journals = JournalQueue(status)

    @property
    def timelines(self) -> frozenset[str]:
        """The sessions with the timelines that were written."""
        return frozenset(self._journals.sessions)

    async def close(self) -> None:
        """Write what the journals wait for."""
        await self._journals.close()

    def sending(self, request: Outgoing) -> None:
        """Look, while the provider answers, whether the records behind the placeholders are there."""
        thread = request.thread
        is_due = thread is not None and time.monotonic() >= thread.next_check
        if thread is None or not request.records or not is_due:
            return
        if thread.sent is None:
            # The request was rewritten by a listing that has just been made.
            return
        if thread.checking is None or thread.checking.done():
            thread.is_check_late = False
            thread.checking = self._workers.behind(self._checked(thread))

    async def _checked(self, thread: Thread) -> None:
        began = time.monotonic()
        with suppress(RuntimeError):  # The gateway stops.
            await self._workers.aside(thread, thread.store_again)
        took = time.monotonic() - began
        thread.next_check = began + (took * _CHECK_SHARE if took > _CHECK_SECONDS else 0)

    async def accepted(self, request: Outgoing) -> None:
        """Note that the provider accepted a request, before its answer reaches the client."""
        thread, parsed = request.thread, request.parsed
        if thread is None or parsed is None or thread.aside is not None:
            return
        if thread.checking is not None and not thread.is_check_late:
            try:
                await waited(thread.checking)
            except TimeoutError:
                thread.is_check_late = True
        thread.sent = Sent(parsed.views, request.messages)
        if request.has_all:
            with suppress(TimeoutError, RuntimeError):
                work = self._workers.aside(thread, thread.return_thinking, parsed.views)
                await waited(asyncio.ensure_future(work))
        if not request.refused:
            return
        thread.refused |= request.refused
        count = len(request.refused)
        self._status.count("thinking_removed", count)
        self._status.say_once(
            f"the provider refused thinking after a changed message in conversation {thread.id.name}: "
            f"{count} blocks are left out from now on"
        )
        with suppress(TimeoutError, RuntimeError):
            work = self._workers.aside(thread, thread.store_refused, parsed.views)
            await waited(asyncio.ensure_future(work))

    def forget(self, request: Outgoing | None) -> None:
        """Drop a conversation from memory whose reply failed: the next request does not continue this one."""
        if request is not None and request.thread is not None:
            self._threads.drop(request.thread)

    def replied(self, request: Outgoing | None, reply: Mapping[str, Any] | None) -> None:
        """Note the reply to a request, before the client has all of it, if the next may continue it."""
        if request is not None and reply is not None and request.thread and request.parsed:
            self._threads.note_reply(request.thread, request.parsed, reply)

    def answered(self, request: Outgoing, reply: Any) -> Usage | None:
        """Note the answer of the provider, with its usage if it has one; return the usage.

        What the next request is going to replace is stored now, while the client runs its tools, if this one
        lacks results already: then the model can read back, and the conversation is long enough. Where the
        reply may bind this request, the next one replaces nothing of it.
        """
        thread, edited = request.thread, request.edited
        if thread is None or edited is None:
            return None if reply is None else usage_of(reply)
        parsed = edited.parsed
        is_latest = thread.latest is parsed and not self._workers.is_busy
        if request.tokens_removed and is_latest and not thread.binding(parsed).keeps_sent:
            self._workers.behind(self._work(thread, thread.prepare, parsed))
        is_noted = bool(request.records) or request.why is Unchanged.NOTHING_DUE
        if thread.aside is None and is_noted:
            self._sent.note_records(thread.id, thread.offloader.remembered(request.records))
        if parsed.tails:
            self._workers.behind(self._keep_look_alikes(thread, edited))
        used = None if reply is None else thread.offloader.report_usage(reply)
        if thread.journal is not None and request.result is not None:
            self._journals.add(thread.journal, edited, request.result, used)
        return used

    async def _work(self, thread: Thread, work: Callable[[T], None], given: T) -> None:
        with suppress(RuntimeError):  # The gateway stops.
            await self._workers.aside(thread, work, given)

    async def _keep_look_alikes(self, thread: Thread, edited: Edited) -> None:
        """Store which texts of a request only look like placeholders."""
        if texts := await self._workers.reading(edited.look_alikes):
            await self._work(thread, thread.keep_look_alikes, texts)
