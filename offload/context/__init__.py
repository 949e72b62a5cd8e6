"""The context of an agent: its messages in segments, their tokens, pairs of calls and results."""

from offload.context.ir import ContextIR, ContextItem, ItemType, Segment, SegmentName
from offload.events import ContextEvent, EventBus, EventType

__all__ = [
    "ContextEvent",
    "ContextIR",
    "ContextItem",
    "EventBus",
    "EventType",
    "ItemType",
    "Segment",
    "SegmentName",
]
