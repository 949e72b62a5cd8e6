"""What becomes of the messages of one conversation, turn by turn: decide, store, replace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from offload.codec import SpooledContent
from offload.engine.history import Entry, History, Place, Slot
from offload.engine.hooks import Hooks
from offload.engine.recognition import Proof, Recognition
from offload.engine.results import CacheReport, Latest, OffloadResult
from offload.engine.sink import Taken
from offload.engine.writer import ItemWriter, Outcome, Spared, Wanted
from offload.errors import MessageError, OffloadError, StoreError
from offload.events import Observer, failure, observed
from offload.messages import Item, Scan, adapter_for, role_of, stand_in_ref
from offload.policy import (
    Decision,
    ItemFacts,
    OffloadPolicy,
    Readers,
    excess,
    over_budget,
    over_ceiling,
    saving,
    swept,
)
from offload.preview import head_tail
from offload.record import Counts, decode_text, encode_text
from offload.session import Placed
from offload.tokens import TokenCounter, estimate_tokens

# How much of a text is kept to know what was asked for.
_SAID_CHARS = 4_000
_FAILED, _VETO = "not stored: ", "the caller keeps it"

# No placeholder is shorter, so nothing shorter left before.
_FEWEST_CHARS = 40
_LOOK_ALIKE = "it looks like a placeholder, and is none"

OnError = Literal["keep", "raise", "truncate"]


class Conversation:
    """The messages of one session as they grow, and what was made of them.

    Args:
        observer: told what is done and what fails.
        policy: what is offloaded.
        writer: stores items.
        recognition: tells placeholders from texts that look like one.
        count_tokens: counts tokens of a text.
        on_error: what becomes of an item that cannot be stored; see `Offloader`.
        hooks: the caller's own functions.

    Attributes:
        latest: what became of the last items.
    """

    def __init__(
        self,
        observer: Observer,
        policy: OffloadPolicy,
        writer: ItemWriter,
        recognition: Recognition,
        count_tokens: TokenCounter,
        *,
        on_error: OnError,
        hooks: Hooks,
    ) -> None:
        self._observer = observer
        self._policy = policy
        self._writer = writer
        self._recognition = recognition
        self._count_tokens = count_tokens
        self._on_error = on_error
        self._hooks = hooks
        self.latest = Latest()
        self._history = History()
        self._pinned: frozenset[str] = frozenset()
        # Kept when the message of a call is cut off: its result is read by code all the same.
        self._code_calls: set[str] = set()

    @observed("offload", OffloadResult.figures)
    def offload(self, messages: Sequence[Any], pinned: Iterable[str] = ()) -> OffloadResult:
        """Return the messages with their large items replaced; see `Offloader.offload`."""
        errors: list[OffloadError] = []
        self._pinned = frozenset(pinned)
        try:
            return self._turn(messages, errors)
        except Exception as error:  # noqa: BLE001 # a part of the caller's own may raise anything
            self.start_over()
            wrapped = _unexpected(error)
            if self._on_error == "raise":
                raise wrapped from wrapped.__cause__
            self._report(wrapped, errors)
            return OffloadResult(list(messages), [], (), 0, 0, 0, errors)
        except BaseException:
            self.start_over()
            raise

    def start_over(self) -> None:
        """Forget the messages: what a turn that was cut off left is half decided."""
        self._history = History()

    @observed("offload_text")
    def offload_item(self, item: Item, readers: Readers) -> Taken:
        """Offload one item if the policy wants it; `readers` as `OffloadPolicy.decide` takes it."""
        try:
            return self._offload_item(item, readers)
        except Exception as error:  # noqa: BLE001 # the same
            wrapped = _unexpected(error)
            if self._on_error == "raise":
                raise wrapped from wrapped.__cause__
            self._report(wrapped, [])
            return Taken(item.text, error=wrapped)

    @observed("offload_text")
    def offload_long(self, item: Item, content: SpooledContent) -> Taken:
        """Offload an item whose text is `content`, too long for a message, whatever the policy says of it."""
        decision = self._policy.decide(_long_facts(item, content.counts))
        try:
            outcome = self._writer.write_long(_wanted(item, decision), content)
        except Exception as error:  # noqa: BLE001 # the same
            outcome = _unexpected(error)
            if self._on_error == "raise":
                raise outcome from outcome.__cause__
        if isinstance(outcome, Placed):
            return Taken(outcome.placeholder, outcome.info)
        whole = replace(item, text=decode_text(content.data))
        return Taken(self._fallback(whole, decision, outcome, []), error=outcome)

    def count(self, text: str) -> int:
        """Return the tokens of a part of a text; an estimate, which is reported, if the counter fails."""
        tokens, problem = self._counted(text)
        if problem is not None:
            self._report(problem, [])
        return tokens

    def forget(self, message: Any) -> bool:
        """Look at `message` anew in the next turn, and at what comes after it; tell whether it was known."""
        return self._history.forget(message)

    def _turn(self, messages: Sequence[Any], errors: list[OffloadError]) -> OffloadResult:
        if self._writer.has_lost(self._history.infos):
            self._history = History()
        history = self._history
        try:
            known = history.keep_common(messages)
            self._try_again(errors)
            for index in range(known, len(messages)):
                self._take_in(index, messages[index], errors)
            self._recall(known)
            self._recognise(errors)
            self._decide()
            self._decide_together(known)
            late = [p for p in history.open_places() if p.at < known and _leaves(p.slot)]
            self._replace(errors)
            for index in history.edited_outputs():
                self._render_output(index, errors)
            self._tell_of_excess(known, errors)
        finally:
            history.end_turn()
        return self._result(errors, history.cache_report(known, late))

    def _offload_item(self, item: Item, readers: Readers) -> Taken:
        decision, is_foreign = self._judged_alone(item, readers)
        if decision.action == "offload" and not (is_foreign or self._hooks.lets_go(decision.item)):
            decision = replace(decision, action="keep", reason=_VETO)
        if decision.action != "offload":
            return Taken(item.text, decision=decision)
        [outcome] = self._writer.write([_wanted(item, decision, must_leave=is_foreign)])
        if isinstance(outcome, Placed):
            after, _ = self._counted(outcome.placeholder)
            placed = replace(decision, ref=outcome.info.ref, tokens_after=after)
            return Taken(outcome.placeholder, outcome.info, decision=placed)
        if isinstance(outcome, Spared):
            return Taken(item.text, decision=replace(decision, action="keep", reason=outcome.reason))
        kept = replace(decision, action="keep", reason=f"{_FAILED}{outcome}")
        return Taken(self._fallback(item, decision, outcome, []), error=outcome, decision=kept)

    def _judged_alone(self, item: Item, readers: Readers) -> tuple[Decision, bool]:
        """Return the decision on a single text, and whether it looks like a placeholder and is none."""
        facts, problem = self._facts(0, item)
        if problem is not None:
            raise problem
        decision = self._policy.decide(facts, readers=readers)
        if self._recognition.claim(item) is None or self._recognition.is_plain(item):
            return decision, False
        [proof] = self._recognition.prove([item])
        if isinstance(proof, OffloadError):
            raise proof
        return self._claim_decided(decision, proof), proof == "foreign"

    def _take_in(self, index: int, message: Any, errors: list[OffloadError]) -> None:
        """Add a message to the history; one that is malformed has no items and is reported once."""
        history = self._history
        try:
            role = role_of(message, f"messages[{index}]")
            scan = adapter_for(message).scan(message, f"messages[{index}]", history.tool_names)
        except Exception as error:  # noqa: BLE001 # an object that stands for a message may raise anything
            self._report(_malformed(error, index), errors)
            role, scan = "", Scan()
        self._code_calls |= scan.code_calls
        slots = [self._slot(index, item, errors) for item in scan.offloadable]
        fixed = 0
        for text in scan.texts:
            tokens, problem = self._counted(text)
            fixed += tokens
            if problem is not None:
                self._report(problem, errors)
        # In some formats one answer is several messages in a row.
        answers = history.answers + (role == "assistant" and history.role != "assistant")
        history.add(Entry(message, slots, fixed, scan.calls, answers, role, _said(history, role, scan)))

    def _slot(self, index: int, item: Item, errors: list[OffloadError]) -> Slot:
        """Return an item as it is found; where a part of the caller's own fails for it, it stays."""
        facts, problem = self._facts(index, item)
        slot = Slot(item, self._policy.decide(facts), item.text)
        self._look_for_claim(slot, problem, errors)
        return slot

    def _look_for_claim(self, slot: Slot, problem: OffloadError | None, errors: list[OffloadError]) -> None:
        try:
            plain = self._recognition.is_plain(slot.item)
            slot.claim = None if plain else self._recognition.claim(slot.item)
        except OffloadError as error:
            problem = error
        slot.problem = None if problem is None else f"not offloaded: {problem}"
        if problem is not None:
            self._report(problem, errors)

    def _try_again(self, errors: list[OffloadError]) -> None:
        """Ask the caller's own parts again about the items for which they failed."""
        for place in self._history.open_places():
            if place.slot.problem is not None:
                facts, problem = self._facts(place.at, place.slot.item)
                self._history.recount(place, facts.tokens)
                self._look_for_claim(place.slot, problem, errors)

    def _facts(self, index: int, item: Item) -> tuple[ItemFacts, OffloadError | None]:
        """Return the facts of an item, and why its tokens are but estimated if the counter failed."""
        tokens, problem = (item.media.tokens, None) if item.media else self._counted(item.text)
        facts = ItemFacts(
            message=index,
            block=item.block,
            item_type=item.item_type,
            tool_name=item.tool_name,
            tool_use_id=item.tool_use_id,
            chars=len(item.text),
            bytes=item.media.bytes if item.media else self._bytes(item.text),
            tokens=tokens,
            is_error=item.is_error,
            is_stored=False,
            answers=0,
            is_pinned=item.tool_use_id in self._pinned,
            is_pending=item.is_pending,
            media_type=item.media.media_type if item.media else None,
            is_programmatic=item.tool_use_id in self._code_calls,
        )
        return facts, problem

    def _counted(self, text: str) -> tuple[int, OffloadError | None]:
        """Return the tokens of a text; an estimate, and why, if the caller's counter fails."""
        try:
            return self._count_tokens(text), None
        except Exception as error:  # noqa: BLE001 # a part of the caller's own may raise anything
            return estimate_tokens(text), failure("token_counter:", error)

    def _bytes(self, text: str) -> int | None:
        return len(encode_text(text)) if self._policy.counts_bytes else None

    def _recall(self, known: int) -> None:
        """Find new items that left before, in another process or before a rollback: they stay away."""
        history = self._history
        # More than the one answer of a turn: another process went on with the session, or it was rolled back.
        if history.answers - (history.answers_of(known - 1) if known else -1) > 1:
            self._writer.look_up_session()
        for place in history.since(known):
            slot, facts = place.slot, place.slot.decision.item
            may_leave = slot.decision.action == "wait" or slot.decision.is_below or facts.is_error
            if may_leave and facts.chars >= _FEWEST_CHARS:
                slot.stored = self._writer.was_stored(slot.item)

    def _recognise(self, errors: list[OffloadError]) -> None:
        """Find out which texts that look like a placeholder are one; what cannot be told is tried again."""
        tried = [p for p in self._history.open_places() if p.slot.claim is not None and _is_untried(p.slot)]
        if not tried:
            return
        for place, proof in zip(tried, self._recognition.prove([p.slot.item for p in tried]), strict=True):
            place.slot.proof = proof
            if isinstance(proof, OffloadError):
                self._report(proof, errors)
            elif proof == "ours" and place.slot.claim is not None:
                self._history.note_standing(place.slot, place.slot.claim)

    def _decide(self) -> None:
        """Judge every open item; what is kept is closed, what waits stays open."""
        history, policy = self._history, self._policy
        together = policy.turn_budget_tokens is not None or policy.sweep is not None
        closed = []
        for place in history.open_places():
            slot = place.slot
            history.decide(slot, self._judged(place))
            is_undecided = slot.decision.item.is_pinned or slot.problem or _is_unsettled_claim(slot)
            if slot.decision.action != "keep" or is_undecided:
                continue
            closed.append(slot)
            if together and slot.decision.is_below and slot.claim is None:
                history.set_aside(place)
        history.close(closed)

    def _judged(self, place: Place) -> Decision:
        slot = place.slot
        facts = self._history.facts(place)._replace(
            is_pinned=slot.item.tool_use_id in self._pinned,
            was_stored=slot.stored is not None,
            is_standing=self._history.holds(slot.stored),
        )
        decision = self._policy.decide(facts)
        if slot.problem is not None and not slot.is_foreign:
            return replace(decision, action="keep", reason=slot.problem, is_below=False, is_exempt=True)
        return decision if slot.proof is None else self._claim_decided(decision, slot.proof)

    def _claim_decided(self, decision: Decision, proof: Proof) -> Decision:
        """Return the decision on an item that looks like a placeholder."""
        if isinstance(proof, OffloadError):
            reason = f"whether it is a placeholder could not be told: {proof}"
            return replace(decision, action="keep", reason=reason, is_below=False, is_exempt=True)
        if proof == "ours":
            return self._policy.decide(decision.item._replace(is_stored=True))
        if decision.item.is_pinned or decision.item.is_programmatic:
            return replace(decision, action="keep", is_below=False)
        return replace(decision, action="offload", reason=_LOOK_ALIKE, is_below=False)

    def _decide_together(self, known: int) -> None:
        """Judge what may leave with others: by the budget of each turn with new messages, by a sweep."""
        history, policy = self._history, self._policy
        if policy.turn_budget_tokens is not None:
            for answers in history.turns_since(known):
                turn = history.small_of(answers)
                self._open(turn, over_budget([p.slot.decision for p in turn], policy.turn_budget_tokens))
        if policy.max_view_tokens is not None:
            for places in history.turns(known):
                view = [p for p in places if _is_in_view(p.slot) and not p.slot.is_settled]
                self._open(view, over_ceiling([p.slot.decision for p in view], policy.max_view_tokens))
        if policy.sweep is None:
            return
        leaving = [p.slot for p in history.open_places() if _leaves(p.slot)]
        tokens = history.tokens - history.tokens_freed - sum(max(0, saving(s.decision)) for s in leaving)
        if tokens <= policy.sweep.trigger:
            return
        waiting = [p for p in history.open_places() if _may_be_swept(p.slot)]
        most = history.small_saving + sum(max(0, saving(p.slot.decision)) for p in waiting)
        if most < policy.sweep.clear_at_least:
            return
        old = sorted([*history.small(), *waiting], key=lambda place: place.slot.number)
        now = [replace(p.slot.decision, item=history.facts(p)) for p in old]
        self._open(old, swept(now, tokens, policy.sweep, policy.min_saving))

    def _open(self, places: Sequence[Place], leaving: Mapping[int, Decision]) -> None:
        """Take decisions over that items leave after all; `leaving` is by their place in `places`."""
        for number, decision in leaving.items():
            self._history.decide(places[number].slot, decision)
        self._history.reopen([places[number] for number in leaving])

    def _tell_of_excess(self, known: int, errors: list[OffloadError]) -> None:
        """Report what stays in view above the ceiling, unless the store failed, which was reported."""
        if self._policy.max_view_tokens is None:
            return
        for places in self._history.turns(known):
            view = [p.slot.decision for p in places if _is_in_view(p.slot) and not _has_failed(p.slot)]
            for said in excess(view, self._policy.max_view_tokens):
                errors.append(OffloadError(said))
                self._observer.failed(errors[-1])

    def _replace(self, errors: list[OffloadError]) -> None:
        """Store what is to be offloaded, then give its messages their outputs."""
        history = self._history
        self._ask_the_caller(errors)
        due = [p for p in history.open_places() if p.slot.decision.action == "offload" or p.slot.is_foreign]
        due.sort(key=lambda place: place.slot.number)
        wanted = [self._wanted(place) for place in due]
        try:
            for place, outcome in zip(due, self._writer.write(wanted), strict=True):
                self._apply(place, outcome, errors)
        finally:
            for index in dict.fromkeys(p.at for p in due if p.slot.is_replaced):
                self._render_output(index, errors)
            history.close(p.slot for p in due if p.slot.is_settled)

    def _wanted(self, place: Place) -> Wanted:
        """Return what is to be stored of an item; one that must stay, with a record that says what it is."""
        slot = place.slot
        asked = self._history.asked(place.at)
        must_stay = (
            slot.decision.action == "keep"
            or isinstance(slot.item.block, tuple)
            or stand_in_ref(slot.item.text) is not None
        )
        return _wanted(
            slot.item,
            slot.decision,
            asked,
            must_leave=slot.is_foreign,
            is_vouched=slot.is_foreign and must_stay,
        )

    def _ask_the_caller(self, errors: list[OffloadError]) -> None:
        """Keep what the caller wants kept; what it once let go or kept it is not asked about again."""
        history, kept = self._history, list[Slot]()
        for place in history.open_places():
            slot = place.slot
            if not _leaves(slot) or slot.is_foreign or slot.is_asked:
                continue
            try:
                slot.is_asked = self._hooks.lets_go(slot.decision.item)
            except Exception as error:  # noqa: BLE001 # a hook of the caller's own may raise anything
                problem = failure("should_offload:", error)
                history.decide(
                    slot, replace(slot.decision, action="keep", reason=f"not offloaded: {problem}")
                )
                self._report(problem, errors)
                continue
            if not slot.is_asked:
                kept.append(slot)
                slot.is_settled = True
                history.decide(slot, replace(slot.decision, action="keep", reason=_VETO))
        history.close(kept)

    def _apply(self, place: Place, outcome: Outcome, errors: list[OffloadError]) -> None:
        history, slot, decision = self._history, place.slot, place.slot.decision
        slot.is_settled = not isinstance(outcome, OffloadError)
        if isinstance(outcome, Placed):
            if outcome.placeholder == slot.item.text:
                history.decide(slot, replace(decision, action="keep", reason=_LOOK_ALIKE))
                return
            after, _ = self._counted(outcome.placeholder)
            decision = replace(decision, action="offload", ref=outcome.info.ref, tokens_after=after)
            history.put(place, outcome.placeholder, outcome.info, decision)
        elif isinstance(outcome, Spared):
            history.decide(slot, replace(decision, action="keep", reason=outcome.reason))
        else:
            text = self._fallback(slot.item, decision, outcome, errors)
            after, _ = self._counted(text)
            decision = replace(decision, action="keep", reason=f"{_FAILED}{outcome}", tokens_after=after)
            history.put(place, text, None, decision)

    def _fallback(
        self, item: Item, decision: Decision, error: OffloadError, errors: list[OffloadError]
    ) -> str:
        """Report that an item could not be stored; return what stands in the message then."""
        self._report(error, errors)
        is_cut = self._on_error == "truncate" and item.media is None
        return _truncated(item.text, decision.preview_chars) if is_cut else item.text

    def _report(self, error: OffloadError, errors: list[OffloadError]) -> None:
        """Make one event of a failure: of a store or a part of the caller's own that fails for many, one."""
        if any(_is_repeated(error, known) for known in errors):
            return
        errors.append(error)
        self._observer.failed(error)
        if self._on_error == "raise":
            raise error

    def _render_output(self, index: int, errors: list[OffloadError]) -> None:
        """Give a message its output; one that cannot be copied with a change stays as it is."""
        history, entry = self._history, self._history.entry(index)
        output = entry.message
        try:
            for slot in entry.slots:
                if slot.is_replaced:
                    output = slot.item.replace_in(output, slot.text)
        except Exception as error:  # noqa: BLE001 # the same
            for slot in entry.slots:
                history.put_back(Place(index, slot), "its message takes no other text")
            self._report(_malformed(error, index), errors)
            return
        history.set_output(index, output)

    def _result(self, errors: list[OffloadError], cache: CacheReport | None) -> OffloadResult:
        history = self._history
        return OffloadResult(
            messages=history.output(),
            records=history.infos(),
            decided=history.decisions.parts(),
            tokens_before=history.tokens,
            tokens_after=history.tokens - history.tokens_freed,
            chars_freed=history.chars_freed,
            errors=errors,
            cache=cache,
        )


