"""The messages of an agent: as they were added, and as they are sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

from offload.agent.compaction import CompactionResult, CompactionStrategy
from offload.agent.compaction._strategy import bare, unbind
from offload.base.threads.locks import Lock
from offload.base.tokens import TokenCounter
from offload.engine.binding import ThinkingRefusal
from offload.engine.policy import OffloadPolicy
from offload.engine.results import OffloadResult, is_whole
from offload.errors import ContextFullError, MessageError, OffloadError, failure, result_or_error
from offload.messages.access import are_equal, edits
from offload.messages.context import ContextEvent, ContextIR, ContextItem, EventBus, EventType, ItemType
from offload.messages.context.ir import NOTICES
from offload.messages.context.wait import Wait
from offload.messages.thinking import bare_of, content_digest, signed_thinking
from offload.offloader import Offloader
from offload.records.journal.reader import SentList


class AgentMessages:
    """The messages of an agent's context; an offloader or a compaction makes it smaller.

    Attributes:
        context: the messages of a request.
        settled: how many items from the first on are unchanged since `settle` was called.
        compactions: how many compactions removed messages.
        last_compaction: the result of the last of them in this process.
        wait: when a compaction is tried again after one that was not enough.
        was_compacted: whether a compaction was tried since this was last set to False.
        added_tokens: tokens of all messages that were added.
    """

    def __init__(self, token_counter: TokenCounter, events: EventBus) -> None:
        self.context = ContextIR(token_counter=token_counter, event_bus=events)
        # All strategies wait together, by `wait`.
        self.context.waits = None
        self.settled = 0
        self.compactions = 0
        self.last_compaction: CompactionResult | None = None
        self.wait = Wait()
        self.was_compacted = False
        self.added_tokens = 0
        # Whether the header grew in front of a conversation.
        self._is_header_new = False
        # The messages of the conversation but notices as the offloader gets them in every turn.
        self._originals: list[Any] = []
        # Whether the last result for them was taken over, which an error prevents.
        self._is_current = False
        self._queue: deque[ContextItem] = deque()
        self._queue_lock = Lock()

    @property
    def all_messages(self) -> list[Any]:
        """The messages of a request, then those in the queue."""
        with self._queue_lock:
            return [*self.context.lower(), *(item.message for item in self._queue)]

    @property
    def tokens_offloaded(self) -> int:
        """Tokens of the messages that were added, less those of the messages of a request."""
        return max(0, self.added_tokens - self.context.total_tokens)

    def items(self, start: int) -> Sequence[ContextItem]:
        """Return the items of a request from index `start` on."""
        header, items = self.context.header.items, self.context.conversation.items
        return items[start - len(header) :] if start >= len(header) else [*header[start:], *items]

    @property
    def as_sent(self) -> SentList:
        """The messages of a request, for the journal: each is its own mark."""
        return SentList(self.settled, lambda start: [item.message for item in self.items(start)], self._line)

    def _line(self, index: int) -> tuple[ItemType, Any]:
        header = self.context.header.items
        rest = self.context.conversation.items
        item = header[index] if index < len(header) else rest[index - len(header)]
        return item.item_type, item.message

    def settle(self) -> None:
        self.settled = len(self.context.header.items) + len(self.context.conversation.items)

    def enqueue(self, message: Any, item_type: ItemType | None = None) -> ContextItem:
        """Append a message to the queue, without waiting for a thread that changes the others."""
        if message is None or isinstance(message, str | bytes | list | tuple):
            raise MessageError(f"a message must be one dict or SDK object, got {message!r:.60}")
        try:
            item = self.context.new_item(message, item_type)
        except OffloadError:
            raise
        except Exception as error:
            raise MessageError(f"a {type(message).__name__} is not a message: {error!r:.60}") from error
        with self._queue_lock:
            self._queue.append(item)
        return item

    def flush(self) -> None:
        with self._queue_lock:
            while self._queue:
                self._add(self._queue.popleft())

    def _add(self, item: ContextItem) -> None:
        """Append an item; a system message within a conversation keeps its place there."""
        header, items = self.context.header.items, self.context.conversation.items
        self.added_tokens += item.token_count
        if item.item_type is ItemType.SYSTEM_PROMPT and items:
            items.append(item)
        else:
            item = self.context.add_item(item)
        items = self.context.conversation.items
        if items and items[-1] is item:
            # A notice may be part of it now.
            self.settled = min(self.settled, len(header) + len(items) - 1)
            self._originals += [one.message for one in _offered([item])]
        else:
            self.settled = min(self.settled, len(header) - 1)
            self._is_header_new = self._is_header_new or bool(items)

    def offload(
        self, offloader: Offloader, model: str | None, policy: OffloadPolicy | None = None
    ) -> OffloadResult:
        """Offload items by a policy, by default that of the offloader, in a request to `model`."""
        run = partial(offloader.offload, self._originals, model=model, policy=policy, is_sent=False)
        is_current, self._is_current = self._is_current, False
        result = run()
        first = result.unchanged if is_current else 0
        if self._unbind_changed(offloader, result.messages, first):
            errors = result.errors
            result = run()
            result.errors[:0] = errors
            first = min(first, result.unchanged)
        places = self._places(first)
        changed = [*edits(self._current(places), result.messages[first:])]
        before = self.context.total_tokens
        for at in changed:
            self._replace(places[at], result.messages[first + at])
        self._is_current = True
        if changed:
            freed = before - self.context.total_tokens
            detail = f"{len(changed)} messages became smaller, by {freed} tokens"
            data = {"messages": len(changed), "tokens": freed}
            self.context.event_bus.emit(ContextEvent(EventType.ITEMS_OFFLOADED, detail, data))
        return result

    def _unbind_changed(self, offloader: Offloader, messages: Sequence[Any], unchanged: int) -> int:
        """Remove the thinking of `messages`, to be sent, behind the first that is another than was sent.

        An offloader removes it for what it knows to be a change; an item with a record that it meets for the
        first time may have been sent in full. Raises `OffloadError` if the thinking cannot be stored.
        """
        current = self._current(self._places(unchanged))
        edited = next(edits(current, messages[unchanged:], _reads_same), None)
        if edited is None or not offloader.binding(offloader.model).removes:
            return 0
        first = unchanged + edited
        bound = [at for at in range(first + 1, len(messages)) if signed_thinking(messages[at])]
        return offloader.remove_thinking(messages, bound, cause=f"messages[{first}] changed")

    def _places(self, first: int) -> list[int]:
        """Return the places in the conversation of the messages that the offloader gets, from `first` on."""
        items = self.context.conversation.items
        offered = (at for at in reversed(range(len(items))) if items[at].item_type not in NOTICES)
        return [*islice(offered, len(self._originals) - first)][::-1]

    def _current(self, places: Sequence[int]) -> list[Any]:
        items = self.context.conversation.items
        return [items[place].message for place in places]

    def _replace(self, place: int, message: Any) -> None:
        self.context.replace_message(place, message)
        self.settled = min(self.settled, len(self.context.header.items) + place)

    def compact(self, strategy: CompactionStrategy, tokens: int, offloader: Offloader) -> list[OffloadError]:
        """Remove messages of a request of `tokens`, counted as by its provider; return the failures.

        Thinking that is bound to a removed message is removed by `offloader`, if the strategy did not. If the
        strategy raises or makes the context larger, the messages are those before.
        """
        items, before = list(self.context.conversation.items), self.context.total_tokens
        error: OffloadError | None
        self.was_compacted = True
        try:
            result = self.context.auto_compact(strategy, current_total_tokens=tokens)
            error, is_compacted = result.error, result.is_compacted
            if self.context.total_tokens > before:
                raise OffloadError(  # noqa: TRY301 # handled as any failure
                    f"the compaction strategy turned {before} tokens into {self.context.total_tokens}"
                )
            self._unbind(items, offloader)
        except Exception as raised:  # noqa: BLE001 # a strategy may raise anything; the turn must not fail
            named = failure("the compaction strategy raised", raised)
            error, is_compacted = raised if isinstance(raised, OffloadError) else named, False
            self.context.conversation.items = items
        if not are_equal(items, self.context.conversation.items):
            self._renumber(items, offloader)
        if is_compacted:
            self.compactions += 1
            self.last_compaction = result
        # A context that cannot be made small enough is reported with the request, if it matters.
        failed = [] if error is None or type(error) is ContextFullError else [error]
        self.wait = self.wait._replace(is_told=self.wait.is_told or bool(failed))
        return failed

    def unbind_header(self, offloader: Offloader) -> None:
        """Remove thinking that is bound to a smaller header. Raises `OffloadError` if it cannot be stored."""
        if self._is_header_new:
            items = list(self.context.conversation.items)
            if unbind(self.context, offloader, range(len(items)), "the header of the context grew"):
                self._renumber(items, offloader)
        self._is_header_new = False

    def accept(self, refusal: ThinkingRefusal, offloader: Offloader, *, is_again: bool) -> int:
        """Let the next request have the thinking that its provider accepts; return 0 if it has that already.

        Bound thinking is removed, and its blocks counted, from the refused message on, or from the first
        if that `is_again`. The provider may count the messages without those of the header, or several as
        one: its index is never too high. Raises `OffloadError` if it cannot be stored.
        """
        if refusal.kind == "missing":
            return self._return_thinking(offloader)
        first = 0 if is_again else refusal.first or 0
        return self._remove_refused(offloader, first) or (first and self._remove_refused(offloader, 0))

    def _remove_refused(self, offloader: Offloader, start: int) -> int:
        items, messages = list(self.context.conversation.items), self.context.conversation_messages
        later = range(max(0, start - len(self.context.header.items)), len(messages))
        indices = [i for i in later if signed_thinking(messages[i])]
        removed = offloader.remove_thinking(messages, indices)
        bare(self.context, indices)
        self._renumber(items, offloader)
        return removed

    def _return_thinking(self, offloader: Offloader) -> bool:
        returned = offloader.return_thinking(self._originals)
        if returned is None:
            return False
        for first in islice(edits(self._originals, returned), 1):
            offloader.recheck(self._originals[first])
        self._originals = returned
        return True

    def _unbind(self, before: Sequence[ContextItem], offloader: Offloader) -> None:
        """Remove the signed thinking after the first item of the conversation that differs from `before`."""
        items = self.context.conversation.items
        first = next(edits(before, items), len(items))
        unbind(self.context, offloader, range(first, len(items)), "messages before it were compacted")

    def _renumber(self, before: Sequence[ContextItem], offloader: Offloader) -> None:
        """Register the items of the conversation again; `before` are those that were registered.

        The offloader checks what it knows again from the first other one on: the caller edited nothing.
        """
        offered, now = _offered(before), _offered(self.context.conversation.items)
        originals = {item.id: old for item, old in zip(offered, self._originals, strict=True)}
        first = next(edits(offered, now), len(offered))
        for changed in self._originals[first : first + 1]:
            offloader.recheck(changed)
        self._originals = [_bared_as(originals.get(item.id, item.message), item.message) for item in now]
        self.settled = min(self.settled, len(self.context.header.items))

    def restore(self, offloader: Offloader, strategy: CompactionStrategy) -> list[Any]:
        """Return all messages that were ever added, as they were. Raises `OffloadError`."""
        restored = strategy.restore(self.context.conversation_messages)
        if not is_whole(restored):
            restored = offloader.restore(restored)
        return [*(item.message for item in self.context.header.items), *restored]


def _offered(items: Sequence[ContextItem]) -> list[ContextItem]:
    """Return the items that may be offloaded: of a notice each character counts."""
    return [item for item in items if item.item_type not in NOTICES]


def _bared_as(original: Any, message: Any) -> Any:
    """Return `original` without the signed thinking that is no longer in `message`, which is sent for it."""
    left = {one.key for one in signed_thinking(message)}
    return bare_of(original, {one.key for one in signed_thinking(original)} - left)


def _reads_same(message: Any, other: Any) -> bool:
    """Return whether the model reads the same message, besides its thinking; False if that is not known."""
    if are_equal(message, other):
        return True
    digests = [result_or_error(content_digest, each) for each in (message, other)]
    return not isinstance(digests[0], OffloadError) and digests[0] == digests[1]
