"""The context of an agent loop: it takes messages and usage, and returns the messages to send."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from offload.agent._config import AgentConfig
from offload.agent._confirmation import confirmation_of
from offload.agent._messages import AgentMessages
from offload.agent._opening import check_types, opened_offloader
from offload.agent._reducer import ContextReducer
from offload.agent._refusals import LengthRefusal, Repairs, length_refusal, thinking_refusal
from offload.agent._usage import Calibration, CarefulCounter
from offload.agent._window import ModelWindow
from offload.agent.compaction import CompactionResult, CompactionStrategy, Summarizer
from offload.agent.compaction._strategy import report_ungrounded
from offload.agent.compaction.rounds import Confirm
from offload.base.events import deferred_events, exclusive
from offload.base.threads.calls import Gate, as_async
from offload.engine.binding import ThinkingRefusal
from offload.engine.failures import AboveCeilingError
from offload.engine.policy import Decision
from offload.engine.results import CacheReport
from offload.errors import (
    ConfigError,
    ContextFullError,
    OffloadError,
    ThinkingRemovedError,
    check_callable,
    unexpected,
)
from offload.messages.context import ContextEvent, EventBus, EventType, ItemType
from offload.messages.context.tokens import MessageCounter
from offload.messages.formats import scan_of
from offload.offloader import Offloader
from offload.reading.evidence import Evidence
from offload.reading.timeline import Timeline
from offload.reading.tools import Tools
from offload.records.journal.reader import JournalState
from offload.records.observer import error_text

_log = logging.getLogger("offload")

ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the model.

    Attributes:
        messages: the messages to send; system messages first, if any were added.
        tokens: tokens of these messages, the system prompt and the tool definitions, corrected by the
            provider's counts.
        errors: the failures. Items that could not be offloaded are kept, and tried again on the next turn. A
            `ThinkingRemovedError` says that this request replaces one whose thinking was refused.
        cache: as in `OffloadResult`; it does not count messages that a full window removes or changes.
        decided: as in `OffloadResult`; use `decisions`.
    """

    messages: list[Any]
    tokens: int
    errors: list[OffloadError]
    cache: CacheReport | None = None
    decided: tuple[list[Decision], int] = field(default_factory=lambda: ([], 0), repr=False)

    @property
    def decisions(self) -> list[Decision]:
        """The decision of the policy on every item, with its reason, as `Offloader.explain` prints them."""
        decisions, count = self.decided
        return decisions[:count]


