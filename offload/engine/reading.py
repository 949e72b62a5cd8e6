"""The new messages of a turn: their items, with their facts, and what else they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from offload.engine import deciding
from offload.engine.failures import Repair, malformed
from offload.engine.items import Slot, State, unweighed
from offload.engine.log import Moved
from offload.engine.parts import Kept, MessageState
from offload.engine.policy import ItemFacts
from offload.engine.policy.cost import Candidate
from offload.engine.turn import Turn
from offload.errors import MessageError, OffloadError
from offload.messages import Thinking
from offload.messages.access import block_count
from offload.messages.adapter import Scan
from offload.messages.base import Item
from offload.messages.formats import adapter_for, scan_of
from offload.messages.thinking import signed_thinking
from offload.records.record.retrieval import is_read_back

# Beginning of a text that is kept as the query of later previews.
_QUERY_CHARS = 4_000


class _Read(NamedTuple):
    """The parts of a message: its role, its items and texts, signed thinking, and number of blocks."""

    role: str
    scan: Scan
    thinking: Sequence[Thinking]
    blocks: int


# Messages


def keep_common(turn: Turn, messages: Sequence[Any]) -> int:
    """Drop what the log has beyond the beginning of `messages`; return how many it keeps of them.

    A message that could not be read, and now can, is dropped too.
    """
    log = turn.log
    if not log.note_binding(turn.thinking.binding(turn.options.policy.history, turn.model)):
        # The decisions for a model that allows other changes are made again.
        return log.keep_none()
    known = log.keep_common(messages)
    for index in log.pending.all(Repair.READ, known):
        message = log.messages.passed[index]
        try:
            is_whole = not _parts(turn, index, message).scan.failed
        except Exception as error:  # noqa: BLE001 # a message object may raise anything
            turn.failures.report(malformed(error, f"messages[{index}]"))
        else:
            if is_whole:
                log.forget(message)
                return len(log)
    return known


def add(turn: Turn, messages: Sequence[Any]) -> list[int]:
    """Add the messages that the log does not have; return the indices of those that it cannot add."""
    new = range(len(turn.log), len(messages))
    return [index for index in new if not _is_added(turn, index, messages[index])]


def _is_added(turn: Turn, index: int, message: Any) -> bool:
    """Add a message to the log; return whether it is there, and not just something in its place."""
    log, failures = turn.log, turn.failures
    try:
        if log.moved and (moved := log.take_moved(message)) is not None:
            _add_moved(turn, index, moved)
        else:
            _add(turn, index, message)
    except Exception as error:  # noqa: BLE001 # one message's failure is one message's
        failures.report(malformed(error, f"messages[{index}]"))
        failures.is_incomplete = True
    if len(log) > index:
        return True
    log.add(None, MessageState([], 0, (), {}, ""))
    return False


def _add(turn: Turn, index: int, message: Any) -> None:
    """Add a message to the log; a malformed one is reported and has no items."""
    log = turn.log
    role, scan, thinking, blocks = _parts_or_none(turn, index, message)
    turn.code_calls |= scan.code_calls
    slots = weighed(turn, index, scan.offloadable)
    kept = [Kept(part.where, part.kind, part.read(turn.count), part.is_said) for part in scan.fixed]
    fixed_tokens = sum(part.tokens for part in kept) + sum(part.data for part in scan.fixed)
    made = scan.calls, scan.results
    state = MessageState(slots, fixed_tokens, *made, role, _text(scan), thinking, kept, blocks)
    turn.replies += log.add(message, state)
    for slot in [slot for slot in slots if thinking and slot.state is State.OPEN]:
        # The first thinking of a conversation changes what may be offloaded.
        log.items.note(slot, deciding.by_policy(turn, slot.decision.item))
    _plan(turn, state)


def _add_moved(turn: Turn, index: int, moved: Moved) -> None:
    """Add a message that the log had at another place, with what is known of it."""
    log, state = turn.log, moved.state
    for slot in state.slots:
        slot.decision = replace(slot.decision, item=slot.decision.item._replace(message=index))
    log.add(moved.look.passed, state, moved.look)
    for slot in state.slots:
        if not slot.is_final:
            log.items.reopen(slot)
            log.items.note(slot, deciding.by_policy(turn, _as_new(turn, slot)))
    _plan(turn, state)


def _as_new(turn: Turn, slot: Slot) -> ItemFacts:
    """Return the facts of an item without those that change as a conversation grows."""
    is_pinned = slot.item.tool_use_id in turn.terms.pinned
    return slot.decision.item._replace(answers=0, newer=0, was_stored=False, is_pinned=is_pinned)


def _plan(turn: Turn, state: MessageState) -> None:
    """Note a message that was added in the plan by cost."""
    plan, calls = turn.log.plan, [call for _, call in state.calls]
    if plan is not None:
        turn.part(
            plan.add,
            None,
            state.tokens,
            _candidates(turn, state.slots),
            is_reply=state.role == "assistant",
            blocks=state.blocks,
            uses=[source for call in calls for source in deciding.sources_of(call)],
            reads=[ref for call in calls if is_read_back(call.name) for ref in deciding.sources_of(call)],
        )


def _parts_or_none(turn: Turn, index: int, message: Any) -> _Read:
    """Return the parts of a message; what cannot be read is reported, and read again in the next turn."""
    log, failures = turn.log, turn.failures
    try:
        read = _parts(turn, index, message)
    except Exception as error:  # noqa: BLE001 # a message object may raise anything
        read = _Read("", _unread(message), (), 1)
        failures.report(malformed(error, f"messages[{index}]"))
        if not isinstance(error, MessageError):
            log.pending.add(Repair.READ, index)
    for where, problem in read.scan.failed:
        log.pending.add(Repair.READ, index)
        failures.report(malformed(problem, where or f"messages[{index}]"))
    return read


def _parts(turn: Turn, index: int, message: Any) -> _Read:
    """Return the parts of a message. Raises any exception of the message or its adapter."""
    where = f"messages[{index}]"
    adapter = adapter_for(message)
    role = adapter.role(message, where)
    scan = adapter.scan(message, where, turn.log.calls)
    thinking = signed_thinking(message) if role == "assistant" else ()
    return _Read(role, scan, thinking, block_count(message))


def _candidates(turn: Turn, slots: Sequence[Slot]) -> list[Candidate[Slot]]:
    found: dict[Slot, Candidate[Slot] | None] = {}

    def find(turn: Turn, slot: Slot) -> None:
        found[slot] = deciding.candidate(turn, slot)

    turn.each(slots, find)
    # A plan cannot get items later, so the next turn makes a new one.
    turn.failures.is_incomplete |= len(found) < len(slots)
    return [candidate for candidate in found.values() if candidate is not None]


# Removed thinking


def leave_out(turn: Turn, known: int) -> list[int]:
    """Note the messages whose thinking was removed, and return their indices.

    The messages from `known` on are new.
    """
    log, keys = turn.log, () if turn.binding.is_required else turn.thinking.keys
    first = known if log.thinking.keys_checked == len(keys) else 0
    log.thinking.keys_checked = len(keys)
    gone = [
        at
        for at in (log.thinking.sent_from(first) if keys else [])
        if any(one.key in keys for one in log.states[at].thinking)
    ]
    for at in gone:
        message = log.messages.passed[at]
        scans = scan_of(message), scan_of(turn.thinking.left_out(message))
        whole, bare = (scan.fixed_tokens(turn.count) for scan in scans)
        log.leave_out(at, whole - bare)
    turn.part(turn.thinking.renew, None, log.messages.passed, [at for at in gone if at >= known])
    return gone


# Items


def weighed(turn: Turn, index: int, items: Sequence[Item]) -> list[Slot]:
    """Return items of message `index`, weighed."""
    slots = [Slot(item, unweighed(item, index)) for item in items]
    turn.each(slots, _weigh)
    return slots


def retry(turn: Turn) -> None:
    """Open the items that failed, and weigh those again for which a hook did."""
    items = turn.log.items
    items.retry()
    turn.each([s for s in items.opened() if s.state is State.UNWEIGHED], _weigh_again)


def facts_of(turn: Turn, item: Item, message: int = 0) -> tuple[ItemFacts, OffloadError | None]:
    """Return the facts of an item in message `message`, and the token counter's error if it failed."""
    media, policy = item.media, turn.policy
    tokens, problem = (media.tokens, None) if media else turn.options.count_or_estimate(item.text)
    facts = ItemFacts(
        message,
        item.block,
        item.item_type,
        item.tool_name,
        item.tool_use_id,
        chars=len(item.text),
        bytes=media.bytes if media else policy.bytes_of(item.text) if policy.counts_bytes else None,
        tokens=tokens,
        is_error=item.is_error,
        is_pinned=item.tool_use_id in turn.terms.pinned,
        is_pending=item.is_pending,
        media_type=media.media_type if media else None,
        is_programmatic=item.tool_use_id in turn.code_calls,
        is_report=item.is_report,
    )
    return facts, problem


