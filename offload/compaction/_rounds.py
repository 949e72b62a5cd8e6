"""Compaction by rounds, and its settings: a summary replaces the oldest rounds, the latest are kept."""

from __future__ import annotations

import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from typing import Any, Literal, Self, cast, get_args

from offload.compaction._strategy import CompactionResult, Plan, StoringCompactor, View
from offload.compaction._summary import Summarizer, summarize
from offload.context import (
    ContextIR,
    EventBus,
    MessageCounter,
    split_groups,
    split_rounds,
    waiting_from,
)
from offload.errors import ConfigError, ContextFullError, OffloadError, RefusedError
from offload.messages import SYSTEM_ROLES, is_result, role_or_none, scan_of
from offload.offloader import Offloader
from offload.placeholder import notice_number
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
        require_confirmation: whether `confirm` is called first. A compactor without `confirm` can ask nobody:
            it compacts at once, unless a file or an argument set this to True; then it cannot be created.
        summary_max_length: the maximum length of a summary, in characters; a longer one is cut.
        on_refusal: the effect of a refusal: "drop_oldest" removes as few rounds as possible, without a
            summary; "new_session" keeps the current round only; "error" removes nothing, and the result has
            a `RefusedError`.
    """

    enabled: Flag = True
    max_context_tokens: Size = 80_000
    trigger_ratio: Fraction = 0.8
    keep_recent_rounds: Size = 2
    require_confirmation: Flag = True
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
        rounds: how many rounds are removed at least; 0 if the only one is cut.
    """

    tokens: int
    max_tokens: int
    rounds: int

    def __str__(self) -> str:
        old = f"{self.rounds} oldest rounds" if self.rounds else "older messages of this round"
        return (
            f"The context has {self.tokens} of {self.max_tokens} tokens. Replace the {old} with a summary? "
            "They are stored, and can be read again."
        )


Confirm = Callable[[Proposal], bool | Refusal | Awaitable[bool | Refusal]]


@dataclass(frozen=True, slots=True)
class CompactResult(CompactionResult):
    """Outcome of a compaction by rounds.

    Attributes:
        new_messages: the messages to continue with: the same objects, and the notice; all messages if nothing
            was removed. Of a context, those of its conversation.
        compacted_count: how many rounds were removed; a round that was cut is one of them.
        refusal: the effect of the user's refusal; None if the user agreed, or was not asked.
    """

    new_messages: list[Any] = field(default_factory=list)
    compacted_count: int = 0
    refusal: Refusal | None = None

    @property
    def counts(self) -> Mapping[str, Any]:
        """The number of removed rounds, and the effect of a refusal."""
        return {"compacted_count": self.compacted_count, "refusal": self.refusal}


Indices = Sequence[int]
# Carries out a plan with its notice, and returns the messages to continue with.
Replace = Callable[[Plan, Any], list[Any]]


@dataclass(frozen=True)
class _Conversation(View):
    """A conversation with its rounds; its `groups` are the parts into which a round may be cut."""

    rounds: Sequence[Indices]