class ContextManager:
    """The context of an agent loop, kept within the model's window turn by turn, without losing anything.

    Large items are offloaded when they are added. When a request nears the window, these steps run in
    order until it is small enough: offload items that fill much of it, offload old tool results, remove
    messages by a compaction strategy, and above the window offload all other items, errors and user
    messages included, except the system prompt and items that `should_offload` keeps. The model can read
    them through `tools`, and `restore` returns all messages. If a step fails, its messages are kept, and the
    loop continues. It may be used from several threads.

    Args:
        offloader: the session that items are offloaded to; its `on_error="raise"` raises here too. None opens
            the `ContextFileSystem` of a new session, with the `offload_…` settings.
        config: the settings; the default is `AgentConfig()`.
        summarizer: asks a model for a summary; without one, the notice that replaces removed messages has
            none.
        strategy: removes messages when offloading is not enough, instead of the strategy in the settings.
        confirm: a plain or async function, called with a `Proposal` before messages are removed, at most once
            per call. True continues, False applies the setting `on_refusal`, and the name of a refusal
            applies that one. After the refusal "error" it is not called again before the next user message.
        events: the bus for events, by default the offloader's: those of `ContextIR` and of compaction,
            `items_offloaded` (data: `messages`, `tokens`: how many became smaller, and by how much) and
            `context_failed` (data: `kind`).

    Attributes:
        events: the bus for events.
        tools: handles the model's calls of the retrieval tools.

    Raises:
        ConfigError: an argument has another type, or a setting has no effect: with `strategy`, a
            `summarizer` or a setting of the built-in strategies; with an offloader, an `offload_…` setting;
            without `confirm`, `on_refusal` or `require_confirmation`.
    """

    def __init__(
        self,
        offloader: Offloader | None = None,
        config: AgentConfig | None = None,
        *,
        summarizer: Summarizer | None = None,
        strategy: CompactionStrategy | None = None,
        confirm: Confirm | None = None,
        events: EventBus | None = None,
    ) -> None:
        check_types(offloader, config, strategy, {"summarizer": summarizer, "confirm": confirm})
        config = AgentConfig() if config is None else config
        offloader = opened_offloader(offloader, config)
        self.events: EventBus = offloader.events if events is None else events
        self.tools: Tools = offloader.tools
        policy = config.policy_over(offloader.policy)
        self._count = CarefulCounter(offloader.options.count_tokens)
        # The model that replied last, once the host named one.
        self._replied: str | None = None
        self._offloader = offloader.with_options(
            policy=policy,
            token_counter=self._count,
            model=config.model or offloader.options.model,
            journal=config.resumable,
        )
        if self._offloader.journal is not None:
            self._offloader.journal.begin()
        self.tools.sources = self._offloader.tools.sources
        offloader.latest = self._offloader.latest
        self._confirmation = confirmation_of(confirm, config)
        self._new_reducer = partial(
            ContextReducer,
            self._offloader,
            summarizer=summarizer,
            strategy=strategy,
            confirmation=self._confirmation,
            events=self.events,
        )
        self._begin(config)
        self._counter = MessageCounter(self._count)
        # The decisions of the last offload call.
        self._decided: tuple[list[Decision], int] = [], 0
        self._evidence: Evidence | None = None
        self._gate = Gate("context manager")

    def _begin(self, config: AgentConfig) -> None:
        """Begin without messages."""
        self._messages = AgentMessages(self._count, self.events)
        self._window = ModelWindow(
            self._offloader, self._messages, config, self._new_reducer, self._confirmation
        )
        # Whether a request was made smaller since the last reply, so that its cached beginning changed.
        self._is_reduced = False
        # Whether thinking was refused since the last reply.
        self._is_refused = False

    @property
    def config(self) -> AgentConfig:
        """The settings; if a provider reports a smaller window, it replaces `window_tokens`."""
        return self._window.config

    @property
    def session(self) -> str:
        """Name of the session; the same name and store resume it."""
        return self._offloader.session

    @property
    def messages(self) -> list[Any]:
        """The messages of the next request: those of the last one, and those added since."""
        return self._messages.all_messages

    @property
    def compaction_count(self) -> int:
        """Number of compactions that removed messages of this conversation, before `resume` too."""
        return self._messages.compactions

    @property
    def last_compaction(self) -> CompactionResult | None:
        """The last compaction in this process, with the tokens before and after; None if there was none."""
        return self._messages.last_compaction

    @property
    def last_evidence(self) -> Evidence | None:
        """The exact values in the last reply, with `check_replies`; None if none was checked."""
        return self._evidence

    def prompt(self) -> str:
        """Return up to 15 lines for the system prompt that explain to the model how to read stored items."""
        return self._offloader.prompt()

    def add(self, message: Any, item_type: ItemType | None = None) -> None:
        """Append a user message, a tool result or a system message, without waiting.

        A message that is added while another thread makes a request is in the next one.

        Args:
            message: a message in any format that `Offloader.offload` takes. Never changed.
            item_type: its type; the default follows from its role and content.

        Raises:
            MessageError: `message` is a list, a string, None or otherwise not a message.
        """
        item = self._messages.enqueue(message, item_type)
        if self._confirmation is not None and item.item_type is ItemType.USER_MESSAGE:
            self._confirmation.renew()
        # The thread that holds the gate may wait for a hook on the event loop of this thread.
        with deferred_events(), self._gate.alone_if_free() as is_alone:
            if is_alone:
                self._messages.flush()

    def before_model_call(
        self, *, system_prompt: str | Sequence[Any] | None = None, tools: Sequence[Any] | None = None
    ) -> Request:
        """Return the next request, made small enough and stored in the journal.

        Args:
            system_prompt: the system prompt, or its blocks, if it is sent separately; its tokens are counted.
            tools: the tool definitions that are sent; their tokens are counted.

        Raises:
            OffloadError: with the offloader's `on_error="raise"`, the failure.
        """
        with exclusive(self._gate):
            errors: list[OffloadError] = []
            self._messages.flush()
            self._window.fixed = self._counter.fixed(system_prompt, tools)
            return self._request(self._offload(errors), errors)

    def make_room(self, error: BaseException | None = None) -> Request:
        """Return a request to replace the last one, which the provider refused.

        If it was too long, the figures in its `error` correct the token counts and the window. Without
        figures, this process assumes that the window is smaller than the refused request; if it had too many
        bytes, for this request only. Then all steps of a request run.

        If it was refused for thinking that is bound to other messages, this thinking and all after it is
        removed and stored, or all of it if that was refused as well. `restore` restores it. If a tool call
        was refused without its thinking, that is sent again.

        Raises:
            ContextFullError: nothing more can be offloaded or removed; the message names what remains.
            ConfigError: the error has another cause; see `is_too_long` and `thinking_refusal`.
            OffloadError: the store failed, so that thinking is sent as before; or with the offloader's
                `on_error="raise"`, the failure.
        """
        if not isinstance(error, BaseException | None):
            raise ConfigError(f"error must be the provider's exception, got {type(error).__name__}")
        refusal = None if error is None else thinking_refusal(error)
        if error is not None and refusal is not None:
            return self._with_other_thinking(refusal, error)
        told = LengthRefusal() if error is None else length_refusal(error)
        if told is None:
            raise ConfigError(
                f"{type(error).__name__} does not say that a request is too long or its thinking refused"
            ) from error
        with exclusive(self._gate):
            errors: list[OffloadError] = []
            self._messages.flush()
            before = self._messages.context.total_tokens
            window = self._window
            before_refusal = window.config, window.reducer, self._messages.wait
            try:
                window.learn(told)
                request = self._request(self._offload(errors), errors, is_forced=True)
            finally:
                if told.is_bytes:
                    window.config, window.reducer, self._messages.wait = before_refusal
            if self._messages.context.total_tokens < before:
                return request
            raise ContextFullError(
                "the provider refused the request as too long, and nothing more can be offloaded or removed: "
                + "; ".join([window.parts(), *map(error_text, errors)])
            ) from error

    def call(
        self,
        ask: Callable[[Request], ReplyT],
        *,
        system_prompt: str | Sequence[Any] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> ReplyT:
        """Call `ask` with the next request, and again with what `make_room` returns if it is refused.

        That is once if the request is too long or lacks thinking, and twice at most if its thinking is bound
        to other messages.
        Returns the reply of `ask`. Its other errors are raised.

        Args:
            ask: calls the model with the messages of a `Request`; it must read a stream to its end.
            system_prompt: as for `before_model_call`.
            tools: as for `before_model_call`.

        Raises:
            ContextFullError: the provider refused the request, and nothing could be made smaller.
            ConfigError: `ask` is not a function, or it is async; use `acall` then.
            OffloadError: as for `before_model_call`.
        """
        check_callable("ask", ask, is_required=True)
        request = self.before_model_call(system_prompt=system_prompt, tools=tools)
        repairs = Repairs()
        while True:
            try:
                return _plain(ask(request))
            except Exception as error:
                if not repairs.may_repair(error):
                    raise
                request = self.make_room(error)

    async def acall(
        self,
        ask: Callable[[Request], Awaitable[ReplyT]],
        *,
        system_prompt: str | Sequence[Any] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> ReplyT:
        """Return the reply of the async `ask`, as `call` does."""
        check_callable("ask", ask, is_required=True)
        request = await self.abefore_model_call(system_prompt=system_prompt, tools=tools)
        repairs = Repairs()
        while True:
            try:
                return await ask(request)
            except Exception as error:
                if not repairs.may_repair(error):
                    raise
                request = await self.amake_room(error)

    def after_model_call(
        self, message: Any = None, *, usage: Any = None, model: str | None = None
    ) -> list[OffloadError]:
        """Append the model's reply, and correct token estimates by the provider's count; return the failures.

        If the context nears the window now, it is compacted, with a summary if needed.

        Args:
            message: the reply, as a message of the conversation; None appends nothing.
            usage: the reply or its `usage`, as for `Offloader.report_usage`, or the number of tokens of the
                request.
            model: the model that replied; by default the one in the settings. From then on it also decides
                whether messages that were sent may change, see `OffloadPolicy.history`.

        Raises:
            ConfigError: `usage` is a text, a list or a bool.
            OffloadError: with the offloader's `on_error="raise"`, the failure.
        """
        with exclusive(self._gate):
            counted = self._offloader.report_usage(usage, is_changed=self._is_reduced)
            self._is_reduced = self._is_refused = False
            self._replied = self._replied if model is None else model
            self._messages.flush()
            if counted is not None:
                name = self.config.model if model is None else model
                self._window.calibration.observe(name, self._window.sent, counted.tokens)
            errors: list[OffloadError] = []
            if message is not None:
                self._check_reply(message, errors)
                self._messages.enqueue(message)
                self._messages.flush()
                for failed in self._window.shrink((), self._window.reducer.seen):
                    self._report(failed, errors)
                self._write_journal(errors)
            self._report_counter(errors)
            return errors

    def resume(self) -> int:
        """Continue the session's conversation, from any process; return its number of messages.

        Call it before you add a message. If you do not, the new conversation replaces the stored one.

        Raises:
            ConfigError: there are messages already.
            CollisionError: two agents continued the conversation at the same time. The next request
                begins a new one.
            OffloadError: the journal is damaged, was deleted, or cannot be read.
        """
        with exclusive(self._gate):
            if self.messages:
                raise ConfigError("call resume() first: this conversation has messages already")
            return self._resumed()

    def _resumed(self) -> int:
        """Take over the conversation of the journal; return its number of messages."""
        journal = self._offloader.journal
        state = self.timeline().latest() if journal is None else journal.read()
        for stored in state.messages:
            self._messages.enqueue(stored.message, stored.item_type)
        self._messages.flush()
        self._window.calibration = Calibration(state.ratios)
        self._messages.compactions = state.compactions
        self._messages.wait = state.wait
        self._messages.added_tokens += state.tokens_offloaded
        self._replied = state.model
        self._offloader.last_request = state.requested
        return len(state.messages)

    def rewind(self, at: int, *, branch: str | None = None) -> int:
        """Continue from an earlier request, by its number in `timeline()`; return its number of messages.

        Messages that were added since are dropped. Arguments, errors and what becomes of the later requests
        are as for `Offloader.rewind`; raises also as `resume`.
        """
        with exclusive(self._gate):
            self._offloader.rewind(at, branch=branch)
            self._begin(self.config)
            return self._resumed()

    def timeline(self) -> Timeline:
        """Return the requests of the session as the journal has them now. Raises `StoreError`."""
        return self._offloader.timeline()

    def restore(self) -> list[Any]:
        """Return all messages that were ever added, in their original form.

        SDK objects that were compacted or resumed are restored as data. Raises `OffloadError` if a record is
        damaged, was deleted, or cannot be read.
        """
        with exclusive(self._gate):
            self._messages.flush()
            return self._messages.restore(self._offloader, self._window.reducer.strategy)

    abefore_model_call = as_async(before_model_call)
    """Run `before_model_call` in a thread; async hooks run on this loop."""
    amake_room = as_async(make_room)
    """Run `make_room` in a thread; async hooks run on this loop."""
    aafter_model_call = as_async(after_model_call)
    """Run `after_model_call` in a thread; async hooks run on this loop."""
    aresume = as_async(resume)
    """Run `resume` in a thread."""
    arestore = as_async(restore)
    """Run `restore` in a thread."""

    @property
    def _model(self) -> str | None:
        return self._replied or self._offloader.options.model

    def _offload(self, errors: list[OffloadError]) -> CacheReport | None:
        """Offload by the policy; return the effect on the provider's cache, add failures to `errors`."""
        try:
            self._messages.unbind_header(self._offloader)
        except OffloadError as error:
            self._report([error], errors)
        result = self._messages.offload(self._offloader, self._model)
        self._report(result.errors, errors)
        self._decided = result.decided
        return result.cache

    def _with_other_thinking(self, refusal: ThinkingRefusal, error: BaseException) -> Request:
        """Return the request with the thinking that its provider accepts; raise `error` without any."""
        with exclusive(self._gate):
            errors: list[OffloadError] = []
            self._messages.flush()
            removed = self._messages.accept(refusal, self._offloader, is_again=self._is_refused)
            if not removed:
                raise error
            note = "the provider refused a tool call without its thinking, which is sent again"
            if refusal.kind == "bound":
                self._is_refused = True
                note = (
                    f"the provider refused thinking that is bound to other messages; {removed} blocks were "
                    "removed and stored"
                )
            self._is_reduced = True
            request = self._request(self._offload(errors), errors)
            request.errors.insert(0, ThinkingRemovedError(note))
            return request

    def _request(
        self, cache: CacheReport | None, errors: list[OffloadError], *, is_forced: bool = False
    ) -> Request:
        """Return the request, made small enough and stored in the journal; add failures to `errors`."""
        window, before = self._window, self._messages.context.total_tokens
        for failed in window.shrink(window.reducer.fresh, window.reducer.unseen, is_forced=is_forced):
            self._report(failed, errors)
        self._is_reduced = self._is_reduced or self._messages.context.total_tokens != before
        self._report_counter(errors)
        window.sent, tokens = window.estimated, window.tokens
        if (waits := window.news_of_wait(tokens)) is not None:
            # The request fits the window, so this is nothing to raise for.
            self._note(waits, errors)
        self._write_journal(errors, tokens=tokens)
        if (problem := window.problem(tokens)) is not None:
            self._report([problem], errors)
        return Request(self._messages.context.lower(), tokens, errors, cache, self._decided)

    def _write_journal(self, errors: list[OffloadError], *, tokens: int | None = None) -> None:
        """Store the messages in the journal; `tokens` are those of the request that they are, if any."""
        if self._offloader.journal is None:
            return
        messages = self._messages
        state = JournalState(
            ratios=self._window.calibration.ratios,
            compactions=messages.compactions,
            tokens_offloaded=messages.tokens_offloaded,
            wait=messages.wait,
            model=self._replied,
        )
        failed = self._offloader.journal.write(
            self, messages.as_sent, state, tokens=tokens, model=self._model
        )
        messages.settle()
        self._report(failed, errors)

    def _check_reply(self, message: Any, errors: list[OffloadError]) -> None:
        """Check a reply to the last request, if the settings ask for it; emit the values without a source."""
        if not self.config.check_replies:
            return
        self._evidence = None
        try:
            text = "\n".join(i.text for i in scan_of(message).items if i.item_type == "assistant_message")
            view = None if self.config.resumable else self._messages.context.lower()
            self._evidence = found = self._offloader.evidence(text, messages=view)
        except Exception as error:  # noqa: BLE001 # a message may be an object that raises anything
            self._report([unexpected(error)], errors)
            return
        if found.not_found:
            values = dict.fromkeys(value.text for value in found.not_found)
            report_ungrounded(self.events, "reply", [*values])

    def _report_counter(self, errors: list[OffloadError]) -> None:
        failed, self._count.failures = self._count.failures, []
        self._report(failed, errors)

    def _report(self, failed: Sequence[OffloadError], errors: list[OffloadError]) -> None:
        """Report failures and append them to `errors`; raise the first one if the offloader is set to."""
        for error in failed:
            if isinstance(error, AboveCeilingError):
                errors.append(error)
                continue  # Nothing failed, and the offloader has reported it.
            self._note(error, errors)
            if self._offloader.options.on_error == "raise":
                raise error

    def _note(self, error: OffloadError, errors: list[OffloadError]) -> None:
        errors.append(error)
        detail = f"nothing is lost: {error_text(error)}"
        _log.warning("session %s: %s", self._offloader.session, detail)
        self.events.emit(ContextEvent(EventType.CONTEXT_FAILED, detail, {"kind": error.kind}))


def _plain(reply: ReplyT) -> ReplyT:
    """Return a reply; raise `ConfigError` if it must be awaited, so that its errors would be missed."""
    if inspect.isawaitable(reply):
        if inspect.iscoroutine(reply):
            reply.close()
        raise ConfigError("the function that asks the model is async: await acall() in place of call()")
    return reply
