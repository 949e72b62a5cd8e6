"""Events of a context, and the bus that passes them to listeners.

One bus serves an offloader, its context and the agent loop around both:

    off = Offloader("s3://bucket/prefix", session="research-42")
    off.events.subscribe(lambda event: print(event.event_type, event.detail))

The module of `Observer` lists the events of an offloader with their data.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from offload.base.threads.calls import Gate
from offload.errors import ConfigError

_log = logging.getLogger("offload")


class EventType(StrEnum):
    """Type of an event; the values are stable codes for programs."""

    ITEM_ADDED = "item_added"
    ITEM_REMOVED = "item_removed"
    CONVERSATION_REPLACED = "conversation_replaced"
    COMPACTION_STARTED = "compaction_started"
    CONTEXT_COMPACTED = "context_compacted"
    COMPACTION_FAILED = "compaction_failed"
    ITEMS_OFFLOADED = "items_offloaded"
    CONTEXT_FAILED = "context_failed"
    ITEM_STORED = "item_stored"
    ITEM_KEPT = "item_kept"
    OFFLOAD_FAILED = "offload_failed"
    ABOVE_CEILING = "above_ceiling"
    INDEX_FAILED = "index_failed"
    JOURNAL_FAILED = "journal_failed"
    CALL_ENDED = "call_ended"
    RECORDS_COLLECTED = "records_collected"
    REFERENCE_RESOLVED = "reference_resolved"
    REFERENCE_REFUSED = "reference_refused"
    THINKING_REMOVED = "thinking_removed"
    UNGROUNDED_TEXT = "ungrounded_text"


class ContextEvent(Struct, frozen=True):
    """One event.

    Attributes:
        event_type: the type.
        detail: a description without content of the conversation.
        data: figures and texts by name; the emitter of a type documents them.
    """

    event_type: EventType
    detail: str
    data: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[ContextEvent], object]


class _Queue:
    """Events that are emitted at the end of a call."""

    def __init__(self) -> None:
        self.events: list[tuple[EventBus, ContextEvent]] = []
        self.is_closed = False


_queue: ContextVar[_Queue | None] = ContextVar("_queue", default=None)
# The subscriptions whose listeners run now.
_active: ContextVar[tuple[object, ...]] = ContextVar("_active", default=())


class EventBus:
    """Calls listeners with each event, in the order of their subscriptions.

    A listener runs in the thread of the call that caused the event, which waits for it: it should be quick.
    Other calls do not wait. A listener may read from the offloader that called it; any other use raises
    `ConfigError`. It is not called with events that it causes itself.
    """

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[EventType | None, Listener]] = {}

    @property
    def has_listeners(self) -> bool:
        """Whether there is a listener."""
        return bool(self._listeners)

    def subscribe(self, listener: Listener, event_type: EventType | None = None) -> Callable[[], None]:
        """Call `listener` with each event from now on; return the function that ends the subscription.

        Args:
            listener: a plain function of one event. Its exceptions are logged and not raised.
            event_type: the only type it is called with; None means all types.

        Raises:
            ConfigError: `listener` is an async function, which nobody would await.
        """
        if inspect.iscoroutinefunction(listener):
            raise ConfigError(f"listener must be a plain function of one event, got {listener!r:.80}")
        subscription = object()
        self._listeners[subscription] = event_type, listener

        def unsubscribe() -> None:
            self._listeners.pop(subscription, None)

        return unsubscribe

    def emit(self, event: ContextEvent) -> None:
        """Call every listener with `event`, at the end of `deferred_events` inside such a block."""
        queue = _queue.get()
        if queue is not None and not queue.is_closed:
            queue.events.append((self, event))
            return
        for subscription, (event_type, listener) in self._listeners.copy().items():
            if event_type in (None, event.event_type):
                _notify(subscription, listener, event)


@contextmanager
def exclusive(gate: Gate) -> Iterator[None]:
    """Be the only call inside `gate`; events are emitted after other calls may enter again.

    Raises `ConfigError` as the gate does.
    """
    with gate.entered(), deferred_events(), gate.alone():
        yield


@contextmanager
def deferred_events() -> Iterator[None]:
    """Emit the events of a block at its end, so that a slow listener delays no other call."""
    outer = _queue.get()
    if outer is not None and not outer.is_closed:
        yield
        return
    queue = _Queue()
    token = _queue.set(queue)
    try:
        yield
    finally:
        _queue.reset(token)
        queue.is_closed = True
        for bus, event in queue.events:
            bus.emit(event)


def _notify(subscription: object, listener: Listener, event: ContextEvent) -> None:
    active = _active.get()
    if subscription in active:
        return
    token = _active.set((*active, subscription))
    try:
        listener(event)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 # a listener may raise anything
        _log.exception("a listener failed on %s", event.event_type)
    finally:
        _active.reset(token)
