"""Spans and metrics of `offload.integrations.otel`, read from the exporters of the OpenTelemetry SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from kit.conversation import tool_turn
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from offload import Offloader, OffloadPolicy, Retention, Rule
from offload.agent.compaction import RoundCompactor, RoundConfig, SelectiveCompaction
from offload.base.events import EventBus
from offload.integrations.otel import instrument
from offload.messages.context import ContextIR
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

CANARY = "canary4711"
LINE = "nothing to see in this line of many\n"
LOG = LINE * 300 + f"{CANARY} stands here\n" + LINE * 300
POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=200, preview_chars=100)}, min_saving=0)


@dataclass
class Telemetry:
    """A bus that is instrumented, and what its exporters hold."""

    events: EventBus
    provider: TracerProvider
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader
    end: Callable[[], None]

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def points(self) -> dict[str, list[tuple[dict[str, Any], float, int]]]:
        """Return attributes, sum and count of every point, by metric."""
        data = self.reader.get_metrics_data()
        found: dict[str, list[tuple[dict[str, Any], float, int]]] = {}
        for resource in data.resource_metrics if data else ():
            for metric in (m for scope in resource.scope_metrics for m in scope.metrics):
                points: list[Any] = list(metric.data.data_points)
                found[metric.name] = [
                    (dict(p.attributes), getattr(p, "sum", getattr(p, "value", 0)), getattr(p, "count", 1))
                    for p in points
                ]
        return found


@pytest.fixture
def told() -> Iterator[Telemetry]:
    exporter, reader, events = InMemorySpanExporter(), InMemoryMetricReader(), EventBus()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    end = instrument(events, tracer_provider=tracers, meter_provider=meters)
    yield Telemetry(events, tracers, exporter, reader, end)
    tracers.shutdown()
    meters.shutdown()


def opened(told: Telemetry, store: Any = None, **options: Any) -> Offloader:
    options = {"policy": POLICY, **options}
    return Offloader(store or MemoryStore(), session="s", events=told.events, **options)


def conversation(text: str = LOG) -> list[dict[str, Any]]:
    return tool_turn("c1", text)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_tool_call_is_a_span_of_the_conventions_for_generative_ai(told: Telemetry) -> None:
    off = opened(told)
    ref = off.offload(conversation()).records[0].ref
    answer = off.tools.call("context_read", {"id": ref})

    span = told.spans()[-1]
    assert span.name == "execute_tool context_read"
    assert attributes(span) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "context_read",
        "gen_ai.tool.type": "function",
        "gen_ai.conversation.id": "s",
        "offload.refs": (ref,),
        "offload.chars_read": len(answer),
    }
    assert span.status.status_code is StatusCode.UNSET


def test_a_call_that_fails_is_a_span_and_a_point_with_the_code_of_its_error(told: Telemetry) -> None:
    opened(told).tools.call("context_read", {"id": "abcdefghij"})

    [span] = told.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    assert attributes(span)["error.type"] == "not_found"
    [(named, seconds, count)] = told.points()["gen_ai.execute_tool.duration"]
    assert named == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "context_read",
        "error.type": "not_found",
    }
    assert (count, seconds > 0) == (1, True)


def test_a_turn_is_a_span_with_its_figures_and_the_times_of_the_call(told: Telemetry) -> None:
    out = opened(told).offload(conversation())

    [span] = told.spans()
    assert span.name == "offload.offload"
    assert attributes(span) == {
        "gen_ai.conversation.id": "s",
        "offload.operation": "offload",
        "offload.messages": 2,
        "offload.records": 1,
        "offload.tokens_before": out.tokens_before,
        "offload.tokens_after": out.tokens_after,
        "offload.chars_freed": out.chars_freed,
        "offload.errors": 0,
    }
    assert span.start_time is not None
    assert span.end_time is not None
    [(_, seconds, _)] = told.points()["offload.call.duration"]
    assert (span.end_time - span.start_time) / 1e9 == pytest.approx(seconds, abs=1e-6)


def test_a_span_is_below_the_one_that_is_current_also_across_threads(told: Telemetry) -> None:
    off = opened(told)

    async def turn() -> None:
        with told.provider.get_tracer("agent").start_as_current_span("invoke_agent"):
            await off.aoffload(conversation())

    asyncio.run(turn())

    ours, agents = told.spans()
    assert agents.context is not None
    assert ours.parent is not None
    assert ours.parent.span_id == agents.context.span_id


def test_metrics_tell_what_left_and_what_was_read_back_of_it(told: Telemetry) -> None:
    off = opened(told)
    out = off.offload(conversation())
    off.offload(conversation())
    info = out.records[0]
    answers = [off.tools.read(info.ref, limit=100), off.tools.read(info.ref, offset=100, limit=100)]

    points = told.points()
    of_bash = {"offload.item.type": "tool_result", "gen_ai.tool.name": "Bash"}
    reading = {"gen_ai.tool.name": "context_read"}
    assert points["offload.item.size"] == [(of_bash, info.tokens, 1)]
    assert points["offload.chars.freed"] == [(of_bash, out.chars_freed, 1)]
    assert points["offload.bytes.stored"] == [(of_bash, info.stored_bytes, 1)]
    assert points["offload.chars.read"] == [(reading, sum(map(len, answers)), 1)]
    assert points["offload.records.read"] == [(reading, 2, 1)]
    assert "offload.failures" not in points


def test_failures_and_collections_are_counted(told: Telemetry) -> None:
    broken = opened(told, FaultyStore(MemoryStore(), is_lasting=True))
    kind = broken.offload(conversation()).errors[0].kind
    limited = POLICY.model_copy(update={"retention": Retention(session_bytes=1, live_for=0, grace=0)})
    off = opened(told, policy=limited)
    off.offload(conversation())
    off.gc(dry_run=True)
    freed = off.gc().bytes_freed

    points = told.points()
    assert points["offload.failures"] == [({"error.type": kind}, 1, 1)]
    assert points["offload.bytes.collected"] == [({}, freed, 1)]
    assert freed > 0


def test_no_span_and_no_metric_holds_content(told: Telemetry) -> None:
    def quote(text: str) -> str:
        raise ValueError(text)

    off = opened(told)
    ref = off.offload(conversation()).records[0].ref
    off.tools.call("context_grep", {"pattern": CANARY})
    off.tools.call("context_read", {"id": CANARY})
    off.tools.call("context_read", {"id": ref, "pointer": f"/{CANARY}"})
    opened(told, redact=quote).offload(conversation(LOG + LINE))
    ContextIR(event_bus=told.events).add_message({"role": "user", "content": CANARY})

    said = [span.to_json() for span in told.spans()]
    assert len(said) == 5
    assert ref in "".join(said)
    assert CANARY not in "".join(said) + repr(told.points())


def test_what_is_ended_makes_no_more_spans(told: Telemetry) -> None:
    off = opened(told)
    told.end()
    off.offload(conversation())

    assert told.spans() == []
    assert not told.events.has_listeners


def test_compactions_are_counted_and_their_summary_is_not_told(told: Telemetry) -> None:
    off = opened(told)
    context = ContextIR(event_bus=told.events)
    for _ in range(10):
        context.add_message({"role": "user", "content": LINE * 50})
        context.add_message({"role": "assistant", "content": LINE * 50})
    strategy = SelectiveCompaction(off, lambda _: f"It is about {CANARY}.", threshold_tokens=1000)

    result = context.auto_compact(strategy)

    assert result.summary == f"It is about {CANARY}."
    points = told.points()
    assert points["offload.compactions"] == [({}, 1, 1)]
    assert CANARY not in "".join(span.to_json() for span in told.spans()) + repr(points)


def test_compactions_by_rounds_are_counted_by_their_outcome(told: Telemetry) -> None:
    roles = ("user", "assistant")
    messages = [{"role": role, "content": f"{n} {LINE * 9}"} for n in range(9) for role in roles]
    full = RoundConfig(max_context_tokens=1000)

    RoundCompactor(opened(told), None, full).compact(messages)
    RoundCompactor(opened(told), None, full, confirm=lambda _: False).compact(messages)
    RoundCompactor(opened(told), None, RoundConfig(max_context_tokens=9)).compact(messages[:1])

    points = told.points()
    assert points["offload.compactions"] == [({}, 1, 1)]
    assert points["offload.failures"] == [
        ({"error.type": "refused"}, 1, 1),
        ({"error.type": "context_full"}, 1, 1),
    ]


def test_without_a_configured_sdk_nothing_is_recorded_and_nothing_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    off = Offloader(MemoryStore(), session="s", policy=POLICY)
    instrument(off.events)

    out = off.offload(conversation())

    assert off.restore(out.messages) == conversation()
    assert "a listener failed" not in caplog.text
