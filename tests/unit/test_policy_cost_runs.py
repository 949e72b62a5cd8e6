"""Runs of file reads under the rules of a provider's cache: no run is dearer than without offloading."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from _provider import AnthropicCache

from offload import Offloader, OffloadPolicy

Messages = list[dict[str, Any]]

SYSTEM = [{"type": "text", "text": "You are an agent. " * 500}]
MARK = {"type": "ephemeral"}
LINES = [f"def part_{n}(value): return value + {n}  # step {n % 7} of module {n % 13}\n" for n in range(5000)]


def reads(seed: int, count: int, least: int, most: int) -> Messages:
    """Return a run of file reads of so many tokens each."""
    rng = Random(seed)  # noqa: S311 # reproducible
    messages: Messages = [{"role": "user", "content": "Please review the modules. " * 10}]
    for n in range(count):
        chars, first = round(3.6 * rng.randint(least, most)), rng.randrange(4000)
        call = {"type": "tool_use", "id": f"c{n}", "name": "Read", "input": {"path": f"src/m{seed}_{n}.py"}}
        text = ("".join(LINES[first:]) + "".join(LINES))[:chars]
        result = {"type": "tool_result", "tool_use_id": f"c{n}", "content": text}
        messages += [{"role": "assistant", "content": [{"type": "text", "text": "I look at it."}, call]}]
        messages += [{"role": "user", "content": [result]}]
    return messages


def marked(messages: Messages, marks: int) -> dict[str, Any]:
    """Return a request with the API's automatic mark, or with marks at the ends of the latest requests."""
    request: dict[str, Any] = {"model": "m", "system": SYSTEM, "messages": messages}
    if marks == 1:
        return {**request, "cache_control": MARK}
    ends = [index for index, message in enumerate(messages) if message["role"] == "user"][-marks:]

    def with_mark(message: dict[str, Any]) -> dict[str, Any]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        return {**message, "content": [*blocks[:-1], {**blocks[-1], "cache_control": MARK}]}

    return {**request, "messages": [with_mark(m) if i in ends else m for i, m in enumerate(messages)]}


def bill(messages: Messages, marks: int, policy: OffloadPolicy | None) -> tuple[float, int]:
    """Return the price of a run that pauses half way until the cache is cold, and how many items left."""
    cache, total, now = AnthropicCache(), 0.0, 0.0
    off = Offloader("memory://", session="s", policy=policy, clock=lambda: now)
    for end in range(1, len(messages) + 1, 2):
        now = end * 5.0 + (1000.0 if end > len(messages) / 2 else 0.0)
        sent = messages[:end] if policy is None else off.offload(messages[:end]).messages
        total += cache.charge(marked(sent, marks), now=now).cost
    return total, len(off.records())


@pytest.mark.parametrize("name", ["balanced", "economy", "verbatim"])
@pytest.mark.parametrize("marks", [1, 2])
def test_a_run_of_file_reads_costs_no_more_than_without_offloading_and_less_after_a_long_pause(
    name: Any, marks: int
) -> None:
    cache = {"marks": marks}
    policy = OffloadPolicy.model_validate({"preset": name, "history": "editable", "cache": cache})
    for count, most in ((4, 1.0), (40, 0.9)):
        for sizes in ((1600, 3000), (2000, 8000)):
            run = reads(count, count, *sizes)
            cost, left = bill(run, marks, policy)
            without, _ = bill(run, marks, None)
            assert cost <= most * without
            assert left > 0 or count == 4
