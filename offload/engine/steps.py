"""The steps of one turn: read the new messages, decide, store, replace, report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from offload.base.events import EventType
from offload.engine import deciding, finding, leaving, reading
from offload.engine.binding import mode_of
from offload.engine.cache_state import CacheState, CacheWatch, HostCache
from offload.engine.failures import AboveCeilingError
from offload.engine.items import Slot
from offload.engine.parts import MessageState
from offload.engine.policy.groups import excess
from offload.engine.results import CacheReport, HistoryMode, OffloadResult
from offload.engine.turn import Turn
from offload.errors import unexpected
from offload.messages.base import Item


def run(turn: Turn, messages: Sequence[Any], watch: CacheWatch, host: HostCache | None) -> OffloadResult:
    """Return the messages with their large items replaced.

    A step that fails has no effect in this turn. Raises any exception of the steps that the others build on;
    then the log is incomplete.
    """
    log, part = turn.log, turn.part
    known = reading.keep_common(turn, messages)
    part(reading.retry, None, turn)
    unread = reading.add(turn, messages)
    if not _keep_placeholders(turn):
        known, turn.replies = log.keep_none(), 0
        unread = reading.add(turn, messages)
    cache = part(watch.begin, CacheState(), log.answers, host, turn.failures)
    mode = part(mode_of, HistoryMode(), turn.policy.history, turn.binding, turn.model, log.thinking.at)
    first = 0 if log.note_rule(turn.policy, is_bound=turn.is_bound) else known
    part(finding.find_stored, None, turn, known, first)
    part(finding.prove_claims, None, turn)
    part(_open_paying, None, turn, cache, known)
    part(deciding.decide, None, turn, log.items.opened())
    part(deciding.decide_together, None, turn, known)
    # Thinking that was removed before this turn counts no more: a sweep looks at the tokens that are sent.
    part(_recall, None, turn, known)
    part(_leave, None, turn, known)
    for index in (*part(reading.leave_out, [], turn, known), *log.edited_outputs()):
        part(leaving.render, None, turn, index)
    part(_report_excess, None, turn, known)
    part(log.end_turn, None)
    mode = mode._replace(thinking_removed=turn.thinking_removed)
    result = _result(turn, part(_cache_report, None, turn, watch, cache), mode)
    for index in unread:
        result.messages[index] = messages[index]
    return result


def run_one(turn: Turn, item: Item) -> Slot:
    """Offload a single text, which is a message of its own, if the rule for it says so."""
    [slot] = reading.weighed(turn, 0, [item])
    turn.log.add(item.text, MessageState([slot], 0, (), {}, ""))
    finding.prove_claims(turn)
    deciding.decide(turn, [slot])
    leaving.ask_hook(turn)
    leaving.store(turn, turn.log.items.due())
    return slot


def store_again(turn: Turn) -> int:
    """Store the items whose records were deleted since they were replaced; return how many they were.

    Their placeholders do not change. Raises `OffloadError` if one could not be kept.
    """
    placed = [(slot, slot.info) for slot in turn.log.since(0)]
    held = {info.key: (slot, info) for slot, info in placed if info is not None}
    gone = turn.recognition.session.gone(info for _, info in held.values())
    lost = dict(held[key] for key in held if key in gone)
    leaving.store_again(turn, lost)
    return len(lost)


def _keep_placeholders(turn: Turn) -> bool:
    """Store again the records of placeholders that this process deleted; return whether that succeeded."""
    try:
        if turn.recognition.session.has_new_deletions():
            store_again(turn)
    except Exception as error:  # noqa: BLE001 # the items are decided again, in their messages
        turn.failures.report(unexpected(error))
        return False
    return True


def _open_paying(turn: Turn, cache: CacheState, known: int) -> None:
    """Open the items whose offload is expected to lower the cost.

    A list of which nothing was offloaded before is decided request by request, as if it had grown.
    """
    log, plan = turn.log, turn.log.plan
    if plan is None or turn.is_aside:
        return
    # The record of an item that a rule offloads is found only when it is stored.
    new = [(slot, slot.decision) for slot in log.since(known)]
    ruled = [slot for slot, made in new if made.action == "offload" and not made.is_by_cost]
    plan.settle([*log.items.take_out(), *ruled], _ref_of)
    first = log.answers_of(known - 1) + 1 if known else 0
    if turn.is_bound or (first < plan.turn and any(map(_was_offloaded, log.since(0)))):
        first = plan.turn
    for number in range(min(first, plan.turn), plan.turn + 1):
        is_cold = cache.is_cold and number == plan.turn
        may_leave = partial(leaving.can_leave, turn)
        for slot in plan.decide(number, may_leave, is_bound=turn.is_bound, is_cold=is_cold):
            log.items.reopen(slot)


def _was_offloaded(slot: Slot) -> bool:
    return slot.is_replaced or slot.stored is not None or slot.proof == "proven"


def _ref_of(slot: Slot) -> str | None:
    return slot.stored if slot.info is None else slot.info.ref


def _recall(turn: Turn, known: int) -> None:
    """Replace and remove what was before, and say so before the store gets anything new."""
    for index in reading.leave_out(turn, known):
        leaving.render(turn, index)
    if leaving.recall(turn) and turn.on_recalled is not None:
        turn.on_recalled(_result(turn, None, HistoryMode()))


def _leave(turn: Turn, known: int) -> None:
    """Offload all items that the decisions, the sweep and the budgets name."""
    leaving.leave(turn)
    if turn.policy.sweep is not None:
        # The tokens of a placeholder are known once it is there, to a new process too.
        deciding.sweep(turn, turn.policy.sweep)
        leaving.leave(turn)
    while deciding.decide_together(turn, known):
        # An item that was chosen is kept, so the next largest is chosen.
        leaving.leave(turn)
    # An item can come twice in one turn.
    finding.note_if_stored(turn, known)
    leaving.leave_cited(turn)


# Report


def _report_excess(turn: Turn, known: int) -> None:
    """Report what remains above the ceiling, except for items whose failure was reported."""
    ceiling = turn.policy.max_view_tokens
    if ceiling is None:
        return
    log = turn.log
    turns = [*log.turns_above(ceiling, known)]
    views = [[s.decision for s in log.slots_of(at) if s.is_in_view and not s.has_failed] for at in turns]
    above = [text for view in views for text in excess(view, ceiling)]
    for text in (*above, *(text for at in turns for text in log.fixed_excess(at, ceiling))):
        turn.failures.note(AboveCeilingError(text), EventType.ABOVE_CEILING)


def _cache_report(turn: Turn, watch: CacheWatch, cache: CacheState) -> CacheReport | None:
    """Return the effect of this turn on the provider's cache."""
    log, sent = turn.log, turn.log.sent()
    kept = min(sent, log.unchanged(turn.late))
    freed, rewritten = log.rewritten(min(sent, turn.before), turn.late)
    if cache.is_cold:
        rewritten = 0 if cache.cause == "first" else log.tokens_before(sent)
    return watch.end(
        cache,
        tokens=log.tokens_before(len(log)),
        unchanged=log.tokens_before(kept),
        freed=freed,
        rewritten=rewritten,
    )


def _result(turn: Turn, cache: CacheReport | None, mode: HistoryMode) -> OffloadResult:
    log, items = turn.log, turn.log.items
    return OffloadResult(
        messages=log.messages.sent.copy(),
        records=items.infos(),
        decided=items.decided(),
        tokens_before=log.tokens,
        tokens_after=log.tokens - log.tokens_freed,
        chars_freed=items.chars_freed,
        errors=turn.failures.errors,
        cache=cache,
        history=mode,
        unchanged=log.messages.first_output,
    )
