"""A turn with nothing new, on histories of growing length: same message objects, and equal new ones.

An agent loop that keeps its list hands over the same objects each turn; one that parses each request
hands over equal ones, and then the comparison of two lists (`a == b`) is the irreducible work. The usual turn
has one short message more: also above the trigger of a sweep that finds nothing, and as the next request of a
`ContextManager`. Memory and descriptors of many turns are those of separate processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

from _content import output
from _measure import Figure, compare, duration, numbers_of, repeat, require, run, seconds, size

from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy, Rule, Sweep

_LENGTHS = (100, 1000, 10_000)
_QUICK_LENGTHS = 2
_BUDGETED_LENGTH, _BUDGET_MS = 1000, 1.0
_RESULT_CHARS, _LARGE_CHARS, _LARGE_EVERY = 1_500, 20_000, 20
_SHORT_CHARS, _BRIEF_CHARS, _WEIGHED_CHARS = 60, 2_000, 8_000
_ROUNDS, _PARSED_ROUNDS = 200, 20
_GROWN_LENGTHS, _QUICK_GROWN, _GROWN_EVERY = (1000, 40_000), (1000, 8_000), 4
_GROWN_MS_BUDGET, _GROWN_BUDGET = 0.5, 2
_RESUMED_ROUNDS, _RESUMED_MS_BUDGET = 5, 0.06
_TURNS, _QUICK_TURNS, _KB_PER_TURN = 10_000, 2000, 12
# 10,000 take a quarter of an hour, and the same memory each.
_SESSIONS, _QUICK_SESSIONS, _KB_PER_SESSION = 1000, 200, 200
_POLICY: dict[str, Any] = {"types": {"tool_result": Rule(min_chars=1000, preview_chars=1)}}

_MANY_TURNS = """
import sys, tempfile
from pathlib import Path
from offload import Offloader, OffloadPolicy, Rule
text = "a line of a result that is offloaded\\n" * 100
policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1000, preview_chars=200)})
with tempfile.TemporaryDirectory() as folder:
    off = Offloader(folder, session="s", policy=policy, storage_options={"durability": "none"})
    messages = []
    for n in range(int(sys.argv[1])):
        use = {"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"{n} {text}"}
        turn = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        messages = off.offload([*messages, *turn]).messages
    print("descriptors", len(list(Path("/proc/self/fd").iterdir())))
"""

_MANY_SESSIONS = """
import sys, tempfile, threading
from offload import Offloader, OffloadPolicy, Rule, open_store
text = "a line of a result that is offloaded\\n" * 100
policy = OffloadPolicy(types={"tool_result": Rule(min_chars=1000, preview_chars=200)})
use = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
with tempfile.TemporaryDirectory() as folder:
    store = open_store(folder, storage_options={"durability": "none"})
    held = []
    for s in range(int(sys.argv[1])):
        off = Offloader(store, session=f"s{s}", policy=policy)
        result = {"type": "tool_result", "tool_use_id": "t", "content": f"{s} {text}"}
        messages = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        for n in range(50):
            messages.append({"role": ("assistant", "user")[n % 2], "content": f"message {n} of session {s}"})
            messages = off.offload(messages).messages
        held.append((off, messages))
    print("threads", threading.active_count())
"""


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    same: list[float] = []
    lengths = _LENGTHS[: _QUICK_LENGTHS if is_quick else None]
    for length in lengths:
        messages = _history(length)
        off = Offloader("memory://", session="turns")
        first = seconds(off.offload, messages)
        require(len(off.offload(messages).records) > 0, "nothing of the history was offloaded")
        same.append(repeat(partial(off.offload, messages), _ROUNDS))
        yield _turn(length, "the same objects", same[-1], f"first call {duration(first)}")
        yield from _parsed(off, messages, 5 if is_quick else _PARSED_ROUNDS)
    yield Figure(
        f"a turn on {lengths[-1]:,} messages / on {lengths[0]:,}, the same objects",
        same[-1] / same[0],
        detail=f"{lengths[-1] // lengths[0]} x would be linear, 1 x flat",
    )
    yield from _resumed()
    yield from _one_more(_QUICK_GROWN if is_quick else _GROWN_LENGTHS)
    yield from _many_turns(_QUICK_TURNS if is_quick else _TURNS)
    yield from _many_sessions(_QUICK_SESSIONS if is_quick else _SESSIONS)


def _resumed() -> Iterator[Figure]:
    """Yield the first turn of a new process, with one message more: CPU, for other processes add to it."""
    history = _history(_BUDGETED_LENGTH, _GROWN_EVERY, (_SHORT_CHARS, _LARGE_CHARS))
    sent = Offloader("memory://resumed", session="s").offload(history)
    require(len(sent.records) == _BUDGETED_LENGTH // 8, "not one message in eight was offloaded")
    for kind, messages in (("as they were sent", sent.messages), ("with the originals", history)):
        source, taken = json.dumps([*messages, {"role": "user", "content": "And now?"}]), []
        for _ in range(_RESUMED_ROUNDS):
            parsed, off = json.loads(source), Offloader("memory://resumed", session="s")
            start = time.process_time()
            off.offload(parsed)
            taken.append(time.process_time() - start)
        yield Figure(
            f"first turn of a new process on {_BUDGETED_LENGTH:,} messages {kind}, per message",
            min(taken) / _BUDGETED_LENGTH * 1000,
            "ms",
            at_most=_RESUMED_MS_BUDGET,
        )


def _one_more(lengths: tuple[int, int]) -> Iterator[Figure]:
    """Yield the time of a turn with one more short message, one message in eight replaced."""
    for kind, begin in (("", _plain), (", above a sweep's trigger", _swept), (", ContextManager", _managed)):
        times = []
        for length in lengths:
            turn = begin(length)
            taken = []
            for number in range(_ROUNDS):
                message = {"role": ("assistant", "user")[number % 2], "content": f"message {number}"}
                taken.append(seconds(turn, message))
            times.append(median(taken))
            yield Figure(
                f"a turn with one short message more on {length:,}{kind}",
                times[-1] * 1000,
                "ms",
                at_most=_GROWN_MS_BUDGET,
            )
        yield Figure(f"    on {lengths[1]:,} / on {lengths[0]:,}", times[1] / times[0], at_most=_GROWN_BUDGET)


def _plain(length: int) -> Callable[[Any], object]:
    """Return a function that makes a turn with one message more."""
    history = _history(length, _GROWN_EVERY, (_RESULT_CHARS, _WEIGHED_CHARS))
    return _turns(Offloader("memory://", session="grown"), history)


def _swept(length: int) -> Callable[[Any], object]:
    """Return the same with a sweep that has nothing to offload."""
    policy = _POLICY | {"sweep": Sweep(trigger_tokens=1)}
    return _turns(Offloader("memory://", session="swept", policy=OffloadPolicy(**policy)), _brief(length))


def _managed(length: int) -> Callable[[Any], object]:
    """Return a function that makes the next request of an agent loop with one message more."""
    off = Offloader("memory://", session="managed", policy=OffloadPolicy(**_POLICY))
    manager = ContextManager(off, AgentConfig(window_tokens=10**9))

    def turn(message: Any) -> object:
        manager.add(message)
        return manager.before_model_call()

    for message in _brief(length):
        manager.add(message)
    require(bool(manager.before_model_call().messages), "a request has no messages")
    return turn


def _turns(off: Offloader, messages: list[Any]) -> Callable[[Any], object]:
    require(len(off.offload(messages).records) >= len(messages) // 8, "too little was offloaded")

    def turn(message: Any) -> object:
        messages.append(message)
        return off.offload(messages)

    return turn


def _many_turns(turns: int) -> Iterator[Figure]:
    """Yield what memory and descriptors grow by from a fifth of the turns to all of them."""
    few, many = (numbers_of(_MANY_TURNS, str(number)) for number in (turns // 5, turns))
    yield Figure(
        f"peak memory of {turns:,} turns, each with a result that is offloaded: per turn",
        (many["peak"] - few["peak"]) / (turns - turns // 5) / 1024,
        "KB",
        at_most=_KB_PER_TURN,
        detail=f"{size(few['peak'])} after {turns // 5:,} turns to {size(many['peak'])}, messages included",
    )
    yield Figure(
        f"open descriptors after {turns:,} turns, more than after {turns // 5:,}",
        many["descriptors"] - few["descriptors"],
        "",
        at_most=0,
        detail=f"{few['descriptors']} to {many['descriptors']}",
    )


def _many_sessions(sessions: int) -> Iterator[Figure]:
    """Yield the memory of open sessions side by side, as a server holds them, and the threads they leave."""
    few, many = (numbers_of(_MANY_SESSIONS, str(number)) for number in (sessions // 5, sessions))
    yield Figure(
        f"peak memory of {sessions:,} open sessions of 50 turns: per session",
        (many["peak"] - few["peak"]) / (sessions - sessions // 5) / 1024,
        "KB",
        at_most=_KB_PER_SESSION,
        detail=f"{size(few['peak'])} with {sessions // 5:,} to {size(many['peak'])}, messages included",
    )
    yield Figure("threads beside the main one", many["threads"] - 1, "", at_most=0)


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


def _brief(length: int) -> list[dict[str, Any]]:
    """Return a history of shorter results, one of four just large enough."""
    return _history(length, _GROWN_EVERY, (_SHORT_CHARS, _BRIEF_CHARS))


def _history(
    length: int, every: int = _LARGE_EVERY, sizes: tuple[int, int] = (_RESULT_CHARS, _LARGE_CHARS)
) -> list[dict[str, Any]]:
    """Return calls of a tool and their results by turns, one of `every` results large."""
    messages: list[dict[str, Any]] = []
    for number in range(length // 2):
        call = f"toolu_{number:06}"
        chars = sizes[number % every == 0]
        use = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": f"make report-{number}"}}
        result = {"type": "tool_result", "tool_use_id": call, "content": output(chars, number)}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return messages


if __name__ == "__main__":
    run(__doc__, figures)
