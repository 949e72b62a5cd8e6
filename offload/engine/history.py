"""The messages of earlier turns and the decisions on their items.

An agent passes its whole message list every turn. The history compares it with the previous one, so that a
turn's work grows with the new messages only. Lists of the same objects are compared in one pass over their
pointers. Edits in place are looked for in the last messages, in all messages with an open item, and in some
of the others each turn. Totals over the whole list are running sums and sorted indexes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress, groupby
from operator import is_not
from typing import Any, NamedTuple

from offload.engine.bound import BoundThinking
from offload.engine.recognition import Claim, Proof
from offload.engine.watching import edited, look
from offload.messages import Call, CallId, Item, Thinking
from offload.messages._equal import are_equal, begins_with
from offload.policy import CostPlan, Decision, ItemFacts, saving
from offload.record import RecordInfo

# Messages checked for edits: so many of the last in every turn, and so many of the older ones in rotation.
LAST_WATCHED, OLDER_WATCHED = 64, 256


@dataclass(slots=True, eq=False)
class Slot:
    """One item of a message, and the text that replaces it.

    Attributes:
        text: the text in the message: the item's own, a placeholder or a truncation.
        is_settled: whether the decision is final: replaced, vetoed, or not worth a placeholder.
        claim: what its text claims if it looks like a placeholder or notice; `proof` is None until checked.
        standing: the ref whose placeholder its text is, as it was found or put there.
        stored: the ref of the record that the session already holds of it.
        problem: why it is kept if a hook or the token counter failed for it.
        is_planned: whether a rule offloads it once the model saw it, and the cost decides when.
        number: its index among all items of the history; `ordinal` is that among its type and tool.
    """

    item: Item
    decision: Decision
    text: str = ""
    info: RecordInfo | None = None
    is_settled: bool = False
    is_approved: bool = False
    claim: Claim | None = None
    proof: Proof | None = None
    standing: str | None = None
    stored: str | None = None
    problem: str | None = None
    is_planned: bool = False
    number: int = -1
    ordinal: int = -1

    def __post_init__(self) -> None:
        self.text = self.item.text

    @property
    def at(self) -> int:
        """Index of its message."""
        return self.decision.item.message

    @property
    def kind(self) -> tuple[str, str | None]:
        """Its type and tool; a policy may keep the latest items of a kind."""
        return self.item.item_type, self.item.tool_name

    @property
    def is_foreign(self) -> bool:
        """Whether its text looks like a placeholder but is not one."""
        return self.proof == "foreign"

    @property
    def is_replaced(self) -> bool:
        """Whether the message holds another text in its place."""
        return self.text is not self.item.text

    @property
    def is_leaving(self) -> bool:
        """Whether it is decided to be offloaded and still in its message."""
        return self.decision.action == "offload" and not self.is_replaced

    @property
    def is_in_view(self) -> bool:
        """Whether the model sees its text, which does not look like a placeholder."""
        return not self.is_replaced and self.claim is None

    @property
    def tokens_freed(self) -> int:
        """Tokens that the replacement frees."""
        return self.decision.item.tokens - self.decision.tokens_after

    @property
    def saving(self) -> int:
        """About how many tokens a replacement would free, at least 0."""
        return max(0, saving(self.decision))


class Kept(NamedTuple):
    """A part of a message that is never offloaded, and the tokens of its texts; see `Fixed`."""

    where: str
    kind: str
    tokens: int
    is_said: bool


@dataclass(slots=True, eq=False)
class MessageState:
    """The parts of one message of the history.

    Attributes:
        fixed_tokens: tokens of its parts that are not items, which are `kept`.
        calls: the tool calls that it makes.
        answers: number of assistant messages up to and including this one.
        texts: role → beginning of the role's latest text up to and including this message, with tool-call
            arguments.
        thinking: the signed blocks of thinking in it.
        left_out: tokens of its thinking that is left out of what the caller receives; None if it is not.
        replaced_calls: the earlier calls of the same ids, to undo `calls`.
    """

    slots: list[Slot]
    fixed_tokens: int
    calls: dict[CallId, Call]
    answers: int
    role: str
    texts: Mapping[str, str]
    thinking: Sequence[Thinking] = ()
    kept: Sequence[Kept] = ()
    left_out: int | None = None
    replaced_calls: dict[CallId, Call | None] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens of all its texts as they were passed."""
        return self.fixed_tokens + sum(slot.decision.item.tokens for slot in self.slots)


