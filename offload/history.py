"""What the messages of earlier turns held, so that a turn's work grows with what is new in it.

An agent hands over its whole list of messages each turn. The history keeps what was found in each one
and compares: the common beginning costs one comparison of two lists, only the rest is looked at again.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from offload.messages import Item
from offload.policy import Decision, ItemFacts
from offload.record import RecordInfo
from offload.results import CacheReport


@dataclass(slots=True)
class Slot:
    """One item in the history, and what stands for it now.

    Attributes:
        item: the item as it was found.
        decision: what became of it.
        text: what stands in the message for it: its own text, a placeholder, a truncation.
        info: its record, once the text is a placeholder.
        is_settled: whether it is decided for good: replaced, or found not to pay.
        is_asked: whether the caller was asked about it.
        number: its place among all items of the history.
        ordinal: its place among the items of its type and tool.
    """

    item: Item
    decision: Decision
    text: str
    info: RecordInfo | None = None
    is_settled: bool = False
    is_asked: bool = False
    number: int = -1
    ordinal: int = -1

    @property
    def kind(self) -> tuple[str, str | None]:
        """Its type and its tool: among the items of one kind the latest may stay in view."""
        return self.item.item_type, self.item.tool_name

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
        rendered: the output as it was made.
    """

    message: Any
    slots: list[Slot]
    fixed_tokens: int
    calls: dict[str, str]
    answers: int
    role: str
    said: Mapping[str, str] = field(default_factory=dict)
    output: Any = None
    rendered: Any = None

    @property
    def tokens(self) -> int:
        """Tokens of all its texts as they were handed over."""
        return self.fixed_tokens + sum(slot.decision.item.tokens for slot in self.slots)


