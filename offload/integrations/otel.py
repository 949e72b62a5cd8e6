"""OpenTelemetry: spans and metrics of offloading and retrieval; `docs/observability.md` lists them.

Names follow the semantic conventions for generative AI if these exist. Attributes are ids and sizes, never
content.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from offload import __version__
from offload.base.events import ContextEvent, EventBus, EventType
from offload.errors import needs_extra

with needs_extra("otel"):
    from opentelemetry.metrics import Meter, MeterProvider, get_meter
    from opentelemetry.trace import Status, StatusCode, Tracer, TracerProvider, get_tracer

__all__ = ["instrument"]

_SCOPE = "offload"
_OPERATION, _CONVERSATION, _ERROR = "gen_ai.operation.name", "gen_ai.conversation.id", "error.type"
_TOOL, _TOOL_TYPE, _EXECUTE_TOOL = "gen_ai.tool.name", "gen_ai.tool.type", "execute_tool"
# The only event fields that become attributes of calls.
_FIGURES = ("messages", "records", "tokens_before", "tokens_after", "chars_freed", "errors")
# A read takes milliseconds from a local disk and seconds from a remote store.
_SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60]
_TOKENS = [100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000]

Attributes = Mapping[str, Any]


def instrument(
    events: EventBus,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> Callable[[], None]:
    """Report the events of a bus as spans and metrics; return a function that stops it.

    A span is created when its call ends, with the times of the call and the current span as its parent. If a
    framework traces tool calls too, its span is the parent.

    Args:
        events: `Offloader.events`, or a bus of several offloaders.
        tracer_provider: creates spans; default: the global one. `NoOpTracerProvider()` creates none.
        meter_provider: creates metrics; default: the global one.
    """
    tracer = get_tracer(_SCOPE, __version__, tracer_provider)
    telemetry = _Telemetry(tracer, get_meter(_SCOPE, __version__, meter_provider))
    return events.subscribe(telemetry.record)


class _Telemetry:
    def __init__(self, tracer: Tracer, meter: Meter) -> None:
        self._tracer = tracer
        # Each counter is created at its first use.
        self._counter = cache(meter.create_counter)
        self._item_size = meter.create_histogram(
            "offload.item.size", "{token}", explicit_bucket_boundaries_advisory=_TOKENS
        )
        self._tool_seconds, self._call_seconds = (
            meter.create_histogram(name, "s", explicit_bucket_boundaries_advisory=_SECONDS)
            for name in ("gen_ai.execute_tool.duration", "offload.call.duration")
        )
        self._handlers: Mapping[EventType, Callable[[Mapping[str, Any]], None]] = {
            EventType.ITEM_STORED: self._stored,
            EventType.CALL_ENDED: self._ended,
            EventType.RECORDS_COLLECTED: self._collected,
            EventType.CONTEXT_COMPACTED: self._compacted,
            EventType.THINKING_REMOVED: self._thinking_removed,
            EventType.OFFLOAD_FAILED: self._failed,
            EventType.INDEX_FAILED: self._failed,
            EventType.COMPACTION_FAILED: self._failed,
            EventType.CONTEXT_FAILED: self._failed,
        }

    def record(self, event: ContextEvent) -> None:
        handler = self._handlers.get(event.event_type)
        if handler is not None:
            handler(event.data)

    def _stored(self, data: Mapping[str, Any]) -> None:
        attributes = _present({"offload.item.type": data["item_type"], _TOOL: data["tool_name"]})
        self._item_size.record(data["tokens"], attributes)
        # With `min_saving` below 1, a placeholder may be longer than its item.
        self._counter("offload.chars.freed", "{char}").add(max(0, data["chars_freed"]), attributes)
        self._counter("offload.bytes.stored", "By").add(data["stored_bytes"], attributes)

    def _compacted(self, _data: Mapping[str, Any]) -> None:
        self._counter("offload.compactions", "{compaction}").add(1)

    def _thinking_removed(self, data: Mapping[str, Any]) -> None:
        self._counter("offload.thinking.removed", "{block}").add(data["blocks"])

    def _failed(self, data: Mapping[str, Any]) -> None:
        self._counter("offload.failures", "{failure}").add(1, {_ERROR: data["kind"]})

    def _collected(self, data: Mapping[str, Any]) -> None:
        if not data["is_dry_run"]:
            self._counter("offload.bytes.collected", "By").add(data["bytes_freed"])

    def _ended(self, data: Mapping[str, Any]) -> None:
        operation, kind = data["operation"], data.get("kind")
        if not operation.startswith("context_"):
            self._call_seconds.record(
                data["seconds"], _present({"offload.operation": operation, _ERROR: kind})
            )
            self._span(f"offload.{operation}", data, {"offload.operation": operation})
            return
        call = {_OPERATION: _EXECUTE_TOOL, _TOOL: operation}
        self._tool_seconds.record(data["seconds"], _present({**call, _ERROR: kind}))
        reads = data.get("reads", {})
        chars = sum(reads.values())
        if reads:
            self._counter("offload.records.read", "{record}").add(len(reads), {_TOOL: operation})
            self._counter("offload.chars.read", "{char}").add(chars, {_TOOL: operation})
        reading = {_TOOL_TYPE: "function", "offload.refs": list(reads), "offload.chars_read": chars}
        self._span(f"{_EXECUTE_TOOL} {operation}", data, {**call, **reading})

    def _span(self, name: str, data: Mapping[str, Any], attributes: Attributes) -> None:
        end = time.time_ns()
        figures = {f"offload.{figure}": data.get(figure) for figure in _FIGURES}
        common = {_CONVERSATION: data["session"], _ERROR: data.get("kind")}
        span = self._tracer.start_span(
            name,
            attributes=_present({**common, **attributes, **figures}),
            start_time=end - int(data["seconds"] * 1e9),
        )
        if "kind" in data:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end)


def _present(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