def _is_repeated(error: OffloadError, known: OffloadError) -> bool:
    if isinstance(error, StoreError):
        return isinstance(known, StoreError)
    return type(error) is type(known) is OffloadError and str(error) == str(known)


def _may_be_swept(slot: Slot) -> bool:
    return slot.decision.action == "wait" and slot.item.media is None


def _is_in_view(slot: Slot) -> bool:
    """Tell whether an item is what the model will see, and neither a placeholder nor like one."""
    return not slot.is_replaced and slot.claim is None


def _has_failed(slot: Slot) -> bool:
    return slot.decision.reason.startswith(_FAILED)


def _leaves(slot: Slot) -> bool:
    return slot.decision.action == "offload" and not slot.is_replaced


def _is_untried(slot: Slot) -> bool:
    return slot.proof is None or isinstance(slot.proof, OffloadError)


def _is_unsettled_claim(slot: Slot) -> bool:
    """Tell whether a text that looks like a placeholder is to be proven or stored still."""
    return slot.claim is not None and slot.proof != "ours" and not slot.is_settled


def _wanted(
    item: Item,
    decision: Decision,
    asked: str = "",
    *,
    must_leave: bool = False,
    is_vouched: bool = False,
) -> Wanted:
    return Wanted(
        item, decision.item.tokens, decision.preview_chars, decision.ttl, asked, must_leave, is_vouched
    )


