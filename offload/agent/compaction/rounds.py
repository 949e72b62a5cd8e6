"""Compaction by rounds, and its settings: a summary replaces the oldest rounds, the latest are kept."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace as replaced
from functools import partial
from typing import Any, Literal, Self, get_args

from offload.agent.compaction._grounding import Grounding
from offload.agent.compaction._round_plan import RoundPlanner, best_plan, joined, rounds_and_parts
from offload.agent.compaction._strategy import CompactionResult, Plan, StoringCompactor, View
from offload.agent.compaction._summary import Summarizer
from offload.agent.compaction._windows import TRIGGER_RATIO
from offload.base.schema import Flag, Fraction, SettingsModel, Size, read_file
from offload.base.threads.calls import as_async, call_hook
from offload.base.tokens import TokenCounter
from offload.errors import (
    ConfigError,
    ContextFullError,
    OffloadError,
    RefusedError,
    check_callable,
    check_kind,
    check_messages,
    failure,
)
from offload.messages.access import are_equal
from offload.messages.context import ContextIR, EventBus
from offload.messages.context.tokens import MessageCounter
from offload.messages.context.wait import Wait
from offload.offloader import Offloader

RefusalEffect = Literal["drop_oldest", "new_session", "error"]


class RoundConfig(SettingsModel):
    """Settings of compaction by rounds.

    Attributes:
        enabled: whether `should_compact` may return True.
        max_context_tokens: the context window, in tokens.
        trigger_ratio: a compaction is due at this part of the window or more.
        keep_recent_rounds: how many of the latest rounds are kept.
        require_confirmation: whether `confirm` is called first. A compactor without `confirm` can ask nobody:
            it compacts at once, unless a file or an argument set this to True; then it cannot be created.
        summary_max_length: the maximum length of a summary, in characters; a longer one is cut. In a small
            window it is less: half as many characters as the trigger has tokens, at least 200.
        on_refusal: the effect of a refusal: "drop_oldest" removes as few rounds as possible, without a
            summary; "new_session" keeps the current round only; "error" removes nothing, and the result has
            a `RefusedError`.
        grounding: the effect of exact values in a summary or ledger that the messages do not have: "report"
            emits `ungrounded_text` and names them in the result, "retry" also asks for another summary first,
            once, "off" does not check.
    """

    enabled: Flag = True
    max_context_tokens: Size = 80_000
    trigger_ratio: Fraction = 0.8
    keep_recent_rounds: Size = 2
    require_confirmation: Flag = True
    summary_max_length: Size = 1000
    on_refusal: RefusalEffect = "error"
    grounding: Grounding = "report"

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
            raise ConfigError(f"{path} has no table context_compaction")
        return cls.model_validate(table)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A compaction that needs a confirmation; as a string it is the question.

    Attributes:
        tokens: the tokens of the context now.
        max_tokens: the context window.
        rounds: how many rounds are removed at least; 0 if the only one is cut, or rounds do not count.
    """

    tokens: int
    max_tokens: int
    rounds: int

    def __str__(self) -> str:
        old = f"{self.rounds} oldest rounds" if self.rounds else "older messages"
        return (
            f"The context has {self.tokens} of {self.max_tokens} tokens. Replace the {old} with a summary? "
            "They are stored, and can be read again."
        )


Confirm = Callable[[Proposal], bool | RefusalEffect | Awaitable[bool | RefusalEffect]]


def ask(confirm: Confirm, proposal: Proposal, on_refusal: RefusalEffect) -> Literal[True] | RefusalEffect:
    """Return the answer to a proposal; a no is `on_refusal`. Raises `OffloadError` if there is no answer."""
    # A person may be asked: there is no time limit.
    try:
        answer = call_hook(confirm, proposal, seconds=math.inf)
    except OffloadError:
        raise
    except Exception as error:
        raise failure("confirm failed:", error) from error
    effect: Literal[True] | RefusalEffect = on_refusal if answer is False else answer
    if effect is not True and effect not in get_args(RefusalEffect):
        raise ConfigError(
            f"confirm must return a bool or one of {get_args(RefusalEffect)}, got {answer!r:.60}"
        )
    return effect


