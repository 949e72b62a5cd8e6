"""The protocol of compaction strategies, and the view, the plan and the result that they share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from offload.agent.compaction._archive import MessageArchive
from offload.agent.compaction._digest import Digest
from offload.agent.compaction._grounding import Grounding, ungrounded
from offload.agent.compaction._summary import Summarizer, summarize
from offload.base.threads.locks import cached
from offload.base.tokens import estimate_tokens
from offload.engine.placeholder import Notice
from offload.errors import ContextFullError, OffloadError, RefusedError, failure, result_or_error, unexpected
from offload.messages.context import ContextEvent, ContextIR, EventBus, EventType, ItemType
from offload.messages.context.ir import ContextCompactor
from offload.messages.context.tokens import MESSAGE_TOKENS
from offload.messages.context.wait import LEAST_FREED, Wait
from offload.messages.formats import adapter_for
from offload.messages.thinking import bare_of, signed_thinking
from offload.offloader import Offloader
from offload.records.observer import error_text

# The most tokens of a ledger and of the task, also as a share of the window; and of a ledger as a share of
# the tokens that it replaces. The least share, if a longer ledger would make more messages leave.
_LEDGER_TOKENS, _TASK_TOKENS, _WINDOW_SHARE = 1_500, 2_000, 0.1
_FREED_SHARE, _LEAST_SHARE = 1 / 3, 1 / 32
_LEAST_TASK = 50
# How many messages show how the token counter counts, and the least of what it may count.
_SAMPLED, _LEAST_SCALE = 50, 0.25
_log = logging.getLogger("offload")


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Outcome of one compaction.

    Attributes:
        original_token_count: tokens before.
        new_token_count: tokens after, on the same scale.
        ref: id of the record of the removed messages; None if none was removed.
        removed_count: how many messages were removed.
        summary: a model's summary of them; empty if no model was asked.
        error: the failure: why nothing was removed, or not enough; None if nothing failed.
        ungrounded: the exact values in the summary and the ledger that the messages do not have.
    """

    original_token_count: int
    new_token_count: int
    ref: str | None = field(default=None, kw_only=True)
    removed_count: int = field(default=0, kw_only=True)
    summary: str = field(default="", kw_only=True)
    error: OffloadError | None = field(default=None, kw_only=True)
    ungrounded: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def is_compacted(self) -> bool:
        """Whether messages were removed."""
        return self.ref is not None

    @property
    def saved_ratio(self) -> float:
        """The saved part of the tokens, from 0 to 1."""
        return 1 - self.new_token_count / self.original_token_count if self.original_token_count else 0.0

    @property
    def counts(self) -> Mapping[str, Any]:
        """Figures of this kind of compaction, for its event."""
        return {}


ResultT = TypeVar("ResultT", bound=CompactionResult)


