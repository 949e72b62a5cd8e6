"""The messages that an agent holds: as they are sent, and as they came."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from offload.compaction import SelectiveCompaction
from offload.context import ContextEvent, ContextIR, ContextItem, EventBus, EventType, ItemType
from offload.context._tokens import are_equal
from offload.errors import ContextFullError, MessageError, OffloadError
from offload.locks import Lock
from offload.offloader import Offloader
from offload.tokens import TokenCounter

# They stand for messages by every character of theirs.
_STAND_INS = (ItemType.COMPACTION_SUMMARY, ItemType.COMPACTION_NOTICE)
# So many messages are compared one by one.
_FEW = 8


class HeldMessages:
    """The context of an agent, and what of it leaves by an offloader or by a compaction.

    Args:
        token_counter: counts tokens of a text.
        events: told what happens.

    Attributes:
        settled: how many lines from the first on are as they were when this was last set to their number.
    """

    def __init__(self, token_counter: TokenCounter, events: EventBus) -> None:
        self._context = ContextIR(token_counter=token_counter, event_bus=events)
        self.settled = 0
        # Of each item that offloaders are given: its place, its message as they are given it, who compare
        # with what they were given before, and the message that stands there now.
        self._places: list[int] = []
        self._given: list[Any] = []
        self._shown: list[Any] = []
        self._arrived: deque[ContextItem] = deque()
        self._arrival = Lock()

    @property
    def messages(self) -> list[Any]:
        """The messages of a request."""
        return self._context.lower()

    @property
    def all_messages(self) -> list[Any]:
        """The messages of a request and, behind them, those that arrived since."""
        with self._arrival:
            return [*self._context.lower(), *(item.message for item in self._arrived)]

    @property
    def tokens(self) -> int:
        """Their tokens, an estimate."""
        return self._context.total_tokens

    @property
    def count(self) -> int:
        """How many lines there are: the messages of a request."""
        return len(self._context.header.items) + len(self._context.conversation.items)

    def lines(self, start: int = 0) -> Sequence[ContextItem]:
        """Return the items from the `start`-th on."""
        header, items = self._context.header.items, self._context.conversation.items
        return items[start - len(header) :] if start >= len(header) else [*header[start:], *items]

    def arrive(self, message: Any, item_type: ItemType | None = None) -> None:
        """Append a message that is taken in later: at once, whatever another thread does to the others.

        Raises `MessageError` for what is no message.
        """
        if message is None or isinstance(message, str | bytes | list | tuple):
            raise MessageError(f"a message is a dict or an SDK's object, one at a time, not {message!r:.60}")
        try:
            item = self._context.new_item(message, item_type)
        except OffloadError:
            raise
        except Exception as error:
            raise MessageError(f"a {type(message).__name__} is no message: {error!r:.60}") from error
        with self._arrival:
            self._arrived.append(item)

    def take_in(self) -> None:
        """Take in what arrived."""
        with self._arrival:
            while self._arrived:
                self._add(self._arrived.popleft())

    def _add(self, item: ContextItem) -> None:
        """Append an item; a system message in the midst of a conversation keeps its place there."""
        context = self._context
        place = len(context.conversation.items)
        if item.item_type is ItemType.SYSTEM_PROMPT and place:
            context.conversation.items.append(item)
        else:
            context.add_item(item)
        if len(context.conversation.items) > place:
            self._register(place, item, item.message)
        else:
            self.settled = min(self.settled, len(context.header.items) - 1)

    def _register(self, place: int, item: ContextItem, given: Any) -> None:
        if item.item_type not in _STAND_INS:
            self._places.append(place)
            self._given.append(given)
            self._shown.append(item.message)

    def offload(self, offloader: Offloader, *, for_good: bool = False) -> list[OffloadError]:
        """Have items leave; return what failed.

        Args:
            offloader: whose policy it goes by.
            for_good: whether it goes by what is left of the messages, and all others by what it leaves.
        """
        result = offloader.offload(self._shown if for_good else self._given)
        changed = _differing(self._shown, result.messages)
        before = self._context.total_tokens
        for index in changed:
            self._replace(index, result.messages[index], for_good=for_good)
        if changed:
            self._tell_offloaded(len(changed), before - self._context.total_tokens)
        return result.errors

    def _replace(self, index: int, message: Any, *, for_good: bool) -> None:
        items, place = self._context.conversation.items, self._places[index]
        items[place] = replace(self._context.new_item(message, items[place].item_type), id=items[place].id)
        self._shown[index] = message
        if for_good:
            self._given[index] = message
        self.settled = min(self.settled, len(self._context.header.items) + place)

    def compact(self, strategy: SelectiveCompaction, tokens: int) -> list[OffloadError]:
        """Have messages leave; return what failed.

        Args:
            strategy: which of them, and what stands for them.
            tokens: what the context takes, as its provider would count.
        """
        items = self._context.conversation.items
        result = self._context.auto_compact(strategy, current_total_tokens=tokens)
        if result.is_compacted:
            self._register_anew(
                {items[p].id: given for p, given in zip(self._places, self._given, strict=True)}
            )
        # That it cannot be made small enough shows in the request, if it matters.
        is_failure = result.error is not None and not isinstance(result.error, ContextFullError)
        return [result.error] if result.error is not None and is_failure else []

    def _register_anew(self, given: Mapping[str, Any]) -> None:
        self._places, self._given, self._shown = [], [], []
        self.settled = min(self.settled, len(self._context.header.items))
        for place, item in enumerate(self._context.conversation.items):
            self._register(place, item, given.get(item.id, item.message))

    def restored(self, offloader: Offloader, strategy: SelectiveCompaction) -> list[Any]:
        """Return all that was ever added, as it was. Raises `OffloadError`."""
        messages = self._context.conversation_messages
        while True:
            # What left by compaction may hold placeholders, and the other way round.
            restored = offloader.restore(strategy.restore(messages))
            if restored == messages:
                return [*(item.message for item in self._context.header.items), *restored]
            messages = restored

    def _tell_offloaded(self, count: int, freed: int) -> None:
        detail = f"{count} messages became smaller, by {freed} tokens"
        data = {"messages": count, "tokens": freed}
        self._context.event_bus.emit(ContextEvent(EventType.ITEMS_OFFLOADED, detail, data))


def _differing(some: list[Any], others: list[Any]) -> list[int]:
    """Return the indices at which two lists of one length hold another message, in few steps where few do."""
    if are_equal(some, others):
        return []
    if len(some) <= _FEW:
        return [i for i, (one, other) in enumerate(zip(some, others, strict=True)) if one is not other]
    half = len(some) // 2
    later = _differing(some[half:], others[half:])
    return [*_differing(some[:half], others[:half]), *(half + i for i in later)]
