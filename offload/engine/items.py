"""The items of a conversation: their states, the decisions on them, and the texts that replace them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import takewhile
from operator import attrgetter

import msgspec
from msgspec.structs import replace

from offload.engine.policy import Decision, ItemFacts
from offload.engine.policy.groups import saving
from offload.engine.policy.reasons import Reason, ReasonKind
from offload.engine.recognition import Claim, Proof
from offload.messages.base import Item
from offload.records.record import RecordInfo


class State(Enum):
    """The state of an item; `TRANSITIONS` says what can follow.

    Attributes:
        UNWEIGHED: in its message; its facts are not known, since it is new or a hook failed for it.
        OPEN: in its message, and decided in each turn, as a pinned item or an unproven look-alike is.
        WAITING: in its message, and decided in each turn, until it is due.
        LEAVING: in its message, and offloaded in this turn.
        FAILED: in its message, whole or truncated, after an error in this turn; the next turn opens it.
        KEPT: in its message; the turn's ceiling, a sweep, its cost or a record of it may open it.
        SETTLED: in its message for good: it was vetoed, or no placeholder pays under this policy.
        OFFLOADED: replaced by the placeholder of its record.
    """

    UNWEIGHED = "unweighed"
    OPEN = "open"
    WAITING = "waiting"
    LEAVING = "leaving"
    FAILED = "failed"
    KEPT = "kept"
    SETTLED = "settled"
    OFFLOADED = "offloaded"

    __hash__ = object.__hash__  # Members are singletons; the hash of an enum's name is slower.


_OPENED = frozenset({State.UNWEIGHED, State.OPEN, State.WAITING, State.LEAVING, State.FAILED})
_DECIDED = frozenset(State) - {State.UNWEIGHED, State.OFFLOADED}
TRANSITIONS: Mapping[State, frozenset[State]] = {
    # A look-alike whose tokens are not known is stored all the same.
    State.UNWEIGHED: frozenset({State.OPEN, State.LEAVING}),
    State.OPEN: _DECIDED,
    State.WAITING: _DECIDED,
    State.LEAVING: frozenset({State.OFFLOADED, State.FAILED, State.SETTLED}),
    State.FAILED: frozenset({State.OPEN}),
    State.KEPT: frozenset({State.OPEN, State.LEAVING, State.FAILED}),
    # Another policy may ask for a smaller saving.
    State.SETTLED: frozenset({State.OPEN}),
    # Its message could not be changed.
    State.OFFLOADED: frozenset({State.FAILED}),
}


def unweighed(item: Item, message: int) -> Decision:
    """Return the decision to keep an item of message `message` whose facts are not known yet."""
    chars = len(item.text)
    facts = ItemFacts(message, item.block, item.item_type, item.tool_name, item.tool_use_id, chars, None, 0)
    return Decision(facts, "keep", Reason(ReasonKind.UNKNOWN), 0, None, 0)


class Slot(msgspec.Struct, eq=False):
    """One item of a message, and the text that replaces it.

    Attributes:
        text: the text in the message: the item's own, a placeholder or a truncation.
        info: the record behind the placeholder.
        is_approved: whether `should_offload` was asked, and did not veto it.
        claim: what its text claims if it looks like a placeholder or notice; `proof` is None until checked.
        stored: the ref of the record that the session already holds of it.
        is_planned: whether a rule offloads it once the model saw it, and the plan by cost decides when.
        number: its index among all items of the log; `ordinal` is that among its type and tool.
    """

    item: Item
    decision: Decision
    state: State = State.UNWEIGHED
    text: str = ""
    info: RecordInfo | None = None
    is_approved: bool = False
    claim: Claim | None = None
    proof: Proof | None = None
    stored: str | None = None
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
    def place(self) -> tuple[str, str | None]:
        """Its type and the id of its call."""
        return self.item.item_type, self.item.tool_use_id

    @property
    def is_refuted(self) -> bool:
        """Whether its text looks like a placeholder but is not one."""
        return self.proof == "refuted"

    @property
    def is_replaced(self) -> bool:
        """Whether the message holds another text in its place."""
        return self.text is not self.item.text

    @property
    def is_in_view(self) -> bool:
        """Whether the model sees its text, which does not look like a placeholder."""
        return not self.is_replaced and self.claim is None

    @property
    def has_failed(self) -> bool:
        """Whether it is in its message because of an error, which was reported."""
        return self.state in (State.UNWEIGHED, State.FAILED)

    @property
    def is_final(self) -> bool:
        """Whether nothing opens it again."""
        return self.state in (State.SETTLED, State.OFFLOADED)

    @property
    def is_small(self) -> bool:
        """Whether it is kept for its size alone."""
        return self.state is State.KEPT and self.decision.is_below and self.claim is None

    @property
    def tokens_freed(self) -> int:
        """Tokens that the replacement frees."""
        return self.decision.item.tokens - self.decision.tokens_after

    @property
    def saving(self) -> int:
        """About how many tokens a replacement would free, at least 0."""
        return max(0, saving(self.decision))


class Items:
    """The items of a conversation in order, found by their states. Only they change a slot's `state`.

    Attributes:
        sweepable: the small items that a sweep may replace, by their numbers, and what they free.
        tokens_freed: tokens that the replacements free; they free `chars_freed` characters.
    """

    def __init__(self) -> None:
        self.tokens_freed = self.chars_freed = self.sweepable_saving = 0
        self.sweepable: dict[int, Slot] = {}
        # The decision on every item, in order; results share the first of them, so that they cost no copy.
        self._decisions: list[Decision] = []
        self._shared = 0
        self._opened: dict[int, Slot] = {}
        # The items without a record, by what a record knows them by: an equal one may be stored later.
        self._unstored: dict[tuple[str, str | None, str], dict[int, Slot]] = {}
        # Numbers and records of the replaced items, in order, and the records as a result has them.
        self._numbers: list[int] = []
        self._infos: list[RecordInfo] = []
        self._result_infos: list[RecordInfo] = []
        self._kinds: Counter[tuple[str, str | None]] = Counter()
        self._new_placeholders: list[tuple[Item, str]] = []
        # Those that were replaced, or whose record was found, since the plan by cost asked last.
        self._new_out: list[Slot] = []
        # By item type and call id; those without an id have one place, and so may several with one id.
        self._places: dict[tuple[str, str | None], list[Slot]] = {}

    def add(self, slots: Iterable[Slot]) -> None:
        """Append items: new ones, or such that were dropped, in the states that they had."""
        for slot in slots:
            kind = slot.kind
            slot.number = len(self._decisions)
            slot.ordinal = self._kinds[kind]
            self._kinds[kind] += 1
            self._decisions.append(slot.decision)
            if slot.state in _OPENED:
                self._opened[slot.number] = slot
            self._places.setdefault(slot.place, []).append(slot)
            if slot.info is not None:
                self._count(slot, 1)
                self._hold(slot, slot.info)
            elif slot.stored is not None:
                self._new_out.append(slot)

    def drop(self, slots: Iterable[Slot]) -> None:
        """Forget the last items, from the last one on."""
        for slot in slots:
            self._kinds[slot.kind] -= 1
            self._opened.pop(slot.number, None)
            self._take_sweepable(slot)
            self._forget_unstored(slot)
            self._places[place := slot.place].pop()
            if not self._places[place]:
                del self._places[place]
            self._count(slot, -1)
            if self._numbers and self._numbers[-1] == slot.number:
                del self._numbers[-1], self._infos[-1]
            del self._own_decisions(slot.number)[slot.number :]

    def newer(self, slot: Slot) -> int:
        """Return the number of later items of the same type and tool."""
        return self._kinds[slot.kind] - slot.ordinal - 1

    def before(self, slot: Slot) -> Iterator[Slot]:
        """Yield the earlier items of the type and call id of an item: only texts differ."""
        return takewhile(lambda other: other is not slot, self._places[slot.place])

    # States

    def opened(self) -> list[Slot]:
        """Return the items that a turn looks at, in no particular order."""
        return list(self._opened.values())

    def leaving(self) -> list[Slot]:
        """Return the items to offload in this turn that are still whole, in no particular order."""
        return [s for s in self._opened.values() if s.state is State.LEAVING and not s.is_replaced]

    def due(self) -> list[Slot]:
        """Return the items to store now, in order; a look-alike is stored also if it is kept."""
        opened = self._opened.values()
        due = [s for s in opened if s.state is State.LEAVING or (s.is_refuted and s.state is State.OPEN)]
        return sorted(due, key=attrgetter("number"))

    def move(self, slot: Slot, state: State) -> None:
        """Change the state of an item. Raises `ValueError` if `TRANSITIONS` does not allow it."""
        if state is slot.state:
            return
        if state not in TRANSITIONS[slot.state]:
            raise ValueError(f"an item cannot become {state.value} after {slot.state.value}")
        self._take_sweepable(slot)
        slot.state = state
        if slot.number < 0:
            return
        if state in _OPENED:
            self._opened[slot.number] = slot
        else:
            self._opened.pop(slot.number, None)

    def compact(self) -> None:
        """Make the open items as cheap to walk as they are few: a dict keeps the places of removed keys."""
        self._opened = dict(self._opened)

    def retry(self) -> None:
        """Open the items that failed in an earlier turn."""
        for slot in self.opened():
            if slot.state is State.FAILED:
                self.move(slot, State.OPEN)

    def reopen(self, slot: Slot) -> None:
        """Have an item that is kept decided again."""
        if slot.state is State.KEPT:
            self.move(slot, State.OPEN)

    def reopen_for_policy(self, slot: Slot) -> None:
        """Have an item decided again by another policy, unless it was vetoed."""
        if slot.state is State.KEPT or (slot.state is State.SETTLED and slot.is_approved):
            self.move(slot, State.OPEN)

    def set_aside(self, slot: Slot) -> None:
        """Mark a small item as one that a sweep may offload."""
        self.sweepable[slot.number] = slot
        self.sweepable_saving += slot.saving

    def _take_sweepable(self, slot: Slot) -> None:
        if self.sweepable.pop(slot.number, None) is not None:
            self.sweepable_saving -= slot.saving

    # Decisions

    def note(self, slot: Slot, decision: Decision) -> None:
        """Set the decision on an item, whose state does not change."""
        slot.decision = decision
        if slot.number >= 0:
            self._own_decisions(slot.number)[slot.number] = decision

    def decide(self, slot: Slot, decision: Decision) -> None:
        """Set the decision on an item that is in its message, and the state that follows from it."""
        self.move(slot, _state_after(slot, decision))
        self.note(slot, decision)

    def keep(self, slot: Slot, reason: Reason, state: State) -> None:
        """Decide to keep an item for `reason`: it was settled, or it failed."""
        self.move(slot, state)
        self.note(slot, replace(slot.decision, action="keep", reason=reason))

    def decided(self) -> tuple[list[Decision], int]:
        """Return a list that is only appended to from now on, and how many of its decisions there are now."""
        self._shared = len(self._decisions)
        return self._decisions, self._shared

    def _own_decisions(self, first: int) -> list[Decision]:
        """Return the list of decisions, copied if a result shares those from `first` on."""
        if first < self._shared:
            self._decisions, self._shared = self._decisions.copy(), 0
        return self._decisions

    # Items without a record

    def note_unstored(self, slot: Slot) -> None:
        """Record that the session holds no record of an item that may be offloaded."""
        self._unstored.setdefault(_equal_key(slot), {})[slot.number] = slot

    def note_stored(self, slot: Slot, ref: str | None) -> None:
        """Record the ref of the record that the session holds of an item; None if it holds none."""
        slot.stored = ref
        if ref is not None:
            self._new_out.append(slot)

    def take_out(self) -> list[Slot]:
        """Return the items that were offloaded, or that were before, since the last call."""
        taken, self._new_out = self._new_out, []
        return taken

    def take_equal(self, slot: Slot) -> list[Slot]:
        """Forget the items without a record that are equal to one that has it now, and return them."""
        return list(self._unstored.pop(_equal_key(slot), {}).values())

    def equal_to(self, slot: Slot) -> list[Slot]:
        """Return the other items without a record that are equal to an item."""
        return [other for other in self._unstored.get(_equal_key(slot), {}).values() if other is not slot]

    def _forget_unstored(self, slot: Slot) -> None:
        equal = self._unstored.get(_equal_key(slot), {})
        equal.pop(slot.number, None)
        if not equal:
            self._unstored.pop(_equal_key(slot), None)

    # Replaced items

    def put(self, slot: Slot, text: str, info: RecordInfo | None, decision: Decision) -> None:
        """Replace the text of an item: by the placeholder of record `info`, or after a failure by a cut."""
        self.move(slot, State.FAILED if info is None else State.OFFLOADED)
        self._count(slot, -1)
        slot.text, slot.info = text, info
        self.note(slot, decision)
        self._count(slot, 1)
        if info is not None:
            self._hold(slot, info)

    def _hold(self, slot: Slot, info: RecordInfo) -> None:
        """Note the record behind the placeholder of an item."""
        self._new_out.append(slot)
        at = bisect_left(self._numbers, slot.number)
        self._numbers.insert(at, slot.number)
        self._infos.insert(at, info)
        self.note_placeholder(slot, info.ref)

    def renew(self, slot: Slot, info: RecordInfo) -> None:
        """Note another record behind the placeholder of an item."""
        slot.info = info
        self._infos[bisect_left(self._numbers, slot.number)] = info

    def undo(self, slot: Slot) -> None:
        """Give an item its own text again, since its message cannot be changed."""
        self.move(slot, State.FAILED)
        self._count(slot, -1)
        at = bisect_left(self._numbers, slot.number)
        if slot.info is not None and self._numbers[at : at + 1] == [slot.number]:
            del self._numbers[at], self._infos[at]
        slot.text, slot.info = slot.item.text, None
        self.note(slot, replace(slot.decision, ref=None, tokens_after=slot.decision.item.tokens))

    def infos(self) -> list[RecordInfo]:
        """Return the records behind the placeholders, in order: the same list until they change."""
        # They are many: a comparison of pointers reads none of them.
        if self._result_infos != self._infos:
            self._result_infos = self._infos.copy()
        return self._result_infos

    def note_placeholder(self, slot: Slot, ref: str) -> None:
        """Record that the text of `slot` is the placeholder of record `ref`."""
        self._new_placeholders.append((slot.item, ref))

    def take_placeholders(self) -> list[tuple[Item, str]]:
        """Return the items whose placeholders were noted since the last call, with their refs."""
        taken, self._new_placeholders = self._new_placeholders, []
        return taken

    def _count(self, slot: Slot, sign: int) -> None:
        if slot.is_replaced:
            self.tokens_freed += sign * slot.tokens_freed
            self.chars_freed += sign * (len(slot.item.text) - len(slot.text))


def _state_after(slot: Slot, decision: Decision) -> State:
    if decision.action != "keep":
        return State.LEAVING if decision.action == "offload" else State.WAITING
    is_unproven = slot.claim is not None and slot.proof != "proven"
    return State.OPEN if decision.item.is_pinned or is_unproven else State.KEPT


def _equal_key(slot: Slot) -> tuple[str, str | None, str]:
    return slot.item.item_type, slot.item.tool_use_id, slot.item.text
