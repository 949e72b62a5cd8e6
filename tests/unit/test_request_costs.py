"""The input cost of each request of a timeline, and the requests that found the cache cold."""

from __future__ import annotations

from typing import Any

import pytest
from forks import conversation

from offload import Offloader
from offload.replay import RequestCost, costs_of
from offload_backends.memory import MemoryStore

MILLION = 1_000_000


def costs(steps: list[tuple[float, dict[str, int] | None]], model: str | None) -> list[RequestCost]:
    """Return the costs of requests at some times, each with the usage that was reported for it."""
    store, now = MemoryStore(), [0.0]
    off = Offloader(store, session="s", journal=True, model=model, clock=lambda: now[0])
    for turn, (at, usage) in enumerate(steps):
        now[0] = at
        off.offload(conversation(turn))
        if usage is not None:
            off.report_usage(usage)
    now[0] += 1
    off.offload(conversation(len(steps)))  # stores the usage of the one before
    return [*costs_of(off.timeline())][: len(steps)]


def anthropic(plain: int, read: int, written: int) -> dict[str, int]:
    return {
        "input_tokens": plain,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
    }


def test_a_request_costs_what_its_provider_counted_at_the_prices_of_its_model() -> None:
    counted: list[tuple[float, Any]] = [(0, anthropic(MILLION, MILLION, MILLION)), (1, None)]
    [first, second] = costs(counted, "claude-sonnet-4-6")
    assert first.dollars == pytest.approx(3 * (1 + 0.1 + 1.25))
    assert second == RequestCost(None, None)
    assert [cost.dollars for cost in costs(counted, None)] == [None, None]
    assert [cost.dollars for cost in costs(counted, "a model of nobody")] == [None, None]


def test_a_request_that_read_nothing_of_a_cache_that_was_in_use_missed_it_or_came_too_late() -> None:
    steps: list[tuple[float, Any]] = [
        (0, anthropic(10, 0, 2000)),
        (10, anthropic(10, 2000, 500)),
        (20, anthropic(10, 0, 2500)),
        (2000, anthropic(10, 0, 2500)),
        (4000, anthropic(10, 2500, 0)),
    ]
    found = [cost.cold for cost in costs(steps, "claude-sonnet-4-6")]
    assert found == [None, None, "missed", "expired", None]


def test_without_a_count_a_pause_counts_and_without_a_known_model_nothing_does() -> None:
    steps: list[tuple[float, Any]] = [(0, None), (10, None), (2000, None)]
    assert [cost.cold for cost in costs(steps, "claude-sonnet-4-6")] == [None, None, "expired"]
    assert [cost.cold for cost in costs(steps, None)] == [None, None, None]


def test_a_provider_that_never_cached_missed_nothing() -> None:
    steps: list[tuple[float, Any]] = [
        (n, {"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 0}}) for n in range(3)
    ]
    assert [cost.cold for cost in costs(steps, "gpt-5")] == [None, None, None]


def test_a_request_that_its_provider_counted_otherwise_has_the_prediction_and_the_cause() -> None:
    steps: list[tuple[float, Any]] = [(10 * n, anthropic(0, 20_000 + 100 * n, 100)) for n in range(8)]
    steps[5] = (50, anthropic(0, 0, 20_600))
    found = {n: c.predicted for n, c in enumerate(costs(steps, "claude-sonnet-4-6")) if c.predicted}
    assert [*found] == [1, 2, 3, 4, 5, 6, 7]
    assert {n: each.cause for n, each in found.items() if each.cause} == {5: "dropped"}
    assert found[5].usage.read == 20_500
    assert found[5].usage.written == pytest.approx(100, abs=9)
