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
from itertools import chain, groupby
from typing import Any

from offload.engine.recognition import Proof
from offload.engine.results import CacheReport
from offload.engine.watching import is_same, look
from offload.messages import Item
from offload.policy import Decision, ItemFacts, saving
from offload.record import RecordInfo

# Messages checked for edits: so many of the last in every turn, and so many of the older ones in rotation.
LAST_WATCHED, OLDER_WATCHED = 64, 256
_PART = 256


@dataclass(slots=True, eq=False)
class Slot:
    """One item of a message, and the text that replaces it.

    Attributes:
        item: the item as it was found.
        decision: the latest decision on it.
        text: the text in the message: the item's own, a placeholder or a truncation.
        info: the record behind the placeholder, or None.
        is_settled: whether the decision is final: replaced, vetoed, or not worth a placeholder.
        is_approved: whether `should_offload` agreed.
        claim: the ref that its text names if it looks like a placeholder.
        proof: whether that text is a placeholder; None until it is checked.
        standing: the ref whose placeholder its text is, as it was found or put there.
        stored: the ref of the record that the session already holds of it.
        problem: why it is kept if a hook or the token counter failed for it.
        number: its index among all items of the history.
        ordinal: its index among the items of its type and tool.
    """

    item: Item
    decision: Decision
    text: str = ""
    info: RecordInfo | None = None
    is_settled: bool = False
    is_approved: bool = False
    claim: str | None = None
    proof: Proof | None = None
    standing: str | None = None
    stored: str | None = None
    problem: str | None = None
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
    def is_unproven(self) -> bool:
        """Whether its text looks like a placeholder and the records have not been checked yet."""
        return self.claim is not None and self.proof not in ("ours", "foreign")

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
    def chars_freed(self) -> int:
        """Characters that the replacement frees."""
        return len(self.item.text) - len(self.text)

    @property
    def saving(self) -> int:
        """About how many tokens a replacement would free, at least 0."""
        return max(0, saving(self.decision))


