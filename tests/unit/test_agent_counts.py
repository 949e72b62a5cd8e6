"""The work of a context manager: requests to the store, and how often it reads each message."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kit.store import CountedStore

from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy, Rule
from offload.engine import reading
from offload.engine.turn import Turn

WINDOW, TURNS = 6000, 30


def reply(n: int) -> dict[str, Any]:
    said = {"type": "text", "text": f"Step {n}: I look at module {n} and think about it. " * 6}
    use = {"type": "tool_use", "id": f"c{n}", "name": "bash", "input": {"command": f"cat file{n}.py"}}
    return {"role": "assistant", "content": [said, use]}


def answer(n: int) -> dict[str, Any]:
    text = "\n".join(f"def f{n}_{line}(): return {line * n}" for line in range(400))
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{n}", "content": text}]}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each message was read, by its identity."""
    counts: Counter[int] = Counter()
    read = reading._parts

    def count(turn: Turn, index: int, message: Any) -> Any:
        counts[id(message)] += 1
        return read(turn, index, message)

    monkeypatch.setattr(reading, "_parts", count)
    return counts


def test_a_new_agent_reads_nothing_from_the_store_that_it_wrote_and_each_message_once_a_turn(
    reads: Counter[int],
) -> None:
    store = CountedStore()
    manager = ContextManager(Offloader(store), AgentConfig(window_tokens=WINDOW))
    manager.add({"role": "user", "content": "Fix the bug."})
    most = Counter[int]()
    for n in range(TURNS):
        reads.clear()
        assert manager.before_model_call().errors == []
        most.update(reads.values())
        manager.after_model_call(reply(n))
        manager.add(answer(n))
    assert manager.compaction_count == 1
    assert store.count("keys") <= 2
    assert store.count("get") <= 1
    assert max(most) == 1


def test_a_turn_without_a_compaction_reads_its_new_messages_alone(reads: Counter[int]) -> None:
    manager = ContextManager(Offloader("memory://"), AgentConfig(window_tokens=WINDOW))
    manager.add({"role": "user", "content": "Fix the bug."})
    for n in range(4):
        reads.clear()
        manager.before_model_call()
        assert sum(reads.values()) == (2 if n else 1)
        manager.after_model_call(reply(n))
        manager.add(answer(n))


def test_an_item_that_another_step_offloaded_is_offloaded_after_a_compaction_too() -> None:
    keeps = OffloadPolicy(types={"user_message": Rule(enabled=False), "tool_result": Rule(enabled=False)})
    manager = ContextManager(Offloader("memory://", policy=keeps), AgentConfig(window_tokens=WINDOW))
    task = "".join(f"{n}. Take care of part {n}.\n" for n in range(400))
    shown = list[bool]()
    for n in range(TURNS):
        manager.add({"role": "user", "content": f"Step {n}. " + (task if n == 3 else "Go on.")})
        sent = manager.before_model_call().messages
        if n >= 3 and manager.compaction_count < 2:
            shown.append(any(task in str(message["content"]).replace("\\n", "\n") for message in sent))
        manager.after_model_call(reply(n))
        manager.add(answer(n))
    assert manager.compaction_count >= 2
    assert True not in shown[shown.index(False) :], shown
