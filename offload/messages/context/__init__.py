"""The context of an agent: its messages in segments, their tokens, pairs of calls and results."""

from offload.base.events import ContextEvent as ContextEvent, EventBus as EventBus, EventType as EventType
from offload.messages.context.ir import (
    ContextIR as ContextIR,
    ContextItem as ContextItem,
    ItemType as ItemType,
    Segment as Segment,
    SegmentName as SegmentName,
)
