"""The decisions of one turn: on each item by the policy, the expected cost and what was sent; on groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from offload.engine.items import Slot, State
from offload.engine.policy import Decision, ItemFacts
from offload.engine.policy.cost import (
    READS_OF_FILES,
    READS_OF_RESULTS,
    RESULT_LEFT_ALONE,
    Candidate,
    CostPlan,
)
from offload.engine.policy.groups import over_ceiling, saving, swept
from offload.engine.policy.reasons import Reason, ReasonKind
from offload.engine.policy.tool_names import shows_file
from offload.engine.recognition import Claim, Proof
from offload.engine.turn import Turn
from offload.errors import OffloadError
from offload.messages.calls import Call
from offload.messages.files import file_call
from offload.records.record.retrieval import is_answer, is_read_back, reads_of

if TYPE_CHECKING:
    from offload.engine.policy import Sweep


def _waits_for_turn(turn: Turn, slot: Slot) -> bool:
    """Return whether an item that was sent is too large, to be offloaded after the model's turn.

    The thinking after it is removed too, and the model needs that of its turn.
    """
    if slot.stored is not None or not turn.is_sent(slot):
        return False
    rule = turn.policy.rule_for(slot.decision.item, turn.terms.file_readers)
    return not rule.keep_recent and turn.log.is_within_turn


def _is_shown_elsewhere(turn: Turn, slot: Slot) -> bool:
    """Return whether an equal item was sent in full, and may not change: a new process would replace both."""
    return (
        turn.is_bound
        and slot.stored is None
        and any(
            other.at < turn.log.fresh and not other.is_replaced for other in turn.log.items.equal_to(slot)
        )
    )


# One item


def by_policy(turn: Turn, facts: ItemFacts) -> Decision:
    """Return the policy's decision on an item with these facts."""
    return turn.policy.decide(facts, file_readers=turn.terms.file_readers, is_bound=turn.is_bound)


def candidate(turn: Turn, slot: Slot) -> Candidate[Slot] | None:
    """Return a new item for the plan by cost, None if it is kept or frees too little."""
    policy, decision = turn.options.policy, slot.decision
    if decision.item.is_pinned or slot.state is not State.OPEN or turn.is_aside:
        # It may be unpinned or weighed later, or came back; the plan does not depend on it.
        facts = decision.item._replace(is_pinned=False, is_stored=False, was_stored=False, answers=0, newer=0)
        decision = policy.decide(facts, file_readers=turn.terms.file_readers, is_bound=turn.is_bound)
    facts, freed = decision.item, saving(decision)
    is_ruled = not decision.is_by_cost
    if slot.claim is not None or facts.media_type is not None or freed < max(1, policy.min_saving):
        return None
    rule = policy.rule_for(facts, turn.terms.file_readers)
    if is_ruled and (decision.action == "keep" or rule.keep_recent):
        return None
    slot.is_planned = decision.action == "wait" and policy.cost_plan != "none"
    is_file = facts.item_type == "tool_result" and shows_file(facts.tool_name)
    return Candidate(
        slot,
        facts.tokens,
        freed,
        waits=rule.after_replies or RESULT_LEFT_ALONE,
        # A result that can be offloaded later is shown first, unless the policy wants the lowest cost.
        is_unseen=not is_ruled and (turn.is_bound or (policy.cost_plan == "all" and not rule.after_replies)),
        reads=READS_OF_FILES if is_file else READS_OF_RESULTS,
        sources=sources_of(slot.item.call),
    )


def sources_of(call: Call | None) -> Sequence[str]:
    """Return the files that a call reads or changes, or the ids that it reads back.

    They are none if its arguments cannot be read.
    """
    if call is None:
        return ()
    try:
        if is_read_back(call.name):
            return reads_of(call.fields)
        files = file_call(call)
    except Exception:  # noqa: BLE001 # arguments may raise anything; the source then counts as unknown
        return ()
    return files.paths if files else ()


def decide(turn: Turn, slots: Iterable[Slot]) -> None:
    """Decide on each of some open items."""
    turn.each(slots, _decide)


def _decide(turn: Turn, slot: Slot) -> None:
    if slot.state is State.FAILED or (slot.state is State.UNWEIGHED and not slot.is_refuted):
        return
    items, sweep = turn.log.items, turn.policy.sweep
    items.decide(slot, _decision(turn, slot))
    if sweep is not None and slot.is_small and slot.saving >= max(1, turn.policy.min_saving):
        items.set_aside(slot)


def _decision(turn: Turn, slot: Slot) -> Decision:
    decision = _timed(turn, slot)
    if decision.action == "offload" and _is_shown_elsewhere(turn, slot):
        decision = replace(decision, action="keep", reason=Reason(ReasonKind.SHOWN_ELSEWHERE))
    if decision.action == "offload" and _waits_for_turn(turn, slot):
        decision = replace(decision, action="wait", reason=replace(decision.reason, is_after_turn=True))
    if slot.claim is None or slot.proof is None:
        return decision
    decision = _with_claim(turn, decision, slot.claim, slot.proof)
    if slot.is_refuted and slot.stored is None and turn.is_sent(slot):
        return replace(decision, action="keep", is_exempt=True)
    return decision


