"""What an agent loop calls each turn: it adds messages, asks what to send, and tells what came back."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offload.agent._config import AgentConfig
from offload.agent._held import HeldMessages
from offload.agent._journal import Journal
from offload.agent._relief import Relief, Step
from offload.agent._usage import Calibration, input_tokens
from offload.compaction import Summarizer
from offload.context import ContextEvent, EventBus, EventType, ItemType, MessageCounter
from offload.errors import ConfigError, ContextFullError, OffloadError
from offload.events import failure, one_at_a_time, said, told_later
from offload.hooks import Hooks
from offload.offloader import Offloader
from offload.threads import Gate, in_thread
from offload.tokens import TokenCounter, estimate_tokens, in_whole_numbers
from offload.tools import Tools

_log = logging.getLogger("offload")


@dataclass(frozen=True, slots=True)
class Request:
    """What to send to the model.

    Attributes:
        messages: the messages; system messages first, if any were added.
        tokens: what the request takes, corrected by what the provider counted before: these messages, and
            the system prompt and tool definitions that are sent beside them.
        errors: what failed. What could not leave is still there, and is tried again on the next turn.
    """

    messages: list[Any]
    tokens: int
    errors: list[OffloadError]


class ContextManager:
    """Keeps the context of an agent within its window, turn by turn, and loses nothing of it.

    Large items leave as they come. Once a request nears the window, in this order and only as far as it
    takes: what alone would fill much of it, old results of tools, then whole messages by
    `SelectiveCompaction`, with a summary where there is a summarizer. All that leaves can be read back by
    the model through `tools`, and by the host through `restore`. If something fails it stays where it was,
    and the loop goes on. Safe to call from several threads.

    Args:
        offloader: the session that things leave to; its `on_error="raise"` raises here too.
        config: the settings; the default is `AgentConfig()`.
        summarizer: asks a model for a summary; without one messages leave with a notice alone.
        events: told what happens, by default the offloader's; beside what `ContextIR` and
            `SelectiveCompaction` tell, `items_offloaded` (data: `messages`, `tokens`: how many became
            smaller, and by how much) and `context_failed` (data: `kind`).

    Attributes:
        config: the settings.
        events: who is told.
        tools: answers the model's calls of the tools that read back.
    """

    def __init__(
        self,
        offloader: Offloader,
        config: AgentConfig | None = None,
        *,
        summarizer: Summarizer | None = None,
        events: EventBus | None = None,
    ) -> None:
        self.config = config = AgentConfig() if config is None else config
        self.events = offloader.events if events is None else events
        self.tools: Tools = offloader.tools
        policy = offloader.policy if config.policy is None else config.policy
        given = offloader.options.token_counter
        self._careful = None if given is None else _CarefulCounter(given)
        self._offloader = offloader.with_options(policy=policy, token_counter=self._careful)
        self._relief = Relief(self._offloader, config, summarizer, self.events)
        self._held = HeldMessages(self._careful or estimate_tokens, self.events)
        self._counter = MessageCounter(self._careful)
        self._calibration = Calibration()
        self._journal = Journal(offloader.store, offloader.session, Hooks(redact=offloader.options.redact))
        # Tokens of what is sent beside the messages, and of the whole last request; both are estimates.
        self._beside = self._sent = 0
        self._gate = Gate("context manager")

    @property
    def messages(self) -> list[Any]:
        """The messages as they stand now."""
        return self._held.all_messages

    def prompt(self) -> str:
        """Return up to 15 lines for the system prompt that tell the model how to read items back."""
        return self.tools.prompt()

    def add(self, message: Any, item_type: ItemType | None = None) -> None:
        """Append a message: of the user, a tool's result, a system message. Waits for nothing.

        What is added while another thread makes a request is in the next one.

        Args:
            message: in any format that `Offloader.offload` takes. Never changed.
            item_type: what it is; without it, what its role and content say.

        Raises:
            MessageError: it is no message, but a list of them, a text or nothing.
        """
        self._held.arrive(message, item_type)
        # Who is inside may wait for a function of the caller's on the event loop of this very thread.
        with told_later(), self._gate.alone_if_free() as is_alone:
            if is_alone:
                self._held.take_in()

    def before_model_call(self, *, system_prompt: str = "", tools: Sequence[Any] = ()) -> Request:
        """Return what to send now, made small enough and written down.

        Args:
            system_prompt: what is sent as system prompt beside the messages; it is counted.
            tools: the tool definitions that are sent along; the same.

        Raises:
            OffloadError: with the offloader's `on_error="raise"`, what failed.
        """
        with one_at_a_time(self._gate):
            errors: list[OffloadError] = []
            self._held.take_in()
            self._beside = self._counter.text(system_prompt) + self._counter.data(list(tools))
            self._report(self._held.offload(self._offloader), errors)
            self._shrink(self._relief.unseen, errors)
            self._write_down(errors)
            self._report_counter(errors)
            self._sent = self._beside + self._held.tokens
            if self._tokens() > self.config.window:
                self._report([self._too_full()], errors)
            return Request(self._held.messages, self._tokens(), errors)

    def after_model_call(
        self, message: Any = None, *, usage: Any = None, model: str | None = None
    ) -> list[OffloadError]:
        """Append the model's answer and learn from what its provider counted; return what failed.

        If the context nears the window now it is compacted, with a summary if need be: the model has
        seen all that is in it.

        Args:
            message: the answer, as a message of the conversation; None appends nothing.
            usage: the `usage` of the reply, or the number of tokens that the request took.
            model: the model that answered; the default is that of the settings.

        Raises:
            OffloadError: with the offloader's `on_error="raise"`, what failed.
        """
        with one_at_a_time(self._gate):
            self._held.take_in()
            counted = input_tokens(usage)
            if counted is not None:
                self._calibration.observe(self._model(model), self._sent, counted)
            errors: list[OffloadError] = []
            if message is not None:
                self._held.arrive(message)
                self._held.take_in()
                self._shrink(self._relief.seen, errors)
                self._write_down(errors)
            self._report_counter(errors)
            return errors

    def resume(self) -> int:
        """Go on with the session's conversation, whoever began it; return how many messages are in it.

        Call it before anything is added. A conversation that is not resumed is replaced by the new one.

        Raises:
            ConfigError: there are messages already.
            CollisionError: two agents went on with the conversation at once.
            OffloadError: what was written down is damaged, was collected, or cannot be read.
        """
        with one_at_a_time(self._gate):
            if self.messages:
                raise ConfigError("resume() comes first: this conversation has messages already")
            told = self._journal.read()
            for line in told.lines:
                self._held.arrive(line.message, line.item_type)
            self._held.take_in()
            self._journal.go_on(self._held.lines())
            self._held.settled = self._held.count
            self._calibration = Calibration(told.ratios)
            return len(told.lines)

    def restore(self) -> list[Any]:
        """Return all messages that were ever added, as they were.

        Objects of an SDK that left by compaction, or were resumed, come back as the data they are made of.

        Raises:
            OffloadError: a record is damaged, was collected, or cannot be read.
        """
        with one_at_a_time(self._gate):
            self._held.take_in()
            return self._held.restored(self._offloader, self._relief.compaction)

    async def abefore_model_call(self, *, system_prompt: str = "", tools: Sequence[Any] = ()) -> Request:
        """Do what `before_model_call` does, in a thread; async hooks run on this loop."""
        return await in_thread(self.before_model_call, system_prompt=system_prompt, tools=tools)

    async def aafter_model_call(
        self, message: Any = None, *, usage: Any = None, model: str | None = None
    ) -> list[OffloadError]:
        """Do what `after_model_call` does, in a thread; async hooks run on this loop."""
        return await in_thread(self.after_model_call, message, usage=usage, model=model)

    async def aresume(self) -> int:
        """Do what `resume` does, in a thread."""
        return await in_thread(self.resume)

    async def arestore(self) -> list[Any]:
        """Do what `restore` does, in a thread."""
        return await in_thread(self.restore)

    def _model(self, model: str | None = None) -> str:
        return self.config.model if model is None else model

    def _tokens(self) -> int:
        """Return what a request takes now, as its provider would count."""
        return self._calibration.corrected(self._model(), self._beside + self._held.tokens)

    def _shrink(self, steps: Sequence[Step], errors: list[OffloadError]) -> None:
        """Make a context small that nears the window."""
        if self._tokens() < self.config.trigger_tokens:
            return
        for limit, step in steps:
            if self._tokens() >= limit:
                self._report(step(self._held, self._tokens()), errors)

    def _too_full(self) -> ContextFullError:
        return ContextFullError(
            f"the request takes {self._tokens()} tokens, and the window is {self.config.window}: "
            "shorten the system prompt, the tool definitions or the last messages, or take a larger window"
        )

    def _write_down(self, errors: list[OffloadError]) -> None:
        if not self.config.resumable:
            return
        held, start = self._held, min(self._held.settled, self._journal.sure)
        try:
            failed = self._journal.write(start, held.lines(start), self._calibration.ratios)
            held.settled = held.count
        except OffloadError as error:
            failed = [error]
        except Exception as error:  # noqa: BLE001 # a message may be an object that raises anything
            failed = [failure("not written down:", error)]
        self._report(failed, errors)

    def _report_counter(self, errors: list[OffloadError]) -> None:
        if self._careful is not None:
            self._report(self._careful.failed(), errors)

    def _report(self, failed: Sequence[OffloadError], errors: list[OffloadError]) -> None:
        """Tell of what failed, and take it into `errors`; the caller may want it raised."""
        for error in failed:
            errors.append(error)
            detail = f"nothing is lost: {said(error)}"
            _log.warning("session %s: %s", self._offloader.session, detail)
            self.events.emit(ContextEvent(EventType.CONTEXT_FAILED, detail, {"kind": error.kind}))
            if self._offloader.options.on_error == "raise":
                raise error


class _CarefulCounter:
    """Counts by a function of the caller's, and estimates where that fails: no turn ends in that."""

    def __init__(self, counter: TokenCounter) -> None:
        self._count = in_whole_numbers(counter)
        self._failure: Exception | None = None

    def __call__(self, text: str) -> int:
        try:
            return self._count(text)
        except Exception as error:  # noqa: BLE001 # a function of the caller's own may raise anything
            self._failure = error
            return estimate_tokens(text)

    def failed(self) -> list[OffloadError]:
        """Return that it failed since this was last asked, if it did."""
        error, self._failure = self._failure, None
        return [] if error is None else [failure("the token counter failed, an estimate serves:", error)]
