"""Events and logging: the bus that listeners subscribe to, and the observer that reports to it.

The observer's module lists every event with its data.
"""

from offload.events.bus import ContextEvent, EventBus, EventType, exclusive

__all__ = [
    "ContextEvent",
    "EventBus",
    "EventType",
    "exclusive",
]
