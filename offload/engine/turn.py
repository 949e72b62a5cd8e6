"""One turn of a conversation: scan the new messages, decide, store, replace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from offload.engine.bound import mode_of
from offload.engine.failures import AboveCeilingError, Failures, malformed, name_of
from offload.engine.history import History, Kept, MessageState, Slot
from offload.engine.judge import LOOK_ALIKE, Judge, unweighed
from offload.engine.moment import CacheWatch, HostCache, Moment
from offload.engine.recognition import Recognition
from offload.engine.results import CacheReport, HistoryMode, OffloadResult
from offload.engine.thinking import RemovedThinking
from offload.engine.writer import ItemWriter, Skipped, WriteOutcome, WriteRequest
from offload.errors import MessageError, OffloadError, StoreError, unexpected
from offload.messages import (
    Item,
    Scan,
    Thinking,
    adapter_for,
    block_count,
    media_ref,
    role_of,
    scan_of,
    signed_thinking,
)
from offload.options import Options
from offload.policy import (
    Candidate,
    Decision,
    ItemFacts,
    Readers,
    excess,
    is_read_back,
    over_budget,
    over_ceiling,
    saving,
    swept,
)
from offload.preview import head_tail
from offload.record import RecordInfo

if TYPE_CHECKING:
    from offload.policy import Sweep

VETO = "kept by should_offload"
WAITS = "it is offloaded at the end of the model's turn, and the thinking after it is removed"
SHOWN_ELSEWHERE = "an equal item was sent in full"
NOT_YET = "offloading it is not expected to lower the cost yet"
# The beginnings of reasons whose error was reported.
NOT_STORED, NOT_OFFLOADED = _REPORTED = "not stored: ", "not offloaded: "
# Beginning of a text that is kept as the query of later previews.
_QUERY_CHARS = 4_000
P = ParamSpec("P")
T = TypeVar("T")
# No placeholder is shorter, so no shorter item can have been offloaded.
_MIN_PLACEHOLDER_CHARS = 40


class _Read(NamedTuple):
    """The parts of a message: its role, its items and texts, signed thinking, and number of blocks."""

    role: str
    scan: Scan
    thinking: Sequence[Thinking]
    blocks: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The work of one call of `offload`; the history holds what the next turn needs."""

    _history: History
    _judge: Judge
    _recognition: Recognition
    _writer: ItemWriter
    _options: Options
    _failures: Failures
    _watch: CacheWatch
    _thinking: RemovedThinking
    _readers: Readers = "keep"
    _cache: HostCache | None = None
    _model: str | None = None

    def run(self, messages: Sequence[Any]) -> OffloadResult:
        """Return the messages with their large items replaced.

        A part that fails costs what it was to do in this turn. Raises any exception of the parts that the
        others build on; then the history is incomplete.
        """
        history, part, before = self._history, self._part, len(self._history)
        self._guide_plan()
        known = self._reread(history.keep_common(messages))
        if not self._keep_placeholders():
            known = history.keep_common(())
        part(self._retry_problems, None)
        skipped = [i for i in range(known, len(messages)) if not self._is_added(i, messages[i])]
        moment = part(self._watch.begin, Moment(), history.answers, self._cache, self._failures)
        thinking = history.thinking.at
        mode = part(mode_of, HistoryMode(), self._judge.policy.history, self._model, thinking)
        part(self._note_paying, None, moment)
        first = 0 if history.note_bound(is_bound=self._is_bound) else known
        part(self._find_stored, None, known, first)
        part(self._prove_claims, None)
        part(self._decide, None)
        part(self._decide_together, None, known)
        late, removed = part(self._leave_all, ([], 0), before, known)
        for index in (*part(self._leave_out, [], known), *history.edited_outputs()):
            part(self._render, None, index)
        part(self._report_excess, None, known)
        part(history.end_turn, None)
        cache = part(self._cache_report, None, moment, before, late)
        result = self._result(cache, mode._replace(thinking_removed=removed))
        for index in skipped:
            result.messages[index] = messages[index]
        return result

    def _guide_plan(self) -> None:
        if self._history.plan is not None:
            self._history.plan.may_leave = self._can_leave

    def _part(self, part: Callable[P, T], otherwise: T, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a part of the turn; if it fails, return `otherwise`, and the next turn starts over."""
        try:
            return part(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 # the other parts still run
            self._failures.report(unexpected(error))
            self._failures.is_incomplete = True
            return otherwise

    def _each(self, slots: Iterable[Slot], step: Callable[[Slot], object]) -> None:
        """Do something for each item; one for which it fails is kept in its message in this turn."""
        for slot in slots:
            try:
                step(slot)
            except Exception as error:  # noqa: BLE001 # one item's failure is one item's
                self._fail(slot, error)

    def _fail(self, slot: Slot, error: Exception) -> None:
        """Keep an item in its message in this turn, and report why."""
        problem = unexpected(error)
        self._report(slot, problem)
        slot.problem = f"{NOT_OFFLOADED}{problem}"
        if slot.number < 0 or slot.is_replaced:
            self._failures.is_incomplete = True
        else:
            slot.is_settled = False
            self._history.reopen(slot)
            self._history.keep(slot, slot.problem)

    def _report(self, slot: Slot, error: OffloadError) -> None:
        # A single text is in no message, and has no plan.
        self._failures.report(error, name_of(slot.item, None if self._history.plan is None else slot.at))

    def _leave_all(self, before: int, known: int) -> tuple[list[Slot], int]:
        """Replace all items that are to be; return those in the first `before` messages, and as `_leave`."""
        late, placed, removed = self._leave_and_sweep(before)
        while self._decide_together(known):
            # An item that was chosen is kept, so the next largest is chosen.
            more = self._leave(before)
            late, placed, removed = late + more[0], placed + more[1], removed + more[2]
        # An item can come twice in one turn.
        self._note_stored(known)
        return late + [slot for slot in self._store_cited(placed) if slot.at < before], removed

    def _leave_and_sweep(self, before: int) -> tuple[list[Slot], list[Slot], int]:
        """Replace what is decided to leave, and what a sweep chooses then; the result is that of `_leave`."""
        leaving = self._leave(before)
        if self._judge.policy.sweep is None:
            return leaving
        # The tokens of a placeholder are known once it is there, to a new process too.
        self._sweep(self._judge.policy.sweep)
        late, placed, removed = self._leave(before)
        return leaving[0] + late, leaving[1] + placed, leaving[2] + removed

    def _leave(self, before: int) -> tuple[list[Slot], list[Slot], int]:
        """Replace what is decided to leave.

        Returns what changes one of the first `before` messages, what has a record now, and how many blocks of
        thinking were removed.
        """
        late = [slot for slot in self._history.open_slots() if slot.at < before and slot.is_leaving]
        self._ask_hook()
        try:
            removed = self._remove_thinking()
        except Exception as error:  # noqa: BLE001 # what was sent is kept as it was
            removed = 0
            self._failures.report(unexpected(error))
            for slot in self._sent_leaving():
                self._history.keep(slot, f"{NOT_OFFLOADED}{unexpected(error)}")
        return late, self._store(), removed

    def _sent_leaving(self) -> list[Slot]:
        """Return the items that were sent and leave now, so that the thinking behind them must leave too."""
        history = self._history
        # An item with a record was replaced before it was first sent, or the thinking behind it removed then.
        return [s for s in history.open_slots() if s.is_leaving and s.at < history.fresh and s.stored is None]

    def run_one(self, item: Item) -> Slot:
        """Offload a single text, which is a message of its own, if the rule for it says so."""
        slot = self._slot(0, item)
        self._history.add(item.text, MessageState([slot], 0, {}, 0, "", {}))
        self._prove_claims()
        self._decide()
        self._ask_hook()
        self._store()
        return slot

    def _keep_placeholders(self) -> bool:
        """Store again what this process deleted beneath the messages of this turn; return whether all is."""
        try:
            if self._recognition.has_new_deletions():
                self.store_again()
        except Exception as error:  # noqa: BLE001 # the items are decided again, in their messages
            self._failures.report(unexpected(error))
            return False
        return True

    def store_again(self) -> int:
        """Store the items whose records were deleted since they were replaced; return how many they were.

        Their placeholders do not change. Raises `OffloadError` if one could not be kept.
        """
        placed = [(slot, slot.info) for state in self._history.states for slot in state.slots]
        held = {info.key: (slot, info) for slot, info in placed if info is not None}
        gone = self._recognition.gone([info for _, info in held.values()])
        lost = [held[key] for key in held if key in gone]
        requests = [
            WriteRequest(slot.item, slot.decision, is_forced=True, ref=info.ref, placeholder=slot.text)
            for slot, info in lost
        ]
        for (slot, info), outcome in zip(lost, self._writer.write(requests), strict=True):
            if isinstance(outcome, OffloadError):
                raise outcome
            if isinstance(outcome, Skipped) or outcome.placeholder != slot.text:
                raise StoreError(f"record {info.ref} was deleted and cannot be stored again as it was")
            self._history.renew(slot, outcome.info)
        return len(lost)

    # Scan

    def _reread(self, known: int) -> int:
        """Return the first message to scan: one that could not be read if it now can, else `known`."""
        history = self._history
        for index in sorted(index for index in history.unread if index < known):
            try:
                is_whole = not self._read(index, history.messages[index]).scan.failed
            except Exception as error:  # noqa: BLE001 # a message object may raise anything
                self._failures.report(malformed(error, f"messages[{index}]"))
            else:
                if is_whole:
                    history.forget(history.messages[index])
                    return len(history)
        return known

    def _is_added(self, index: int, message: Any) -> bool:
        """Add a message to the history; return whether it is there, and not just something in its place."""
        history = self._history
        try:
            self._scan(index, message)
        except Exception as error:  # noqa: BLE001 # one message's failure is one message's
            self._failures.report(malformed(error, f"messages[{index}]"))
            self._failures.is_incomplete = True
        if len(history) > index:
            return True
        history.add(None, MessageState([], 0, {}, history.answers, "", {}))
        return False

    def _scan(self, index: int, message: Any) -> None:
        """Add a message to the history; a malformed one is reported and has no items."""
        history, judge = self._history, self._judge
        try:
            read = self._read(index, message)
        except Exception as error:  # noqa: BLE001 # a message object may raise anything
            read = _Read("", _unread(message), (), 1)
            self._failures.report(malformed(error, f"messages[{index}]"))
            if not isinstance(error, MessageError):
                history.unread.add(index)
        role, scan, thinking, blocks = read
        for where, problem in scan.failed:
            history.unread.add(index)
            self._failures.report(malformed(problem, where or f"messages[{index}]"))
        judge.code_calls |= scan.code_calls
        slots = self._slots(index, scan.offloadable)
        kept = [Kept(part.where, part.kind, part.read(self._count), part.is_said) for part in scan.fixed]
        fixed_tokens = sum(part.tokens for part in kept) + sum(part.data for part in scan.fixed)
        last = history.states[-1] if history.states else None
        # In some formats one reply consists of several messages in a row.
        answers = history.answers + (role == "assistant" and (last is None or last.role != "assistant"))
        texts = _latest_texts({} if last is None else last.texts, role, scan)
        state = MessageState(slots, fixed_tokens, scan.calls, answers, role, texts, thinking, kept)
        is_reply = answers > history.answers
        history.add(message, state)
        for slot in slots if thinking else ():
            # The first thinking of a conversation changes what may leave.
            history.decide(slot, self._policy_decision(slot.decision.item))
        if history.plan is not None:
            self._part(
                history.plan.add,
                None,
                state.tokens,
                self._candidates(slots),
                reads=sum(is_read_back(call.name) for call in scan.calls.values()),
                is_reply=is_reply,
                blocks=blocks,
                is_bound=self._is_bound,
            )

    def _read(self, index: int, message: Any) -> _Read:
        """Return the parts of a message. Raises any exception of the message or its adapter."""
        where = f"messages[{index}]"
        role = role_of(message, where)
        scan = adapter_for(message).scan(message, where, self._history.calls)
        thinking = signed_thinking(message) if role == "assistant" else ()
        return _Read(role, scan, thinking, block_count(message))

    def _candidates(self, slots: Sequence[Slot]) -> list[Candidate[Slot]]:
        found: dict[Slot, Candidate[Slot] | None] = {}

        def find(slot: Slot) -> None:
            found[slot] = self._candidate(slot)

        self._each(slots, find)
        # Only a new plan can get the others.
        self._failures.is_incomplete |= len(found) < len(slots)
        return [candidate for candidate in found.values() if candidate is not None]

    @property
    def _is_bound(self) -> bool:
        """Whether the messages so far may not change once they were sent."""
        return self._binds and self._judge.policy.history != "rewrite"

    @property
    def _binds(self) -> bool:
        """Whether signed thinking must leave behind a change of what was sent."""
        policy = self._judge.policy
        has_thinking = policy.history == "append_only" or bool(self._history.thinking.at)
        return has_thinking and policy.may_bind(self._model)

    def _is_sent(self, slot: Slot) -> bool:
        """Return whether an item may no longer change, since it was sent."""
        return self._is_bound and slot.at < self._history.fresh

    def _slots(self, index: int, items: Sequence[Item]) -> list[Slot]:
        slots = []
        for item in items:
            try:
                slots.append(self._slot(index, item))
            except Exception as error:  # noqa: BLE001 # one item's failure is one item's
                self._failures.report(unexpected(error), name_of(item, index))
                self._failures.is_incomplete = True
        return slots

    def _is_before_thinking(self, slot: Slot) -> bool:
        """Return whether an item was sent, and its change now would remove thinking."""
        return self._binds and slot.at < self._history.fresh

    def _slot(self, index: int, item: Item) -> Slot:
        slot = Slot(item, unweighed(item, index))
        self._each([slot], self._weigh)
        return slot

    def _weigh(self, slot: Slot) -> None:
        """Set the facts of an item, the policy's decision on it and what its text claims."""
        facts, problem = self._judge.facts(slot.item, slot.at)
        slot.decision = self._policy_decision(facts)
        self._find_claim(slot, problem)

    def _candidate(self, slot: Slot) -> Candidate[Slot] | None:
        """Return an item for the plan by cost, None if it is kept or frees too little."""
        policy, decision = self._judge.policy, slot.decision
        if decision.item.is_pinned:
            # It may be unpinned later; the plan does not depend on it.
            decision = self._policy_decision(decision.item._replace(is_pinned=False))
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
        waits = 0 if is_due or self._is_bound else rule.after_turns
        answers_by_preview = policy.replaces_unseen(is_bound=self._is_bound)
        shown = min(1.0, decision.preview_chars / max(1, facts.chars)) if answers_by_preview else 0.0
        return Candidate(slot, facts.item_type, facts.tokens, freed, waits, is_ruled, shown)

    def _note_paying(self, moment: Moment) -> None:
        """Mark the items whose offload is expected to lower the cost; those in view are open again."""
        history = self._history
        if history.plan is None:
            return
        if moment.is_cold and not self._is_bound:
            history.plan.cool()
        history.plan.retry_refused()
        history.close([s for s in history.open_slots() if s.is_settled and s.is_in_view])
        for slot in history.plan.due:
            if not slot.is_settled and not slot.is_replaced:
                history.reopen(slot)
        history.plan.due.clear()

    def _can_leave(self, slot: Slot) -> bool:
        """Return whether an item that the cost is to offload can leave: the plan counts on that.

        One that cannot for an error is tried again, and counts as gone.
        """
        if slot.item.tool_use_id in self._judge.pinned or slot.is_settled:
            return slot.is_replaced
        if slot.problem is not None or slot.is_replaced:
            return True
        if not slot.is_approved:
            self._history.reopen(slot)
            self._history.decide(slot, replace(slot.decision, item=self._history.facts(slot)))
            self._each([slot], self._ask_about)
        return slot.is_approved or not slot.is_settled

    def _find_claim(self, slot: Slot, problem: OffloadError | None) -> None:
        """Look for a ref in the text of an item; if a renderer or the counter failed, the item is kept."""
        try:
            plain = self._recognition.is_plain(slot.item)
            slot.claim = None if plain else self._recognition.claim(slot.item)
        except Exception as error:  # noqa: BLE001 # a renderer may raise anything
            problem = unexpected(error)
        slot.problem = None if problem is None else f"{NOT_OFFLOADED}{problem}"
        if problem is not None:
            self._report(slot, problem)

    def _retry_problems(self) -> None:
        """Call the renderer and the counter again for the items for which they failed."""
        self._each(
            [slot for slot in self._history.open_slots() if slot.problem is not None], self._weigh_again
        )

    def _weigh_again(self, slot: Slot) -> None:
        facts, problem = self._judge.facts(slot.item, slot.at)
        self._history.recount(slot, facts.tokens)
        self._find_claim(slot, problem)

    def _find_stored(self, known: int, first: int) -> None:
        """Find items that were offloaded in another process or before a rollback: they are again.

        The messages from `known` on are new; the items of those from `first` on are decided again.
        """
        history = self._history
        # More than one reply at once: another process continued the session, or it was rolled back.
        is_continued = history.answers - (history.answers_of(known - 1) if known else -1) > 1
        may_matter = is_continued or (not self._recognition.is_listed and self._may_be_stored(first))
        if not may_matter and history.unlisted is None:
            self._note_stored(first)
            return
        known = known if history.unlisted is None else min(known, history.unlisted)
        history.unlisted = known
        try:
            self._recognition.load_session()
            self._thinking.load()
            history.unlisted = None
        except Exception as error:  # noqa: BLE001 # a store may raise anything
            # Items are offloaded as if they were new; the next turn looks again for what has left.
            self._failures.report(unexpected(error))
        # The other process may have offloaded what was kept here, and thinking is bound to that now.
        self._note_stored(0 if self._is_bound else min(first, known))
        self._find_elsewhere(known)

    def _may_be_stored(self, known: int) -> bool:
        """Return whether a record of another process may change what is sent of the messages from `known` on.

        What is replaced now finds its record when it is stored, except for a result whose call is not known
        any more: its record has another key.
        """
        slots = self._history.since(known)
        return bool(self._binds and self._history.thinking.at) or any(
            slot.item.item_type == "tool_result" and slot.item.call is None
            if slot.decision.action == "offload"
            else self._may_leave(slot) and (slot.decision.action == "wait" or slot.saving > 0)
            for slot in slots
        )

    def _may_leave(self, slot: Slot) -> bool:
        """Return whether an item that does not leave now may have left before, or may leave later."""
        decision, facts = slot.decision, slot.decision.item
        is_open = decision.action == "wait" or decision.is_below or decision.is_by_cost
        is_open = is_open or facts.is_error or self._is_before_thinking(slot)
        return is_open and not slot.is_settled and facts.chars >= _MIN_PLACEHOLDER_CHARS

    def _find_elsewhere(self, known: int) -> None:
        """Find what was sent as a placeholder of a record under another ref than its own."""
        slots = [s for s in self._history.since(known) if s.stored is None and self._is_before_thinking(s)]
        slots = [s for s in slots if s.decision.item.chars >= _MIN_PLACEHOLDER_CHARS]
        for index, ref in self._recognition.refs_of([slot.item for slot in slots]).items():
            if isinstance(ref, OffloadError):
                self._fail(slots[index], ref)
            else:
                slots[index].stored = ref

    def _note_stored(self, known: int) -> None:
        self._each(self._history.since(known), self._note_if_stored)

    def _note_if_stored(self, slot: Slot) -> None:
        if slot.stored is None and self._may_leave(slot):
            slot.stored = self._recognition.stored_ref(slot.item)
            (self._history.note_unstored if slot.stored is None else self._history.reopen)(slot)

    def _prove_claims(self) -> None:
        """Check which look-alikes are placeholders; a check that fails is repeated in the next turn."""
        claims = [
            (slot, slot.claim)
            for slot in self._history.open_slots()
            if slot.claim is not None and slot.proof not in ("ours", "foreign")
        ]
        if not claims:
            return
        proofs = self._recognition.prove([(slot.item, claim) for slot, claim in claims])
        for (slot, claim), proof in zip(claims, proofs, strict=True):
            slot.proof = proof
            if isinstance(proof, OffloadError):
                self._report(slot, proof)
            elif proof == "ours":
                self._history.note_standing(slot, claim.refs[0])
            elif not claim.is_strict:
                slot.claim = slot.proof = None

    # Decide

    def _decide(self) -> None:
        """Decide about every open item; kept items are closed, waiting ones are not."""
        history, policy = self._history, self._judge.policy
        has_groups = policy.turn_budget_tokens is not None or policy.sweep is not None
        slots = history.open_slots()
        self._each(slots, lambda slot: history.decide(slot, self._decision(slot)))
        closed = []
        for slot in slots:
            is_unsettled_claim = slot.claim is not None and slot.proof != "ours" and not slot.is_settled
            is_open = slot.decision.item.is_pinned or slot.problem or is_unsettled_claim
            if slot.decision.action != "keep" or is_open:
                continue
            closed.append(slot)
            if has_groups and slot.decision.is_below and slot.claim is None:
                history.set_aside(slot, is_sweepable=slot.saving >= max(1, policy.min_saving))
        history.close(closed)

    def _decision(self, slot: Slot) -> Decision:
        facts = self._history.facts(slot)._replace(
            is_pinned=slot.item.tool_use_id in self._judge.pinned,
            was_stored=slot.stored is not None,
        )
        decision = self._policy_decision(facts)
        plan = self._history.plan
        pays = None if plan is None else plan.reasons.get(slot)
        if decision.is_by_cost and plan is not None:
            decision = self._by_cost(decision, pays)
        if slot.is_planned and decision.action == "offload" and pays is None and slot.stored is None:
            decision = replace(decision, action="wait", reason=f"{decision.item.tokens} tokens; {NOT_YET}")
        if self._is_bound and decision.action == "offload" and self._is_shown_elsewhere(slot):
            decision = replace(decision, action="keep", reason=SHOWN_ELSEWHERE, is_below=False)
        if decision.action == "offload" and self._waits_for_turn(slot):
            decision = replace(decision, action="wait", reason=f"{decision.reason}; {WAITS}")
        if slot.problem is not None and not slot.is_foreign:
            return replace(decision, action="keep", reason=slot.problem, is_below=False, is_exempt=True)
        if slot.claim is None or slot.proof is None:
            return decision
        decision = self._judge.decide_claim(decision, slot.claim, slot.proof)
        if slot.is_foreign and slot.stored is None and self._is_sent(slot):
            return replace(decision, action="keep", is_exempt=True)
        return decision

    def _policy_decision(self, facts: ItemFacts) -> Decision:
        return self._judge.policy.decide(facts, readers=self._readers, is_bound=self._is_bound)

    def _is_shown_elsewhere(self, slot: Slot) -> bool:
        """Return whether an equal item was sent in full: with a record, a new process would replace both."""
        return slot.stored is None and any(
            twin.at < self._history.fresh and not twin.is_replaced for twin in self._history.equal_to(slot)
        )

    def _waits_for_turn(self, slot: Slot) -> bool:
        """Return whether an item that was sent is too large, to be offloaded after the model's turn.

        The thinking behind it is removed too, and the model needs that of its turn.
        """
        if slot.stored is not None or not self._is_sent(slot):
            return False
        rule = self._judge.policy.rule_for(slot.decision.item, self._readers)
        return not rule.keep_recent and self._history.is_within_turn

    def _by_cost(self, decision: Decision, pays: str | None) -> Decision:
        """Return the decision on an item that the cost decides about; `pays` is why it is offloaded."""
        tokens = decision.item.tokens
        if pays is not None:
            return replace(decision, action="offload", reason=f"{tokens} tokens; {pays}", is_below=False)
        if self._judge.policy.by_cost == "small":
            return decision
        return replace(decision, action="keep", reason=f"{tokens} tokens; {NOT_YET}", is_below=True)

    def _decide_together(self, known: int) -> bool:
        """Decide about the items of each turn by its budget and the ceiling; return whether more leave."""
        history, policy, more = self._history, self._judge.policy, False
        for turn in history.turns(known):
            turn = [slot for slot in turn if not self._is_sent(slot)]  # noqa: PLW2901 # the others are kept
            if policy.turn_budget_tokens is not None:
                small = [slot for slot in turn if slot.number in history.small]
                more |= self._reopen(
                    small, over_budget([s.decision for s in small], policy.turn_budget_tokens)
                )
            if policy.max_view_tokens is not None:
                view = [slot for slot in turn if slot.is_in_view]
                staying = {at for at, slot in enumerate(view) if slot.is_settled or _has_failed(slot)}
                chosen = over_ceiling([s.decision for s in view], policy.max_view_tokens, staying)
                more |= self._reopen(view, chosen)
        return more

    def _sweep(self, sweep: Sweep) -> None:
        history = self._history
        open_slots = history.open_slots()
        tokens = history.tokens - history.tokens_freed - sum(s.saving for s in open_slots if s.is_leaving)
        waiting = [s for s in open_slots if s.decision.action == "wait" and s.item.media is None]
        most = history.sweepable_saving + sum(slot.saving for slot in waiting)
        if tokens <= sweep.trigger or most < sweep.clear_at_least:
            return
        oldest_first = sorted([*history.sweepable.values(), *waiting], key=lambda slot: slot.number)
        decisions = [replace(slot.decision, item=history.facts(slot)) for slot in oldest_first]
        self._reopen(oldest_first, swept(decisions, tokens, sweep, self._judge.policy.min_saving))

    def _reopen(self, slots: Sequence[Slot], decisions: Mapping[int, Decision]) -> bool:
        for index, decision in decisions.items():
            self._history.decide(slots[index], decision)
            self._history.reopen(slots[index])
        return bool(decisions)

    def _remove_thinking(self) -> int:
        """Store and remove the thinking behind the first message that changes; return how many blocks.

        Raises any exception; then no message may change that was sent.
        """
        history = self._history
        if not self._binds:
            return 0
        late = [slot for slot in self._sent_leaving() if not self._is_skipped(slot)]
        # Thinking that could not be stored in an earlier turn is tried again.
        edited = history.thinking.edited_before(), history.thinking.unremoved
        edits = [at for at in edited if at is not None]
        history.thinking.unremoved = min(edits, default=None)
        changes = [slot.at + 1 for slot in late] + edits
        indices = history.thinking.sent_from(min(changes)) if changes else []
        if not indices:
            history.thinking.unremoved = None
            return 0
        cause = f"messages[{min(changes) - (not edits)}] changed"
        blocks = self._thinking.remove(history.messages, indices, cause)
        history.thinking.unremoved = None
        return blocks

    def _is_skipped(self, slot: Slot) -> bool:
        """Return whether an item that is due would be kept: then no thinking behind it is removed."""
        skipped = self._writer.skipped(self._request(slot))
        if skipped is not None:
            self._apply(slot, skipped)
            self._history.close([slot])
        return skipped is not None

    def _leave_out(self, known: int) -> list[int]:
        """Note the messages whose thinking was removed, and return their indices."""
        history, keys = self._history, self._thinking.keys
        first = known if history.thinking.keys_checked == len(keys) else 0
        history.thinking.keys_checked = len(keys)
        gone = [
            at
            for at in (history.thinking.sent_from(first) if keys else [])
            if any(one.key in keys for one in history.states[at].thinking)
        ]
        for at in gone:
            message = history.messages[at]
            scans = scan_of(message), scan_of(self._thinking.left_out(message))
            whole, bare = (scan.fixed_tokens(self._count) for scan in scans)
            history.leave_out(at, whole - bare)
        return gone

    def _ask_hook(self) -> None:
        """Keep the items that `should_offload` rejects; it is asked once per item."""
        history = self._history
        asked = [s for s in history.open_slots() if s.is_leaving and not (s.is_foreign or s.is_approved)]
        self._each(asked, self._ask_about)
        history.close(slot for slot in asked if slot.is_settled)

    def _ask_about(self, slot: Slot) -> None:
        slot.is_approved = self._options.approves(slot.decision.item)
        if not slot.is_approved:
            slot.is_settled = True
            self._history.keep(slot, VETO)

    # Store and replace

    def _store(self) -> list[Slot]:
        """Store the items that are due, and replace them; return those that have a record now."""
        history = self._history
        due = [s for s in history.open_slots() if s.decision.action == "offload" or s.is_foreign]
        due.sort(key=attrgetter("number"))
        requests: dict[Slot, WriteRequest] = {}
        outcomes: dict[Slot, WriteOutcome] = {}
        self._each(due, lambda slot: requests.update({slot: self._request(slot)}))
        try:
            outcomes.update(zip(requests, self._writer.write([*requests.values()]), strict=True))
        finally:
            self._each(outcomes, lambda slot: self._apply(slot, outcomes[slot]))
            for index in dict.fromkeys(slot.at for slot in due if slot.is_replaced):
                self._part(self._render, None, index)
            history.close(slot for slot in due if slot.is_settled)
        return [slot for slot in due if slot.info is not None]

    def _store_cited(self, placed: Sequence[Slot]) -> list[Slot]:
        """Offload the items that a new process would, since an equal item was stored in this turn."""
        history = self._history
        twins = {twin for slot in placed for twin in history.twins(slot) if not twin.is_settled}
        twins = {twin for twin in twins if not self._is_sent(twin)}
        self._each(twins, self._note_twin)
        cited = [slot for slot in twins if slot.stored is not None]
        self._each(cited, lambda slot: history.decide(slot, self._decision(slot)))
        if cited:
            self._ask_hook()
            self._store()
        return cited

    def _note_twin(self, twin: Slot) -> None:
        twin.stored = self._recognition.stored_ref(twin.item)
        # A record of another category is not its own.
        (self._history.note_unstored if twin.stored is None else self._history.reopen)(twin)

    def _request(self, slot: Slot) -> WriteRequest:
        """Return the request for an item; a look-alike that must be kept is stored as proof of what it is."""
        must_keep = (
            slot.decision.action == "keep"
            or isinstance(slot.item.block, tuple)
            or media_ref(slot.item.text) is not None
        )
        return WriteRequest(
            slot.item,
            slot.decision,
            self._history.query(slot.at),
            is_forced=slot.is_foreign,
            keeps_text=slot.is_foreign and must_keep,
            ref=slot.stored,
        )

    def _apply(self, slot: Slot, outcome: WriteOutcome) -> None:
        history, decision = self._history, slot.decision
        slot.is_settled = not isinstance(outcome, OffloadError)
        if isinstance(outcome, Skipped):
            history.keep(slot, outcome.reason)
        elif isinstance(outcome, OffloadError):
            self._report(slot, outcome)
            text = fallback_text(slot.item, decision, self._options)
            decision = replace(decision, action="keep", reason=f"{NOT_STORED}{outcome}")
            self._put(slot, text, None, decision)
        elif outcome.placeholder == slot.item.text:
            history.keep(slot, LOOK_ALIKE)
        else:
            decision = replace(decision, action="offload", ref=outcome.info.ref)
            self._put(slot, outcome.placeholder, outcome.info, decision)

    def _put(self, slot: Slot, text: str, info: RecordInfo | None, decision: Decision) -> None:
        tokens, _ = self._judge.count(text)
        self._history.put(slot, text, info, replace(decision, tokens_after=tokens))

    def _render(self, index: int) -> None:
        """Set the output of a message; an item that cannot be replaced is kept."""
        history, state = self._history, self._history.states[index]
        output = history.messages[index]
        for slot in state.slots:
            if slot.is_replaced:
                try:
                    output = slot.item.replace_in(output, slot.text)
                except Exception as error:  # noqa: BLE001 # a message object may raise anything
                    history.undo(slot, "its message cannot be changed")
                    self._fail(slot, malformed(error, f"messages[{index}]"))
        try:
            output = output if state.left_out is None else self._thinking.left_out(output)
            history.set_output(index, output)
        except Exception as error:  # noqa: BLE001 # a message object may raise anything
            self._failures.report(malformed(error, f"messages[{index}]"))
            self._failures.is_incomplete = True
            history.leave_out(index, None)

    # Report

    def _report_excess(self, known: int) -> None:
        """Report what remains above the ceiling, except for items whose failure was reported."""
        if self._judge.policy.max_view_tokens is None:
            return
        for turn in self._history.turns(known):
            decisions = [slot.decision for slot in turn if slot.is_in_view]
            view = [d for d in decisions if not d.reason.startswith(_REPORTED)]
            for text in excess(view, self._judge.policy.max_view_tokens):
                self._failures.note(AboveCeilingError(text))
        for text in self._history.fixed_excess(known, self._judge.policy.max_view_tokens):
            self._failures.note(AboveCeilingError(text))

    def _count(self, text: str) -> int:
        tokens, problem = self._judge.count(text)
        if problem is not None:
            self._failures.report(problem)
        return tokens

    def _cache_report(self, moment: Moment, before: int, late: Sequence[Slot]) -> CacheReport | None:
        """Return the effect of this turn on the provider's cache; the last call had `before` messages."""
        history, sent = self._history, self._history.sent()
        kept = min(sent, history.unchanged(late))
        freed, rewritten = history.rewritten(min(sent, before), late)
        if moment.is_cold:
            rewritten = 0 if moment.cause == "first" else history.tokens_before(sent)
        return self._watch.end(
            moment,
            tokens=history.tokens_before(len(history)),
            unchanged=history.tokens_before(kept),
            freed=freed,
            rewritten=rewritten,
        )

    def _result(self, cache: CacheReport | None, mode: HistoryMode) -> OffloadResult:
        history = self._history
        return OffloadResult(
            messages=history.output(),
            records=history.infos(),
            decided=history.decided(),
            tokens_before=history.tokens,
            tokens_after=history.tokens - history.tokens_freed,
            chars_freed=history.chars_freed,
            errors=self._failures.errors,
            cache=cache,
            history=mode,
        )


def _unread(message: Any) -> Scan:
    """Return a scan without items of a message that could not be read; empty if nothing can be counted."""
    try:
        return Scan.unread(message)
    except Exception:  # noqa: BLE001 # a message object may raise anything
        return Scan()


def _has_failed(slot: Slot) -> bool:
    return slot.decision.reason.startswith(_REPORTED)


def fallback_text(item: Item, decision: Decision, options: Options) -> str:
    """Return the text of an item that could not be stored; with `on_error="truncate"` it is cut."""
    if options.on_error != "truncate" or item.media is not None:
        return item.text
    preview = head_tail(item.text, decision.preview_chars).text
    cut = f"{preview}\n[Truncated: {len(item.text)} characters in all; the rest was not stored and is lost.]"
    return cut if len(cut) < len(item.text) else item.text


def _latest_texts(texts: Mapping[str, str], role: str, scan: Scan) -> Mapping[str, str]:
    """Return `texts`, role → beginning of its latest text, after a message."""
    parts = [*scan.texts, *(item.text for item in scan.items if item.item_type != "tool_result")]
    text = "\n".join(part[:_QUERY_CHARS] for part in parts)[:_QUERY_CHARS]
    return {**texts, role: text} if text else texts