@dataclass(slots=True)
class History:
    """The messages of the last turn, entry by entry, and what is true of all of them.

    Attributes:
        entries: one per message.
        tool_names: the tool calls that were seen, id → tool name.
        open_slots: items that may still be replaced, with the index of their message.
        small_slots: items that may be replaced only together with others, the same way.
        decisions: the decision on every item, in order.
        tokens: tokens of all texts as they were handed over.
    """

    entries: list[Entry] = field(default_factory=list)
    tool_names: dict[str, str] = field(default_factory=dict)
    open_slots: list[tuple[int, Slot]] = field(default_factory=list)
    small_slots: list[tuple[int, Slot]] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    tokens: int = 0
    _messages: list[Any] = field(default_factory=list)
    _replaced: list[int] = field(default_factory=list)
    _snapshots: dict[int, Any] = field(default_factory=dict)
    _kinds: Counter[tuple[str, str | None]] = field(default_factory=Counter)

    @property
    def answers(self) -> int:
        """Assistant messages in the history."""
        return self.entries[-1].answers if self.entries else 0

    @property
    def role(self) -> str:
        """The role of the last message."""
        return self.entries[-1].role if self.entries else ""

    @property
    def said(self) -> Mapping[str, str]:
        """Role → how the last text of that role in the history begins."""
        return self.entries[-1].said if self.entries else {}

    def asked(self, index: int) -> str:
        """Return what the message at `index` answers: the last call and the last user text before it.

        It depends on nothing that comes later, so a preview made of it is the same in every turn.
        """
        said = self.entries[index - 1].said if index else {}
        return "\n".join(said.get(role, "") for role in ("assistant", "user"))

    def keep_common(self, messages: Sequence[Any]) -> int:
        """Forget what does not stand at the beginning of `messages`; return how many entries are kept.

        A message that was edited in place counts as another message if it is watched.
        """
        kept = self._common(messages)
        if kept < len(self.entries):
            self._truncate(kept)
        return kept

    def add(self, entry: Entry) -> None:
        """Append an entry; its items are open."""
        index = len(self.entries)
        self.entries.append(entry)
        self._messages.append(entry.message)
        self.tokens += entry.tokens
        self.tool_names.update(entry.calls)
        for slot in entry.slots:
            slot.number = len(self.decisions)
            slot.ordinal = self._kinds[slot.kind]
            self._kinds[slot.kind] += 1
            self.decisions.append(slot.decision)
            self.open_slots.append((index, slot))

    def facts(self, index: int, slot: Slot) -> ItemFacts:
        """Return the facts of an item of the entry at `index` as they are now."""
        return slot.decision.item._replace(
            answers=self.answers - self.entries[index].answers,
            newer=self._kinds[slot.kind] - slot.ordinal - 1,
        )

    def decide(self, slot: Slot, decision: Decision) -> None:
        """Note what became of an item."""
        slot.decision = decision
        self.decisions[slot.number] = decision

    def put_back(self, slot: Slot, reason: str) -> None:
        """Note that an item stands in its message as it came after all."""
        slot.text, slot.info, slot.is_settled = slot.item.text, None, True
        decision = replace(slot.decision, action="keep", reason=reason, ref=None)
        self.decide(slot, replace(decision, tokens_after=decision.item.tokens))

    def set_output(self, index: int, output: Any) -> None:
        """Give the entry at `index` an output of its own."""
        self.entries[index].output = output
        self.entries[index].rendered = _snapshot(output)
        if index not in self._replaced:
            insort(self._replaced, index)

    def watch(self) -> None:
        """End a turn: remember how those messages look whose edit in place must not pass unseen.

        These are the last one, where callers add blocks, and all with an item that is or may be replaced.
        """
        undecided = (i for i, _ in (*self.open_slots, *self.small_slots))
        watched = {
            len(self.entries) - 1,
            *self._replaced,
            *undecided,
        }
        self._snapshots = {
            i: self._snapshots[i] if i in self._snapshots else _snapshot(self._messages[i])
            for i in watched
            if i >= 0
        }

    def output(self, messages: Sequence[Any]) -> list[Any]:
        """Return `messages` with the replaced ones in place; all others are the same objects.

        What the caller did to an output that it got before is not in the one that it gets now.
        """
        out = list(messages)
        for i in self._replaced:
            entry = self.entries[i]
            if entry.output != entry.rendered:
                entry.output = _snapshot(entry.rendered)
            out[i] = entry.output
        return out

    @property
    def tokens_freed(self) -> int:
        """Tokens that all replacements free."""
        return sum(slot.tokens_freed for slot in self.replaced_slots())

    def cache_report(self, known: int, late: Sequence[Slot]) -> CacheReport | None:
        """Return what it costs a provider's cache that items of the first `known` entries left just now.

        None if none of `late`, which were to leave, did.
        """
        left = [slot for slot in late if slot.is_replaced]
        if not left:
            return None
        numbers = {slot.number for slot in left}
        first = next(i for i, e in enumerate(self.entries) if any(s.number in numbers for s in e.slots))
        after = self.entries[first:known]
        sent = sum(entry.tokens - sum(s.tokens_freed for s in entry.slots) for entry in after)
        return CacheReport(sum(slot.tokens_freed for slot in left), sent)

    def replaced_slots(self) -> list[Slot]:
        """Return the items for which another text stands, in order."""
        return [slot for i in self._replaced for slot in self.entries[i].slots if slot.is_replaced]

    def _common(self, messages: Sequence[Any]) -> int:
        length = min(len(messages), len(self._messages))
        if list(messages[:length]) != self._messages[:length]:
            pairs = zip(messages, self._messages, strict=False)
            length = next(i for i, (a, b) in enumerate(pairs) if a is not b and a != b)
        edited = (i for i, s in self._snapshots.items() if i < length and self._messages[i] != s)
        return min(edited, default=length)

    def _truncate(self, length: int) -> None:
        gone = self.entries[length:]
        self._kinds.subtract(slot.kind for entry in gone for slot in entry.slots)
        self.tokens -= sum(entry.tokens for entry in gone)
        del self.decisions[len(self.decisions) - sum(len(entry.slots) for entry in gone) :]
        del self.entries[length:], self._messages[length:]
        # An id may come twice, under two names.
        self.tool_names = {k: v for entry in self.entries for k, v in entry.calls.items()}
        self.open_slots = [(i, s) for i, s in self.open_slots if i < length]
        self.small_slots = [(i, s) for i, s in self.small_slots if i < length]
        self._replaced = [i for i in self._replaced if i < length]
        self._snapshots = {i: s for i, s in self._snapshots.items() if i < length}


def _snapshot(thing: Any) -> Any:
    """Copy the containers of a message, so that an edit in place shows; texts are shared."""
    try:
        return _copied(thing)
    except RecursionError:
        return thing


def _copied(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {key: _copied(value) for key, value in thing.items()}
    if isinstance(thing, list):
        return [_copied(value) for value in thing]
    if isinstance(thing, tuple):
        return tuple(_copied(value) for value in thing) if type(thing) is tuple else thing
    return thing.model_copy(deep=True) if hasattr(thing, "model_copy") else thing
