"""The messages of earlier turns, and what they hold.

An agent passes its whole message list every turn. The log compares it with the previous one, so that a
turn's work grows with the new messages only. Totals over the whole list are running sums and sorted indexes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from offload.engine.binding import Binding, BoundThinking
from offload.engine.failures import Pending, Repair
from offload.engine.items import Items, Slot, State
from offload.engine.parts import Kept, LatestTexts, MessageState
from offload.engine.policy import ItemFacts
from offload.engine.policy.cost import CostPlan
from offload.engine.watching import Look, WatchedMessages, is_same
from offload.messages.calls import Calls
from offload.records.record.retrieval import is_answer

if TYPE_CHECKING:
    from offload.engine.policy import CacheModel, OffloadPolicy


class Moved(msgspec.Struct, frozen=True, eq=False):
    """A message that the log had at another place, and its parts."""

    look: Look
    state: MessageState


class LogChange(NamedTuple):
    """The parts of messages that a log dropped, and the index of the first new one."""

    dropped: Sequence[MessageState]
    first: int


class Log:
    """The messages of the last turn, and totals over all of them.

    Attributes:
        messages: the messages, as the caller passed and received them.
        states: the parts of each message.
        items: all their items.
        calls: the tool calls; their arguments are those in the messages.
        tokens: tokens of all texts as they were passed.
        thinking: the signed thinking in the messages.
        plan: decides which items are offloaded by expected cost; None if none are.
        pending: what is left to do, of messages that could not be read, listed or changed.
        moved: the messages that were dropped since the last turn, by identity: the caller may pass them on.

    Args:
        plan: see above.
        gone: the parts of messages that a log dropped, see `told`.
    """

    def __init__(self, plan: CostPlan[Slot] | None = None, gone: Iterable[MessageState] = ()) -> None:
        self.plan = plan
        self.items = Items()
        self.messages = WatchedMessages()
        self.states: list[MessageState] = []
        self.calls = Calls()
        self.tokens = self._left_out = 0
        self.pending = Pending()
        self.thinking = BoundThinking(self.states, self.messages)
        self._replied_at: list[int] = []
        self.moved: dict[int, Moved] = {}
        # How many messages `take_change` returned that are still there, and the parts of those that are not.
        self._told = 0
        self._gone = [*gone]
        # The policy of the last turn, and whether messages that were sent could change then.
        self._rule: tuple[OffloadPolicy | None, bool] = None, False
        # Whether thinking may be bound by the model of the last turn; None before the first.
        self._binding: tuple[bool, bool] | None = None

    def __len__(self) -> int:
        return len(self.states)

    @property
    def tokens_freed(self) -> int:
        """Tokens that replaced items and removed thinking free."""
        return self.items.tokens_freed + self._left_out

    @property
    def answers(self) -> int:
        """Number of assistant messages in the log."""
        return self.states[-1].answers if self.states else 0

    def answers_of(self, index: int) -> int:
        """Return the number of assistant messages up to and including the one at `index`."""
        return self.states[index].answers if 0 <= index < len(self.states) else 0

    def query(self, index: int) -> str:
        """Return the text that a preview in message `index` is ranked against.

        It is the last tool call and the last user text before the message. Later messages do not change it,
        so a preview is the same in every turn.
        """
        return "\n".join(self.states[index - 1].texts if index else LatestTexts())

    def facts(
        self, slot: Slot, *, is_pinned: bool | None = None, was_stored: bool | None = None
    ) -> ItemFacts:
        """Return the current facts of an item; an argument of None keeps that fact."""
        facts = slot.decision.item
        since = self.answers_of(slot.at)
        if self.plan is not None and is_answer(facts.item_type, facts.tool_name):
            # The model still works on what it reads page after page.
            since = max(since, self.plan.last_use(slot))
        return facts._replace(
            answers=self.answers - since,
            newer=self.items.newer(slot),
            is_pinned=facts.is_pinned if is_pinned is None else is_pinned,
            was_stored=facts.was_stored if was_stored is None else was_stored,
        )

    # Messages

    def keep_common(self, messages: Sequence[Any]) -> int:
        """Drop every state from the first changed message on; return the number of states kept.

        A message that was edited in place counts as changed once the edit is noticed.
        """
        kept = self.messages.keep_common(messages, self._opened())
        self.thinking.drop(kept)
        if kept < len(self.states):
            self._truncate(kept)
        return kept

    def keep_none(self) -> int:
        """Drop all messages, and all that is known of them; return 0."""
        kept = self.keep_common(())
        self.moved.clear()
        return kept

    def take_moved(self, message: Any) -> Moved | None:
        """Return a message that was dropped since the last turn, if all that was read of it still holds."""
        moved = self.moved.pop(id(message), None)
        if moved is None or not is_same(moved.look.seen, message):
            return None
        is_known = all(map(self._still_holds, moved.state.slots))
        return Moved(moved.look, replace(moved.state, left_out=None, before=None)) if is_known else None

    def _still_holds(self, slot: Slot) -> bool:
        """Return whether an item would be read as it was: as the result of the same call.

        What a look-alike is depends on the items before it, and a failure is tried again.
        """
        item = slot.item
        if slot.claim is not None or slot.has_failed or slot.state is State.LEAVING:
            return False
        if item.item_type != "tool_result":
            return True
        asked = self.calls.get(item.tool_use_id) if item.tool_use_id else None
        if asked is None:
            return bool(item.tool_use_id) and item.call is None
        return any(call is item.call for call in asked.calls)

    def forget(self, message: Any) -> bool:
        """Drop `message`, as it was passed or received, and all later ones; return whether it was known."""
        for index, (passed, sent) in enumerate(zip(self.messages.passed, self.messages.sent, strict=True)):
            if message is passed or message is sent:
                self._truncate(index)
                return True
        return False

    def originals(self, messages: Iterable[Any]) -> list[Any]:
        """Return messages that the caller received as they were passed; None for any other.

        One that was passed with a placeholder is another: the store has its text.
        """
        at = {id(sent): index for index, sent in enumerate(self.messages.sent)}
        found = [at.get(id(message)) for message in messages]
        return [None if index is None else self._whole(index) for index in found]

    def _whole(self, index: int) -> Any:
        is_whole = all(slot.claim is None for slot in self.states[index].slots)
        return self.messages.passed[index] if is_whole else None

    def add(self, message: Any, state: MessageState, known: Look | None = None) -> bool:
        """Append a message, new or with a `known` look; return whether it begins a reply of the model.

        If it raises an exception, nothing has changed.
        """
        last = self.states[-1] if self.states else None
        # In some formats one reply consists of several messages in a row.
        begins = state.role == "assistant" and (last is None or last.role != "assistant")
        state.answers = begins + (0 if last is None else last.answers)
        state.texts = (LatestTexts() if last is None else last.texts).after(state.role, state.text)
        self.thinking.add(state)
        self.messages.add(message, known)
        if state.role == "assistant":
            self._replied_at.append(len(self.states))
        self.states.append(state)
        self.tokens += state.tokens
        state.before = self.calls.add(state.calls, state.results, is_reply=state.role == "assistant")
        self.items.add(state.slots)
        return begins

    def recount(self, slot: Slot, tokens: int) -> None:
        """Replace the estimated tokens of an item that is still in its message."""
        decision = slot.decision
        more = tokens - decision.item.tokens
        self.tokens += more
        self.states[slot.at].tokens += more
        facts = decision.item._replace(tokens=tokens)
        self.items.note(slot, replace(decision, item=facts, tokens_after=tokens))

    def edited_outputs(self) -> list[int]:
        """Return the indices of outputs that the caller edited, among the messages checked this turn."""
        return self.messages.edited_outputs(self._opened())

    def end_turn(self) -> None:
        """Prepare for the next turn."""
        self.messages.end_turn()
        self.items.compact()
        self.moved.clear()

    @property
    def told(self) -> Sequence[MessageState]:
        """The parts of all messages that `take_change` returned as new, and not as dropped."""
        return [*self._gone, *self.states[: self._told]]

    def take_change(self) -> LogChange:
        """Return what changed since the last call."""
        change = LogChange(self._gone, self._told)
        self._gone, self._told = [], len(self.states)
        return change

    def _opened(self) -> Iterator[int]:
        return (slot.at for slot in self.items.opened())

    def _truncate(self, length: int) -> None:
        dropped = zip(self.messages.looks(length), self.states[length:], strict=True)
        unread = self.pending.all(Repair.READ)
        for index, (look, state) in enumerate(dropped, length):
            if look.passed is not None and index not in unread:
                self.moved[id(look.passed)] = Moved(look, state)
        self.pending.truncate(length)
        self._gone[:0] = self.states[length : self._told]
        self._told = min(self._told, length)
        for state in reversed(self.states[length:]):
            self._drop(state)
        del self.states[length:]
        self.messages.truncate(length)
        self.thinking.truncate(length)
        del self._replied_at[bisect_left(self._replied_at, length) :]
        if self.plan is not None:
            self.plan.truncate(length)

    def _drop(self, state: MessageState) -> None:
        self.tokens -= state.tokens
        self._left_out -= state.left_out or 0
        self.items.drop(reversed(state.slots))
        if state.before is not None:
            self.calls.undo(state.before)

    # Turns of the model

    def since(self, index: int) -> list[Slot]:
        """Return the items of the messages from `index` on."""
        return self.slots_of(range(index, len(self.states)))

    def turns_above(self, limit: int, known: int) -> Iterator[range]:
        """Yield the messages of each turn whose texts as they were passed have more than `limit` tokens.

        Only turns with messages after the first `known` count, and always the last turn.
        """
        first = self._first_of_turn(known)
        for _, run in groupby(self.states[first:], attrgetter("answers")):
            states = list(run)
            if sum([state.tokens for state in states]) > limit:
                yield range(first, first + len(states))
            first += len(states)

    def slots_of(self, messages: Iterable[int]) -> list[Slot]:
        """Return the items of some messages."""
        return [slot for at in messages for slot in self.states[at].slots]

    def _first_of_turn(self, known: int) -> int:
        """Return the first message of the turn with the message `known`, or of the last turn."""
        first = max(0, min(known, len(self) - 1))
        while first > 0 and self.answers_of(first - 1) == self.answers_of(first):
            first -= 1
        return first

    def fixed_excess(self, messages: Sequence[int], ceiling: int) -> Iterator[str]:
        """Yield an error text for each part that is not an item and is above `ceiling` tokens in a turn.

        One more is for all of them, if only with the turn's items they are above it.
        """
        parts = [(at, part) for at in messages for part in self.states[at].kept]
        for at, part in parts:
            if part.tokens > ceiling:
                place = ".".join(filter(None, (f"messages[{at}]", part.where)))
                yield (
                    f"{place}: {part.kind} of {part.tokens} tokens is above max_view_tokens ({ceiling}), "
                    "and cannot be offloaded"
                )
        yield from self._fixed_total(messages, parts, ceiling)

    def _fixed_total(
        self, messages: Sequence[int], parts: Sequence[tuple[int, Kept]], ceiling: int
    ) -> Iterator[str]:
        small = [part for _, part in parts if not part.is_said and part.tokens <= ceiling]
        slots = self.slots_of(messages)
        items = [s.decision for s in slots if s.is_in_view and not s.decision.is_exempt]
        shown = sum(d.item.tokens for d in items if d.item.tokens <= ceiling)
        total = sum(part.tokens for part in small)
        if small and shown <= ceiling < shown + total:
            yield (
                f"messages[{messages[0]}] and later: {shown + total} tokens in total are above "
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

    def price(self, cache: CacheModel) -> None:
        """Decide by the prices of another prompt cache from now on."""
        if self.plan is not None:
            self.plan.cache = cache

    def note_binding(self, binding: Binding) -> bool:
        """Note the rules for messages that were sent; return whether they allow the same as before."""
        rules = binding.keeps_sent, binding.is_required
        is_same = self._binding in (None, rules)
        self._binding = rules
        return is_same

    def note_rule(self, policy: OffloadPolicy, *, is_bound: bool) -> bool:
        """Note what decides in this turn; if that is new, items that were kept are open again.

        `is_bound` says whether messages that were sent may not change.
        """
        before, self._rule = self._rule, (policy, is_bound)
        is_other = before[0] not in (None, policy)
        is_new = is_other or is_bound != before[1]
        for slot in self.since(0) if is_new else ():
            (self.items.reopen_for_policy if is_other else self.items.reopen)(slot)
        return is_new

    def leave_out(self, index: int, tokens: int | None) -> None:
        """Note how many tokens of thinking are left out of a message that the caller receives, or None."""
        state = self.states[index]
        self._left_out += (tokens or 0) - (state.left_out or 0)
        state.left_out = tokens

    def sent(self) -> int:
        """Return how many messages the last request had that the model replied to."""
        return bisect_left(self.states, self.answers, key=lambda state: state.answers)

    def unchanged(self, late: Sequence[Slot]) -> int:
        """Return how many messages at the beginning are sent as in the last call; `late` is replaced now."""
        return min([self.messages.unchanged(), *(slot.at for slot in late if slot.is_replaced)])

    def rewritten(self, sent: int, late: Sequence[Slot]) -> tuple[int, int]:
        """Return the tokens that replacing `late` frees, and those from the first change to message `sent`.

        Items of `late` that the first `sent` messages do not have change nothing in the provider's cache.
        """
        changed = [slot for slot in late if not self.messages.is_as_before(slot.at)]
        replaced = [slot for slot in changed if slot.is_replaced and slot.at < sent]
        if not replaced:
            return 0, 0
        first = min(slot.at for slot in replaced)
        return sum(slot.tokens_freed for slot in replaced), self._tokens_of(self.states[first:sent])

    def tokens_before(self, end: int) -> int:
        """Return the tokens of the messages before index `end`, with their items replaced."""
        return self.tokens - self.tokens_freed - self._tokens_of(self.states[end:]) if end else 0

    def _tokens_of(self, states: Sequence[MessageState]) -> int:
        freed = sum(slot.tokens_freed for state in states for slot in state.slots if slot.is_replaced)
        return sum(state.tokens - (state.left_out or 0) for state in states) - freed