class CompactionStrategy(ContextCompactor[CompactionResult], Protocol):
    """Removes messages from a context in place, and restores them: a strategy for `ContextManager`."""

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with all that `compact` ever removed, as it was."""


class StoringCompactor:
    """A compactor that stores the messages that it removes in an offloader's session."""

    def __init__(self, offloader: Offloader, grounding: Grounding = "report") -> None:
        self._archive = MessageArchive(offloader)
        self._grounding = grounding
        # By context, the ids of the items whose look-alikes are stored.
        self._known: WeakKeyDictionary[ContextIR, set[str]] = WeakKeyDictionary()
        # A model may quote in a summary what no record may hold.
        self._redacted = offloader.options.redacted

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with all that compactions ever removed, as it was.

        SDK objects are restored as data. Raises `OffloadError` if a record is damaged, was deleted, or cannot
        be read.
        """
        return self._archive.restore(messages)

    def _restorable(self, context: ContextIR, result: ResultT) -> ResultT:
        """Return the result of a compaction once the look-alikes in its context are stored as texts.

        If that fails, the result has the error, unless it has one.
        """
        known = self._known.setdefault(context, set())
        # New ones come last, so that a turn costs as little in a long context as in a short one.
        new = list(takewhile(lambda item: item.id not in known, reversed(context.conversation.items)))
        unread = [] if result.is_compacted else [item.message for item in reversed(new)]
        error = result_or_error(self._archive.offloader.keep_look_alikes, unread)
        if error is not None:
            return replace(result, error=result.error or error)
        known.update(item.id for item in new)
        return result

    def _summarize(
        self,
        summarizer: Summarizer,
        messages: Sequence[Any],
        max_chars: int,
        *,
        waiting: Sequence[Any] | None = None,
    ) -> str:
        """Return a summary as it may be stored, the second one if it has fewer ungrounded values.

        Raises `OffloadError` as `summarize` does for the first.
        """
        ask = partial(summarize, summarizer, messages, max_chars, waiting=waiting)
        summary = self._redacted(ask())
        if self._grounding != "retry":
            return summary
        sources = [*messages, *(waiting or ())]
        missing = self._ungrounded(summary, sources)
        with suppress(OffloadError):
            if missing:
                again = self._redacted(ask(avoid=missing))
                return again if len(self._ungrounded(again, sources)) < len(missing) else summary
        return summary

    def _ungrounded(self, text: str, messages: Sequence[Any]) -> tuple[str, ...]:
        """Return the exact values that only this text has; a check that fails costs no compaction."""
        try:
            return ungrounded(text, messages, self._archive.offloader)
        except Exception as error:  # noqa: BLE001 # a hook may raise anything
            _log.warning("a summary could not be checked: %s", error_text(unexpected(error)))
            return ()

    def _ungrounded_in(self, view: View, plan: Plan) -> tuple[str, ...]:
        """Return the exact values in the notice of a plan that nothing in the conversation has."""
        if self._grounding == "off":
            return ()
        return self._ungrounded(f"{plan.notice.summary}\n{plan.notice.ledger}", view.messages)

    @property
    def _bounds(self) -> tuple[int, int]:
        """The tokens that a compaction must get below, and those of the context window."""
        raise NotImplementedError

    def _wait(self, context: ContextIR, tokens: int) -> Wait:
        """Return whether a compaction of a context waits, since the last one was not enough."""
        waits = {} if context.waits is None else context.waits
        waits[self] = waits.get(self, Wait()).at(tokens, self._bounds[1])
        return waits[self]

    def _run(
        self, context: ContextIR, events: EventBus, tokens: int, work: Callable[[], ResultT]
    ) -> ResultT | OffloadError:
        """Return the result of a compaction of `tokens`, or why there is none; emit its events.

        They are `compaction_started`, then `context_compacted`, `compaction_failed` or both.
        """
        wait = self._wait(context, tokens)
        if tokens < wait.until:
            return ContextFullError(
                f"the last compaction was not enough: the context has {tokens} tokens, and the next one is "
                f"tried from {wait.until} tokens on"
            )
        result = self._tried(events, tokens, work)
        if context.waits is not None and not isinstance(result, RefusedError):
            limit, window = self._bounds
            error = result if isinstance(result, OffloadError) else result.error
            left = tokens if isinstance(result, OffloadError) else result.new_token_count
            context.waits[self] = wait.after(left, limit if error is None else 0, window)
        return result

    def _tried(self, events: EventBus, tokens: int, work: Callable[[], ResultT]) -> ResultT | OffloadError:
        detail = f"a context of {tokens} tokens is compacted"
        events.emit(ContextEvent(EventType.COMPACTION_STARTED, detail, {"tokens": tokens}))
        try:
            result = work()
        except Exception as raised:  # noqa: BLE001 # a hook may raise anything
            error = raised if isinstance(raised, OffloadError) else failure("unexpected", raised)
            self._report_failure(events, tokens, error)
            return error
        if result.is_compacted:
            _report_success(events, result)
        if result.error is not None:
            self._report_failure(events, result.new_token_count, result.error)
        elif not result.is_compacted:
            text = "a notice would be no shorter than the messages"
            _log.warning("compaction failed: %s", text)
            _emit_failure(events, tokens, "no_gain", text)
        return result

    def _report_failure(self, events: EventBus, tokens: int, error: OffloadError) -> None:
        text = error_text(error)
        _log.warning("compaction failed: %s", text)
        # The exception of a model's client may quote the messages that it was sent.
        with suppress(Exception):
            text = self._redacted(str(error))
        _emit_failure(events, tokens, error.kind, text)

    def _store(self, view: View, plan: Plan) -> tuple[str, Any, int]:
        """Store the messages of a plan; return the record's ref, the notice as a message, the tokens after.

        Kept messages after the first removed one lose thinking that is bound to it. Raises `ContextFullError`
        if the notice has no fewer tokens than the messages.
        """
        ref, notice = self._archive.store(view.messages, plan.removed, plan.notice)
        tokens = view.tokens_with(plan.removed, notice)
        if tokens >= view.total:
            raise ContextFullError(f"the notice has no fewer tokens than the {len(plan.removed)} messages")
        tokens -= self._remove_thinking(view, plan.removed)
        # An edit of the caller would remove the thinking of later replies too.
        self._archive.offloader.recheck(view.messages[plan.removed[0]])
        return ref, notice, tokens

    def _place(self, view: View, plan: Plan, notice: Any, item_type: ItemType) -> int:
        """Put a notice in place of the removed messages; return how many tokens fewer than alone it has.

        Where a provider refuses two messages of the user in a row, the notice becomes part of its neighbors.
        """
        context, gone = view.context, set(plan.removed)
        items, adapter = context.conversation.items, adapter_for(notice)
        first = plan.removed[0]
        after = next((i for i in range(first, len(items)) if i not in gone), len(items))
        before, later = (
            [item for item in near if adapter.must_join(item.message, notice)]
            for near in (items[first - 1 : first] if first else [], items[after : after + 1])
        )
        new = context.new_item(notice, item_type)
        joined = new
        if before or later:
            parts = [*before, new, *later]
            kind = (before + later)[0].item_type
            joined = context.new_item(adapter.join([part.message for part in parts]), kind)
        replaced = [*before, *(items[i] for i in plan.removed), *later]
        context.replace_items(replaced, joined)
        return sum(item.token_count for item in [*before, new, *later]) - joined.token_count

    def _remove_thinking(self, view: View, removed: Sequence[int]) -> int:
        """Remove the thinking of kept messages that is bound to a removed one; return its tokens."""
        later = [i for i in range(removed[0], len(view.messages)) if i not in set(removed)]
        return unbind(view.context, self._archive.offloader, later, "messages before it were compacted")


@dataclass(frozen=True, slots=True)
class Plan:
    """Indices of the messages to remove, the notice that replaces them, the tokens of the request after."""

    removed: Sequence[int]
    notice: Notice
    tokens: int

    @property
    def item_type(self) -> ItemType:
        return ItemType.COMPACTION_SUMMARY if self.notice.summary else ItemType.COMPACTION_NOTICE


@dataclass(frozen=True)
class View:
    """A conversation before a compaction.

    Attributes:
        total: the tokens of the request: of the messages and of all that is sent with them.
        groups: indices of messages, in runs that are removed together: with rounds, the parts of one.
        target: the tokens below which a compaction must get.
        rounds: indices of messages, in rounds; empty if they do not count.
    """

    context: ContextIR
    total: int
    groups: Sequence[Sequence[int]]
    archive: MessageArchive = field(repr=False)
    target: int
    window: int
    rounds: Sequence[Sequence[int]] = ()

    @cached
    def messages(self) -> list[Any]:
        return self.context.conversation_messages

    @cached
    def tokens(self) -> list[int]:
        return [item.token_count for item in self.context.conversation.items]

    @cached
    def _digest(self) -> Digest:
        return Digest(self.messages, self.archive)

    def tokens_without(self, removed: Sequence[int]) -> int:
        """Return the tokens of the request without the messages at the indices `removed`."""
        return max(0, self.total - sum(self.tokens[i] for i in removed))

    def frees_much(self, tokens: int) -> bool:
        """Return whether a compaction to `tokens` frees enough of the window to be worth a summary."""
        return self.total - tokens >= self.window * LEAST_FREED

    def is_enough(self, tokens: int) -> bool:
        """Return whether a compaction to `tokens` is worth it: it also is if it gets below the target."""
        return self.frees_much(tokens) or tokens < self.target

    @property
    def parts(self) -> str:
        """The tokens of system prompt and tools and those of the messages, as a text."""
        fixed = max(0, self.total - sum(self.tokens))
        return f"system prompt and tools {fixed} tokens, messages {self.total - fixed}"

    def fitting(self, units: Sequence[Sequence[int]], limit: int) -> int:
        """Return how many of the latest `units` may be kept in a request of fewer than `limit` tokens."""
        kept = self.tokens_without([i for unit in units for i in unit])
        for count, unit in enumerate(reversed(units)):
            kept += sum(self.tokens[i] for i in unit)
            if kept >= limit:
                return count
        return len(units)

    def tokens_with(self, removed: Sequence[int], notice: Any) -> int:
        """Return the tokens of the request with a message in place of those at the indices `removed`."""
        return self.tokens_without(removed) + self.context.count_message(notice)

    def plan(self, removed: Sequence[int], summary: str = "") -> Plan:
        """Return the plan that removes some messages; its notice also has their ledger, and the task.

        The ledger is shortened if that is enough for the target, or if the notice is too long; then so is the
        task. Raises `OffloadError` if the store fails.
        """
        freed = self.total - self.tokens_without(removed)
        ledger = int(min(_LEDGER_TOKENS, self.window * _WINDOW_SHARE, freed * _FREED_SHARE))
        task = max(_LEAST_TASK, min(_TASK_TOKENS, self.window * _WINDOW_SHARE))
        plan = self._plan(removed, summary, ledger, task)
        less = self._ledger_tokens(plan) - (plan.tokens - self.target + 1)
        if plan.tokens >= self.target and less >= freed * _LEAST_SHARE:
            plan = self._plan(removed, summary, less, task)
        if plan.tokens >= self.total:
            less = self._ledger_tokens(plan) - (plan.tokens - self.total + 1)
            plan = self._plan(removed, summary, max(0, less), task)
        if plan.tokens >= self.total and plan.notice.task:
            task = estimate_tokens(plan.notice.task) * self._scale - (plan.tokens - self.total + 1)
            plan = self._plan(removed, summary, 0, max(0, task))
        return plan

    def _ledger_tokens(self, plan: Plan) -> float:
        return estimate_tokens(plan.notice.ledger) * self._scale

    def _plan(self, removed: Sequence[int], summary: str, ledger: float, task: float) -> Plan:
        """Return a plan whose ledger and task have at most these numbers of tokens."""
        most = ledger / self._scale, task / self._scale
        notice = self._digest.notice(removed, summary, *most)
        message = adapter_for(self.messages[removed[0]]).user_message(notice.text())
        return Plan(removed, notice, self.tokens_with(removed, message))

    @cached
    def _scale(self) -> float:
        """The counted tokens for one that is estimated; the counter may be a slow function of the host."""
        estimated = sum(estimate_tokens(text) + MESSAGE_TOKENS for text in self._digest.texts[:_SAMPLED])
        return max(_LEAST_SCALE, sum(self.tokens[:_SAMPLED]) / max(1, estimated))


def unbind(context: ContextIR, offloader: Offloader, indices: Iterable[int], cause: str) -> int:
    """Store and remove the signed thinking of some messages, if the model binds it; return its tokens.

    Raises `OffloadError` if it cannot be stored.
    """
    messages = context.conversation_messages
    signed = [index for index in indices if signed_thinking(messages[index])]
    if not signed or not offloader.binding(offloader.model).removes:
        return 0
    offloader.remove_thinking(messages, signed, cause=cause)
    return bare(context, signed)


def bare(context: ContextIR, indices: Iterable[int]) -> int:
    """Replace messages by themselves without their signed thinking; return its tokens."""
    messages = context.conversation_messages
    return sum(context.replace_message(index, bare_of(messages[index])) for index in indices)


def _report_success(events: EventBus, result: CompactionResult) -> None:
    before, after = result.original_token_count, result.new_token_count
    figures = {
        "original_tokens": before,
        "new_tokens": after,
        "saved_ratio": result.saved_ratio,
        "summary": result.summary,
        "messages": result.removed_count,
        **result.counts,
    }
    detail = f"{result.removed_count} messages removed: {before} tokens became {after}"
    events.emit(ContextEvent(EventType.CONTEXT_COMPACTED, detail, figures))
    if result.ungrounded:
        report_ungrounded(events, "summary", result.ungrounded)


def report_ungrounded(events: EventBus, where: str, values: Sequence[str]) -> None:
    """Log how many values of a text have no source, and emit them."""
    detail = f"a {where} has exact values without a source: {len(values)}"
    _log.warning("%s", detail)
    data = {"where": where, "values": list(values)}
    events.emit(ContextEvent(EventType.UNGROUNDED_TEXT, detail, data))


def _emit_failure(events: EventBus, tokens: int, kind: str, error: str) -> None:
    data = {"kind": kind, "tokens": tokens, "error": error}
    detail = f"a compaction of {tokens} tokens failed: {kind}"
    events.emit(ContextEvent(EventType.COMPACTION_FAILED, detail, data))
