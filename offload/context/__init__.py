"""The context of an agent: its messages in segments, their tokens, pairs of calls and results."""

from offload.context._ir import (
    PRIORITIES,
    ContextCompactor,
    ContextIR,
    ContextItem,
    ItemType,
    Segment,
    SegmentName,
)
from offload.context._pairs import partners, split_groups, split_rounds, waiting_from
from offload.context._tokens import MessageCounter
from offload.events import ContextEvent, EventBus, EventType

__all__ = [
    "PRIORITIES",
    "ContextCompactor",
    "ContextEvent",
    "ContextIR",
    "ContextItem",
    "EventBus",
    "EventType",
    "ItemType",
    "MessageCounter",
    "Segment",
    "SegmentName",
    "partners",
    "split_groups",
    "split_rounds",
    "waiting_from",
]
