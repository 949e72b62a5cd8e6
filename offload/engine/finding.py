"""Finds what the store knows of the items of a turn: records of them, and which are placeholders."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import attrgetter

from offload.engine.failures import Repair
from offload.engine.items import Slot
from offload.engine.recognition import Claim
from offload.engine.turn import Turn
from offload.errors import OffloadError, unexpected

# No placeholder is shorter, so no shorter item can have been offloaded.
_MIN_PLACEHOLDER_CHARS = 40


def find_stored(turn: Turn, known: int, first: int) -> None:
    """Find items that were offloaded in another process or before a rollback, to offload them again.

    The messages from `known` on are new; the items of those from `first` on are decided again.
    """
    log = turn.log
    is_listed = turn.recognition.session.facts.is_listed
    # More than one reply at once: another process continued the session, or it was rolled back; or the
    # conversation only begins here, which needs no new listing.
    is_continued = turn.replies > (1 if known else 0) and not (is_listed and not turn.before)
    may_matter = is_continued or (not is_listed and _may_be_stored(turn, first))
    if not may_matter and Repair.LIST not in log.pending:
        note_if_stored(turn, first)
        return
    unlisted = log.pending.take(Repair.LIST)
    known = known if unlisted is None else min(known, unlisted)
    try:
        turn.recognition.load_session()
        turn.is_listed = True
        turn.thinking.load()
    except Exception as error:  # noqa: BLE001 # a store may raise anything
        # Items are offloaded as if they were new; the next turn looks again for what was offloaded.
        log.pending.add(Repair.LIST, known)
        turn.failures.report(unexpected(error))
    # The other process may have offloaded what was kept here, and thinking is bound to that now.
    note_if_stored(turn, 0 if turn.binds else min(first, known))
    _find_elsewhere(turn, known)


def note_stored(turn: Turn, slots: Iterable[Slot]) -> None:
    """Look for the record of each item, of its own category of refs; items with one are open again."""
    turn.each(slots, _note)


def prove_claims(turn: Turn) -> None:
    """Check which look-alikes are placeholders; a check that fails is repeated in the next turn."""
    claims = [
        (slot, slot.claim)
        for slot in sorted(turn.log.items.opened(), key=attrgetter("number"))
        if slot.claim is not None and slot.proof not in ("proven", "refuted")
    ]
    if not claims:
        return
    # A placeholder that this process put there is not a copy: an equal item gets an equal one.
    ours = {slot.number for slot, _ in claims if turn.recognition.is_proven(slot.item)}
    proofs = turn.recognition.prove([(slot.item, claim) for slot, claim in claims], is_listed=turn.is_listed)
    for (slot, claim), proof in zip(claims, proofs, strict=True):
        slot.proof = "refuted" if proof == "proven" and _is_copy(turn, slot, claim, ours) else proof
        if isinstance(slot.proof, OffloadError):
            turn.report(slot, slot.proof)
        elif slot.proof == "proven":
            turn.log.items.note_placeholder(slot, claim.refs[0])
        elif not claim.has_own_form:
            slot.claim = slot.proof = None


def _is_copy(turn: Turn, slot: Slot, claim: Claim, ours: Collection[int]) -> bool:
    """Return whether an item only repeats the placeholder of an earlier one, which only its text shows.

    That one is in full before it; or it has the placeholder, and this one was stored as a text, or is new and
    the result of another request. An equal item that was sent with the placeholder is not a copy, and users
    repeat their texts.
    """
    if turn.log.messages.is_as_before(slot.at):
        return False
    sizes = {info.chars for ref in claim.refs for info in turn.recognition.session.catalog.known(ref)}
    is_repeated = is_equal = False
    for other in turn.log.items.before(slot):
        if other.claim is not None:
            if other.proof == "proven" and other.item.text == slot.item.text:
                is_repeated = True
                is_equal |= slot.item.subject is not None and slot.item.subject == other.item.subject
        elif _ref_of(turn, other, sizes) in claim.refs:
            return True
    if not is_repeated or slot.item.item_type != "tool_result" or slot.number in ours:
        return False
    is_new = slot.at >= turn.log.fresh and not is_equal
    return is_new or turn.recognition.stored_ref(slot.item) is not None


def _ref_of(turn: Turn, slot: Slot, sizes: Collection[int]) -> str | None:
    """Return the ref of the record of an item, if its content has one of these sizes."""
    if slot.info is not None:
        return slot.info.ref
    may_be = slot.decision.item.chars in sizes or turn.options.redact is not None
    return slot.stored or (turn.recognition.stored_ref(slot.item) if may_be else None)


def _may_be_stored(turn: Turn, known: int) -> bool:
    """Return whether a record of another process may change what is sent of the messages from `known` on.

    What is replaced now finds its record when it is stored, except for a result whose call is not known
    any more: its record has another key.
    """
    return bool(turn.binds and turn.log.thinking.at) or any(
        slot.item.item_type == "tool_result" and slot.item.call is None
        if slot.decision.action == "offload"
        else _may_leave(turn, slot) and (slot.decision.action == "wait" or slot.saving > 0)
        for slot in turn.log.since(known)
    )


def _may_leave(turn: Turn, slot: Slot) -> bool:
    """Return whether an item that is not offloaded now may have been before, or may be later."""
    decision, facts = slot.decision, slot.decision.item
    is_open = decision.action == "wait" or decision.is_by_cost or decision.is_below
    is_open = is_open or facts.is_error or facts.is_pinned or turn.is_before_thinking(slot)
    return is_open and not slot.is_final and facts.chars >= _MIN_PLACEHOLDER_CHARS


def _find_elsewhere(turn: Turn, known: int) -> None:
    """Find what was sent as a placeholder of a record under another ref than its own."""
    slots = [
        slot
        for slot in turn.log.since(known)
        if slot.stored is None
        and slot.decision.item.chars >= _MIN_PLACEHOLDER_CHARS
        and turn.is_before_thinking(slot)
    ]
    for index, ref in turn.recognition.refs_of([slot.item for slot in slots]).items():
        if isinstance(ref, OffloadError):
            turn.fail(slots[index], ref)
        else:
            turn.log.items.note_stored(slots[index], ref)


def note_if_stored(turn: Turn, known: int) -> None:
    """Open the items from message `known` on that may be offloaded and have a record."""
    turn.each(turn.log.since(known), _note_if_may_leave)


def _note_if_may_leave(turn: Turn, slot: Slot) -> None:
    # Once thinking is bound to an item that was sent in full, neither it nor its equals may be replaced.
    is_lasting = turn.binds and not slot.is_final and slot.decision.item.chars >= _MIN_PLACEHOLDER_CHARS
    if slot.stored is None and (is_lasting or _may_leave(turn, slot)):
        _note(turn, slot)


def _note(turn: Turn, slot: Slot) -> None:
    ref, items = turn.recognition.stored_ref(slot.item), turn.log.items
    items.note_stored(slot, ref)
    (items.note_unstored if ref is None else items.reopen)(slot)
