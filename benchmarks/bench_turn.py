"""A turn with nothing new, on histories of growing length: same message objects, and equal new ones.

An agent loop that keeps its list hands over the same objects each turn; one that parses each request
hands over equal ones, and then the comparison of two lists (`a == b`) is the irreducible work.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

from _content import output
from _measure import Figure, compare, duration, repeat, require, run, seconds

from offload import Offloader

_LENGTHS = (100, 1000, 10_000)
_BUDGETED_LENGTH, _BUDGET_MS = 1000, 1.0
_RESULT_CHARS, _LARGE_CHARS, _LARGE_EVERY = 1_500, 20_000, 20
_ROUNDS, _PARSED_ROUNDS = 200, 20


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    same: list[float] = []
    for length in _LENGTHS:
        messages = _history(length)
        off = Offloader("memory://", session="turns")
        first = seconds(off.offload, messages)
        require(len(off.offload(messages).records) > 0, "nothing of the history was offloaded")
        same.append(repeat(partial(off.offload, messages), _ROUNDS))
        yield _turn(length, "the same objects", same[-1], f"first call {duration(first)}")
        yield from _parsed(off, messages, 5 if is_quick else _PARSED_ROUNDS)
    yield Figure(
        f"a turn on {_LENGTHS[-1]:,} messages / on {_LENGTHS[0]:,}, the same objects",
        same[-1] / same[0],
        detail=f"{_LENGTHS[-1] // _LENGTHS[0]} x would be linear, 1 x flat",
    )


def _parsed(off: Offloader, messages: list[Any], rounds: int) -> Iterator[Figure]:
    source = json.dumps(messages)
    paired = compare(
        off.offload,
        lambda parsed: require(parsed == messages, "parsing changed the messages"),
        rounds,
        lambda _: json.loads(source),
    )
    yield _turn(len(messages), "equal new objects", median(paired.ours), "")
    yield Figure(
        f"the same turn / comparing the two lists of {len(messages):,}", paired.ratio, detail=paired.detail
    )


def _turn(length: int, which: str, took: float, detail: str) -> Figure:
    return Figure(
        f"a turn on {length:,} messages with nothing new, {which}",
        took * 1000,
        "ms",
        at_most=_BUDGET_MS if length == _BUDGETED_LENGTH else None,
        detail=detail,
    )


def _history(length: int) -> list[dict[str, Any]]:
    """Return calls of a tool and their results by turns, every twentieth of them large."""
    messages: list[dict[str, Any]] = []
    for number in range(length // 2):
        call = f"toolu_{number:06}"
        chars = _RESULT_CHARS if number % _LARGE_EVERY else _LARGE_CHARS
        use = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": f"make report-{number}"}}
        result = {"type": "tool_result", "tool_use_id": call, "content": output(chars, number)}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return messages


if __name__ == "__main__":
    run(__doc__, figures)