def _weigh(turn: Turn, slot: Slot) -> None:
    """Set the facts of an item, the policy's decision on it and what its text claims."""
    facts, problem = facts_of(turn, slot.item, slot.at)
    slot.decision = deciding.by_policy(turn, facts)
    _find_claim(turn, slot, problem)


def _weigh_again(turn: Turn, slot: Slot) -> None:
    facts, problem = facts_of(turn, slot.item, slot.at)
    turn.log.recount(slot, facts.tokens)
    _find_claim(turn, slot, problem)


def _find_claim(turn: Turn, slot: Slot, problem: OffloadError | None) -> None:
    """Look for a ref in the text of an item. Raises what a renderer raises, or the problem of the counter."""
    plain = turn.recognition.is_plain(slot.item)
    slot.claim = None if plain else turn.recognition.claim(slot.item)
    if problem is not None:
        raise problem
    turn.log.items.move(slot, State.OPEN)


def _unread(message: Any) -> Scan:
    """Return a scan without items of a message that could not be read; empty if nothing can be counted."""
    try:
        return Scan.unread(message)
    except Exception:  # noqa: BLE001 # a message object may raise anything
        return Scan()


def _text(scan: Scan) -> str:
    """Return the beginning of the text of a message, with the arguments of its calls."""
    parts = [*scan.texts, *(item.text for item in scan.items if item.item_type != "tool_result")]
    return "\n".join(part[:_QUERY_CHARS] for part in parts)[:_QUERY_CHARS]
