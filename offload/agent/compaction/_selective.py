"""Compaction by type: the least important messages first; if that is not enough, a summary of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from offload.agent.compaction._grounding import Grounding
from offload.agent.compaction._strategy import CompactionResult, Plan, StoringCompactor, View
from offload.agent.compaction._summary import Summarizer
from offload.agent.compaction._windows import TRIGGER_RATIO, threshold_for
from offload.agent.compaction.rules import TypeRule, merge_rules, removed_by_rule
from offload.base.events import EventBus
from offload.base.threads.calls import as_async
from offload.errors import (
    ConfigError,
    ContextFullError,
    OffloadError,
    check_callable,
    check_choice,
    check_texts,
)
from offload.messages.context import ContextIR, ContextItem, ItemType
from offload.messages.context.ir import NOTICES
from offload.messages.context.pairs import split_groups, waiting_from
from offload.offloader import Offloader

# A summary may have half as many characters as the threshold has tokens, within these bounds.
MIN_SUMMARY_CHARS, MAX_SUMMARY_CHARS = 200, 8_000

OnFailure = Literal["keep", "raise"]


@dataclass(frozen=True, slots=True)
class SelectiveResult(CompactionResult):
    """Outcome of a compaction by type; `removed` are the removed items, in order."""

    removed: list[ContextItem] = field(default_factory=list)

    @property
    def counts(self) -> Mapping[str, Any]:
        """The number of removed messages, and of each type."""
        by_type = Counter(str(item.item_type) for item in self.removed)
        return {"compacted_count": len(self.removed), "by_type": dict(by_type)}


class SelectiveCompaction(StoringCompactor):
    """Removes the least important messages of a full context, type by type, with a summary as last resort.

    The types are removed in the order of their priority, each by its rule, until the context, by its own
    token count, is below the threshold. A tool call and its results are removed or kept together, and a
    call that waits for its result is kept. If the rules are not enough, a summary replaces the whole
    conversation except for open calls. The header is always kept.

    After a compaction that was not enough, or failed, the next one of the context is due once a sixteenth of
    the window is new, or the context fills the window.

    Removed messages are stored in the offloader's session first, and a notice says how to read them. An
    item that was offloaded before is a placeholder, and is stored once.

    Args:
        offloader: the session that stores removed messages.
        summarizer: asks a model for the summary in the notice; without one there is no last resort. If it
            fails, messages are removed by rule without a summary, and the result has the error.
        rules: item type → rule; these change the table `DEFAULT_RULES`.
        threshold_tokens: a compaction is due at this number of tokens or more.
        window_tokens: the context window; by default, the threshold is 80 % of it.
        model: the model whose window sets the threshold, if that is not given; see `threshold_for`.
        windows: with `model`, glob of model names → context window in tokens.
        events: the bus for events; by default that of each context.
        replaces_all: whether a summary may replace the whole conversation as the last resort.
        grounding: the effect of exact values in a summary or ledger that the messages do not have: "report"
            emits `ungrounded_text` and names them in the result, "retry" also asks for another summary first,
            once, "off" does not check.
        on_error: the effect of a failure: "keep" keeps the context and reports it, "raise" raises it.

    Raises:
        ConfigError: neither or both of `threshold_tokens` and `model` are given, or a value is invalid.
    """

    def __init__(
        self,
        offloader: Offloader,
        summarizer: Summarizer | None = None,
        *,
        rules: Mapping[ItemType | str, TypeRule] | None = None,
        threshold_tokens: int | None = None,
        window_tokens: int | None = None,
        model: str | None = None,
        windows: Mapping[str, int] | None = None,
        events: EventBus | None = None,
        replaces_all: bool = True,
        on_error: OnFailure = "keep",
        grounding: Grounding = "report",
    ) -> None:
        check_choice("on_error", on_error, get_args(OnFailure))
        check_callable("summarizer", summarizer)
        self.rules = merge_rules({} if rules is None else rules)
        self.threshold_tokens: int = _threshold(threshold_tokens, model, windows)
        self._window = window_tokens or int(self.threshold_tokens / TRIGGER_RATIO)
        check_choice("grounding", grounding, get_args(Grounding))
        super().__init__(offloader, grounding)
        self._summarizer = summarizer
        self._events = events
        self._replaces_all = replaces_all
        self._on_error = on_error

    def should_compact(self, context: ContextIR, current_total_tokens: int | None = None) -> bool:
        """Return whether a compaction is due, with the arguments of `compact`."""
        tokens = _tokens(context, current_total_tokens)
        return tokens >= self.threshold_tokens and tokens >= self._wait(context, tokens).until

    def compact(self, context: ContextIR, *, current_total_tokens: int | None = None) -> SelectiveResult:
        """Shorten `context` if a compaction is due; the result of one that waits has the error.

        Args:
            context: the context, changed in place.
            current_total_tokens: the provider's token count of the last request and its answer, tool
                definitions included; by default, the context's own count.

        Raises:
            OffloadError: with `on_error="raise"`, the failure. `ContextFullError` if nothing can be removed.
        """
        tokens = _tokens(context, current_total_tokens)
        return self._restorable(context, self._compact(context, tokens))

    acompact = as_async(compact)
    """Run `compact` in a thread; async hooks run on this loop."""

    def _compact(self, context: ContextIR, tokens: int) -> SelectiveResult:
        if tokens < self.threshold_tokens:
            return SelectiveResult(tokens, tokens)
        bus = context.event_bus if self._events is None else self._events
        result = self._run(context, bus, tokens, partial(self._shorten, context, tokens))
        if isinstance(result, SelectiveResult):
            return result
        if self._on_error == "raise":
            raise result from result.__cause__
        return SelectiveResult(tokens, tokens, error=result)

    def _shorten(self, context: ContextIR, tokens: int) -> SelectiveResult:
        groups = split_groups(context.conversation.messages)
        view = View(context, tokens, groups, self._archive, *self._bounds)
        plan = self._plan(view)
        if plan.notice.summary:
            return self._carry_out(view, plan, is_whole=True)
        error = None
        if self._summarizer is not None and plan.tokens < self.threshold_tokens:
            plan, error = self._summarized(view, plan, self._summarizer)
        return self._carry_out(view, plan, error)

    def _plan(self, view: View) -> Plan:
        """Return which messages to remove. Raises `ContextFullError` if none can be removed."""
        types = [item.item_type for item in view.context.conversation.items]
        first = waiting_from(view.messages)
        # How many messages precede the first group with an open call.
        past = next((group[0] for group in view.groups if group[-1] >= first), len(view.messages))
        removed: list[int] = []
        plan = None
        for more in filter(None, removed_by_rule(view.groups, types, self.rules, past)):
            removed = sorted([*removed, *more])
            if all(types[i] in NOTICES for i in removed):
                # A notice in place of notices alone would say less.
                continue
            plan = view.plan(removed)
            if plan.tokens < self.threshold_tokens:
                return plan
        is_new = not all(types[i] in NOTICES for i in range(past))
        may_replace_all = self._replaces_all and is_new and view.frees_much(view.plan(range(past)).tokens)
        if self._summarizer is not None and may_replace_all:
            whole = view.plan(range(past), self._summary(view, past, set(removed), self._summarizer))
            plan = whole if plan is None or whole.tokens < view.total else plan
        if plan is None or not (view.is_enough(plan.tokens) or plan.tokens < view.window <= view.total):
            raise ContextFullError(
                f"the context has {view.total} tokens ({view.parts}), the threshold is "
                f"{self.threshold_tokens}, and what may be removed would free too little; add a summarizer, "
                "rules that remove more, a shorter system prompt, or a larger window"
            )
        return plan

    def _summary(self, view: View, past: int, removed: set[int], summarizer: Summarizer) -> str:
        """Return a summary of the first `past` messages; a long request omits `removed`."""
        quoted: Sequence[int] = range(past)
        if sum(view.tokens[:past]) >= self.threshold_tokens:
            quoted = [i for i in quoted if i not in removed] or quoted
        old = [view.messages[i] for i in quoted]
        return self._summarize(summarizer, old, self._max_chars, waiting=view.messages[past:])

    def _summarized(self, view: View, plan: Plan, summarizer: Summarizer) -> tuple[Plan, OffloadError | None]:
        """Return a plan with a summary of what it removes; the plan itself if that fails, or is too long."""
        old = [view.messages[i] for i in plan.removed]
        try:
            summary = self._summarize(summarizer, old, self._max_chars)
        except OffloadError as error:
            return plan, error
        told = view.plan(plan.removed, summary)
        return (told if told.tokens < self.threshold_tokens else plan), None

    @property
    def _bounds(self) -> tuple[int, int]:
        return self.threshold_tokens, self._window

    @property
    def _max_chars(self) -> int:
        return max(MIN_SUMMARY_CHARS, min(MAX_SUMMARY_CHARS, self.threshold_tokens // 2))

    def _carry_out(
        self, view: View, plan: Plan, error: OffloadError | None = None, *, is_whole: bool = False
    ) -> SelectiveResult:
        context, items = view.context, view.context.conversation.items
        removed = [items[i] for i in plan.removed]
        found = self._ungrounded_in(view, plan)
        ref, message, tokens = self._store(view, plan)
        if is_whole:
            notice = context.new_item(message, ItemType.COMPACTION_SUMMARY)
            context.replace_conversation([notice, *items[len(removed) :]])
        else:
            # The next compaction takes up what this notice says, and replaces it.
            tokens -= self._place(view, plan, message, ItemType.COMPACTION_NOTICE)
        return SelectiveResult(
            view.total,
            tokens,
            removed,
            ref=ref,
            removed_count=len(removed),
            summary=plan.notice.summary,
            error=error,
            ungrounded=found,
        )


def _tokens(context: ContextIR, current_total_tokens: int | None) -> int:
    return context.total_tokens if current_total_tokens is None else current_total_tokens


def _threshold(tokens: int | None, model: str | None, windows: Mapping[str, int] | None) -> int:
    check_texts(model=model)
    if model is not None and tokens is None:
        return threshold_for(model, windows)
    if model is not None or windows is not None or not isinstance(tokens, int) or tokens < 1:
        raise ConfigError(
            "pass either threshold_tokens=, a positive number, or model=, with windows= if needed; "
            f"got threshold_tokens={tokens!r:.40}, model={model!r:.40}"
        )
    return tokens