class _Rounds(StoringCompactor):
    """Compaction by rounds, of a list of messages or of a context."""

    def __init__(
        self,
        offloader: Offloader,
        summarizer: Summarizer | None,
        config: RoundConfig | None,
        confirm: Confirm | None,
    ) -> None:
        self.config = RoundConfig() if config is None else config
        is_set = "require_confirmation" in self.config.model_fields_set
        if confirm is None and is_set and self.config.require_confirmation:
            raise ConfigError("require_confirmation needs confirm=, a function that asks the user")
        super().__init__(offloader)
        self._summarizer = summarizer
        self._confirm = confirm if self.config.require_confirmation else None

    def _view(
        self, messages: Sequence[Any], tokens: Sequence[int], total: int, count: Callable[[Any], int]
    ) -> _Conversation:
        others = [i for i, message in enumerate(messages) if role_or_none(message) not in SYSTEM_ROLES]
        conversation = [messages[i] for i in others]
        parts = _parts(conversation)
        rounds = split_rounds(conversation)
        if len(rounds) == 1:
            rounds = _runs(conversation, parts)
        groups, whole = ([others[one.start : one.stop] for one in ranges] for ranges in (parts, rounds))
        return _Conversation(messages, tokens, total, groups, self._archive, count, whole)

    def _compact(self, view: _Conversation, events: EventBus, replace: Replace) -> CompactResult:
        if not self._must_shrink(view) and len(view.rounds) <= self.config.keep_recent_rounds:
            return _unchanged(view)
        result = self._run(events, view.total, partial(self._shorten, view, replace))
        return result if isinstance(result, CompactResult) else _unchanged(view, result)

    def _must_shrink(self, view: View) -> bool:
        return view.total >= self.config.trigger_tokens

    def _shorten(self, view: _Conversation, replace: Replace) -> CompactResult:
        """Remove messages if that helps.

        Raises `ContextFullError` or `RefusedError` if none may be removed.
        """
        must_shrink = self._must_shrink(view)
        most = view.groups[:-1] if must_shrink else view.rounds[: -self.config.keep_recent_rounds]
        if not view.can_shrink(_joined(most)):
            if must_shrink:
                raise self._full(view.total)
            return _unchanged(view)
        refusal = self._ask(view)
        plan = self._full_plan(view, refusal) if must_shrink else self._spare_plan(view, refusal)
        if plan.tokens >= view.total:
            return _unchanged(view)
        return self._carry_out(view, plan, refusal, replace)

    def _ask(self, view: _Conversation) -> Refusal | None:
        """Ask for a confirmation; return the refusal, None for a yes. Raises `RefusedError`."""
        if self._confirm is None:
            return None
        others = len(view.rounds) - 1
        least = max(min(1, others), len(view.rounds) - self.config.keep_recent_rounds)
        proposal = Proposal(view.total, self.config.max_context_tokens, least)
        # A person may be asked: there is no time limit.
        answer = call_hook(self._confirm, proposal, seconds=math.inf)
        if answer is True:
            return None
        refusal = self.config.on_refusal if answer is False else answer
        if refusal not in get_args(Refusal):
            raise ConfigError(f"confirm must return a bool or one of {get_args(Refusal)}, got {answer!r:.60}")
        if refusal == "error":
            raise RefusedError(
                f"the compaction of a context of {view.total} tokens was refused; shorten it by hand, "
                "or start a new session"
            )
        return cast("Refusal", refusal)

    def _spare_plan(self, view: _Conversation, refusal: Refusal | None) -> Plan:
        """Return the plan for a context that is not full: the recent rounds are kept."""
        return self._draft(view, view.rounds[: -self._kept_rounds(view, refusal)], refusal)

    def _full_plan(self, view: _Conversation, refusal: Refusal | None) -> Plan:
        """Return the plan for a full context: the mildest that is enough, or else the one that removes most.

        It removes whole rounds, or cuts the last one too; there is no summary if it would be too long.
        """
        draft = self._mildest(view, view.rounds, self._kept_rounds(view, refusal), 0, refusal)
        if draft is None or draft.tokens >= self.config.trigger_tokens:
            draft = self._mildest(view, view.groups, self._kept_parts(view, refusal), 1, refusal)
        if draft is None or draft.tokens >= view.total:
            draft = view.plan(_joined(view.groups[:-1]))
        return draft

    def _kept_rounds(self, view: _Conversation, refusal: Refusal | None) -> int:
        """Return how many rounds are kept at most."""
        others = len(view.rounds) - 1
        most = {None: self.config.keep_recent_rounds, "new_session": 1}
        return min(most.get(refusal, others), others)

    def _kept_parts(self, view: _Conversation, refusal: Refusal | None) -> int:
        """Return how many parts are kept of a round that is cut: those that fit into half of the room."""
        trigger, fixed = self.config.trigger_tokens, view.tokens_without(_joined(view.groups))
        limit = trigger if refusal == "drop_oldest" else (trigger + fixed) // 2
        return min(max(1, view.fitting(view.groups, limit)), len(view.groups) - 1)

    def _mildest(
        self, view: View, units: Sequence[Indices], keep: int, least: int, refusal: Refusal | None
    ) -> Plan | None:
        """Return the first plan that is enough, or the last one tried, or None.

        It keeps at most `keep` of the latest `units`, and at least `least` even if that is not enough.
        """
        draft = None
        notice = view.plan(units[0])
        extra = notice.tokens - view.tokens_without(notice.removed)
        trigger = self.config.trigger_tokens
        while (keep := min(keep, max(least, view.fitting(units, trigger - extra)))) > 0:
            draft = self._draft(view, units[:-keep], refusal)
            if draft.tokens < trigger:
                break
            extra = draft.tokens - view.tokens_without(draft.removed)
            keep -= 1
        return draft

    def _draft(self, view: View, units: Sequence[Indices], refusal: Refusal | None) -> Plan:
        """Return the plan that removes `units`."""
        removed = _joined(units)
        if refusal or self._summarizer is None:
            return view.plan(removed)
        old = [view.messages[i] for i in removed]
        return view.plan(removed, summarize(self._summarizer, old, self.config.summary_max_length))

    def _carry_out(
        self, view: _Conversation, plan: Plan, refusal: Refusal | None, replace: Replace
    ) -> CompactResult:
        ref, notice, tokens = self._store(view, plan)
        removed = set(plan.removed)
        return CompactResult(
            view.total,
            tokens,
            replace(plan, notice),
            sum(1 for one in view.rounds if one[0] in removed),
            refusal,
            ref=ref,
            removed_count=len(removed),
            summary=plan.notice.summary,
            error=self._full(tokens) if tokens > self.config.max_context_tokens else None,
        )

    def _full(self, tokens: int) -> ContextFullError:
        return ContextFullError(
            f"the context has {tokens} tokens, max_context_tokens is {self.config.max_context_tokens}, and "
            "nothing more may be removed; start a new session, shorten the system prompt, the tool "
            "definitions or the last messages, or use a larger window"
        )


