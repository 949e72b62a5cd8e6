"""Compaction by type: what matters least leaves first; if that is not enough, all of it for a summary."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from offload.compaction._archive import Archive, Notice, as_user_message
from offload.compaction._rules import TypeRule, chosen, ruled
from offload.compaction._summary import Summarizer, ask, full_request
from offload.compaction._windows import threshold_for
from offload.context import ContextEvent, ContextIR, ContextItem, EventBus, EventType, ItemType, waiting_from
from offload.errors import ConfigError, ContextFullError, OffloadError
from offload.events import failure, said
from offload.offloader import Offloader
from offload.threads import in_thread

# A summary may take half of the threshold, were each character a token, within these bounds.
MIN_SUMMARY_CHARS, MAX_SUMMARY_CHARS = 200, 8_000
_STAND_INS = (ItemType.COMPACTION_SUMMARY, ItemType.COMPACTION_NOTICE)

OnFailure = Literal["keep", "raise"]
_log = logging.getLogger("offload")


@dataclass(frozen=True, slots=True)
class SelectiveResult:
    """What a compaction did.

    Attributes:
        original_token_count: tokens before: what the provider counted, where it was given.
        new_token_count: tokens after, on the same scale.
        removed: the items that left, in order.
        ref: id of the record that holds them; None if nothing left.
        summary: what a model said of them; empty where nobody was asked.
        error: why nothing was done, where something failed; the context is then as it was.
    """

    original_token_count: int
    new_token_count: int
    removed: list[ContextItem]
    ref: str | None = None
    summary: str = ""
    error: OffloadError | None = None

    @property
    def is_compacted(self) -> bool:
        """Whether anything left."""
        return bool(self.removed)

    @property
    def saved_ratio(self) -> float:
        """The part of the tokens that was saved, from 0 to 1."""
        return 1 - self.new_token_count / self.original_token_count if self.original_token_count else 0.0


@dataclass(frozen=True, slots=True)
class _View:
    """A context as a compaction sees it.

    Attributes:
        context: the context.
        tokens: what it takes, on the scale of the threshold.
        notice: what will stand for the items that leave, without the figures of a plan.
        groups: its conversation in runs that stay or leave together.
        waiting: its last items, from the first call on that waits for its result.
    """

    context: ContextIR
    tokens: int
    notice: Notice
    groups: list[list[ContextItem]]
    waiting: list[ContextItem]

    @property
    def past(self) -> list[ContextItem]:
        """The conversation without what waits."""
        items = self.context.conversation.items
        return items[: len(items) - len(self.waiting)]

    def planned(self, leaving: Sequence[ContextItem], item_type: ItemType, summary: str = "") -> _Plan:
        notice = replace(self.notice, messages=len(leaving), summary=summary)
        stand_in = self.context.new_item(as_user_message(notice.text(), leaving[0].message), item_type)
        gone = sum(item.token_count for item in leaving)
        return _Plan(leaving, notice, item_type, max(0, self.tokens - gone) + stand_in.token_count)


@dataclass(frozen=True, slots=True)
class _Plan:
    leaving: Sequence[ContextItem]
    notice: Notice
    item_type: ItemType
    tokens: int


class SelectiveCompaction:
    """Takes out of a full context what matters least, type by type, and asks for a summary as a last resort.

    The types go in the order of their priority, each by its rule, until the context, by its own count of
    tokens, is under the threshold. A tool call and its results leave or stay together, and a call that
    waits for its result stays; so this cuts a lone round too, which `RoundCompactor` does not. Where the
    rules are not enough, a summary replaces the whole conversation but for calls that wait. The header
    always stays.

    What leaves is stored in the session of the offloader before it does, and one message that stands for
    it says how to read it back. What was offloaded before is a placeholder, and stays stored once.

    Args:
        offloader: where the items go that leave.
        summarizer: asks a model for the summary; without one there is no last resort.
        rules: item type → rule; these change the table `DEFAULT_RULES`.
        threshold_tokens: from how many tokens on a compaction is due.
        model: instead of the threshold, the name of the model whose window sets it; see `threshold_for`.
        windows: with `model`, glob of model names → context window in tokens.
        events: told `context_compacted` and `compaction_failed` instead of the bus of each context.
        on_error: what `compact` does when it cannot: "keep" leaves the context whole and reports, "raise"
            raises.

    Raises:
        ConfigError: neither or both of `threshold_tokens` and `model` are given, or a value cannot be meant.
        ConfigError: `rules` has an unknown type or a value that is not a `TypeRule`.
    """

    def __init__(
        self,
        offloader: Offloader,
        summarizer: Summarizer | None = None,
        *,
        rules: Mapping[ItemType | str, TypeRule] | None = None,
        threshold_tokens: int | None = None,
        model: str | None = None,
        windows: Mapping[str, int] | None = None,
        events: EventBus | None = None,
        on_error: OnFailure = "keep",
    ) -> None:
        if on_error not in get_args(OnFailure):
            raise ConfigError(f"on_error is one of {get_args(OnFailure)}, not {on_error!r}")
        self.rules = ruled({} if rules is None else rules)
        self.threshold_tokens = _threshold(threshold_tokens, model, windows)
        self._archive = Archive(offloader)
        self._summarizer = summarizer
        self._events = events
        self._on_error = on_error

    def should_compact(self, context: ContextIR, current_total_tokens: int | None = None) -> bool:
        """Tell whether a compaction is due: the context takes the threshold or more.

        Args:
            context: the context.
            current_total_tokens: what the provider counted; without it, the context's own count.
        """
        return _tokens(context, current_total_tokens) >= self.threshold_tokens

    def compact(self, context: ContextIR, *, current_total_tokens: int | None = None) -> SelectiveResult:
        """Make `context` shorter if it is due.

        Args:
            context: the context, changed in place.
            current_total_tokens: what the provider counted of the last request and its answer, tool
                definitions included; without it, the context's own count.

        Raises:
            OffloadError: with `on_error="raise"`, what failed. `ContextFullError` if nothing may leave.
        """
        tokens = _tokens(context, current_total_tokens)
        if tokens < self.threshold_tokens:
            return SelectiveResult(tokens, tokens, [])
        try:
            plan = self._plan(self._view(context, tokens))
            result = self._carried_out(context, tokens, plan)
        except Exception as error:  # noqa: BLE001 # a part of the caller's own may raise anything
            failed = error if isinstance(error, OffloadError) else failure("unexpected", error)
            if self._on_error == "raise":
                raise failed from failed.__cause__
            return self._failed(context, tokens, failed)
        self._tell_compacted(context, plan, result)
        return result

    async def acompact(
        self, context: ContextIR, *, current_total_tokens: int | None = None
    ) -> SelectiveResult:
        """Do what `compact` does, in a thread; async hooks run on this loop."""
        return await in_thread(self.compact, context, current_total_tokens=current_total_tokens)

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages`, as `lower` gives them, with all that ever left by a compaction, as it was.

        Objects of an SDK come back as the data that they are made of.

        Raises:
            OffloadError: a record is damaged, was collected, or cannot be read.
        """
        return self._archive.restore(messages)

    def _view(self, context: ContextIR, tokens: int) -> _View:
        messages, groups = context.conversation_messages, context.groups()
        first = waiting_from(messages)
        ends = itertools.accumulate(map(len, groups))
        waiting = [item for group, end in zip(groups, ends, strict=True) if end > first for item in group]
        return _View(context, tokens, self._archive.notice(messages, []), groups, waiting)

    def _plan(self, view: _View) -> _Plan:
        """Return what leaves and what will stand for it. Raises `ContextFullError` if nothing can."""
        places = {item.id: place for place, item in enumerate(view.past)}
        leaving: list[ContextItem] = []
        plan = None
        for more in filter(None, chosen(view.groups, self.rules, view.waiting)):
            leaving = sorted([*leaving, *more], key=lambda item: places[item.id])
            plan = view.planned(leaving, ItemType.COMPACTION_NOTICE)
            if plan.tokens < self.threshold_tokens:
                return plan
        if self._summarizer is not None:
            plan = self._summary_plan(view, leaving, self._summarizer) or plan
        if plan is None or plan.tokens >= view.tokens:
            raise ContextFullError(
                f"the context takes {view.tokens} tokens, {self.threshold_tokens} are allowed, and nothing "
                "that may leave would make it shorter: give a summarizer, rules that let more leave, a "
                "shorter system prompt, or a larger window"
            )
        return plan

    def _summary_plan(
        self, view: _View, ruled_out: Sequence[ContextItem], summarizer: Summarizer
    ) -> _Plan | None:
        """Return the plan that replaces all that is past; None if there is nothing to sum up."""
        leaving = view.past
        if all(item.item_type in _STAND_INS for item in leaving):
            return None
        told = leaving
        if sum(item.token_count for item in told) >= self.threshold_tokens:
            # More than a request should hold: what matters least is not told.
            gone = {item.id for item in ruled_out}
            told = [item for item in leaving if item.id not in gone] or leaving
        max_chars = max(MIN_SUMMARY_CHARS, min(MAX_SUMMARY_CHARS, self.threshold_tokens // 2))
        request = full_request(
            [item.message for item in told], [item.message for item in view.waiting], max_chars
        )
        summary = ask(summarizer, request, max_chars)
        return view.planned(leaving, ItemType.COMPACTION_SUMMARY, summary)

    def _carried_out(self, context: ContextIR, tokens: int, plan: _Plan) -> SelectiveResult:
        """Store what leaves, then replace it."""
        items, leaving = context.conversation.items, list(plan.leaving)
        gone = {item.id for item in leaving}
        places = [place for place, item in enumerate(items) if item.id in gone]
        text = self._archive.store(context.conversation_messages, places, plan.notice)
        stand_in = context.new_item(as_user_message(text, leaving[0].message), plan.item_type)
        if plan.item_type is ItemType.COMPACTION_SUMMARY:
            context.replace_conversation([stand_in, *items[len(leaving) :]])
        else:
            context.replace_items(leaving, stand_in)
        ref = plan.notice.find_ref(text)
        return SelectiveResult(tokens, plan.tokens, leaving, ref, plan.notice.summary)

    def _failed(self, context: ContextIR, tokens: int, error: OffloadError) -> SelectiveResult:
        """Report what failed; the context is as it was."""
        _log.warning("nothing was compacted: %s", said(error))
        self._emit(
            context,
            EventType.COMPACTION_FAILED,
            f"nothing was compacted: {error.kind}",
            kind=error.kind,
            tokens=tokens,
            error=str(error),
        )
        return SelectiveResult(tokens, tokens, [], error=error)

    def _tell_compacted(self, context: ContextIR, plan: _Plan, result: SelectiveResult) -> None:
        before, after = result.original_token_count, result.new_token_count
        self._emit(
            context,
            EventType.CONTEXT_COMPACTED,
            f"{len(result.removed)} messages left: {before} tokens became {after}",
            original_tokens=before,
            new_tokens=after,
            saved_ratio=result.saved_ratio,
            summary=result.summary,
            compacted_count=len(result.removed),
            by_type=dict(Counter(str(item.item_type) for item in plan.leaving)),
        )

    def _emit(self, context: ContextIR, event_type: EventType, detail: str, **data: Any) -> None:
        bus = context.event_bus if self._events is None else self._events
        bus.emit(ContextEvent(event_type, detail, data))


def _tokens(context: ContextIR, current_total_tokens: int | None) -> int:
    return context.total_tokens if current_total_tokens is None else current_total_tokens


def _threshold(tokens: int | None, model: str | None, windows: Mapping[str, int] | None) -> int:
    if model is not None and tokens is None:
        return threshold_for(model, windows)
    if model is not None or windows is not None or not isinstance(tokens, int) or tokens < 1:
        raise ConfigError(
            "give either threshold_tokens=, a positive number, or model= and with it windows= if need be, "
            f"not threshold_tokens={tokens!r:.40}, model={model!r:.40}"
        )
    return tokens