class History:
    """The messages of the last turn, and totals over all of them.

    Only the history may change its attributes.

    Attributes:
        calls: the tool calls by id; their arguments are those in the messages.
        tokens: tokens of all texts as they were passed; the replacements free `tokens_freed`.
        thinking: the signed thinking in the messages.
        plan: decides which items are offloaded by expected cost; None if none are.
        unread: indices of the messages, or of those with a block, that could not be read.
        unlisted: the first message that was added while the session could not be listed, so that it is not
            known which of its items and the later ones left before; None if there is none.
    """

    def __init__(self, plan: CostPlan[Slot] | None = None) -> None:
        self.plan = plan
        self.tokens = self.tokens_freed = self.chars_freed = self.sweepable_saving = 0
        self.unread: set[int] = set()
        self.unlisted: int | None = None
        self.calls: dict[CallId, Call] = {}
        # The decision on every item, in order; results share the first of them, so that they cost no copy.
        self._decisions: list[Decision] = []
        self.states: list[MessageState] = []
        # The messages, and how each of them looked.
        self.messages: list[Any] = []
        self._seen: list[Any] = []
        # The messages with their items replaced, as the caller received them, and how these looked; one
        # without replaced items is the message in both.
        self._output: list[Any] = []
        self._output_seen: list[Any] = []
        # How many messages this turn kept, and what the caller had received in place of the others.
        self._kept = self._next_watched = self._shared = 0
        self._dropped: list[Any] = []
        self.thinking = BoundThinking(self.states, self.messages)
        self._replied_at: list[int] = []
        # Items that may still be replaced, and numbers of those that may be only together with others; of
        # these the ones that a sweep may replace, and what they free.
        self._open: dict[int, Slot] = {}
        self.small: set[int] = set()
        self.sweepable: dict[int, Slot] = {}
        # The items without a record, by what a record knows them by: an equal one may be stored later.
        self._unstored: dict[tuple[str, str | None, str], dict[int, Slot]] = {}
        # Numbers and records of the replaced items, in order, and the records as a result has them.
        self._numbers: list[int] = []
        self._is_bound = False
        self._infos: list[RecordInfo] = []
        self._result_infos: list[RecordInfo] = []
        self._kinds: Counter[tuple[str, str | None]] = Counter()
        self._new_standing: list[tuple[Item, str]] = []

    def __len__(self) -> int:
        return len(self.states)

    @property
    def answers(self) -> int:
        """Number of assistant messages in the history."""
        return self.answers_of(len(self.states) - 1)

    def answers_of(self, index: int) -> int:
        """Return the number of assistant messages up to and including the one at `index`."""
        return self.states[index].answers if 0 <= index < len(self.states) else 0

    def query(self, index: int) -> str:
        """Return the text that a preview in message `index` is ranked against.

        It is the last tool call and the last user text before the message. Later messages do not change it,
        so a preview is the same in every turn.
        """
        texts = self.states[index - 1].texts if index else {}
        return "\n".join(texts.get(role, "") for role in ("assistant", "user"))

    # New messages

    def keep_common(self, messages: Sequence[Any]) -> int:
        """Drop every state from the first changed message on; return the number of states kept.

        A message that was edited in place counts as changed once the edit is noticed.
        """
        kept = self._first_edited(messages, self._common(messages))
        self._kept, self._dropped = kept, self._output[kept:]
        self.thinking.drop(kept, self._seen[kept:], self._output_seen[kept:])
        if kept < len(self.states):
            self._truncate(kept)
        return kept

    def forget(self, message: Any) -> bool:
        """Drop `message` and all later ones; return whether it was known."""
        for index, known in enumerate(self.messages):
            if known is message:
                self._truncate(index)
                return True
        return False

    def add(self, message: Any, state: MessageState) -> None:
        """Append a message; its items are open. If it raises an exception, nothing has changed."""
        state.replaced_calls = {call: self.calls.get(call) for call in state.calls}
        seen, tokens, kinds = look(message), state.tokens, [slot.kind for slot in state.slots]
        self.thinking.add(state)
        self._seen.append(seen)
        if state.role == "assistant":
            self._replied_at.append(len(self.states))
        self.states.append(state)
        for same in (self.messages, self._output, self._output_seen):
            same.append(message)
        self.tokens += tokens
        self.calls.update(state.calls)
        for slot, kind in zip(state.slots, kinds, strict=True):
            slot.number = len(self._decisions)
            slot.ordinal = self._kinds[kind]
            self._kinds[kind] += 1
            self._decisions.append(slot.decision)
            self._open[slot.number] = slot

    def since(self, index: int) -> list[Slot]:
        """Return the items of the messages from `index` on."""
        return [slot for state in self.states[index:] for slot in state.slots]

    def turns(self, known: int) -> Iterator[list[Slot]]:
        """Yield the items of each turn with messages after the first `known`, and always of the last turn."""
        first = self._first_of_turn(known)
        for _, slots in groupby(self.since(first), lambda slot: self.answers_of(slot.at)):
            yield list(slots)

    def _first_of_turn(self, known: int) -> int:
        """Return the first message of the turn with the message `known`, or of the last turn."""
        first = max(0, min(known, len(self) - 1))
        while first > 0 and self.answers_of(first - 1) == self.answers_of(first):
            first -= 1
        return first

    def fixed_excess(self, known: int, ceiling: int) -> Iterator[str]:
        """Yield a message for what is no item and above `ceiling` tokens, in the turns that `turns` yields.

        It is one part, or the parts of a turn together with its items.
        """
        first = self._first_of_turn(known)
        for _, states in groupby(range(first, len(self)), self.answers_of):
            indices = [*states]
            parts = [(at, part) for at in indices for part in self.states[at].kept]
            for at, part in parts:
                if part.tokens > ceiling:
                    place = ".".join(filter(None, (f"messages[{at}]", part.where)))
                    yield (
                        f"{place}: {part.kind} of {part.tokens} tokens is above max_view_tokens ({ceiling}), "
                        "and cannot be offloaded"
                    )
            yield from self._fixed_total(indices, parts, ceiling)

    def _fixed_total(
        self, indices: Sequence[int], parts: Sequence[tuple[int, Kept]], ceiling: int
    ) -> Iterator[str]:
        small = [part for _, part in parts if not part.is_said and part.tokens <= ceiling]
        slots = (slot for at in indices for slot in self.states[at].slots)
        items = [s.decision for s in slots if s.is_in_view and not s.decision.is_exempt]
        shown = sum(d.item.tokens for d in items if d.item.tokens <= ceiling)
        total = sum(part.tokens for part in small)
        if small and shown <= ceiling < shown + total:
            yield (
                f"messages[{indices[0]}] and later: {shown + total} tokens in total are above "
                f"max_view_tokens ({ceiling}); {total} of them cannot be offloaded"
            )

    # Messages that were sent

    @property
    def fresh(self) -> int:
        """Index of the first message after the model's last reply: those before it were sent."""
        return self._replied_at[-1] + 1 if self._replied_at else 0

    @property
    def is_within_turn(self) -> bool:
        """Whether the model continues its turn: the latest messages have results of its tool calls."""
        return any(slot.item.item_type == "tool_result" for slot in self.since(self.fresh))

    def leave_out(self, index: int, tokens: int | None) -> None:
        """Note how many tokens of thinking are left out of a message that the caller receives, or None."""
        state = self.states[index]
        self.tokens_freed += (tokens or 0) - (state.left_out or 0)
        state.left_out = tokens

    # Open items

    def open_slots(self) -> list[Slot]:
        """Return the items that may still be replaced, in no particular order."""
        return list(self._open.values())

    def close(self, closed: Iterable[Slot]) -> None:
        """Mark items as final."""
        for slot in closed:
            self._open.pop(slot.number, None)
        # A dict from which most keys were removed is as slow to walk as before.
        self._open = dict(self._open)

    def note_standing(self, slot: Slot, ref: str) -> None:
        """Record that the text of `slot` is the placeholder of record `ref`."""
        if slot.standing is None:
            slot.standing = ref
            self._new_standing.append((slot.item, ref))

    def take_standing(self) -> list[tuple[Item, str]]:
        """Return the items whose placeholders were noted since the last call, with their refs."""
        taken, self._new_standing = self._new_standing, []
        return taken

    def set_aside(self, slot: Slot, *, is_sweepable: bool) -> None:
        """Mark an item that may be offloaded only together with others."""
        self.small.add(slot.number)
        if is_sweepable:
            self.sweepable[slot.number] = slot
            self.sweepable_saving += slot.saving

    def note_unstored(self, slot: Slot) -> None:
        """Record that the session holds no record of an item that may leave."""
        self._unstored.setdefault(_twin_key(slot), {})[slot.number] = slot

    def twins(self, slot: Slot) -> list[Slot]:
        """Forget the items without a record that are equal to one that has it now, and return them."""
        return list(self._unstored.pop(_twin_key(slot), {}).values())

    def _forget_unstored(self, slot: Slot) -> None:
        equal = self._unstored.get(_twin_key(slot), {})
        equal.pop(slot.number, None)
        if not equal:
            self._unstored.pop(_twin_key(slot), None)

    def equal_to(self, slot: Slot) -> list[Slot]:
        """Return the items without a record that are equal to one, but itself."""
        return [twin for twin in self._unstored.get(_twin_key(slot), {}).values() if twin is not slot]

    def reopen(self, slot: Slot) -> None:
        """Mark an item as open that was closed or set aside."""
        self._take_small(slot)
        self._open[slot.number] = slot

    def note_bound(self, *, is_bound: bool) -> bool:
        """Note whether messages that were sent may change; if that is new, items in view are open again."""
        is_new = is_bound != self._is_bound
        self._is_bound = is_bound
        for slot in self.since(0) if is_new else ():
            if not slot.is_settled and not slot.is_replaced:
                self.reopen(slot)
        return is_new

    def facts(self, slot: Slot) -> ItemFacts:
        """Return the current facts of an item."""
        return slot.decision.item._replace(
            answers=self.answers - self.answers_of(slot.at),
            newer=self._kinds[slot.kind] - slot.ordinal - 1,
        )

    def decide(self, slot: Slot, decision: Decision) -> None:
        """Set the decision on an item that is still in its message."""
        slot.decision = decision
        self._own_decisions(slot.number)[slot.number] = decision

    def decided(self) -> tuple[list[Decision], int]:
        """Return a list that is only appended to from now on, and how many of its decisions there are now."""
        self._shared = len(self._decisions)
        return self._decisions, self._shared

    def keep(self, slot: Slot, reason: str) -> None:
        """Decide to keep an item for `reason`."""
        self.decide(slot, replace(slot.decision, action="keep", reason=reason))

    def recount(self, slot: Slot, tokens: int) -> None:
        """Replace the estimated tokens of an item that is still in its message."""
        decision = slot.decision
        self.tokens += tokens - decision.item.tokens
        facts = decision.item._replace(tokens=tokens)
        self.decide(slot, replace(decision, item=facts, tokens_after=tokens))

    # Replaced items

    def put(self, slot: Slot, text: str, info: RecordInfo | None, decision: Decision) -> None:
        """Replace the text of an item, by the placeholder of record `info` if there is one."""
        self._count(slot, -1)
        slot.text, slot.info = text, info
        self.decide(slot, decision)
        self._count(slot, 1)
        if info is not None:
            at = bisect_left(self._numbers, slot.number)
            self._numbers.insert(at, slot.number)
            self._infos.insert(at, info)
            self.note_standing(slot, info.ref)

    def renew(self, slot: Slot, info: RecordInfo) -> None:
        """Note another record behind the placeholder of an item."""
        slot.info = info
        self._infos[bisect_left(self._numbers, slot.number)] = info

    def undo(self, slot: Slot, reason: str) -> None:
        """Give an item its own text again."""
        self._count(slot, -1)
        at = bisect_left(self._numbers, slot.number)
        if slot.info is not None and self._numbers[at : at + 1] == [slot.number]:
            del self._numbers[at], self._infos[at]
        slot.text, slot.info, slot.is_settled = slot.item.text, None, False
        decision = replace(slot.decision, action="keep", reason=reason, ref=None)
        self.decide(slot, replace(decision, tokens_after=decision.item.tokens))

    def set_output(self, index: int, output: Any) -> None:
        """Set the message that the caller receives in place of message `index`."""
        self._output[index] = output
        self._output_seen[index] = output if output is self.messages[index] else look(output)

    def output(self) -> list[Any]:
        """Return the messages with items replaced; unchanged ones are the caller's objects."""
        return self._output.copy()

    def edited_outputs(self) -> list[int]:
        """Return the indexes of outputs that the caller edited, among the messages checked this turn."""
        parts = self._watched(len(self))
        return [i for part in parts for i in edited(self._output_seen, self._output, part)]

    def infos(self) -> list[RecordInfo]:
        """Return the records behind the placeholders, in order: the same list until they change."""
        # They are many: a comparison of pointers reads none of them.
        if self._result_infos != self._infos:
            self._result_infos = self._infos.copy()
        return self._result_infos

    def sent(self) -> int:
        """Return how many messages the last request had that the model replied to."""
        return bisect_left(self.states, self.answers, key=lambda state: state.answers)

    def unchanged(self, late: Sequence[Slot]) -> int:
        """Return how many messages at the beginning are sent as in the last call; `late` is replaced now."""
        first = self._kept
        while self._is_as_before(first):
            first += 1
        return min([first, *(slot.at for slot in late if slot.is_replaced)])

    def rewritten(self, sent: int, late: Sequence[Slot]) -> tuple[int, int]:
        """Return the tokens that replacing `late` frees, and those from the first change to message `sent`.

        Items of `late` that the first `sent` messages do not have change nothing in the provider's cache.
        """
        changed = [slot for slot in late if not self._is_as_before(slot.at)]
        replaced = [slot for slot in changed if slot.is_replaced and slot.at < sent]
        if not replaced:
            return 0, 0
        first = min(slot.at for slot in replaced)
        return sum(slot.tokens_freed for slot in replaced), self._tokens_of(self.states[first:sent])

    def _is_as_before(self, at: int) -> bool:
        """Return whether a dropped message is sent as before, because the caller passes its output on."""
        index = at - self._kept
        return 0 <= index < min(len(self._dropped), len(self) - self._kept) and are_equal(
            self._dropped[index], self._output[at]
        )

    def tokens_before(self, end: int) -> int:
        """Return the tokens of the messages before index `end`, with their items replaced."""
        return self.tokens - self.tokens_freed - self._tokens_of(self.states[end:]) if end else 0

    def _tokens_of(self, states: Sequence[MessageState]) -> int:
        freed = sum(slot.tokens_freed for state in states for slot in state.slots if slot.is_replaced)
        return sum(state.tokens - (state.left_out or 0) for state in states) - freed

    def end_turn(self) -> None:
        """Select the next of the older messages to check for edits."""
        older = len(self.states) - LAST_WATCHED
        self._next_watched = self._next_watched + OLDER_WATCHED if older > 0 else 0
        if self._next_watched >= older:
            self._next_watched = 0

    def _take_small(self, slot: Slot) -> None:
        self.small.discard(slot.number)
        if self.sweepable.pop(slot.number, None) is not None:
            self.sweepable_saving -= slot.saving

    def _own_decisions(self, first: int) -> list[Decision]:
        """Return the list of decisions, copied if a result shares those from `first` on."""
        if first < self._shared:
            self._decisions, self._shared = self._decisions.copy(), 0
        return self._decisions

    def _count(self, slot: Slot, sign: int) -> None:
        if slot.is_replaced:
            self.tokens_freed += sign * slot.tokens_freed
            self.chars_freed += sign * (len(slot.item.text) - len(slot.text))

    def _common(self, messages: Sequence[Any]) -> int:
        """Return how many leading messages are the known objects or equal to them.

        If the list did not only grow, comparisons of its halves find the first difference.
        """
        known, length = self.messages, len(self.messages)
        if begins_with(messages, known):
            return length
        equal, end = 0, min(length, len(messages))
        while equal < end:
            middle = (equal + end + 1) // 2
            if are_equal(messages[equal:middle], known[equal:middle]):
                equal = middle
            else:
                end = middle - 1
        return equal

    def _watched(self, end: int) -> list[slice[int, int]]:
        """Return the messages before index `end` that are checked for edits in this turn."""
        last = max(0, len(self.states) - LAST_WATCHED)
        older = range(self._next_watched, min(last, self._next_watched + OLDER_WATCHED))
        waiting = {slot.at for slot in self._open.values() if slot.at < last and slot.at not in older}
        single = (range(at, at + 1) for at in sorted(waiting))
        return [slice(part.start, min(part.stop, end)) for part in (*single, older, range(last, end))]

    def _first_edited(self, messages: Sequence[Any], known: int) -> int:
        """Return the index of the first edited message among those checked this turn; `known` if none is."""
        parts = self._watched(known)
        for index in chain.from_iterable(edited(self._seen, self.messages, part) for part in parts):
            return index
        if any(any(map(is_not, self.messages[part], messages[part])) for part in parts):
            self._renew(messages[:known])
        return known

    def _renew(self, messages: Sequence[Any]) -> None:
        """Replace known messages by equal ones that are new objects; the snapshots are theirs too."""
        known = len(messages)
        replaced = [*compress(range(known), map(is_not, self._output, self.messages))]
        for outputs in (self._output, self._output_seen):
            kept = [outputs[i] for i in replaced]
            outputs[:known] = messages
            for i, output in zip(replaced, kept, strict=True):
                outputs[i] = output
        self.messages[:known] = messages

    def _truncate(self, length: int) -> None:
        dropped = self.states[length:]
        self.unread = {index for index in self.unread if index < length}
        for state in reversed(dropped):
            self._drop(state)
        first = len(self._decisions) - sum(len(state.slots) for state in dropped)
        del self._own_decisions(first)[first:]
        at = bisect_left(self._numbers, first)
        del self._numbers[at:], self._infos[at:]
        del self.states[length:], self.messages[length:], self._seen[length:]
        del self._output[length:], self._output_seen[length:]
        self.thinking.truncate(length)
        del self._replied_at[bisect_left(self._replied_at, length) :]
        if self.plan is not None:
            self.plan.truncate(length)

    def _drop(self, state: MessageState) -> None:
        self.tokens -= state.tokens
        self.tokens_freed -= state.left_out or 0
        for slot in state.slots:
            self._kinds[slot.kind] -= 1
            self._open.pop(slot.number, None)
            self._take_small(slot)
            self._forget_unstored(slot)
            self._count(slot, -1)
        for key, call in state.replaced_calls.items():
            if call is None:
                self.calls.pop(key, None)
            else:
                self.calls[key] = call


def _twin_key(slot: Slot) -> tuple[str, str | None, str]:
    return slot.item.item_type, slot.item.tool_use_id, slot.item.text
