"""The context of an agent: items in segments, which make up the messages of each request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from offload.base.events import ContextEvent, EventBus, EventType
from offload.base.threads.calls import in_thread
from offload.base.tokens import TokenCounter
from offload.errors import ConfigError, check_choice
from offload.messages.base import SYSTEM_ROLES
from offload.messages.context.pairs import split_groups
from offload.messages.context.tokens import MessageCounter
from offload.messages.context.wait import Wait
from offload.messages.formats import adapter_for, is_result, role_or_none, scan_of


class ItemType(StrEnum):
    """The type of an item of the context."""

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
    """The two parts of a context: the header is never compacted."""

    HEADER = "header"
    CONVERSATION = "conversation"


# Types with the lowest priority are removed first.
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
NOTICES = (ItemType.COMPACTION_SUMMARY, ItemType.COMPACTION_NOTICE)
_IN_HEADER = (ItemType.SYSTEM_PROMPT, ItemType.SUBAGENT_STRATEGY, ItemType.SKILL_STRATEGY)

ResultT_co = TypeVar("ResultT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ContextItem:
    """One message of the context.

    Attributes:
        id: its name, unique in this context.
        item_type: its type.
        message: the message, in the format of its provider.
        content_text: its texts, joined by newlines.
        token_count: its tokens, 4 for the message itself included.
        priority: items with a lower priority are removed first.
    """

    id: str
    item_type: ItemType
    message: Any
    content_text: str
    token_count: int
    priority: int


class _ItemList(list[ContextItem]):
    """A list of items that caches the sum of their tokens and the list of their messages.

    Appending an item and replacing one update the cache; any other change clears it.
    """

    cache: tuple[int, list[Any]] | None = None

    def append(self, item: ContextItem) -> None:
        super().append(item)
        if self.cache is not None:
            tokens, messages = self.cache
            messages.append(item.message)
            self.cache = tokens + item.token_count, messages

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, int) and self.cache is not None:
            tokens, messages = self.cache
            messages[index] = value.message
            self.cache = tokens + value.token_count - self[index].token_count, messages
        else:
            self.cache = None
        super().__setitem__(index, value)

    def __reduce__(self) -> Any:
        return _ItemList, (list(self),)

    def totals(self) -> tuple[int, list[Any]]:
        if self.cache is None:
            self.cache = sum(item.token_count for item in self), [item.message for item in self]
        return self.cache


def _clearing(change: Callable[..., Any]) -> Callable[..., Any]:
    def changed(items: _ItemList, *args: Any, **options: Any) -> Any:
        items.cache = None
        return change(items, *args, **options)

    return changed


for _name in (
    *("extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    *("__delitem__", "__iadd__", "__imul__"),
):
    setattr(_ItemList, _name, _clearing(getattr(list, _name)))


class Segment:
    """One part of the context, with a name: items in order."""

    def __init__(self, name: SegmentName, items: Iterable[ContextItem] = ()) -> None:
        self.name = name
        self._items = _ItemList(items)

    @property
    def items(self) -> list[ContextItem]:
        """Its items; the list may be changed."""
        return self._items

    @items.setter
    def items(self, items: Iterable[ContextItem]) -> None:
        self._items = _ItemList(items)

    @property
    def messages(self) -> Sequence[Any]:
        """The messages of its items, in order; do not change the list."""
        return self._items.totals()[1]

    @property
    def tokens(self) -> int:
        """The tokens of all its items."""
        return self._items.totals()[0]

    def of_type(self, item_type: ItemType) -> list[ContextItem]:
        """Return its items of one type, oldest first."""
        return [item for item in self._items if item.item_type == item_type]


class ContextCompactor(Protocol[ResultT_co]):
    """Shortens a context in place."""

    def compact(self, context: ContextIR, *, current_total_tokens: int | None = None) -> ResultT_co:
        """Shorten `context` in place if it is due; return the result.

        `current_total_tokens` is the provider's token count; by default, it is the context's own.
        """


class ContextIR:
    """The context of an agent: a header, and a conversation that can be compacted.

    A tool call and its results are always removed together, since a provider refuses one without the other.

    Args:
        token_counter: counts tokens of a text; the default is the offline estimate.
        event_bus: gets `item_added`, `item_removed` (data: `ids`, `tokens`), `conversation_replaced`
            (data: `items`) and the events of compactions.

    Attributes:
        header: system prompt and strategies.
        conversation: all other items.
        event_bus: the bus that gets the events.
        waits: by strategy, when it tries a compaction again after one that was not enough; None never waits.
    """

    def __init__(
        self, *, token_counter: TokenCounter | None = None, event_bus: EventBus | None = None
    ) -> None:
        self.header: Segment = Segment(SegmentName.HEADER)
        self.conversation: Segment = Segment(SegmentName.CONVERSATION)
        self.event_bus: EventBus = EventBus() if event_bus is None else event_bus
        self.waits: WeakKeyDictionary[Any, Wait] | None = WeakKeyDictionary()
        self._counter = MessageCounter(token_counter)
        self._last_number = 0

    @property
    def total_tokens(self) -> int:
        """The tokens of both segments."""
        return self.header.tokens + self.conversation.tokens

    @property
    def conversation_messages(self) -> list[Any]:
        """The messages of the conversation, in order."""
        return list(self.conversation.messages)

    def new_item(self, message: Any, item_type: ItemType | None = None) -> ContextItem:
        """Return an item for a message in any format that `Offloader.offload` takes, without adding it.

        Its type is by default the one of its role and content. Raises `ConfigError` for an unknown type.
        """
        if item_type is not None:
            check_choice("item_type", item_type, PRIORITIES)
        kind = item_type_of(message) if item_type is None else ItemType(item_type)
        text = "\n".join(scan_of(message).all_texts)
        self._last_number += 1
        return ContextItem(
            f"item_{self._last_number}",
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
        """Append a message to its segment, as an item of `new_item`; return the item.

        System prompts and strategies are appended to the header, other messages to the conversation.
        """
        return self.add_item(self.new_item(message, item_type))

    def add_item(self, item: ContextItem) -> ContextItem:
        """Append an item of `new_item` to its segment; return it.

        If the last message is the notice of a compaction, and the provider refuses two messages of the user
        in a row, the item that is returned has both.
        """
        segment = self.header if item.item_type in _IN_HEADER else self.conversation
        for last in segment.items[-1:]:
            pair, adapter = [last.message, item.message], adapter_for(item.message)
            if last.item_type in NOTICES and adapter.must_join(*pair):
                item = self.new_item(adapter.join(pair), item.item_type)
                self.replace_items([last], item)
                return item
        segment.items.append(item)
        self._emit_added(item)
        return item

    def lower(self) -> list[Any]:
        """Return the messages of a request: those of the header, then those of the conversation."""
        return [*self.header.messages, *self.conversation.messages]

    def remove_by_type(self, item_type: ItemType) -> list[ContextItem]:
        """Remove the items of one type from the conversation, with their calls and results; return them."""
        return self._remove(lambda item: item.item_type == item_type)

    def remove_by_id(self, item_id: str) -> list[ContextItem]:
        """Remove one item from the conversation, with its calls and results; return them.

        Raises `ConfigError` if no item of the conversation has this id.
        """
        removed = self._remove(lambda item: item.id == item_id)
        if not removed:
            raise ConfigError(f"the conversation has no item {item_id!r}")
        return removed

    def replace_conversation(self, items: Sequence[ContextItem]) -> None:
        """Replace the whole conversation by `items` of `new_item`."""
        self.conversation.items = list(items)
        detail = f"conversation replaced with {len(items)} items"
        self._emit(EventType.CONVERSATION_REPLACED, detail, items=len(items))

    def replace_message(self, index: int, message: Any) -> int:
        """Replace the message of an item of the conversation; return how many tokens that frees."""
        items = self.conversation.items
        old = items[index]
        items[index] = replace(self.new_item(message, old.item_type), id=old.id)
        return old.token_count - items[index].token_count

    def replace_items(self, items: Sequence[ContextItem], replacement: ContextItem) -> None:
        """Replace items of the conversation by one item of `new_item`, at the place of the first.

        Calls and results are not added to `items`: pass those that `together` returns. Raises `ConfigError`
        if none of them is in the conversation.
        """
        removed_ids = {item.id for item in items}
        place = next((i for i, item in enumerate(self.conversation.items) if item.id in removed_ids), None)
        if place is None:
            raise ConfigError(f"the conversation has none of the {len(items)} items to replace")
        self._drop(items)
        self.conversation.items.insert(place, replacement)
        self._emit_added(replacement)

    def auto_compact(
        self, strategy: ContextCompactor[ResultT_co], *, current_total_tokens: int | None = None
    ) -> ResultT_co:
        """Shorten this context by `strategy` if it is due; return the strategy's result."""
        return strategy.compact(self, current_total_tokens=current_total_tokens)

    async def aauto_compact(
        self, strategy: ContextCompactor[ResultT_co], *, current_total_tokens: int | None = None
    ) -> ResultT_co:
        """Run `auto_compact` in a thread; async hooks run on this loop."""
        return await in_thread(strategy.compact, self, current_total_tokens=current_total_tokens)

    def together(self, items: Iterable[ContextItem]) -> list[ContextItem]:
        """Return `items` of the conversation with their calls and results, in order."""
        ids = {item.id for item in items}
        groups = (
            self.conversation.items[run.start : run.stop] for run in split_groups(self.conversation.messages)
        )
        return [item for group in groups if any(item.id in ids for item in group) for item in group]

    def _remove(self, matches: Callable[[ContextItem], bool]) -> list[ContextItem]:
        removed = self.together(filter(matches, self.conversation.items))
        if removed:
            self._drop(removed)
        return removed

    def _drop(self, items: Sequence[ContextItem]) -> None:
        ids = {item.id for item in items}
        self.conversation.items = [item for item in self.conversation.items if item.id not in ids]
        tokens = sum(item.token_count for item in items)
        self._emit(EventType.ITEM_REMOVED, f"{len(items)} items removed", ids=sorted(ids), tokens=tokens)

    def _emit_added(self, item: ContextItem) -> None:
        detail = f"{item.id}: {item.item_type}"
        self._emit(EventType.ITEM_ADDED, detail, ids=[item.id], tokens=item.token_count)

    def _emit(self, event_type: EventType, detail: str, **data: Any) -> None:
        self.event_bus.emit(ContextEvent(event_type, detail, data))


def item_type_of(message: Any) -> ItemType:
    """Return the type of `message` by its role and content."""
    if is_result(message):
        return ItemType.TOOL_RESULT
    role = role_or_none(message)
    if role in SYSTEM_ROLES:
        return ItemType.SYSTEM_PROMPT
    return ItemType.ASSISTANT_MESSAGE if role == "assistant" else ItemType.USER_MESSAGE
