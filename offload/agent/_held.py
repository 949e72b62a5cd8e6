"""The messages that an agent holds: as they are sent, and as they came."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import Any

from offload.agent._journal import Line
from offload.compaction import SelectiveCompaction
from offload.context import ContextEvent, ContextIR, EventBus, EventType, ItemType
from offload.errors import ContextFullError, OffloadError
from offload.offloader import Offloader
from offload.tokens import TokenCounter

# They stand for messages by every character of theirs.
_STAND_INS = (ItemType.COMPACTION_SUMMARY, ItemType.COMPACTION_NOTICE)


class HeldMessages:
    """The context of an agent, and what of it leaves by an offloader or by a compaction.

    Args:
        token_counter: counts tokens of a text.
        events: told what happens.
    """

    def __init__(self, token_counter: TokenCounter, events: EventBus) -> None:
        self._context = ContextIR(token_counter=token_counter, event_bus=events)
        # Item id → its message as offloaders are given it, who compare with what they were given before.
        self._given: dict[str, Any] = {}
        self._arrived: deque[tuple[Any, ItemType | None]] = deque()
        self._arrival = threading.RLock()

    @property
    def messages(self) -> list[Any]:
        """The messages of a request."""
        return self._context.lower()

    @property
    def all_messages(self) -> list[Any]:
        """The messages of a request and, behind them, those that arrived since."""
        with self._arrival:
            return [*self._context.lower(), *(message for message, _ in self._arrived)]

    @property
    def tokens(self) -> int:
        """Their tokens, an estimate."""
        return self._context.total_tokens

    def lines(self) -> list[Line]:
        """Return them with what each is."""
        items = (*self._context.header.items, *self._context.conversation.items)
        return [Line(item.item_type, item.message) for item in items]

    def arrive(self, message: Any, item_type: ItemType | None = None) -> None:
        """Append a message that is taken in later: at once, whatever another thread does to the others."""
        kind = None if item_type is None else ItemType(item_type)
        with self._arrival:
            self._arrived.append((message, kind))

    def take_in(self) -> None:
        """Take in what arrived."""
        with self._arrival:
            while self._arrived:
                self._add(*self._arrived.popleft())

    def _add(self, message: Any, item_type: ItemType | None) -> None:
        """Append a message; a system message in the midst of a conversation keeps its place there."""
        context = self._context
        item = context.new_item(message, item_type)
        if item.item_type is ItemType.SYSTEM_PROMPT and context.conversation.items:
            context.conversation.items.append(item)
        else:
            item = context.add_message(message, item_type)
        self._given[item.id] = message

    def offload(self, offloader: Offloader, *, for_good: bool = False) -> list[OffloadError]:
        """Have items leave; return what failed.

        Args:
            offloader: whose policy it goes by.
            for_good: whether it goes by what is left of the messages, and all others by what it leaves.
        """
        items = self._context.conversation.items
        places = [i for i, item in enumerate(items) if item.item_type not in _STAND_INS]
        given = [items[i].message if for_good else self._given[items[i].id] for i in places]
        result = offloader.offload(given)
        changed = [(i, m) for i, m in zip(places, result.messages, strict=True) if m is not items[i].message]
        before = self._context.total_tokens
        for i, message in changed:
            items[i] = replace(self._context.new_item(message, items[i].item_type), id=items[i].id)
            if for_good:
                self._given[items[i].id] = message
        if changed:
            self._tell_offloaded(len(changed), before - self._context.total_tokens)
        return result.errors

    def compact(self, strategy: SelectiveCompaction, tokens: int) -> list[OffloadError]:
        """Have messages leave; return what failed.

        Args:
            strategy: which of them, and what stands for them.
            tokens: what the context takes, as its provider would count.
        """
        result = self._context.auto_compact(strategy, current_total_tokens=tokens)
        items = self._context.conversation.items
        self._given = {item.id: self._given.get(item.id, item.message) for item in items}
        # That it cannot be made small enough shows in the request, if it matters.
        is_failure = result.error is not None and not isinstance(result.error, ContextFullError)
        return [result.error] if result.error is not None and is_failure else []

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
