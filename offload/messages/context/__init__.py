"""The context of an agent: its messages in segments, their tokens, pairs of calls and results."""

from offload.base.events import ContextEvent, EventBus, EventType
from offload.messages.context.ir import ContextIR, ContextItem, ItemType, Segment, SegmentName

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
