"""What the messages of earlier turns held, so that a turn's work grows with what is new in it.

An agent hands over its whole list of messages each turn. The history keeps what was found in each one and
compares. Lists of the same objects are compared by one pass over their pointers; whether an object was edited
in place is looked at for the last messages, for all with an item that may still leave, and in turn for the
others, some each time. All that is told of the whole list is kept as running sums and sorted indexes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any, NamedTuple

from offload.engine.recognition import Proof
from offload.engine.results import CacheReport
from offload.engine.watching import is_same, look
from offload.messages import Item
from offload.policy import Decision, ItemFacts, saving
from offload.record import RecordInfo

# Messages that are looked at in every turn, and how many of the older ones are, in turn.
LAST_WATCHED, OLDER_WATCHED = 64, 256
_PART = 256


@dataclass(slots=True)
class Slot:
    """One item in the history, and what stands for it now.

    Attributes:
        item: the item as it was found.
        decision: what became of it.
        text: what stands in the message for it: its own text, a placeholder, a truncation.
        info: its record, once the text is a placeholder.
        is_settled: whether it is decided for good: replaced, or found not to pay.
        is_asked: whether the caller was asked about it, and let it go.
        claim: the ref that its text names, where it looks like a placeholder.
        proof: whether it is one, where it looks like it; None while that was not tried.
        standing: the ref of the placeholder that stands in the list for it, or that it is.
        stored: the ref of the record that the session is known to hold of it: it left before.
        problem: why it stays, where a part of the caller's own failed for it.
        number: its place among all items of the history.
        ordinal: its place among the items of its type and tool.
    """

    item: Item
    decision: Decision
    text: str
    info: RecordInfo | None = None
    is_settled: bool = False
    is_asked: bool = False
    claim: str | None = None
    proof: Proof | None = None
    standing: str | None = None
    stored: str | None = None
    problem: str | None = None
    number: int = -1
    ordinal: int = -1

    @property
    def kind(self) -> tuple[str, str | None]:
        """Its type and its tool: among the items of one kind the latest may stay in view."""
        return self.item.item_type, self.item.tool_name

    @property
    def is_foreign(self) -> bool:
        """Whether its text looks like a placeholder and is none."""
        return self.proof == "foreign"

    @property
    def is_replaced(self) -> bool:
        """Whether another text stands in its place."""
        return self.text is not self.item.text

    @property
    def tokens_freed(self) -> int:
        """Tokens that the replacement frees."""
        return self.decision.item.tokens - self.decision.tokens_after

    @property
    def chars_freed(self) -> int:
        """Characters that the replacement frees."""
        return len(self.item.text) - len(self.text)


class Place(NamedTuple):
    """An item of the history; `at` is the index of its message."""

    at: int
    slot: Slot


@dataclass(slots=True)
class Entry:
    """One message of the history.

    Attributes:
        message: the message as it was handed over.
        slots: its items.
        fixed_tokens: tokens of its texts that are no items.
        calls: the tool calls that it makes, id → tool name.
        answers: assistant messages up to and with this one.
        said: role → how its last text up to and with this message begins, a call's arguments included.
        output: the message with its items replaced, as the caller got it; None while nothing in it is.
        seen: how the message looked.
        output_seen: how its output looked.
        freed: tokens that its replaced items free.
        renamed: what the ids of its calls meant before, for taking it back.
    """

    message: Any
    slots: list[Slot]
    fixed_tokens: int
    calls: dict[str, str]
    answers: int
    role: str
    said: Mapping[str, str] = field(default_factory=dict)
    output: Any = None
    seen: Any = None
    output_seen: Any = None
    freed: int = 0
    renamed: dict[str, str | None] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens of all its texts as they were handed over."""
        return self.fixed_tokens + sum(slot.decision.item.tokens for slot in self.slots)


