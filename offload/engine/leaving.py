"""Offloads what was decided on: asks the host, removes thinking, stores, and sets placeholders."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from offload.engine import deciding, finding
from offload.engine.failures import Repair, malformed
from offload.engine.items import Slot, State
from offload.engine.policy import Decision
from offload.engine.policy.reasons import Reason, ReasonKind
from offload.engine.preview.preview import head_tail
from offload.engine.settings.options import Options
from offload.engine.turn import Turn
from offload.engine.writer import Skipped, WriteOutcome, WriteRequest
from offload.errors import OffloadError, StoreError, unexpected
from offload.messages.base import Item
from offload.messages.media import media_ref
from offload.records.record import RecordInfo


def recall(turn: Turn) -> bool:
    """Replace the items that the store is known to have; return whether all that was sent is known."""
    ask_hook(turn)
    due = [slot for slot in turn.log.items.due() if slot.stored is not None]
    turn.late += [slot for slot in due if slot.state is State.LEAVING and slot.at < turn.before]
    turn.placed += store(turn, due)
    return Repair.LIST not in turn.log.pending and not any(slot.has_failed for slot in due)


def leave(turn: Turn) -> None:
    """Offload the items whose decision is to offload, and note them in the turn."""
    turn.late += [slot for slot in turn.log.items.leaving() if slot.at < turn.before]
    ask_hook(turn)
    # An item with a record was replaced before it was first sent, or the thinking after it removed then.
    _unbind(turn, [slot for slot in turn.log.items.leaving() if slot.stored is None])
    turn.placed += store(turn, turn.log.items.due())


def leave_cited(turn: Turn) -> None:
    """Offload the items that a new process would, since an equal item was stored in this turn."""
    items = turn.log.items
    equal = [each for slot in turn.placed for each in items.take_equal(slot)]
    equal = [slot for slot in equal if not (slot.is_final or turn.is_sent(slot))]
    # Equal items of two categories have two records.
    finding.note_stored(turn, equal)
    cited = [slot for slot in equal if slot.stored is not None]
    if cited:
        deciding.decide(turn, cited)
        ask_hook(turn)
        # Their record is of this turn: they were sent in full.
        _unbind(turn, [slot for slot in cited if slot.state is State.LEAVING])
        store(turn, turn.log.items.due())
    turn.late += [slot for slot in cited if slot.at < turn.before]


def can_leave(turn: Turn, slot: Slot) -> bool:
    """Return whether the plan by cost may count on the offload of an item.

    One that failed is tried again, so it counts.
    """
    items = turn.log.items
    if slot.is_replaced:
        return True
    if slot.item.tool_use_id in turn.terms.pinned:
        return False
    if not (slot.is_approved or slot.is_final or slot.has_failed):
        items.reopen(slot)
        items.note(slot, replace(slot.decision, item=turn.log.facts(slot)))
        turn.each([slot], _ask_about)
    return slot.state is not State.SETTLED


# The host and the thinking


def ask_hook(turn: Turn) -> None:
    """Keep the items that `should_offload` rejects; it is asked once per item."""
    leaving = turn.log.items.leaving()
    turn.each([s for s in leaving if not (s.is_refuted or s.is_approved)], _ask_about)


def _ask_about(turn: Turn, slot: Slot) -> None:
    may_leave = turn.terms.only is None or slot.at in turn.terms.only
    slot.is_approved = may_leave and turn.options.approves(slot.decision.item)
    if not slot.is_approved:
        turn.log.items.keep(slot, Reason(ReasonKind.VETOED), State.SETTLED)


def _unbind(turn: Turn, leaving: Sequence[Slot]) -> None:
    """Remove the thinking after those of the items that were sent in full; if that fails, these are kept."""
    late = [slot for slot in leaving if slot.at < turn.log.fresh]
    try:
        turn.thinking_removed += _remove_thinking(turn, late)
    except Exception as error:  # noqa: BLE001 # what was sent is kept as it was
        turn.failures.report(unexpected(error))
        for slot in late:
            turn.fail(slot, error)


def _remove_thinking(turn: Turn, late: Sequence[Slot]) -> int:
    """Store and remove the thinking after the first message that changes; return how many blocks.

    Raises any exception; then no message that was sent may change.
    """
    log, bound = turn.log, turn.log.thinking
    if not (turn.binds and turn.binding.removes):
        return 0
    late = [slot for slot in late if not _is_skipped(turn, slot)]
    # Thinking that could not be stored in an earlier turn is tried again.
    edited = bound.edited_before(turn.thinking.originals_of)
    edits = [at for at in (edited, log.pending.take(Repair.UNBIND)) if at is not None]
    if edits:
        log.pending.add(Repair.UNBIND, min(edits))
    changes = [slot.at + 1 for slot in late] + edits
    indices = bound.sent_from(min(changes)) if changes else []
    if not indices:
        log.pending.take(Repair.UNBIND)
        return 0
    cause = f"messages[{min([*(slot.at for slot in late), *edits])}] changed"
    blocks = turn.thinking.remove(log.messages.passed, indices, cause, turn.model)
    log.pending.take(Repair.UNBIND)
    return blocks


def _is_skipped(turn: Turn, slot: Slot) -> bool:
    """Return whether an item that is due would be kept: then no thinking after it is removed."""
    skipped = turn.writer.skipped(_request(turn, slot))
    if skipped is not None:
        _apply(turn, slot, skipped)
    return skipped is not None


# Records and placeholders


def store(turn: Turn, due: Sequence[Slot]) -> list[Slot]:
    """Store items that are due, and replace them; return those that have a record now."""
    requests: dict[Slot, WriteRequest] = {}
    outcomes: dict[Slot, WriteOutcome] = {}
    turn.each(due, lambda _, slot: requests.update({slot: _request(turn, slot)}))
    try:
        written = turn.writer.write([*requests.values()], is_listed=turn.is_listed)
        outcomes.update(zip(requests, written, strict=True))
    finally:
        turn.each(outcomes, lambda _, slot: _apply(turn, slot, outcomes[slot]))
        for index in dict.fromkeys(slot.at for slot in due if slot.is_replaced):
            turn.part(render, None, turn, index)
    return [slot for slot in due if slot.info is not None]


def store_again(turn: Turn, slots: dict[Slot, RecordInfo]) -> None:
    """Store items again whose records were deleted since; see `Offloader.store_again`."""
    requests = [
        WriteRequest(slot.item, slot.decision, ref=info.ref, placeholder=slot.text, agent=info.agent_name)
        for slot, info in slots.items()
    ]
    for (slot, info), outcome in zip(slots.items(), turn.writer.write(requests), strict=True):
        if isinstance(outcome, OffloadError):
            raise outcome
        if isinstance(outcome, Skipped) or outcome.placeholder != slot.text:
            raise StoreError(f"record {info.ref} was deleted and cannot be stored again as it was")
        turn.log.items.renew(slot, outcome.info)


def render(turn: Turn, index: int) -> None:
    """Set what the caller receives in place of a message; an item that cannot be replaced is kept."""
    log, state = turn.log, turn.log.states[index]
    output = log.messages.passed[index]
    for slot in state.slots:
        if slot.is_replaced:
            try:
                output = slot.item.replace_in(output, slot.text)
            except Exception as error:  # noqa: BLE001 # a message object may raise anything
                log.items.undo(slot)
                turn.fail(slot, malformed(error, f"messages[{index}]"))
    try:
        output = output if state.left_out is None else turn.thinking.left_out(output)
        log.messages.send(index, output)
    except Exception as error:  # noqa: BLE001 # a message object may raise anything
        turn.failures.report(malformed(error, f"messages[{index}]"))
        turn.failures.is_incomplete = True
        log.leave_out(index, None)


def _request(turn: Turn, slot: Slot) -> WriteRequest:
    """Return the request for an item; a look-alike that must be kept is stored as proof of what it is."""
    must_keep = (
        slot.decision.action == "keep"
        or isinstance(slot.item.block, tuple)
        or media_ref(slot.item.text) is not None
    )
    return WriteRequest(
        slot.item,
        slot.decision,
        turn.log.query(slot.at),
        turn.policy.min_saving,
        is_forced=slot.is_refuted,
        keeps_text=slot.is_refuted and must_keep,
        ref=slot.stored,
        agent=turn.terms.agent,
    )


def _apply(turn: Turn, slot: Slot, outcome: WriteOutcome) -> None:
    items, decision = turn.log.items, slot.decision
    if isinstance(outcome, Skipped):
        items.keep(slot, outcome.reason, State.SETTLED)
    elif isinstance(outcome, OffloadError):
        turn.report(slot, outcome)
        # A later call of the session may cut what a call by another policy could not store.
        text = slot.item.text if turn.is_aside else fallback_text(slot.item, decision, turn.options)
        reason = Reason(ReasonKind.NOT_STORED, name=str(outcome))
        _put(turn, slot, text, None, replace(decision, action="keep", reason=reason))
    elif outcome.placeholder == slot.item.text:
        items.keep(slot, Reason(ReasonKind.LOOK_ALIKE), State.SETTLED)
    else:
        decision = replace(decision, action="offload", ref=outcome.info.ref)
        _put(turn, slot, outcome.placeholder, outcome.info, decision)


def _put(turn: Turn, slot: Slot, text: str, info: RecordInfo | None, decision: Decision) -> None:
    tokens, _ = turn.options.count_or_estimate(text)
    turn.log.items.put(slot, text, info, replace(decision, tokens_after=tokens))


def fallback_text(item: Item, decision: Decision, options: Options) -> str:
    """Return the text of an item that could not be stored; with `on_error="truncate"` it is cut."""
    if options.on_error != "truncate" or item.media is not None:
        return item.text
    preview = head_tail(item.text, decision.preview_chars).text
    cut = f"{preview}\n[Truncated: {len(item.text)} characters in all; the rest was not stored and is lost.]"
    return cut if len(cut) < len(item.text) else item.text
