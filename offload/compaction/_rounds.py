"""Compaction by rounds, and its settings: a summary replaces the oldest rounds, the latest are kept."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast, get_args

from offload.compaction._strategy import CompactionResult, Plan, StoringCompactor, View, warn
from offload.compaction._summary import Summarizer, summarize
from offload.context import EventBus, MessageCounter, split_rounds
from offload.errors import ConfigError, ContextFullError, OffloadError
from offload.messages import SYSTEM_ROLES, role_or_none
from offload.offloader import Offloader
from offload.settings import Flag, Fraction, SettingsModel, Size, read_file
from offload.threads import call_hook, in_thread
from offload.tokens import TokenCounter

Refusal = Literal["drop_oldest", "new_session", "error"]


class RoundConfig(SettingsModel):
    """Settings of compaction by rounds.

    Attributes:
        enabled: whether `should_compact` may return True.
        max_context_tokens: the context window, in tokens.
        trigger_ratio: a compaction is due at this part of the window or more.
        keep_recent_rounds: how many of the latest rounds are kept.
        require_confirmation: whether `confirm` is called first.
        summary_max_length: the maximum length of a summary, in characters; a longer one is cut.
        on_refusal: the effect of a refusal: "drop_oldest" removes as few rounds as possible, without a
            summary; "new_session" keeps the current round only; "error" raises.
    """

    enabled: Flag = True
    max_context_tokens: Size = 80_000
    trigger_ratio: Fraction = 0.8
    keep_recent_rounds: Size = 2
    require_confirmation: Flag = False
    summary_max_length: Size = 1000
    on_refusal: Refusal = "error"

    @property
    def trigger_tokens(self) -> int:
        """The number of tokens at which a compaction is due."""
        return int(self.max_context_tokens * self.trigger_ratio)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the settings in the table `context_compaction` of a YAML, TOML or JSON file.

        Raises `ConfigError`, as `AgentConfig.load` does, and if there is no such table.
        """
        table = read_file(path).get("context_compaction")
        if not isinstance(table, dict):
            raise ConfigError(f"{path} holds no table context_compaction")
        return cls.model_validate(table)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A compaction that needs a confirmation; as a string it is the question.

    Attributes:
        tokens: the tokens of the context now.
        max_tokens: the context window.
        rounds: how many rounds are removed at least.
    """

    tokens: int
    max_tokens: int
    rounds: int

    def __str__(self) -> str:
        return (
            f"The context has {self.tokens} of {self.max_tokens} tokens. Replace the {self.rounds} oldest "
            f"rounds with a summary? They are stored, and can be read again."
        )


Confirm = Callable[[Proposal], bool | Refusal | Awaitable[bool | Refusal]]


@dataclass(frozen=True, slots=True)
class CompactResult(CompactionResult):
    """Outcome of a compaction by rounds.

    Attributes:
        new_messages: the messages to continue with: the same objects, and the notice. If `error` is set,
            all messages.
        compacted_count: how many rounds were removed.
    """

    new_messages: list[Any] = field(default_factory=list)
    compacted_count: int = 0


class RoundCompactor(StoringCompactor):
    """Replaces the oldest rounds of a conversation with a summary when it nears the context window.

    A round is the user's messages and all that follows until the next ones, so a tool call and its result
    are removed or kept together. System messages are always kept. Removed messages are stored in the
    offloader's session first, and a notice says how to read them. A single round, such as one request
    with a long tool loop, is never cut: `SelectiveCompaction` cuts inside it.

    Args:
        offloader: the session that stores removed rounds.
        summarizer: asks a model for the summary.
        config: the settings; the default is `RoundConfig()`.
        confirm: called before each compaction if the settings require it. True continues, False applies
            `on_refusal`, and the name of a refusal applies that one.
        events: gets `context_compacted` after each compaction, with the data `original_tokens`,
            `new_tokens`, `saved_ratio`, `summary` and `compacted_count`.
        token_counter: counts tokens of a text; the default is the offline estimate.

    Raises:
        ConfigError: the settings require a confirmation, and `confirm` is missing.
    """

    def __init__(
        self,
        offloader: Offloader,
        summarizer: Summarizer,
        config: RoundConfig | None = None,
        *,
        confirm: Confirm | None = None,
        events: EventBus | None = None,
        token_counter: TokenCounter | None = None,
    ) -> None:
        self.config = RoundConfig() if config is None else config
        if self.config.require_confirmation and confirm is None:
            raise ConfigError("require_confirmation needs confirm=, a function that asks the user")
        self.events = EventBus() if events is None else events
        super().__init__(offloader)
        self._summarizer = summarizer
        self._confirm = confirm
        self._counter = MessageCounter(token_counter)

    def should_compact(
        self, messages: Sequence[Any], system_prompt: str = "", tools: Sequence[Any] = ()
    ) -> bool:
        """Return whether a compaction is due: the request has reached the trigger.

        The arguments are those of `compact`. If the list grew since the last call, only the new messages are
        counted.
        """
        if not self.config.enabled:
            return False
        fixed = self._fixed(system_prompt, tools)
        return fixed + self._counter.total(messages) >= self.config.trigger_tokens

    def compact(
        self, messages: Sequence[Any], system_prompt: str = "", tools: Sequence[Any] = ()
    ) -> CompactResult:
        """Compact a conversation, due or not.

        If the recent rounds exceed the trigger, fewer of them are kept, at least the last one. If the
        summarizer or the store fails, nothing is changed, and the result has the error.

        Args:
            messages: the conversation, in any format that `Offloader.offload` takes. Never changed.
            system_prompt: a system prompt that is sent separately; it is counted.
            tools: the tool definitions that are sent with it; they are counted.

        Raises:
            ContextFullError: the messages that must be kept exceed the window, or the compaction was
                refused and the refusal is "error".
            ConfigError: `confirm` returned an invalid answer.
        """
        view = self._view(messages, system_prompt, tools)
        refusal = self._refusal(view) if self._may_remove(view) else None
        if refusal == "error":
            raise ContextFullError(
                f"the compaction of a context of {view.total} tokens was refused; shorten it by hand, "
                "or start a new session"
            )
        try:
            plan = self._plan(view, refusal)
            return _unchanged(view) if plan is None else self._carry_out(view, plan)
        except (ConfigError, ContextFullError):
            raise
        except OffloadError as error:
            warn(error)
            return _unchanged(view, error)

    async def acompact(
        self, messages: Sequence[Any], system_prompt: str = "", tools: Sequence[Any] = ()
    ) -> CompactResult:
        """Run `compact` in a thread; async hooks run on this loop."""
        return await in_thread(self.compact, messages, system_prompt, tools)

    def _view(self, messages: Sequence[Any], system_prompt: str, tools: Sequence[Any]) -> View:
        others = [i for i, message in enumerate(messages) if role_or_none(message) not in SYSTEM_ROLES]
        rounds = [others[one.start : one.stop] for one in split_rounds([messages[i] for i in others])]
        tokens = self._counter.messages(messages)
        total = self._fixed(system_prompt, tools) + sum(tokens)
        return View(list(messages), tokens, total, rounds, self._archive, self._counter.message)

    def _fixed(self, system_prompt: str, tools: Sequence[Any]) -> int:
        return self._counter.text(system_prompt) + self._counter.data(list(tools))

    def _refusal(self, view: View) -> Refusal | None:
        """Ask for a confirmation; return the refusal, None for a yes."""
        if self._confirm is None or not self.config.require_confirmation:
            return None
        least = max(1, len(view.groups) - self.config.keep_recent_rounds)
        proposal = Proposal(view.total, self.config.max_context_tokens, least)
        # A person may be asked: there is no time limit.
        answer = call_hook(self._confirm, proposal, seconds=math.inf)
        if answer is True:
            return None
        if answer is False:
            return self.config.on_refusal
        if answer not in get_args(Refusal):
            raise ConfigError(f"confirm must return a bool or one of {get_args(Refusal)}, got {answer!r:.60}")
        return cast("Refusal", answer)

    def _plan(self, view: View, refusal: Refusal | None) -> Plan | None:
        """Return which rounds to remove, if any. Raises `ContextFullError` if the rest exceeds the window."""
        plan = None
        for keep in self._choices(view, refusal):
            removed = [i for one in view.groups[: len(view.groups) - keep] for i in one]
            if keep > 1 and view.tokens_without(removed) >= self.config.trigger_tokens:
                continue
            old, max_chars = [view.messages[i] for i in removed], self.config.summary_max_length
            plan = view.plan(removed, "" if refusal else summarize(self._summarizer, old, max_chars))
            if plan.tokens < self.config.trigger_tokens:
                break
        tokens = view.total if plan is None else plan.tokens
        if tokens > self.config.max_context_tokens:
            raise ContextFullError(
                f"max_context_tokens={self.config.max_context_tokens} is less than the {tokens} tokens of "
                "system prompt, tool definitions, summary and last round; start a new session, shorten them, "
                "use a larger window, or cut inside the round with SelectiveCompaction"
            )
        return plan

    def _choices(self, view: View, refusal: Refusal | None) -> range:
        """Return how many rounds may be kept, the best choice first."""
        if not self._may_remove(view):
            return range(0)
        most = {"new_session": 1, "drop_oldest": len(view.groups)}
        keep = self.config.keep_recent_rounds if refusal is None else most[refusal]
        return range(min(keep, len(view.groups) - 1), 0, -1)

    def _may_remove(self, view: View) -> bool:
        """Return whether a round may be removed: never the last, and recent ones only if it is due."""
        is_due = view.total >= self.config.trigger_tokens
        return len(view.groups) > (1 if is_due else self.config.keep_recent_rounds)

    def _carry_out(self, view: View, plan: Plan) -> CompactResult:
        ref, notice = self._archive.store(view.messages, plan.removed, plan.notice)
        removed, first = set(plan.removed), plan.removed[0]
        # System messages between the rounds keep their places.
        kept = [m for i, m in enumerate(view.messages) if i not in removed and i > first]
        result = CompactResult(
            view.total,
            plan.tokens,
            [*view.messages[:first], notice, *kept],
            sum(1 for one in view.groups if one[0] in removed),
            ref=ref,
            summary=plan.notice.summary,
        )
        result.report(self.events, result.compacted_count, "rounds")
        return result


def _unchanged(view: View, error: OffloadError | None = None) -> CompactResult:
    return CompactResult(view.total, view.total, list(view.messages), error=error)
