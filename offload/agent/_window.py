"""The window of a model: the size of the next request, and the steps that keep it within."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from offload.agent._config import AgentConfig
from offload.agent._confirmation import Confirmation
from offload.agent._messages import AgentMessages
from offload.agent._reducer import ContextReducer, Step
from offload.agent._refusals import LengthRefusal
from offload.agent._usage import HIGHEST, LOWEST, Calibration
from offload.errors import ContextFullError, OffloadError
from offload.messages.context.pairs import waiting_from
from offload.messages.context.wait import Wait
from offload.messages.formats import is_result
from offload.offloader import Offloader

# How many of the largest messages an error names.
_NAMED = 3
# No window is smaller: more was sent than the messages of a smaller request.
_LEAST_WINDOW = 1000


class ModelWindow:
    """The size of the requests of one agent, and what makes them smaller.

    Args:
        new_reducer: returns the steps that make a context smaller, by the settings.
        confirmation: asks the user; None if nothing does.

    Attributes:
        config: the settings; if a provider reports a smaller window, it replaces `window_tokens`.
        reducer: the steps.
        calibration: corrects estimated tokens by the provider's counts.
        fixed: estimated tokens of the system prompt and the tools, and `sent` of the whole last request.
    """

    def __init__(
        self,
        offloader: Offloader,
        messages: AgentMessages,
        config: AgentConfig,
        new_reducer: Callable[[AgentConfig], ContextReducer],
        confirmation: Confirmation | None,
    ) -> None:
        self._offloader = offloader
        self._messages = messages
        self._new_reducer = new_reducer
        self._confirmation = confirmation
        self.config = config
        self.reducer = new_reducer(config)
        self.calibration = Calibration()
        self.fixed = self.sent = 0

    @property
    def estimated(self) -> int:
        """Estimated tokens of a request now."""
        return self.fixed + self._messages.context.total_tokens

    @property
    def tokens(self) -> int:
        """The tokens of a request now, as its provider would count them."""
        return self.calibration.correct(self.config.model, self.estimated)

    @property
    def _has_no_room(self) -> bool:
        """Whether the system prompt and tools fill the window, so that no step can help."""
        fixed = self.fixed + self._messages.context.header.tokens
        return self.calibration.correct(self.config.model, fixed) >= self.config.window

    def parts(self) -> str:
        """Return what fills a request, the largest messages by name."""
        items = sorted(enumerate(self._messages.items(0)), key=lambda entry: -entry[1].token_count)
        largest = [f"messages[{at}] ({item.item_type}) {item.token_count}" for at, item in items[:_NAMED]]
        return ", ".join([f"system prompt and tools {self.fixed} tokens", *largest])

    def problem(self, tokens: int) -> ContextFullError | None:
        """Return why a request of so many tokens does not fit the window; None if it does."""
        if tokens <= self.config.window:
            return None
        cut = "the tool definitions or the last messages"
        if self._has_no_room:
            cut = "or pass fewer tools, which alone fill it, so that nothing was offloaded or removed"
        return ContextFullError(
            f"the request has {tokens} tokens, and the window is {self.config.window}: {self.parts()}; "
            f"shorten the system prompt, {cut}, or use a larger window"
        )

    def news_of_wait(self, tokens: int) -> ContextFullError | None:
        """Return why compactions wait, once; the request fits the window."""
        wait = self._messages.wait
        if wait.is_told or not self.config.trigger_tokens <= tokens < min(wait.until, self.config.window + 1):
            return None
        self._messages.wait = wait._replace(is_told=True)
        return ContextFullError(
            f"a compaction frees too little: the request has {tokens} tokens, the aim is fewer than "
            f"{self.reducer.limit}, and the window is {self.config.window}: {self.parts()}; the next "
            f"one is tried from {wait.until} tokens on; shorten the system prompt, the tool "
            "definitions or the last messages, or use a larger window"
        )

    def learn(self, told: LengthRefusal) -> None:
        """Correct the token counts and the window by the refusal of the request as it is."""
        estimated = self.sent or self.estimated
        if told.counted is not None and LOWEST <= told.counted / max(1, estimated) <= HIGHEST:
            self.calibration.learn(self.config.model, estimated, told.counted)
        window = min(self.tokens, told.window or self.config.window)
        if _LEAST_WINDOW <= window < self.config.window:
            self.config = self.config.model_copy(update={"window_tokens": window})
            self.reducer = self._new_reducer(self.config)

    def shrink(
        self, fresh: Sequence[Step], edits: Sequence[Step], *, is_forced: bool = False
    ) -> Iterator[Sequence[OffloadError]]:
        """Run the steps `fresh` on a request above the trigger, and `edits` unless it is better to wait.

        Yields the failures of each step, before the next one runs.
        """
        if self._confirmation is not None:
            self._confirmation.begin_call()
        tokens, window, trigger = self.tokens, self.config.window, self.config.trigger_tokens
        self._messages.wait = wait = Wait() if is_forced else self._messages.wait.at(tokens, window)
        is_waiting = self._has_no_room and not is_forced
        again = min(wait.until, window) if wait.is_all_tried(trigger) else 0
        if is_waiting or tokens < max(trigger, again):
            return
        edited_from = 0 if is_forced else self._edited_from()
        yield from self._run(fresh)
        self._messages.was_compacted = False
        if self.tokens >= edited_from:
            yield from self._run(edits)
        if self._messages.was_compacted:
            is_closed = self._confirmation is not None and self._confirmation.is_closed
            after = self._messages.wait.after(self.tokens, self.reducer.limit, window)
            self._messages.wait = Wait() if is_closed else after

    def _run(self, steps: Sequence[Step]) -> Iterator[Sequence[OffloadError]]:
        for limit, step in steps:
            if self.tokens >= limit:
                yield step(self._messages, self.tokens)

    def _edited_from(self) -> float:
        """Return the tokens at which messages that were sent are changed or removed, above the trigger.

        In a bound conversation that removes thinking, which the model needs until the end of its turn, and
        most of all while a call of its is open.
        """
        trigger = self.config.trigger_tokens
        messages = self._messages.context.conversation_messages
        if not self._offloader.is_bound(messages):
            return 0
        if waiting_from(messages) < len(messages):
            return math.inf
        return (trigger + self.config.window) / 2 if is_result(messages[-1]) else trigger
