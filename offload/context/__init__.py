"""The context of an agent: its messages in segments, their tokens, which of them belong together."""

from offload.context._ir import (
    PRIORITIES,
    ContextCompactor,
    ContextIR,
    ContextItem,
    ItemType,
    Segment,
    SegmentName,
)
from offload.context._pairs import (
    answered_calls,
    is_answer,
    partners,
    role_or_none,
    scan_of,
    split_rounds,
    waiting_from,
)
from offload.context._tokens import MESSAGE_TOKENS, MessageCounter
from offload.events import ContextEvent, EventBus, EventType, Listener

__all__ = [
    "MESSAGE_TOKENS",
    "PRIORITIES",
    "ContextCompactor",
    "ContextEvent",
    "ContextIR",
    "ContextItem",
    "EventBus",
    "EventType",
    "ItemType",
    "Listener",
    "MessageCounter",
    "Segment",
    "SegmentName",
    "answered_calls",
    "is_answer",
    "partners",
    "role_or_none",
    "scan_of",
    "split_rounds",
    "waiting_from",
]