@dataclass(slots=True, eq=False)
class MessageState:
    """One message of the history.

    Attributes:
        message: the message as it was passed.
        slots: its items.
        fixed_tokens: tokens of its texts that are not items.
        calls: the tool calls that it makes, id → tool name.
        answers: number of assistant messages up to and including this one.
        role: its role.
        texts: role → beginning of the role's latest text up to and including this message, with tool-call
            arguments.
        output: the message with its items replaced, as the caller received it; None while no item is.
        seen: how the message looked.
        output_seen: how its output looked.
        freed: tokens that its replaced items free.
        renamed: previous tool names of its call ids, to undo `calls`.
    """

    message: Any
    slots: list[Slot]
    fixed_tokens: int
    calls: dict[str, str]
    answers: int
    role: str
    texts: Mapping[str, str]
    output: Any = None
    seen: Any = None
    output_seen: Any = None
    freed: int = 0
    renamed: dict[str, str | None] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens of all its texts as they were passed."""
        return self.fixed_tokens + sum(slot.decision.item.tokens for slot in self.slots)


class Decisions:
    """The decision on every item, in order.

    `parts` copies nothing: a part that was handed out is copied before it changes.
    """

    def __init__(self) -> None:
        self._parts: list[list[Decision]] = []
        self._is_shared: list[bool] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, decision: Decision) -> None:
        """Add the decision on the next item."""
        if self._length % _PART == 0:
            self._parts.append([])
            self._is_shared.append(False)
        self._own(len(self._parts) - 1).append(decision)
        self._length += 1

    def __setitem__(self, number: int, decision: Decision) -> None:
        self._own(number // _PART)[number % _PART] = decision

    def truncate(self, length: int) -> None:
        """Drop all but the first `length` decisions."""
        count = -(-length // _PART)
        del self._parts[count:], self._is_shared[count:]
        self._length = length
        if length % _PART:
            del self._own(count - 1)[length % _PART :]

    def parts(self) -> tuple[Sequence[Decision], ...]:
        """Return all decisions in parts that never change afterwards."""
        self._is_shared = [True] * len(self._parts)
        return tuple(self._parts)

    def _own(self, part: int) -> list[Decision]:
        if self._is_shared[part]:
            self._parts[part] = self._parts[part].copy()
            self._is_shared[part] = False
        return self._parts[part]


class History:
    """The messages of the last turn, and totals over all of them.

    Attributes:
        tool_names: tool names by call id.
        decisions: the decision on every item, in order.
        tokens: tokens of all texts as they were passed.
        tokens_freed: tokens that all replacements free.
        chars_freed: characters that all replacements free.
    """

    def __init__(self) -> None:
        self.tool_names: dict[str, str] = {}
        self.decisions = Decisions()
        self.tokens = self.tokens_freed = self.chars_freed = 0
        self._states: list[MessageState] = []
        self._messages: list[Any] = []
        self._output: list[Any] = []
        # Items that may still be replaced, and items that may be only together with others of their turn.
        self._open: list[Slot] = []
        self._small: dict[int, list[Slot]] = {}
        self.small_saving = 0
        # Numbers and records of the replaced items, in order.
        self._numbers: list[int] = []
        self._infos: list[RecordInfo] = []
        self._kinds: Counter[tuple[str, str | None]] = Counter()
        # How many texts of the list are the placeholder of each ref.
        self._standing: Counter[str] = Counter()
        self._next_watched = 0

    def __len__(self) -> int:
        return len(self._states)

    @property
    def answers(self) -> int:
        """Number of assistant messages in the history."""
        return self.answers_of(len(self._states) - 1)

    def answers_of(self, index: int) -> int:
        """Return the number of assistant messages up to and including the one at `index`."""
        return self._states[index].answers if 0 <= index < len(self._states) else 0

    @property
    def last(self) -> MessageState | None:
        """The last message, or None."""
        return self._states[-1] if self._states else None

    def query(self, index: int) -> str:
        """Return the text that a preview in message `index` is ranked against.

        It is the last tool call and the last user text before the message. Later messages do not change it,
        so a preview is the same in every turn.
        """
        texts = self._states[index - 1].texts if index else {}
        return "\n".join(texts.get(role, "") for role in ("assistant", "user"))

    # New messages

    def keep_common(self, messages: Sequence[Any]) -> int:
        """Drop every state from the first changed message on; return the number of states kept.

        A message that was edited in place counts as changed once the edit is noticed.
        """
        kept = min(self._common(messages), self._first_edited(messages))
        if kept < len(self._states):
            self._truncate(kept)
        return kept

    def forget(self, message: Any) -> bool:
        """Drop `message` and all later ones; return whether it was known."""
        for index, known in enumerate(self._messages):
            if known is message:
                self._truncate(index)
                return True
        return False

    def add(self, state: MessageState) -> None:
        """Append a message; its items are open."""
        state.renamed = {call: self.tool_names.get(call) for call in state.calls}
        state.seen = look(state.message)
        self._states.append(state)
        self._messages.append(state.message)
        self._output.append(state.message)
        self.tokens += state.tokens
        self.tool_names.update(state.calls)
        for slot in state.slots:
            slot.number = len(self.decisions)
            slot.ordinal = self._kinds[slot.kind]
            self._kinds[slot.kind] += 1
            self.decisions.append(slot.decision)
            self._open.append(slot)

    def since(self, index: int) -> list[Slot]:
        """Return the items of the messages from `index` on."""
        return [slot for state in self._states[index:] for slot in state.slots]

    def turns(self, known: int) -> Iterator[list[Slot]]:
        """Yield the items of each turn with messages after the first `known`, and always of the last turn."""
        first = max(0, min(known, len(self) - 1))
        while first > 0 and self.answers_of(first - 1) == self.answers_of(first):
            first -= 1
        for _, slots in groupby(self.since(first), lambda slot: self.answers_of(slot.at)):
            yield list(slots)

    # Open items

    def open_slots(self) -> list[Slot]:
        """Return the items that may still be replaced, in no particular order."""
        return list(self._open)

    def close(self, closed: Iterable[Slot]) -> None:
        """Mark items as final."""
        numbers = {slot.number for slot in closed}
        if numbers:
            self._open = [slot for slot in self._open if slot.number not in numbers]

    def note_standing(self, slot: Slot, ref: str) -> None:
        """Record that the text of `slot` is the placeholder of record `ref`."""
        if slot.standing is None:
            slot.standing = ref
            self._standing[ref] += 1

    def holds(self, ref: str | None) -> bool:
        """Return whether a text of the list is the placeholder of record `ref`."""
        return ref is not None and self._standing[ref] > 0

    def set_aside(self, slot: Slot) -> None:
        """Mark an item that may be offloaded only together with others."""
        self._small.setdefault(self.answers_of(slot.at), []).append(slot)
        self.small_saving += slot.saving

    def small_since(self, index: int) -> Iterator[list[Slot]]:
        """Yield, for each turn with messages from `index` on, the items set aside."""
        for answers in dict.fromkeys(state.answers for state in self._states[index:]):
            yield list(self._small.get(answers, ()))

    def small(self) -> list[Slot]:
        """Return all items set aside."""
        return list(chain.from_iterable(self._small.values()))

    def reopen(self, slots: Sequence[Slot]) -> None:
        """Mark items as open that were closed or set aside."""
        still_open = {slot.number for slot in self._open} if slots else ()
        for slot in slots:
            turn = self._small.get(self.answers_of(slot.at), [])
            if slot in turn:
                turn.remove(slot)
                self.small_saving -= slot.saving
            if slot.number not in still_open:
                self._open.append(slot)

    def facts(self, slot: Slot) -> ItemFacts:
        """Return the current facts of an item."""
        return slot.decision.item._replace(
            answers=self.answers - self.answers_of(slot.at),
            newer=self._kinds[slot.kind] - slot.ordinal - 1,
        )

    def decide(self, slot: Slot, decision: Decision) -> None:
        """Set the decision on an item that is still in its message."""
        slot.decision = decision
        self.decisions[slot.number] = decision

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

    def undo(self, slot: Slot, reason: str) -> None:
        """Give an item its own text again, for good."""
        self._count(slot, -1)
        at = bisect_left(self._numbers, slot.number)
        if slot.info is not None and self._numbers[at : at + 1] == [slot.number]:
            del self._numbers[at], self._infos[at]
        slot.text, slot.info, slot.is_settled = slot.item.text, None, True
        decision = replace(slot.decision, action="keep", reason=reason, ref=None)
        self.decide(slot, replace(decision, tokens_after=decision.item.tokens))

    def state(self, index: int) -> MessageState:
        """Return the message at `index`, which only the history may change."""
        return self._states[index]

    def set_output(self, index: int, output: Any) -> None:
        """Set the message that the caller receives in place of message `index`."""
        state = self._states[index]
        state.output, state.output_seen = output, look(output)
        self._output[index] = output

    def output(self) -> list[Any]:
        """Return the messages with items replaced; unchanged ones are the caller's objects."""
        return self._output.copy()

    def edited_outputs(self) -> list[int]:
        """Return the indexes of outputs that the caller edited, among the messages checked this turn."""
        return [
            i
            for i in self._watched()
            if self._states[i].output is not None
            and not is_same(self._states[i].output_seen, self._output[i])
        ]

    def infos(self) -> list[RecordInfo]:
        """Return the records behind the placeholders, in order."""
        return self._infos.copy()

    def cache_report(self, known: int, late: Sequence[Slot]) -> CacheReport | None:
        """Return the effect on the provider's cache of replacing items that were sent before.

        Args:
            known: number of messages that were sent before.
            late: items of these messages that were to be replaced in this turn.

        Returns:
            The report; None if no item of `late` was replaced.
        """
        replaced = [slot for slot in late if slot.is_replaced]
        if not replaced:
            return None
        rewritten = self._states[min(slot.at for slot in replaced) : known]
        tokens = sum(state.tokens - state.freed for state in rewritten)
        return CacheReport(sum(slot.tokens_freed for slot in replaced), tokens)

    def end_turn(self) -> None:
        """Select the next of the older messages to check for edits."""
        older = len(self._states) - LAST_WATCHED
        self._next_watched = self._next_watched + OLDER_WATCHED if older > 0 else 0
        if self._next_watched >= older:
            self._next_watched = 0

    def _count(self, slot: Slot, sign: int) -> None:
        if slot.is_replaced:
            self._states[slot.at].freed += sign * slot.tokens_freed
            self.tokens_freed += sign * slot.tokens_freed
            self.chars_freed += sign * slot.chars_freed

    def _common(self, messages: Sequence[Any]) -> int:
        """Return how many leading messages are the known objects or equal to them.

        For a list that grew, one comparison of lists finds out: it compares elements by identity first.
        """
        known, length = self._messages, len(self._messages)
        known.extend(messages[length:])
        try:
            is_whole = messages == known
        except Exception:  # noqa: BLE001 # values inside a message may not support comparison
            is_whole = False
        finally:
            del known[length:]
        if is_whole:
            return length
        pairs = zip(messages, known, strict=False)
        differing = (i for i, (a, b) in enumerate(pairs) if a is not b and not _is_equal(a, b))
        return next(differing, min(length, len(messages)))

    def _watched(self) -> Iterable[int]:
        count = len(self._states)
        last = max(0, count - LAST_WATCHED)
        older = range(self._next_watched, min(last, self._next_watched + OLDER_WATCHED))
        waiting = {slot.at for slot in self._open if slot.at < last and slot.at not in older}
        return chain(sorted(waiting), older, range(last, count))

    def _first_edited(self, messages: Sequence[Any]) -> int:
        """Return the index of the first edited message among those checked this turn."""
        known = min(len(messages), len(self._states))
        is_renewed = False
        for i in self._watched():
            if i >= known:
                continue
            if not is_same(self._states[i].seen, self._messages[i]):
                return i
            is_renewed = is_renewed or self._messages[i] is not messages[i]
        if is_renewed:
            self._renew(messages[:known])
        return known

    def _renew(self, messages: Sequence[Any]) -> None:
        """Replace known messages by equal ones that are new objects."""
        for i, message in enumerate(messages):
            if message is not self._messages[i]:
                state = self._states[i]
                self._messages[i] = state.message = message
                state.seen = look(message)
                if state.output is None:
                    self._output[i] = message

    def _truncate(self, length: int) -> None:
        dropped = self._states[length:]
        for state in reversed(dropped):
            self._drop(state)
        first = len(self.decisions) - sum(len(state.slots) for state in dropped)
        self.decisions.truncate(first)
        at = bisect_left(self._numbers, first)
        del self._numbers[at:], self._infos[at:]
        del self._states[length:], self._messages[length:], self._output[length:]
        self._open = [slot for slot in self._open if slot.at < length]
        for answers in {state.answers for state in dropped} & self._small.keys():
            turn = self._small.pop(answers)
            self.small_saving -= sum(slot.saving for slot in turn if slot.at >= length)
            if kept := [slot for slot in turn if slot.at < length]:
                self._small[answers] = kept

    def _drop(self, state: MessageState) -> None:
        self.tokens -= state.tokens
        for slot in state.slots:
            self._kinds[slot.kind] -= 1
            self._count(slot, -1)
            if slot.standing is not None:
                self._standing[slot.standing] -= 1
        for call, name in state.renamed.items():
            if name is None:
                self.tool_names.pop(call, None)
            else:
                self.tool_names[call] = name


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 # values inside a message may not support comparison
        return False
