"""Events and logging: the bus that listeners subscribe to, and the observer that reports to it.

The observer's module lists every event with its data.
"""

from offload.events._bus import ContextEvent, EventBus, EventType, Listener, one_at_a_time, told_later
from offload.events._observer import Observer, failure, observed, said

__all__ = [
    "ContextEvent",
    "EventBus",
    "EventType",
    "Listener",
    "Observer",
    "failure",
    "observed",
    "one_at_a_time",
    "said",
    "told_later",
]