class Decisions:
    """The decision on every item, in order.

    `parts` costs no pass over all of them: a part that was given out is copied before it is changed.
    """

    def __init__(self) -> None:
        self._parts: list[list[Decision]] = []
        self._is_given: list[bool] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def append(self, decision: Decision) -> None:
        """Add the decision on the next item."""
        if self._length % _PART == 0:
            self._parts.append([])
            self._is_given.append(False)
        self._own(len(self._parts) - 1).append(decision)
        self._length += 1

    def __setitem__(self, number: int, decision: Decision) -> None:
        self._own(number // _PART)[number % _PART] = decision

    def truncate(self, length: int) -> None:
        """Forget all but the first `length`."""
        count = -(-length // _PART)
        del self._parts[count:], self._is_given[count:]
        self._length = length
        if length % _PART:
            del self._own(count - 1)[length % _PART :]

    def parts(self) -> tuple[Sequence[Decision], ...]:
        """Return all decisions in parts that do not change any more."""
        self._is_given = [True] * len(self._parts)
        return tuple(self._parts)

    def _own(self, part: int) -> list[Decision]:
        if self._is_given[part]:
            self._parts[part] = self._parts[part].copy()
            self._is_given[part] = False
        return self._parts[part]


class History:
    """The messages of the last turn, entry by entry, and what is true of all of them.

    Attributes:
        tool_names: the tool calls that were seen, id → tool name.
        decisions: the decision on every item, in order.
        tokens: tokens of all texts as they were handed over.
        tokens_freed: tokens that all replacements free.
        chars_freed: characters that all replacements free.
    """

    def __init__(self) -> None:
        self.tool_names: dict[str, str] = {}
        self.decisions = Decisions()
        self.tokens = self.tokens_freed = self.chars_freed = 0
        self._entries: list[Entry] = []
        self._messages: list[Any] = []
        self._output: list[Any] = []
        # Items that may still be replaced; and those that may be only together with others, by their turn.
        self._open: list[Place] = []
        self._small: dict[int, list[Place]] = {}
        self._small_saving = 0
        # Of the items that a record stands for: their numbers and their records, in order.
        self._numbers: list[int] = []
        self._infos: list[RecordInfo] = []
        self._kinds: Counter[tuple[str, str | None]] = Counter()
        # How many texts of the list are the placeholder of each ref, as it came or was put there.
        self._standing: Counter[str] = Counter()
        self._next_watched = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def answers(self) -> int:
        """Assistant messages in the history."""
        return self.answers_of(len(self._entries) - 1)

    def answers_of(self, index: int) -> int:
        """Return how many assistant messages there are up to and with the one at `index`."""
        return self._entries[index].answers if 0 <= index < len(self._entries) else 0

    @property
    def role(self) -> str:
        """The role of the last message."""
        return self._entries[-1].role if self._entries else ""

    @property
    def said(self) -> Mapping[str, str]:
        """Role → how the last text of that role in the history begins."""
        return self._entries[-1].said if self._entries else {}

    def asked(self, index: int) -> str:
        """Return what the message at `index` answers: the last call and the last user text before it.

        It depends on nothing that comes later, so a preview made of it is the same in every turn.
        """
        said = self._entries[index - 1].said if index else {}
        return "\n".join(said.get(role, "") for role in ("assistant", "user"))

    # Taking in

    def keep_common(self, messages: Sequence[Any]) -> int:
        """Forget what does not stand at the beginning of `messages`; return how many entries are kept.

        A message that was edited in place counts as another message once that is seen.
        """
        kept = min(self._common(messages), self._first_edited(messages))
        if kept < len(self._entries):
            self._truncate(kept)
        return kept

    def forget(self, message: Any) -> bool:
        """Forget `message` and what came after it, as if it was edited; tell whether it was known."""
        for index, known in enumerate(self._messages):
            if known is message:
                self._truncate(index)
                return True
        return False

    def add(self, entry: Entry) -> None:
        """Append an entry; its items are open."""
        index = len(self._entries)
        entry.renamed = {call: self.tool_names.get(call) for call in entry.calls}
        entry.seen = look(entry.message)
        self._entries.append(entry)
        self._messages.append(entry.message)
        self._output.append(entry.message)
        self.tokens += entry.tokens
        self.tool_names.update(entry.calls)
        for slot in entry.slots:
            slot.number = len(self.decisions)
            slot.ordinal = self._kinds[slot.kind]
            self._kinds[slot.kind] += 1
            self.decisions.append(slot.decision)
            self._open.append(Place(index, slot))

    def since(self, index: int) -> list[Place]:
        """Return the items of the entries from `index` on."""
        return [Place(i, s) for i in range(index, len(self._entries)) for s in self._entries[i].slots]

    def turns(self, known: int) -> Iterator[list[Place]]:
        """Yield the items of each turn with messages after the first `known`, and of the last turn always."""
        first = max(0, min(known, len(self) - 1))
        while first > 0 and self.answers_of(first - 1) == self.answers_of(first):
            first -= 1
        for _, places in groupby(self.since(first), lambda place: self.answers_of(place.at)):
            yield list(places)

    # What may leave

    def open_places(self) -> list[Place]:
        """Return the items that may still be replaced, in no order."""
        return list(self._open)

    def close(self, closed: Iterable[Slot]) -> None:
        """Note that items are not to be looked at again."""
        numbers = {slot.number for slot in closed}
        if numbers:
            self._open = [place for place in self._open if place.slot.number not in numbers]

    def note_standing(self, slot: Slot, ref: str) -> None:
        """Note that a text of the list is the placeholder of record `ref`."""
        if slot.standing is None:
            slot.standing = ref
            self._standing[ref] += 1

    def holds(self, ref: str | None) -> bool:
        """Tell whether a text of the list is the placeholder of record `ref`."""
        return ref is not None and self._standing[ref] > 0

    def set_aside(self, place: Place) -> None:
        """Note an item that may leave only together with others."""
        self._small.setdefault(self.answers_of(place.at), []).append(place)
        self._small_saving += max(0, saving(place.slot.decision))

    def small_of(self, answers: int) -> list[Place]:
        """Return the items that may leave together, of the turn after so many answers."""
        return list(self._small.get(answers, ()))

    def turns_since(self, index: int) -> list[int]:
        """Return the turns, by their answers, that the entries from `index` on belong to."""
        return list(dict.fromkeys(entry.answers for entry in self._entries[index:]))

    def small(self) -> list[Place]:
        """Return all items that may leave only together with others."""
        return list(chain.from_iterable(self._small.values()))

    @property
    def small_saving(self) -> int:
        """About how many tokens `small` frees at most."""
        return self._small_saving

    def reopen(self, places: Sequence[Place]) -> None:
        """Note that items leave after all that were closed, or may leave only together."""
        still_open = {place.slot.number for place in self._open} if places else ()
        for place in places:
            answers = self.answers_of(place.at)
            turn = self._small.get(answers, [])
            kept = [other for other in turn if other.slot.number != place.slot.number]
            if len(kept) < len(turn):
                self._small[answers] = kept
                self._small_saving -= max(0, saving(place.slot.decision))
            if place.slot.number not in still_open:
                self._open.append(place)

    def facts(self, place: Place) -> ItemFacts:
        """Return the facts of an item as they are now."""
        slot = place.slot
        return slot.decision.item._replace(
            answers=self.answers - self.answers_of(place.at),
            newer=self._kinds[slot.kind] - slot.ordinal - 1,
        )

    def decide(self, slot: Slot, decision: Decision) -> None:
        """Note what is to become of an item that stands in its message as it came."""
        slot.decision = decision
        self.decisions[slot.number] = decision

    def recount(self, place: Place, tokens: int) -> None:
        """Note how many tokens an item that stands in its message takes, which was an estimate before."""
        decision = place.slot.decision
        self.tokens += tokens - decision.item.tokens
        facts = decision.item._replace(tokens=tokens)
        self.decide(place.slot, replace(decision, item=facts, tokens_after=tokens))

    # What left

    def put(self, place: Place, text: str, info: RecordInfo | None, decision: Decision) -> None:
        """Note that `text` stands for an item from now on, and its record if there is one."""
        slot, entry = place.slot, self._entries[place.at]
        self._count(entry, slot, -1)
        slot.text, slot.info = text, info
        self.decide(slot, decision)
        self._count(entry, slot, 1)
        if info is not None:
            at = bisect_left(self._numbers, slot.number)
            self._numbers.insert(at, slot.number)
            self._infos.insert(at, info)
            self.note_standing(slot, info.ref)

    def put_back(self, place: Place, reason: str) -> None:
        """Note that an item stands in its message as it came after all."""
        slot, entry = place.slot, self._entries[place.at]
        self._count(entry, slot, -1)
        at = bisect_left(self._numbers, slot.number)
        if slot.info is not None and self._numbers[at : at + 1] == [slot.number]:
            del self._numbers[at], self._infos[at]
        slot.text, slot.info, slot.is_settled = slot.item.text, None, True
        decision = replace(slot.decision, action="keep", reason=reason, ref=None)
        self.decide(slot, replace(decision, tokens_after=decision.item.tokens))

    def entry(self, index: int) -> Entry:
        """Return the entry at `index`; only the history changes it."""
        return self._entries[index]

    def set_output(self, index: int, output: Any) -> None:
        """Give the entry at `index` an output of its own."""
        entry = self._entries[index]
        entry.output, entry.output_seen = output, look(output)
        self._output[index] = output

    def output(self) -> list[Any]:
        """Return the messages with the replaced ones in place; all others are the objects that came."""
        return self._output.copy()

    def edited_outputs(self) -> list[int]:
        """Return the indexes of outputs that the caller changed since it got them, of those looked at now."""
        return [
            i
            for i in self._watched()
            if self._entries[i].output is not None
            and not is_same(self._entries[i].output_seen, self._output[i])
        ]

    def infos(self) -> list[RecordInfo]:
        """Return the record behind each placeholder that replaced an item, in order."""
        return self._infos.copy()

    def cache_report(self, known: int, late: Sequence[Place]) -> CacheReport | None:
        """Return what it costs a provider's cache that items of the first `known` entries left just now.

        None if none of `late`, which were to leave, did.
        """
        left = [place for place in late if place.slot.is_replaced]
        if not left:
            return None
        after = self._entries[min(place.at for place in left) : known]
        sent = sum(entry.tokens - entry.freed for entry in after)
        return CacheReport(sum(place.slot.tokens_freed for place in left), sent)

    def end_turn(self) -> None:
        """Move on to the next of the older messages."""
        older = len(self._entries) - LAST_WATCHED
        self._next_watched = self._next_watched + OLDER_WATCHED if older > 0 else 0
        if self._next_watched >= older:
            self._next_watched = 0

    def _count(self, entry: Entry, slot: Slot, sign: int) -> None:
        if slot.is_replaced:
            entry.freed += sign * slot.tokens_freed
            self.tokens_freed += sign * slot.tokens_freed
            self.chars_freed += sign * slot.chars_freed

    def _common(self, messages: Sequence[Any]) -> int:
        """Return how many messages are those of the last turn, or equal to them.

        One comparison of lists, whose elements are compared by identity first, tells it of lists that grew.
        """
        held, length = self._messages, len(self._messages)
        held.extend(messages[length:])
        try:
            is_whole = messages == held
        except Exception:  # noqa: BLE001 # what a message holds may not be comparable
            is_whole = False
        finally:
            del held[length:]
        if is_whole:
            return length
        pairs = zip(messages, held, strict=False)
        differing = (i for i, (a, b) in enumerate(pairs) if a is not b and not _is_equal(a, b))
        return next(differing, min(length, len(messages)))

    def _watched(self) -> Iterable[int]:
        count = len(self._entries)
        last = max(0, count - LAST_WATCHED)
        older = range(self._next_watched, min(last, self._next_watched + OLDER_WATCHED))
        waiting = {place.at for place in self._open if place.at < last and place.at not in older}
        return chain(sorted(waiting), older, range(last, count))

    def _first_edited(self, messages: Sequence[Any]) -> int:
        """Return the index of the first message that was edited, of those looked at in this turn."""
        known = min(len(messages), len(self._entries))
        renewed = False
        for i in self._watched():
            if i >= known:
                continue
            if not is_same(self._entries[i].seen, self._messages[i]):
                return i
            renewed = renewed or self._messages[i] is not messages[i]
        if renewed:
            self._renew(messages[:known])
        return known

    def _renew(self, messages: Sequence[Any]) -> None:
        """Take equal messages that are new objects for the ones that were held."""
        for i, message in enumerate(messages):
            if message is not self._messages[i]:
                entry = self._entries[i]
                self._messages[i] = entry.message = message
                entry.seen = look(message)
                if entry.output is None:
                    self._output[i] = message

    def _truncate(self, length: int) -> None:
        gone = self._entries[length:]
        for entry in gone:
            self._forget_slots(entry)
        for entry in reversed(gone):
            for call, name in entry.renamed.items():
                if name is None:
                    self.tool_names.pop(call, None)
                else:
                    self.tool_names[call] = name
        first = len(self.decisions) - sum(len(entry.slots) for entry in gone)
        self.decisions.truncate(first)
        at = bisect_left(self._numbers, first)
        del self._numbers[at:], self._infos[at:]
        del self._entries[length:], self._messages[length:], self._output[length:]
        self._open = [place for place in self._open if place.at < length]
        for answers in {entry.answers for entry in gone} & self._small.keys():
            turn = self._small.pop(answers)
            self._small_saving -= sum(max(0, saving(p.slot.decision)) for p in turn if p.at >= length)
            if kept := [place for place in turn if place.at < length]:
                self._small[answers] = kept

    def _forget_slots(self, entry: Entry) -> None:
        self.tokens -= entry.tokens
        for slot in entry.slots:
            self._kinds[slot.kind] -= 1
            self._count(entry, slot, -1)
            if slot.standing is not None:
                self._standing[slot.standing] -= 1


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 # the same
        return False
