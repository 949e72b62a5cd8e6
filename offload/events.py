"""What happens to a context, for whoever wants to know.

One bus serves an offloader, the context in front of it and the agent loop around both:

    off = Offloader("s3://bucket/prefix", session="research-42")
    off.events.subscribe(lambda event: print(event.event_type, event.detail))

What an offloader tells, and the figures of each event, stands at `offload.observe`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

_log = logging.getLogger("offload")


class EventType(StrEnum):
    """What happened; the values are stable codes for programs."""

    ITEM_ADDED = "item_added"
    ITEM_REMOVED = "item_removed"
    CONVERSATION_REPLACED = "conversation_replaced"
    CONTEXT_COMPACTED = "context_compacted"
    COMPACTION_FAILED = "compaction_failed"
    ITEMS_OFFLOADED = "items_offloaded"
    CONTEXT_FAILED = "context_failed"
    ITEM_STORED = "item_stored"
    OFFLOAD_FAILED = "offload_failed"
    CALL_ENDED = "call_ended"
    RECORDS_COLLECTED = "records_collected"


@dataclass(frozen=True, slots=True)
class ContextEvent:
    """One thing that happened.

    Attributes:
        event_type: what it was.
        detail: the same in words, without content of the conversation.
        data: its figures and texts by name; those of each type stand at what emits it.
    """

    event_type: EventType
    detail: str
    data: Mapping[str, Any] = field(default_factory=dict)


Listener = Callable[[ContextEvent], object]


class EventBus:
    """Tells listeners what happens, in the order in which they subscribed.

    A listener is called inside the call that it is told of. It should be quick, and must not call the
    offloader that tells it.
    """

    def __init__(self) -> None:
        self._listeners: list[tuple[EventType | None, Listener]] = []

    @property
    def has_listeners(self) -> bool:
        """Whether anybody is told."""
        return bool(self._listeners)

    def subscribe(self, listener: Listener, event_type: EventType | None = None) -> Callable[[], None]:
        """Have `listener` called with each event; return the function that ends it.

        Args:
            listener: a function of one event. What it raises is logged, and reaches nobody.
            event_type: the only type it is called with; None is all of them.
        """
        entry = (event_type, listener)
        self._listeners.append(entry)

        def unsubscribe() -> None:
            self._listeners[:] = [e for e in self._listeners if e is not entry]

        return unsubscribe

    def emit(self, event: ContextEvent) -> None:
        """Tell every listener of `event`."""
        for wanted, listener in tuple(self._listeners):
            if wanted not in (None, event.event_type):
                continue
            try:
                listener(event)
            except Exception:  # noqa: BLE001 # a listener of the caller's own may raise anything
                _log.exception("a listener failed on %s", event.event_type)
