"""The cost of an agent's turn without its offloader does not grow with the number of messages."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from compactions import context_of
from kit.conversation import tool_turn
from kit.store import CountedStore

import offload
from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy, Rule
from offload.agent.compaction import RoundCompactor, RoundConfig, SelectiveCompaction
from offload.messages.context import ContextIR
from offload_backends.memory import MemoryStore

ROOT = Path(offload.__file__).parent
OURS = tuple(str(ROOT / name) for name in ("agent", "messages/context"))
LENGTHS = (100, 1200)
LARGE = "".join(f"row {n} of the output\n" for n in range(60))
EARLY = OffloadPolicy(types={"tool_result": Rule(min_tokens=100, preview_chars=0)}, tools={}, min_saving=1)


def steps(function: Callable[[], Any]) -> int:
    """Return how many interpreter operations of the library `function` takes."""
    taken = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal taken
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        taken += event == "opcode"
        return trace

    before = sys.gettrace()
    # Python 3.12 asks for operations when tracing begins.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return taken


def exchange(n: int, text: str = "done") -> list[dict[str, Any]]:
    return tool_turn(f"t{n}", text, "Bash", {"command": "make"})


def messages_of(length: int) -> list[dict[str, Any]]:
    """Return a conversation in which one message in eight is large."""
    return [message for n in range(length // 2) for message in exchange(n, LARGE if n % 4 == 0 else "done")]


def manager_of(length: int, **options: Any) -> ContextManager:
    off = Offloader(MemoryStore(), session="s", policy=EARLY, **options)
    m = ContextManager(off, AgentConfig(window_tokens=10**9))
    for message in messages_of(length):
        m.add(message)
    m.before_model_call()
    return m


@pytest.mark.parametrize("text", ["done", LARGE], ids=["short", "replaced"])
def test_a_turn_takes_as_many_steps_in_a_long_conversation(text: str) -> None:
    taken = []
    for length in LENGTHS:
        m = manager_of(length)
        call, result = exchange(length, text)

        def turn(m: ContextManager = m, call: Any = call, result: Any = result) -> None:
            m.after_model_call(call, usage=1000)
            m.add(result)
            assert m.before_model_call().errors == []

        taken.append(steps(turn))
        assert ("[Offloaded: " in str(m.messages[-1])) is (text == LARGE)

    # Where it is replaced is found by halving.
    assert taken[1] <= 1.2 * taken[0]


def test_a_turn_with_nothing_new_counts_no_text() -> None:
    counted: list[str] = []

    def counter(text: str) -> int:
        counted.append(text)
        return len(text) // 4

    m = manager_of(LENGTHS[0], token_counter=counter)
    counted.clear()
    request = m.before_model_call(system_prompt="You help.")

    assert counted == ["You help."]
    assert request.tokens > 0


def test_should_compact_takes_as_many_steps_for_a_long_list() -> None:
    taken, counted = [], []
    for length in LENGTHS:
        texts: list[str] = []

        def counter(text: str, texts: list[str] = texts) -> int:
            texts.append(text)
            return len(text) // 4

        off = Offloader("memory://", session="s")
        config = RoundConfig(max_context_tokens=10**9)
        compactor = RoundCompactor(off, lambda _: "<summary>x</summary>", config, token_counter=counter)
        messages = messages_of(length)
        assert not compactor.should_compact(messages)
        texts.clear()
        longer = [*messages, *exchange(length)]
        taken.append(steps(partial(compactor.should_compact, longer)))
        counted.append(len(texts))

    assert taken[1] <= 1.05 * taken[0]
    assert counted[1] == counted[0] < 5


def test_a_compaction_that_is_not_due_takes_as_many_steps_for_a_long_context() -> None:
    taken = []
    for length in LENGTHS:
        context = context_of(messages_of(length))
        strategy = SelectiveCompaction(Offloader("memory://", session="s"), threshold_tokens=10**9)
        context.auto_compact(strategy)

        def turn(context: ContextIR = context, strategy: Any = strategy) -> None:
            context.add_message({"role": "user", "content": "go on"})
            context.auto_compact(strategy)
            context.lower()

        taken.append(steps(turn))

    assert taken[1] <= 1.05 * taken[0]


def compacted(manager: ContextManager, store: CountedStore, first: int) -> Counter[str]:
    """Add turns from number `first` on until a compaction; return the reads of records in that turn."""
    for n in range(first, 200):
        for message in exchange(n, LARGE):
            manager.add(message)
        store.requests.clear()
        manager.before_model_call()
        if manager.compaction_count:
            break
    return Counter(request for request in store.requests if request.startswith("get r/"))


def test_a_compaction_reads_no_item_back_that_this_process_stored() -> None:
    store = CountedStore()
    m = ContextManager(Offloader(store, session="s", policy=EARLY), AgentConfig(window_tokens=4000))
    assert not compacted(m, store, 0)
    assert m.compaction_count == 1


def test_a_compaction_after_a_restart_reads_each_stored_item_twice_at_most() -> None:
    store = CountedStore()
    m = ContextManager(Offloader(store, session="s", policy=EARLY), AgentConfig(window_tokens=4000))
    for n in range(15):
        for message in exchange(n, LARGE):
            m.add(message)
        m.before_model_call()
    assert not m.compaction_count

    m = ContextManager(Offloader(store, session="s", policy=EARLY), AgentConfig(window_tokens=4000))
    m.resume()
    reads = compacted(m, store, 15)
    assert m.compaction_count == 1
    assert len(reads) > 10
    assert max(reads.values()) <= 2, "for the facts of its messages, and to check them"