def _said(history: History, role: str, scan: Scan) -> Mapping[str, str]:
    texts = [*scan.texts, *(item.text for item in scan.items if item.item_type != "tool_result")]
    said = "\n".join(text[:_SAID_CHARS] for text in texts)[:_SAID_CHARS]
    return {**history.said, role: said} if said else history.said


def _long_facts(item: Item, counts: Counts) -> ItemFacts:
    return ItemFacts(
        message=0,
        block=None,
        item_type=item.item_type,
        tool_name=item.tool_name,
        tool_use_id=item.tool_use_id,
        chars=counts.chars,
        bytes=counts.bytes,
        tokens=counts.tokens,
        is_error=False,
        is_stored=False,
        answers=0,
    )


def _truncated(text: str, preview_chars: int) -> str:
    preview = head_tail(text, preview_chars).text
    cut = f"{preview}\n[Cut: the rest of {len(text)} characters could not be stored.]"
    return cut if len(cut) < len(text) else text


def _malformed(error: Exception, index: int) -> MessageError:
    if isinstance(error, MessageError):
        return error
    malformed = MessageError(f"messages[{index}]: {type(error).__name__}: {error}")
    malformed.__cause__ = error
    return malformed


def _unexpected(error: Exception) -> OffloadError:
    return error if isinstance(error, OffloadError) else failure("unexpected", error)