def _with_claim(turn: Turn, decision: Decision, claim: Claim, proof: Proof) -> Decision:
    """Return the decision on an item that looks like a placeholder, given that of the policy."""
    if isinstance(proof, OffloadError):
        reason = Reason(ReasonKind.UNPROVEN, name=str(proof))
        return replace(decision, action="keep", reason=reason, is_exempt=True)
    if proof == "proven":
        return turn.policy.decide(decision.item._replace(is_stored=True))
    if decision.item.is_pinned or decision.item.is_programmatic:
        return decision
    ceiling = turn.policy.max_view_tokens
    if claim.is_notice and (ceiling is None or decision.item.tokens <= ceiling):
        # The summary of another session: its text is all that the model has.
        reason = Reason(ReasonKind.FOREIGN_NOTICE)
        return replace(decision, action="keep", reason=reason, is_exempt=True)
    return replace(decision, action="offload", reason=Reason(ReasonKind.LOOK_ALIKE))


def _timed(turn: Turn, slot: Slot) -> Decision:
    """Return the policy's decision on an item, or that of the plan if the cost decides."""
    facts = turn.log.facts(
        slot, is_pinned=slot.item.tool_use_id in turn.terms.pinned, was_stored=slot.stored is not None
    )
    decision, plan = _judged(turn, slot, facts), None if turn.is_aside else turn.log.plan
    is_planned = slot.is_planned and slot.stored is None and decision.action != "keep"
    if plan is None or not (decision.is_by_cost or is_planned):
        return decision
    pays = plan.reasons.get(slot)
    if pays is not None:
        return replace(decision, action="offload", reason=pays)
    tokens = decision.item.tokens
    if decision.is_by_cost and turn.policy.cost_plan != "small":
        return replace(decision, action="keep", reason=Reason(ReasonKind.NOT_YET, tokens))
    if not is_planned:
        return decision
    return replace(decision, action="wait", reason=Reason(_why_planned(plan, slot), tokens))


def _why_planned(plan: CostPlan[Slot], slot: Slot) -> ReasonKind:
    if not plan.is_in_use(slot):
        return ReasonKind.NOT_YET
    is_own_answer = is_answer(slot.item.item_type, slot.item.tool_name)
    return ReasonKind.STILL_READ if is_own_answer else ReasonKind.FILE_IN_USE


def _judged(turn: Turn, slot: Slot, facts: ItemFacts) -> Decision:
    """Return the policy's decision on an item with these facts, which it has weighed before."""
    last, is_new = slot.decision, slot.at >= turn.before and not turn.binds
    if is_new and last.is_below and not (facts.is_pinned or facts.was_stored):
        # The replies and items since change no decision that only the size made.
        return replace(last, item=facts)
    return by_policy(turn, facts)


# Groups of items


def decide_together(turn: Turn, known: int) -> bool:
    """Decide on the items of each turn by the ceiling; return whether more are offloaded."""
    ceiling, more = turn.policy.max_view_tokens, False
    if ceiling is None:
        return False
    for messages in turn.log.turns_above(ceiling, known):
        fresh = [slot for slot in turn.log.slots_of(messages) if not turn.is_sent(slot)]
        view = [slot for slot in fresh if slot.is_in_view]
        staying = {
            at
            for at, slot in enumerate(view)
            if slot.is_final or slot.has_failed or _is_shown_elsewhere(turn, slot)
        }
        more |= _choose(turn, view, over_ceiling([s.decision for s in view], ceiling, staying))
    return more


def sweep(turn: Turn, sweep: Sweep) -> None:
    """Decide on the waiting and the small items once the conversation is long enough for a sweep."""
    log, items = turn.log, turn.log.items
    tokens = log.tokens - log.tokens_freed
    waiting = [s for s in items.opened() if s.state is State.WAITING and s.item.media is None]
    most = items.sweepable_saving + sum(slot.saving for slot in waiting)
    if tokens <= sweep.trigger or most < sweep.clear_at_least:
        return
    oldest_first = sorted([*items.sweepable.values(), *waiting], key=lambda slot: slot.number)
    decisions = [replace(slot.decision, item=log.facts(slot)) for slot in oldest_first]
    _choose(turn, oldest_first, swept(decisions, tokens, sweep, turn.policy.min_saving))


def _choose(turn: Turn, slots: Sequence[Slot], decisions: Mapping[int, Decision]) -> bool:
    for index, decision in decisions.items():
        turn.log.items.decide(slots[index], decision)
    return bool(decisions)
