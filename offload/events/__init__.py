"""Events and logging: the bus that listeners subscribe to, and the observer that reports to it.

The observer's module lists every event with its data.
"""

from offload.errors import failure
from offload.events._bus import ContextEvent, EventBus, EventType, Listener, deferred_events, exclusive
from offload.events._observer import Observer, error_text, observed

__all__ = [
    "ContextEvent",
    "EventBus",
    "EventType",
    "Listener",
    "Observer",
    "deferred_events",
    "error_text",
    "exclusive",
    "failure",
    "observed",
]