class RoundCompactor(_Rounds):
    """Replaces the oldest rounds of a conversation with a summary when it nears the context window.

    A round is the user's messages and all that follows until the next ones. System messages are always kept.
    Removed messages are stored in the offloader's session first, and a notice says how to read them.

    If a conversation is a single round, each message of a run of one role counts as a round. If the last
    rounds are too long, the last one is cut, such as one request with a long tool loop: its latest messages
    are kept, as many as fit into half of the room. A tool call and its result are always removed or kept
    together.

    A compaction never makes the context larger.

    Args:
        offloader: the session that stores removed rounds.
        summarizer: asks a model for the summary; without one, a notice alone replaces removed rounds.
        config: the settings; the default is `RoundConfig()`.
        confirm: a plain or async function, called before each compaction unless the settings turn it off.
            True continues, False applies `on_refusal`, and the name of a refusal applies that one.
        events: gets the events; the default is the offloader's bus.
        token_counter: counts tokens of a text; the default is the offline estimate.

    Raises:
        ConfigError: the settings require a confirmation, and `confirm` is missing.
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
        self.events = offloader.events if events is None else events
        super().__init__(offloader, summarizer, config, confirm)
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

        If the recent rounds exceed the trigger, fewer of them are kept. After a failure nothing is changed,
        and the result has the error: a `RefusedError` if the user refused, a `ContextFullError` if nothing
        more may be removed. If no compaction is due, and none would shorten the context, all are kept.

        Args:
            messages: the conversation, in any format that `Offloader.offload` takes. Never changed.
            system_prompt: a system prompt that is sent separately; it is counted.
            tools: the tool definitions that are sent with it; they are counted.
        """
        tokens = self._counter.messages(messages)
        total = self._fixed(system_prompt, tools) + sum(tokens)
        view = self._view(list(messages), tokens, total, self._counter.message)
        return self._compact(view, self.events, partial(_replaced, view.messages))

    async def acompact(
        self, messages: Sequence[Any], system_prompt: str = "", tools: Sequence[Any] = ()
    ) -> CompactResult:
        """Run `compact` in a thread; async hooks run on this loop."""
        return await in_thread(self.compact, messages, system_prompt, tools)

    def _fixed(self, system_prompt: str, tools: Sequence[Any]) -> int:
        return self._counter.text(system_prompt) + self._counter.data(list(tools))


