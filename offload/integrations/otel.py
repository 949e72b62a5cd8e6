"""OpenTelemetry: spans and metrics of what leaves a context and what is read back.

    from offload.integrations.otel import instrument

    instrument(off.events)

Names follow the conventions for generative AI where these have one: a tool that reads back is a span
`execute_tool context_read`, with `gen_ai.conversation.id` and `error.type`, and counts in
`gen_ai.execute_tool.duration`. All else is named `offload.…`. Ids and sizes are told, never content.

    offload.item.size          histogram, {token}: what each item took that left; by type and tool
    offload.chars.freed        counter, {char}: what left, less the placeholders
    offload.chars.read         counter, {char}: what was read back of it; by the tool that read
    offload.records.read       counter, {record}: records that answers showed; the same
    offload.bytes.stored       counter, By: what the records of those items take
    offload.bytes.collected    counter, By: what collections freed
    offload.call.duration      histogram, s: calls that are no tools; by operation
    offload.failures           counter, {failure}: by `error.type`, the `kind` of the error
    offload.compactions        counter, {compaction}

Whether offloading pays shows in `offload.chars.read` beside `offload.chars.freed`: what is read back is
paid for a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from offload import __version__
from offload.errors import MissingExtraError
from offload.events import ContextEvent, EventBus, EventType

try:
    from opentelemetry.metrics import Meter, MeterProvider, get_meter
    from opentelemetry.trace import Status, StatusCode, Tracer, TracerProvider, get_tracer
except ImportError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[otel]'") from error

__all__ = ["instrument"]

_SCOPE = "offload"
_OPERATION, _CONVERSATION, _ERROR = "gen_ai.operation.name", "gen_ai.conversation.id", "error.type"
_TOOL, _TOOL_TYPE, _EXECUTE_TOOL = "gen_ai.tool.name", "gen_ai.tool.type", "execute_tool"
# What is told of a call as it is; of all else no attribute is made, whatever an event may hold.
_FIGURES = ("messages", "records", "tokens_before", "tokens_after", "chars_freed", "errors")
# Reading back takes milliseconds from a disk and seconds from far away.
_SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60]
_TOKENS = [100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000]

Attributes = Mapping[str, Any]


def instrument(
    events: EventBus,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Callable[[], None]:
    """Turn what a bus tells into spans and metrics; return the function that ends it.

    A span is made when its call has ended, with the times of the call, below the span that is current
    there. A framework that traces tool calls itself has ours below its own.

    Args:
        events: `Offloader.events`, or a bus that several offloaders were given.
        tracer_provider: makes the spans; the default is the global one. `NoOpTracerProvider()` makes none.
        meter_provider: makes the metrics; the same.
    """
    tracer = get_tracer(_SCOPE, __version__, tracer_provider)
    telemetry = _Telemetry(tracer, get_meter(_SCOPE, __version__, meter_provider))
    return events.subscribe(telemetry.take)


class _Telemetry:
    """Turns events into spans and metrics."""

    def __init__(self, tracer: Tracer, meter: Meter) -> None:
        self._tracer = tracer
        self._item_size = meter.create_histogram(
            "offload.item.size", "{token}", explicit_bucket_boundaries_advisory=_TOKENS
        )
        self._chars_freed = meter.create_counter("offload.chars.freed", "{char}")
        self._chars_read = meter.create_counter("offload.chars.read", "{char}")
        self._records_read = meter.create_counter("offload.records.read", "{record}")
        self._bytes_stored = meter.create_counter("offload.bytes.stored", "By")
        self._bytes_collected = meter.create_counter("offload.bytes.collected", "By")
        self._failures = meter.create_counter("offload.failures", "{failure}")
        self._compactions = meter.create_counter("offload.compactions", "{compaction}")
        self._tool_seconds, self._call_seconds = (
            meter.create_histogram(name, "s", explicit_bucket_boundaries_advisory=_SECONDS)
            for name in ("gen_ai.execute_tool.duration", "offload.call.duration")
        )
        self._ways: Mapping[EventType, Callable[[Mapping[str, Any]], None]] = {
            EventType.ITEM_STORED: self._stored,
            EventType.CALL_ENDED: self._ended,
            EventType.RECORDS_COLLECTED: self._collected,
            EventType.CONTEXT_COMPACTED: lambda _: self._compactions.add(1),
            EventType.OFFLOAD_FAILED: self._failed,
            EventType.COMPACTION_FAILED: self._failed,
            EventType.CONTEXT_FAILED: self._failed,
        }

    def take(self, event: ContextEvent) -> None:
        """Make what an event is good for."""
        way = self._ways.get(event.event_type)
        if way is not None:
            way(event.data)

    def _stored(self, data: Mapping[str, Any]) -> None:
        attributes = _given({"offload.item.type": data["item_type"], _TOOL: data["tool_name"]})
        self._item_size.record(data["tokens"], attributes)
        # A placeholder may be longer than what it stands for, where the caller's policy asks for that.
        self._chars_freed.add(max(0, data["chars_freed"]), attributes)
        self._bytes_stored.add(data["stored_bytes"], attributes)

    def _failed(self, data: Mapping[str, Any]) -> None:
        self._failures.add(1, {_ERROR: data["kind"]})

    def _collected(self, data: Mapping[str, Any]) -> None:
        if not data["is_dry_run"]:
            self._bytes_collected.add(data["bytes_freed"])

    def _ended(self, data: Mapping[str, Any]) -> None:
        operation, kind = data["operation"], data.get("kind")
        if not operation.startswith("context_"):
            self._call_seconds.record(data["seconds"], _given({"offload.operation": operation, _ERROR: kind}))
            self._span(f"offload.{operation}", data, {"offload.operation": operation})
            return
        named = {_OPERATION: _EXECUTE_TOOL, _TOOL: operation}
        self._tool_seconds.record(data["seconds"], _given({**named, _ERROR: kind}))
        reads = data.get("reads", {})
        chars = sum(reads.values())
        if reads:
            self._records_read.add(len(reads), {_TOOL: operation})
            self._chars_read.add(chars, {_TOOL: operation})
        told = {_TOOL_TYPE: "function", "offload.refs": list(reads), "offload.chars_read": chars}
        self._span(f"{_EXECUTE_TOOL} {operation}", data, {**named, **told})

    def _span(self, name: str, data: Mapping[str, Any], attributes: Attributes) -> None:
        end = time.time_ns()
        figures = {f"offload.{figure}": data.get(figure) for figure in _FIGURES}
        common = {_CONVERSATION: data["session"], _ERROR: data.get("kind")}
        span = self._tracer.start_span(
            name,
            attributes=_given({**common, **attributes, **figures}),
            start_time=end - int(data["seconds"] * 1e9),
        )
        if "kind" in data:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end)


def _given(attributes: Attributes) -> dict[str, Any]:
    """Return the attributes that have a value."""
    return {name: value for name, value in attributes.items() if value is not None}