@dataclass(frozen=True, slots=True)
class CompactResult(CompactionResult):
    """Outcome of a compaction by rounds.

    Attributes:
        new_messages: the messages to continue with: the same objects, and the notice; all messages if nothing
            was removed. Of a context, those of its conversation. For Bedrock, which refuses two messages of
            the user in a row, the notice is a block of the user's message next to it.
        compacted_count: how many rounds were removed; a round that was cut is one of them.
        refusal: the effect of the user's refusal; None if the user agreed, or was not asked.
    """

    new_messages: list[Any] = field(default_factory=list)
    compacted_count: int = 0
    refusal: RefusalEffect | None = None

    @property
    def counts(self) -> Mapping[str, Any]:
        """The number of removed rounds, and the effect of a refusal."""
        return {"compacted_count": self.compacted_count, "refusal": self.refusal}


# A summary may have half as many characters as the trigger has tokens, but always this many.
_MIN_SUMMARY_CHARS = 200


class _Rounds(StoringCompactor):
    """Compaction by rounds, of a list of messages or of a context."""

    def __init__(
        self,
        offloader: Offloader,
        summarizer: Summarizer | None = None,
        config: RoundConfig | None = None,
        *,
        confirm: Confirm | None = None,
        events: EventBus | None = None,
    ) -> None:
        check_callable("summarizer", summarizer)
        check_callable("confirm", confirm)
        check_kind("config", config, RoundConfig)
        self.config: RoundConfig = RoundConfig() if config is None else config
        is_set = "require_confirmation" in self.config.model_fields_set
        if confirm is None and is_set and self.config.require_confirmation:
            raise ConfigError("require_confirmation needs confirm=, a function that asks the user")
        super().__init__(offloader, self.config.grounding)
        self._summarizer = summarizer
        self._events = events
        self._confirm = confirm if self.config.require_confirmation else None

    def _compact(self, context: ContextIR, total: int, fixed: int = 0) -> CompactResult:
        """Return the compaction of a request of `total` tokens, `fixed` of which cannot be removed."""
        rounds, parts = rounds_and_parts(context.conversation.messages)
        target, window = self.config.trigger_tokens, self.config.max_context_tokens
        view = View(context, total, parts, self._archive, target, window, rounds)
        if not self._must_shrink(view) and len(rounds) <= self.config.keep_recent_rounds:
            return _unchanged(view)
        events = context.event_bus if self._events is None else self._events
        result = self._run(context, events, total, partial(self._shorten, view, fixed))
        return result if isinstance(result, CompactResult) else _unchanged(view, result)

    @property
    def _bounds(self) -> tuple[int, int]:
        trigger = self.config.trigger_tokens
        # Of a window that is hardly used, a part would be much.
        return trigger, min(self.config.max_context_tokens, int(trigger / TRIGGER_RATIO))

    def _must_shrink(self, view: View) -> bool:
        return view.total >= self.config.trigger_tokens

    def _shorten(self, view: View, fixed: int) -> CompactResult:
        """Remove messages if that helps.

        Raises `ContextFullError` or `RefusedError` if none may be removed.
        """
        must_shrink = self._must_shrink(view)
        most = view.groups[:-1] if must_shrink else view.rounds[: -self.config.keep_recent_rounds]
        left = view.plan(joined(most)).tokens if most else view.total
        has_room = fixed < view.window and view.is_enough(left)
        if not has_room if must_shrink else left >= view.total:
            if must_shrink:
                raise self._full(view.total, f" ({view.parts})")
            return _unchanged(view)
        refusal = self._ask(view)
        planner = self._planner(view, refusal)
        try:
            plan, error = self._plan(planner, must_shrink), None
        except OffloadError as failed:
            if view.total < self.config.max_context_tokens or self._summarizer is None:
                raise
            # The model cannot take the request as it is: a notice without a summary is better than none.
            plan, error = self._plan(replaced(planner, summary=_no_summary), must_shrink), failed
        if plan.tokens >= view.total:
            return _unchanged(view, error)
        return self._carry_out(view, plan, refusal, error)

    def _plan(self, planner: RoundPlanner, must_shrink: bool) -> Plan:
        return best_plan(planner) if must_shrink else planner.draft(planner.view.rounds[: -planner.keep])

    def _ask(self, view: View) -> RefusalEffect | None:
        """Ask for a confirmation; return the refusal, None for a yes. Raises `RefusedError`."""
        if self._confirm is None:
            return None
        others = len(view.rounds) - 1
        least = max(min(1, others), len(view.rounds) - self.config.keep_recent_rounds)
        proposal = Proposal(view.total, self.config.max_context_tokens, least)
        answer = ask(self._confirm, proposal, self.config.on_refusal)
        if answer == "error":
            raise RefusedError(
                f"the compaction of a context of {view.total} tokens was refused; shorten it by hand, "
                "or start a new session"
            )
        return None if answer is True else answer

    def _planner(self, view: View, refusal: RefusalEffect | None) -> RoundPlanner:
        trigger, fixed = self.config.trigger_tokens, view.tokens_without(joined(view.groups))
        keep, room = self.config.keep_recent_rounds, (trigger + fixed) // 2
        if refusal == "new_session":
            keep = 1
        elif refusal == "drop_oldest":
            keep, room = len(view.rounds) - 1, trigger
        summary = self._summary if refusal is None else _no_summary
        return RoundPlanner(view, keep, view.fitting(view.groups, room), summary)

    def _summary(self, messages: Sequence[Any]) -> str:
        if self._summarizer is None:
            return ""
        most = max(_MIN_SUMMARY_CHARS, self.config.trigger_tokens // 2)
        return self._summarize(self._summarizer, messages, min(most, self.config.summary_max_length))

    def _carry_out(
        self, view: View, plan: Plan, refusal: RefusalEffect | None, error: OffloadError | None
    ) -> CompactResult:
        found = self._ungrounded_in(view, plan)
        ref, notice, tokens = self._store(view, plan)
        removed, context = set(plan.removed), view.context
        tokens -= self._place(view, plan, notice, plan.item_type)
        return CompactResult(
            view.total,
            tokens,
            context.conversation_messages,
            sum(1 for one in view.rounds if one[0] in removed),
            refusal,
            ref=ref,
            removed_count=len(removed),
            summary=plan.notice.summary,
            error=self._full(tokens) if tokens > self.config.max_context_tokens else error,
            ungrounded=found,
        )

    def _full(self, tokens: int, parts: str = "") -> ContextFullError:
        return ContextFullError(
            f"the context has {tokens} tokens{parts}, max_context_tokens is "
            f"{self.config.max_context_tokens}, and nothing more may be removed that frees enough; "
            "start a new session, shorten the system prompt, the tool definitions or "
            "the last messages, or use a larger window"
        )


class RoundCompactor(_Rounds):
    """Replaces the oldest rounds of a conversation with a summary when it nears the context window.

    A round is the user's messages and all that follows until the next ones. System messages are always kept.
    Removed messages are stored in the offloader's session first, and a notice says how to read them.

    If a conversation is a single round, each message of a run of one role counts as a round. If the last
    rounds are too long, the last one is cut, such as one request with a long tool loop: its latest messages
    are kept, as many as fit into half of the room. A tool call and its result are always removed or kept
    together.

    A compaction never makes the context larger. After one that was not enough, or failed, the next one of the
    conversation is due once a sixteenth of the window is new, or the request fills the window.

    Args:
        offloader: the session that stores removed rounds.
        summarizer: asks a model for the summary; without one, a notice alone replaces removed rounds.
        config: the settings; the default is `RoundConfig()`.
        confirm: a plain or async function, called before each compaction unless the settings turn it off.
            True continues, False applies `on_refusal`, and the name of a refusal applies that one.
        events: gets the events; the default is the offloader's bus.
        token_counter: counts tokens of a text; the default is the offloader's.

    Raises:
        ConfigError: the settings require a confirmation, and `confirm` is missing, or one of the hooks is
            not a function.
    """

    def __init__(
        self,
        offloader: Offloader,
        summarizer: Summarizer | None = None,
        config: RoundConfig | None = None,
        *,
        confirm: Confirm | None = None,
        events: EventBus | None = None,
        token_counter: TokenCounter | None = None,
    ) -> None:
        self.events: EventBus = offloader.events if events is None else events
        super().__init__(offloader, summarizer, config, confirm=confirm, events=self.events)
        self._token_counter = partial(_count, offloader) if token_counter is None else token_counter
        self._counter = MessageCounter(self._token_counter)
        # When the conversation with the last message of the last compaction is tried again.
        self._again, self._last = Wait(), list[Any]()

    def should_compact(
        self,
        messages: Sequence[Any],
        system_prompt: str | Sequence[Any] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> bool:
        """Return whether a compaction is due: the request has reached the trigger, and none waits.

        The arguments are those of `compact`. If the list grew since the last call, only the new messages are
        counted.
        """
        check_messages(messages)
        if not self.config.enabled:
            return False
        fixed = self._counter.fixed(system_prompt, tools)
        tokens = fixed + self._counter.total(messages)
        return tokens >= self.config.trigger_tokens and not self._waits(messages, tokens)

    def _waits(self, messages: Sequence[Any], tokens: int) -> bool:
        self._again = self._again.at(tokens, self._bounds[1])
        if tokens >= self._again.until:
            return False
        return any(are_equal([message], self._last) for message in reversed(messages))

    def compact(
        self,
        messages: Sequence[Any],
        system_prompt: str | Sequence[Any] | None = None,
        tools: Sequence[Any] | None = None,
    ) -> CompactResult:
        """Compact a conversation, due or not.

        If the recent rounds exceed the trigger, fewer of them are kept. After a failure nothing is changed,
        and the result has the error: a `RefusedError` if the user refused, a `ContextFullError` if nothing
        more may be removed. If no compaction is due, and none would shorten the context, all are kept. If the
        summarizer fails and the context fills the window, messages are removed without a summary.

        Args:
            messages: the conversation, in any format that `Offloader.offload` takes. Never changed.
            system_prompt: a system prompt that is sent separately, or its blocks; it is counted.
            tools: the tool definitions that are sent with it; they are counted.

        Raises:
            MessageError: `messages` is not a list.
        """
        check_messages(messages)
        context = ContextIR(token_counter=self._token_counter)
        context.conversation.items = [context.new_item(message) for message in messages]
        fixed = self._counter.fixed(system_prompt, tools)
        total = fixed + context.conversation.tokens
        result = self._restorable(context, self._compact(context, total, fixed))
        self._again, self._last = self._wait(context, total), result.new_messages[-1:]
        return result

    acompact = as_async(compact)
    """Run `compact` in a thread; async hooks run on this loop."""


class RoundStrategy(_Rounds):
    """Compaction by rounds of a context, for `ContextManager` and `ContextIR.auto_compact`.

    It removes what `RoundCompactor` removes, and waits as it does: then the result has the error.

    Args:
        offloader: as for `RoundCompactor`, like `summarizer`, `config` and `confirm`.
        events: the bus for events; by default that of each context.

    Raises:
        ConfigError: the settings require a confirmation, and `confirm` is missing.
    """

    def compact(self, context: ContextIR, *, current_total_tokens: int | None = None) -> CompactResult:
        """Shorten `context` if a compaction is due; return the result, with the error after a failure.

        Args:
            context: the context, changed in place. Its header is always kept.
            current_total_tokens: the provider's token count of the last request and its answer, tool
                definitions included; by default, the context's own count.
        """
        total = context.total_tokens if current_total_tokens is None else current_total_tokens
        return self._restorable(context, self._compact_if_due(context, total))

    acompact = as_async(compact)
    """Run `compact` in a thread; async hooks run on this loop."""

    def _compact_if_due(self, context: ContextIR, total: int) -> CompactResult:
        if not self.config.enabled or total < self.config.trigger_tokens:
            return CompactResult(total, total, context.conversation_messages)
        return self._compact(context, total)


def _unchanged(view: View, error: OffloadError | None = None) -> CompactResult:
    refusal: RefusalEffect | None = "error" if isinstance(error, RefusedError) else None
    return CompactResult(view.total, view.total, list(view.messages), refusal=refusal, error=error)


def _count(offloader: Offloader, text: str) -> int:
    """Return the tokens of a text by the offloader's counter, whose failures its results have."""
    return offloader.options.count_or_estimate(text)[0]


def _no_summary(_: Sequence[Any]) -> str:
    return ""
