"""The context of an agent as items in segments, from which the messages of each request are made."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from typing import Any, Protocol, TypeVar

from offload.context._pairs import partners
from offload.context._tokens import MessageCounter
from offload.errors import ConfigError
from offload.events import ContextEvent, EventBus, EventType
from offload.messages import SYSTEM_ROLES, adapter_for, answered_calls, is_result, role_or_none, scan_of
from offload.threads import in_thread
from offload.tokens import TokenCounter


class ItemType(StrEnum):
    """What an item of the context is."""

    SYSTEM_PROMPT = "system_prompt"
    SUBAGENT_STRATEGY = "subagent_strategy"
    SKILL_STRATEGY = "skill_strategy"
    USER_MESSAGE = "user_message"
    ASSISTANT_MESSAGE = "assistant_message"
    TOOL_RESULT = "tool_result"
    SKILL_METADATA = "skill_metadata"
    SKILL_PROMPT = "skill_prompt"
    COMPACTION_SUMMARY = "compaction_summary"
    COMPACTION_NOTICE = "compaction_notice"


class SegmentName(StrEnum):
    """The two parts of a context: what always stays, and what grows."""

    HEADER = "header"
    CONVERSATION = "conversation"


# What is the first to go has the lowest.
PRIORITIES: Mapping[ItemType, int] = {
    ItemType.COMPACTION_NOTICE: 5,
    ItemType.TOOL_RESULT: 10,
    ItemType.SKILL_PROMPT: 20,
    ItemType.SKILL_METADATA: 30,
    ItemType.ASSISTANT_MESSAGE: 40,
    ItemType.USER_MESSAGE: 50,
    ItemType.COMPACTION_SUMMARY: 80,
    ItemType.SKILL_STRATEGY: 90,
    ItemType.SUBAGENT_STRATEGY: 90,
    ItemType.SYSTEM_PROMPT: 100,
}
_IN_HEADER = (ItemType.SYSTEM_PROMPT, ItemType.SUBAGENT_STRATEGY, ItemType.SKILL_STRATEGY)

ResultT_co = TypeVar("ResultT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ContextItem:
    """One message of the context, and what is known of it.

    Attributes:
        id: its name in this context, never given twice.
        item_type: what it is.
        message: the message, in the format of its provider.
        content_text: its texts, joined by newlines.
        token_count: its tokens, 4 for the frame of a message included.
        priority: the higher, the longer it stays.
    """

    id: str
    item_type: ItemType
    message: Any
    content_text: str
    token_count: int
    priority: int


class _Items(list[ContextItem]):
    """Items in their order, with the sum of their tokens and a list of their messages kept along.

    Appending an item and replacing one keep both as they go; after any other change they are made anew.
    """

    def __init__(self, items: Iterable[ContextItem] = ()) -> None:
        super().__init__(items)
        self._is_stale = True
        self._tokens = 0
        self._messages: list[Any] = []

    def append(self, item: ContextItem) -> None:
        super().append(item)
        self._tokens += item.token_count
        self._messages.append(item.message)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, int) and not self._is_stale:
            self._tokens += value.token_count - self[index].token_count
            self._messages[index] = value.message
        else:
            self._is_stale = True
        super().__setitem__(index, value)

    def __reduce__(self) -> Any:
        return _Items, (list(self),)

    @property
    def tokens(self) -> int:
        self._freshen()
        return self._tokens

    @property
    def messages(self) -> list[Any]:
        self._freshen()
        return self._messages

    def _freshen(self) -> None:
        if self._is_stale:
            self._tokens = sum(item.token_count for item in self)
            self._messages = [item.message for item in self]
            self._is_stale = False


def _staling(name: str) -> Callable[..., Any]:
    change = getattr(list, name)

    @wraps(change)
    def changed(items: _Items, *args: Any, **options: Any) -> Any:
        items._is_stale = True  # noqa: SLF001 # a method of that class
        return change(items, *args, **options)

    return changed


for _name in (
    *("extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("__delitem__", "__iadd__", "__imul__"),
):
    setattr(_Items, _name, _staling(_name))


class Segment:
    """A part of the context: items in their order.

    Args:
        name: which part it is.
        items: its items.

    Attributes:
        name: which part it is.
    """

    def __init__(self, name: SegmentName, items: Iterable[ContextItem] = ()) -> None:
        self.name = name
        self._items = _Items(items)

    @property
    def items(self) -> list[ContextItem]:
        """Its items; they may be changed."""
        return self._items

    @items.setter
    def items(self, items: Iterable[ContextItem]) -> None:
        self._items = _Items(items)

    @property
    def messages(self) -> Sequence[Any]:
        """The messages of its items, in order: as they stand now, and not to be changed."""
        return self._items.messages

    @property
    def tokens(self) -> int:
        """Tokens of all its items, a sum that is kept."""
        return self._items.tokens

    def of_type(self, item_type: ItemType) -> list[ContextItem]:
        """Return its items of one type, oldest first."""
        return [item for item in self._items if item.item_type == item_type]


class ContextCompactor(Protocol[ResultT_co]):
    """Makes a context shorter in place where it is due."""

    def compact(self, context: ContextIR, *, current_total_tokens: int | None = None) -> ResultT_co:
        """Compact `context` if it is due; return what was done.

        Args:
            context: the context, changed in place.
            current_total_tokens: what the provider counted; without it, the context's own count.
        """
        ...


class ContextIR:
    """The context of an agent: a header that stays, and a conversation that can be compacted.

    What is removed takes along what cannot stay without it: a tool call leaves with its results and
    the results with their call, since a provider refuses one without the other.

    Args:
        token_counter: counts tokens of a text; the default is the offline estimate.
        event_bus: told `item_added`, `item_removed` (data: `ids`, `tokens`) and `conversation_replaced`
            (data: `items`); a compaction tells the rest.

    Attributes:
        header: system prompt and strategies.
        conversation: all else.
        event_bus: who is told.
    """

    def __init__(
        self, *, token_counter: TokenCounter | None = None, event_bus: EventBus | None = None
    ) -> None:
        self.header = Segment(SegmentName.HEADER)
        self.conversation = Segment(SegmentName.CONVERSATION)
        self.event_bus = EventBus() if event_bus is None else event_bus
        self._counter = MessageCounter(token_counter)
        self._numbers = itertools.count(1)

    @property
    def total_tokens(self) -> int:
        """Tokens of both segments."""
        return self.header.tokens + self.conversation.tokens

    @property
    def conversation_messages(self) -> list[Any]:
        """The messages of the conversation, in order."""
        return list(self.conversation.messages)

    def new_item(self, message: Any, item_type: ItemType | None = None) -> ContextItem:
        """Return an item of `message`, which is in no segment yet.

        Args:
            message: a message in any format that `Offloader.offload` takes.
            item_type: what it is; without it, what its role and content say.

        Raises:
            ConfigError: there is no such type.
        """
        if item_type is not None and item_type not in PRIORITIES:
            raise ConfigError(f"item_type is one of {', '.join(PRIORITIES)}, not {item_type!r:.40}")
        kind = item_type_of(message) if item_type is None else ItemType(item_type)
        text = "\n".join(scan_of(message).all_texts)
        return ContextItem(
            f"item_{next(self._numbers)}",
            kind,
            message,
            text,
            self.count_message(message),
            PRIORITIES[kind],
        )

    def count_message(self, message: Any) -> int:
        """Return the tokens of `message`, as `new_item` counts them."""
        return self._counter.message(message)

    def add_message(self, message: Any, item_type: ItemType | None = None) -> ContextItem:
        """Append a message to its segment: header for system prompt and strategies, else conversation.

        Args:
            message: a message in any format that `Offloader.offload` takes.
            item_type: what it is; without it, what its role and content say.
        """
        return self.add_item(self.new_item(message, item_type))

    def add_item(self, item: ContextItem) -> ContextItem:
        """Append an item, as `new_item` makes it, as `add_message` does; return it."""
        segment = self.header if item.item_type in _IN_HEADER else self.conversation
        segment.items.append(item)
        self._tell_added(item)
        return item

    def lower(self) -> list[Any]:
        """Return the messages of a request: those of the header, then those of the conversation."""
        return [*self.header.messages, *self.conversation.messages]

    def remove_by_type(self, item_type: ItemType) -> list[ContextItem]:
        """Remove the items of one type from the conversation, and what belongs to them; return them."""
        return self._remove(lambda item: item.item_type == item_type)

    def remove_by_id(self, item_id: str) -> list[ContextItem]:
        """Remove one item from the conversation, and what belongs to it; return them.

        Raises:
            ConfigError: no item of the conversation has this id.
        """
        removed = self._remove(lambda item: item.id == item_id)
        if not removed:
            raise ConfigError(f"the conversation has no item {item_id!r}")
        return removed

    def replace_conversation(self, items: Sequence[ContextItem]) -> None:
        """Have `items`, as `new_item` makes them, be the whole conversation."""
        self.conversation.items = list(items)
        detail = f"conversation replaced with {len(items)} items"
        self._tell(EventType.CONVERSATION_REPLACED, detail, items=len(items))

    def replace_items(self, items: Sequence[ContextItem], stand_in: ContextItem) -> None:
        """Put `stand_in`, as `new_item` makes it, where the first of `items` of the conversation stands.

        Args:
            items: what leaves, in the order of the conversation. Nothing else leaves with them: give what
                `together` returns.
            stand_in: what takes their place.

        Raises:
            ConfigError: the first of `items` is not in the conversation, or there is none.
        """
        gone = {item.id for item in items}
        kept: list[ContextItem] = []
        for item in self.conversation.items:
            if items and item.id == items[0].id:
                kept.append(stand_in)
            if item.id not in gone:
                kept.append(item)
        if stand_in not in kept:
            raise ConfigError(f"the conversation has none of the {len(items)} items that are to be replaced")
        self.conversation.items = kept
        self._tell_removed(items)
        self._tell_added(stand_in)

    def auto_compact(
        self, strategy: ContextCompactor[ResultT_co], *, current_total_tokens: int | None = None
    ) -> ResultT_co:
        """Have `strategy` make this context shorter if it is due, and return what it did.

        Args:
            strategy: what compacts, such as `offload.compaction.SelectiveCompaction`.
            current_total_tokens: what the provider counted; without it, `total_tokens`.
        """
        return strategy.compact(self, current_total_tokens=current_total_tokens)

    async def aauto_compact(
        self, strategy: ContextCompactor[ResultT_co], *, current_total_tokens: int | None = None
    ) -> ResultT_co:
        """Do what `auto_compact` does, in a thread; async hooks run on this loop."""
        return await in_thread(strategy.compact, self, current_total_tokens=current_total_tokens)

    def together(self, items: Iterable[ContextItem]) -> list[ContextItem]:
        """Return `items` of the conversation with all that cannot stay without them, in order."""
        wanted = {item.id for item in items}
        return [item for group in self.groups() if any(item.id in wanted for item in group) for item in group]

    def groups(self) -> list[list[ContextItem]]:
        """Return the conversation in runs of items that stay or leave together.

        A run reaches from a tool call to its last result, with whatever was said between them.
        """
        last = partners(self.conversation_messages)
        groups: list[list[ContextItem]] = []
        reach, is_needed = -1, False
        for index, item in enumerate(self.conversation.items):
            # In formats without ids, results directly follow their calls.
            has_result = is_result(item.message) or bool(answered_calls(item.message))
            is_bound = index <= reach or has_result or is_needed
            if groups and is_bound:
                groups[-1].append(item)
            else:
                groups.append([item])
            reach = max(reach, last.get(index, -1))
            is_needed = adapter_for(item.message).needs_next(item.message)
        return groups

    def _remove(self, is_wanted: Callable[[ContextItem], bool]) -> list[ContextItem]:
        removed = self.together(item for item in self.conversation.items if is_wanted(item))
        gone = {item.id for item in removed}
        self.conversation.items = [item for item in self.conversation.items if item.id not in gone]
        if removed:
            self._tell_removed(removed)
        return removed

    def _tell_added(self, item: ContextItem) -> None:
        detail = f"{item.id}: {item.item_type}"
        self._tell(EventType.ITEM_ADDED, detail, ids=[item.id], tokens=item.token_count)

    def _tell_removed(self, items: Sequence[ContextItem]) -> None:
        tokens = sum(item.token_count for item in items)
        ids = sorted(item.id for item in items)
        self._tell(EventType.ITEM_REMOVED, f"{len(items)} items removed", ids=ids, tokens=tokens)

    def _tell(self, event_type: EventType, detail: str, **data: Any) -> None:
        self.event_bus.emit(ContextEvent(event_type, detail, data))


def item_type_of(message: Any) -> ItemType:
    """Return what `message` is by its role and content."""
    if is_result(message):
        return ItemType.TOOL_RESULT
    role = role_or_none(message)
    if role in SYSTEM_ROLES:
        return ItemType.SYSTEM_PROMPT
    return ItemType.ASSISTANT_MESSAGE if role == "assistant" else ItemType.USER_MESSAGE