class RoundStrategy(_Rounds):
    """Compaction by rounds of a context, for `ContextManager` and `ContextIR.auto_compact`.

    It removes what `RoundCompactor` removes.

    Args:
        offloader: as for `RoundCompactor`, like `summarizer`, `config` and `confirm`.
        events: gets the events in place of the bus of each context.

    Raises:
        ConfigError: the settings require a confirmation, and `confirm` is missing.
    """

    def __init__(
        self,
        offloader: Offloader,
        summarizer: Summarizer | None = None,
        config: RoundConfig | None = None,
        *,
        confirm: Confirm | None = None,
        events: EventBus | None = None,
    ) -> None:
        super().__init__(offloader, summarizer, config, confirm)
        self._events = events

    def compact(self, context: ContextIR, *, current_total_tokens: int | None = None) -> CompactResult:
        """Shorten `context` if a compaction is due; return the result, with the error after a failure.

        Args:
            context: the context, changed in place. Its header is always kept.
            current_total_tokens: the provider's token count of the last request and its answer, tool
                definitions included; by default, the context's own count.
        """
        total = context.total_tokens if current_total_tokens is None else current_total_tokens
        messages = context.conversation_messages
        if not self.config.enabled or total < self.config.trigger_tokens:
            return CompactResult(total, total, messages)
        tokens = [item.token_count for item in context.conversation.items]
        view = self._view(messages, tokens, total, context.count_message)
        events = context.event_bus if self._events is None else self._events
        return self._compact(view, events, partial(_replace, context))

    async def acompact(self, context: ContextIR, *, current_total_tokens: int | None = None) -> CompactResult:
        """Run `compact` in a thread; async hooks run on this loop."""
        return await in_thread(self.compact, context, current_total_tokens=current_total_tokens)


def _replaced(messages: Sequence[Any], plan: Plan, notice: Any) -> list[Any]:
    """Return `messages` after a plan; those between the removed ones keep their order."""
    first, gone = plan.removed[0], set(plan.removed)
    return [*messages[:first], notice, *(m for i, m in enumerate(messages) if i > first and i not in gone)]


def _replace(context: ContextIR, plan: Plan, notice: Any) -> list[Any]:
    """Carry out a plan in `context`; return the messages of its conversation."""
    items = context.conversation.items
    context.replace_items([items[i] for i in plan.removed], context.new_item(notice, plan.item_type))
    return context.conversation_messages


def _unchanged(view: View, error: OffloadError | None = None) -> CompactResult:
    refusal: Refusal | None = "error" if isinstance(error, RefusedError) else None
    return CompactResult(view.total, view.total, list(view.messages), refusal=refusal, error=error)


def _parts(messages: Sequence[Any]) -> list[range]:
    """Return the parts into which a conversation may be cut, in order, as ranges of indices.

    No part ends with a notice: it is only removed together with messages after it. Open calls are in the last
    part, since their results are still to come.
    """
    open_from = waiting_from(messages)
    groups = split_groups(messages)
    starts = [
        one.start for one in groups if one.start <= open_from and not _is_notice(messages, one.start - 1)
    ]
    return _between(starts, len(messages))


def _runs(messages: Sequence[Any], parts: Sequence[range]) -> list[range]:
    """Return `parts`, each with the next ones of other roles, or with calls or results."""
    starts = [
        one.start for one in parts if one.start and _is_run(messages[one.start - 1], messages[one.start])
    ]
    return _between(starts, len(messages))


def _is_run(message: Any, following: Any) -> bool:
    """Return whether two messages have one role, and are no calls or results."""
    return role_or_none(message) == role_or_none(following) and not any(
        is_result(one) or scan_of(one).calls for one in (message, following)
    )


def _is_notice(messages: Sequence[Any], index: int) -> bool:
    return index >= 0 and notice_number("\n".join(scan_of(messages[index]).all_texts)) > 0


def _between(starts: Sequence[int], end: int) -> list[range]:
    """Return the ranges from 0 to `end` that begin at `starts`, besides the first."""
    bounds = [0, *filter(None, starts), end] if end else []
    return [range(start, stop) for start, stop in pairwise(bounds)]


def _joined(units: Sequence[Indices]) -> list[int]:
    return list(chain.from_iterable(units))
