"""The decisions of one turn: on each item by the policy, the expected cost and what was sent; on groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from offload.engine.guard import Guard
from offload.engine.history import History
from offload.engine.items import Slot, State
from offload.engine.judge import Judge
from offload.policy import Decision, ItemFacts
from offload.policy.cost import Candidate
from offload.policy.facts import Readers
from offload.policy.groups import over_budget, over_ceiling, saving, swept

if TYPE_CHECKING:
    from offload.policy import OffloadPolicy, Sweep

WAITS = "it is offloaded at the end of the model's turn, and the thinking after it is removed"
SHOWN_ELSEWHERE = "an equal item was sent in full"
NOT_YET = "offloading it is not expected to lower the cost yet"


@dataclass(frozen=True, slots=True)
class Decider:
    """Decides what happens to the items of a history in one turn.

    Args:
        readers: as in `OffloadPolicy.decide`.
        model: the name of the model; None if it is not known.
    """

    _judge: Judge
    _history: History
    _guard: Guard
    _readers: Readers
    _model: str | None

    @property
    def policy(self) -> OffloadPolicy:
        """The policy of the session."""
        return self._judge.policy

    # Messages that were sent

    @property
    def binds(self) -> bool:
        """Whether signed thinking must leave behind a change of what was sent."""
        has_thinking = self.policy.history == "append_only" or bool(self._history.thinking.at)
        return has_thinking and self.policy.may_bind(self._model)

    @property
    def is_bound(self) -> bool:
        """Whether the messages so far may not change once they were sent."""
        return self.binds and self.policy.history != "rewrite"

    def is_before_thinking(self, slot: Slot) -> bool:
        """Return whether an item was sent, and its change now would remove thinking."""
        return self.binds and slot.at < self._history.fresh

    def is_sent(self, slot: Slot) -> bool:
        """Return whether an item may no longer change, since it was sent."""
        return self.is_bound and slot.at < self._history.fresh

    def _waits_for_turn(self, slot: Slot) -> bool:
        """Return whether an item that was sent is too large, to be offloaded after the model's turn.

        The thinking behind it is removed too, and the model needs that of its turn.
        """
        if slot.stored is not None or not self.is_sent(slot):
            return False
        rule = self.policy.rule_for(slot.decision.item, self._readers)
        return not rule.keep_recent and self._history.is_within_turn

    def _is_shown_elsewhere(self, slot: Slot) -> bool:
        """Return whether an equal item was sent in full: with a record, a new process would replace both."""
        return slot.stored is None and any(
            twin.at < self._history.fresh and not twin.is_replaced
            for twin in self._history.items.equal_to(slot)
        )

    # One item

    def by_policy(self, facts: ItemFacts) -> Decision:
        """Return the policy's decision on an item with these facts."""
        return self.policy.decide(facts, readers=self._readers, is_bound=self.is_bound)

    def candidate(self, slot: Slot) -> Candidate[Slot] | None:
        """Return a new item for the plan by cost, None if it is kept or frees too little."""
        policy, decision = self.policy, slot.decision
        if decision.item.is_pinned or slot.state is State.UNWEIGHED:
            # It may be unpinned or weighed later; the plan does not depend on it.
            decision = self.by_policy(decision.item._replace(is_pinned=False))
        facts, freed = decision.item, saving(decision)
        is_ruled = not decision.is_by_cost
        if slot.claim is not None or facts.media_type is not None or freed < max(1, policy.min_saving):
            return None
        rule = policy.rule_for(facts, self._readers)
        if is_ruled and (decision.action == "keep" or rule.keep_recent):
            return None
        is_due = is_ruled and decision.action == "offload"
        is_timed = policy.by_cost != "none" and policy.cache.marks == 1
        slot.is_planned = is_ruled and not is_due and is_timed
        waits = 0 if is_due or self.is_bound else rule.after_turns
        answers_by_preview = policy.replaces_unseen(is_bound=self.is_bound)
        shown = min(1.0, decision.preview_chars / max(1, facts.chars)) if answers_by_preview else 0.0
        return Candidate(slot, facts.item_type, facts.tokens, freed, waits, is_ruled, shown)

    def decide(self, slots: Iterable[Slot]) -> None:
        """Decide about each of some open items."""
        self._guard.each(slots, self._decide)

    def _decide(self, slot: Slot) -> None:
        if slot.state is State.FAILED or (slot.state is State.UNWEIGHED and not slot.is_foreign):
            return
        items, sweep = self._history.items, self.policy.sweep
        items.decide(slot, self._decision(slot))
        if sweep is not None and slot.is_small and slot.saving >= max(1, self.policy.min_saving):
            items.set_aside(slot)

    def _decision(self, slot: Slot) -> Decision:
        decision = self._timed(slot)
        if self.is_bound and decision.action == "offload" and self._is_shown_elsewhere(slot):
            decision = replace(decision, action="keep", reason=SHOWN_ELSEWHERE, is_below=False)
        if decision.action == "offload" and self._waits_for_turn(slot):
            decision = replace(decision, action="wait", reason=f"{decision.reason}; {WAITS}")
        if slot.claim is None or slot.proof is None:
            return decision
        decision = self._judge.decide_claim(decision, slot.claim, slot.proof)
        if slot.is_foreign and slot.stored is None and self.is_sent(slot):
            return replace(decision, action="keep", is_exempt=True)
        return decision

    def _timed(self, slot: Slot) -> Decision:
        """Return the policy's decision on an item, or that of the plan if the cost decides."""
        facts = self._history.facts(slot)._replace(
            is_pinned=slot.item.tool_use_id in self._judge.pinned,
            was_stored=slot.stored is not None,
        )
        decision = self.by_policy(facts)
        plan = self._history.plan
        pays = None if plan is None else plan.reasons.get(slot)
        if decision.is_by_cost and plan is not None:
            decision = self._by_cost(decision, pays)
        if slot.is_planned and decision.action == "offload" and pays is None and slot.stored is None:
            return replace(decision, action="wait", reason=f"{decision.item.tokens} tokens; {NOT_YET}")
        return decision

    def _by_cost(self, decision: Decision, pays: str | None) -> Decision:
        """Return the decision on an item that the cost decides about; `pays` is why it is offloaded."""
        tokens = decision.item.tokens
        if pays is not None:
            return replace(decision, action="offload", reason=f"{tokens} tokens; {pays}", is_below=False)
        if self.policy.by_cost == "small":
            return decision
        return replace(decision, action="keep", reason=f"{tokens} tokens; {NOT_YET}", is_below=True)

    # Groups of items

    def decide_together(self, known: int) -> bool:
        """Decide about the items of each turn by its budget and the ceiling; return whether more leave."""
        policy, more = self.policy, False
        for turn in self._history.turns(known):
            fresh = [slot for slot in turn if not self.is_sent(slot)]
            if policy.turn_budget_tokens is not None:
                small = [slot for slot in fresh if slot.is_small]
                more |= self._choose(
                    small, over_budget([s.decision for s in small], policy.turn_budget_tokens)
                )
            if policy.max_view_tokens is not None:
                view = [slot for slot in fresh if slot.is_in_view]
                staying = {at for at, slot in enumerate(view) if slot.is_final or slot.has_failed}
                chosen = over_ceiling([s.decision for s in view], policy.max_view_tokens, staying)
                more |= self._choose(view, chosen)
        return more

    def sweep(self, sweep: Sweep) -> None:
        """Decide about the waiting and the small items once the conversation is long enough for a sweep."""
        history, items = self._history, self._history.items
        tokens = history.tokens - history.tokens_freed - sum(slot.saving for slot in items.leaving())
        waiting = [s for s in items.opened() if s.state is State.WAITING and s.item.media is None]
        most = items.sweepable_saving + sum(slot.saving for slot in waiting)
        if tokens <= sweep.trigger or most < sweep.clear_at_least:
            return
        oldest_first = sorted([*items.sweepable.values(), *waiting], key=lambda slot: slot.number)
        decisions = [replace(slot.decision, item=history.facts(slot)) for slot in oldest_first]
        self._choose(oldest_first, swept(decisions, tokens, sweep, self.policy.min_saving))

    def _choose(self, slots: Sequence[Slot], decisions: Mapping[int, Decision]) -> bool:
        for index, decision in decisions.items():
            self._history.items.decide(slots[index], decision)
        return bool(decisions)
