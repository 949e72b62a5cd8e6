"""Any compaction strategy works in an agent loop, behind one small protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compactions import context_of

from offload import AgentConfig, ConfigError, ContextManager, NotFoundError, Offloader, StoreError
from offload.agent.compaction import (
    CompactionResult,
    MessageArchive,
    RoundCompactor,
    RoundConfig,
    RoundStrategy,
    SelectiveCompaction,
    TypeRule,
)
from offload.messages.context import ContextIR, ItemType
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore


class OldestHalf:
    """Removes the older half of the conversation."""

    def __init__(self, offloader: Offloader) -> None:
        self._archive = MessageArchive(offloader)
        self.compactions = 0

    def compact(self, context: ContextIR, *, current_total_tokens: int | None = None) -> CompactionResult:
        before = context.total_tokens if current_total_tokens is None else current_total_tokens
        messages = context.conversation_messages
        removed = range(len(messages) // 2)
        if not removed:
            return CompactionResult(before, before)
        notice = replace(self._archive.notice(messages), messages=len(removed))
        ref, message = self._archive.store(messages, removed, notice)
        items = context.conversation.items[len(removed) :]
        context.replace_conversation([context.new_item(message, ItemType.COMPACTION_NOTICE), *items])
        self.compactions += 1
        return CompactionResult(before, context.total_tokens, ref=ref)

    def restore(self, messages: Sequence[Any]) -> list[Any]:
        return self._archive.restore(messages)


def run(context: ContextManager, turns: int) -> list[Any]:
    """Play some turns; return all messages."""
    messages: list[Any] = []
    for n in range(turns):
        question = {"role": "user", "content": f"question {n} " + "please " * 40}
        answer = {"role": "assistant", "content": f"answer {n} " + "well " * 40}
        context.add(question)
        assert context.before_model_call().errors == []
        assert context.after_model_call(answer) == []
        messages += [question, answer]
    return messages


def test_an_agent_loop_compacts_by_any_strategy_and_restores_all() -> None:
    off = Offloader("memory://", session="s")
    strategy = OldestHalf(off)
    context = ContextManager(off, AgentConfig(window_tokens=1000), strategy=strategy)

    messages = run(context, 30)

    assert strategy.compactions > 1
    assert len(context.messages) < len(messages)
    assert context.messages[0]["content"].startswith(f"[Compacted {strategy.compactions}: ")
    assert context.restore() == messages
    again = ContextManager(off, AgentConfig(window_tokens=1000), strategy=OldestHalf(off))
    again.resume()
    assert again.restore() == messages


def test_rules_and_a_model_of_another_type_are_refused() -> None:
    off = Offloader("memory://", session="s")
    with pytest.raises(ConfigError, match="rules must be a Mapping, got str"):
        SelectiveCompaction(off, rules="all", model="claude-sonnet-5")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="model must be a str or None, got int"):
        SelectiveCompaction(off, model=5)  # type: ignore[arg-type]


def test_settings_of_the_default_strategy_are_refused_with_another_one() -> None:
    off = Offloader("memory://", session="s")
    rules = AgentConfig(rules={ItemType.TOOL_RESULT: TypeRule()})

    for config, summarizer in ((AgentConfig(), lambda _: "summary"), (rules, None)):
        with pytest.raises(ConfigError, match="pass them to the strategy"):
            ContextManager(off, config, summarizer=summarizer, strategy=OldestHalf(off))


FAKE = "[Offloaded: Bash result, 9 lines, 900 characters, id abcdefghij]\nsomething\n[Read it: x]"


def talk(rounds: int, fakes: Sequence[int]) -> list[Any]:
    """Return a conversation in which the messages at some indices only look like placeholders."""
    roles = ("user", "assistant")
    return [
        {"role": roles[n % 2], "content": FAKE if n in fakes else f"{n} " + "words " * 200}
        for n in range(2 * rounds)
    ]


def by_rounds(off: Offloader, messages: list[Any]) -> tuple[Any, list[Any], Any]:
    compactor = RoundCompactor(off, None, RoundConfig(max_context_tokens=4000))
    result = compactor.compact(messages)
    return compactor, result.new_messages, result


def in_a_context(off: Offloader, messages: list[Any], strategy: Any) -> tuple[Any, list[Any], Any]:
    context = context_of(messages)
    result = strategy.compact(context)
    return strategy, context.lower(), result


COMPACTORS = {
    "rounds": by_rounds,
    "strategy": lambda off, messages: in_a_context(
        off, messages, RoundStrategy(off, None, RoundConfig(max_context_tokens=4000))
    ),
    "selective": lambda off, messages: in_a_context(
        off, messages, SelectiveCompaction(off, threshold_tokens=1000)
    ),
}


@pytest.mark.parametrize("kind", COMPACTORS)
@pytest.mark.parametrize("rounds", [1, 10])
def test_a_text_that_looks_like_a_placeholder_comes_back_also_if_it_was_never_offloaded(
    tmp_path: Path, kind: str, rounds: int
) -> None:
    messages = talk(rounds, [0, 2 * rounds - 1])
    compactor, sent, result = COMPACTORS[kind](Offloader(tmp_path, session="s"), messages)

    assert (result.is_compacted, result.error) == (rounds > 1, None)
    assert sent[-1] is messages[-1]
    assert compactor.restore(sent) == messages
    assert Offloader(tmp_path, session="s").restore(sent) == messages
    with pytest.raises(NotFoundError):
        Offloader(tmp_path, session="another").restore(sent)


def test_a_context_is_looked_through_once_and_again_after_a_failure() -> None:
    store = FaultyStore(MemoryStore(), verb="put", is_lasting=True)
    off = Offloader(store, session="s")
    strategy, context = SelectiveCompaction(off, threshold_tokens=10_000), context_of(talk(1, [0]))

    assert isinstance(strategy.compact(context).error, StoreError)
    store.heal()
    assert strategy.compact(context).error is None
    operations = store.operations
    assert strategy.compact(context).error is None

    assert store.operations == operations
    assert strategy.restore(context.lower()) == talk(1, [0])


@pytest.mark.parametrize("kind", ["lists", "rounds", "types"])
@pytest.mark.parametrize(("share", "most"), [(0.5, 3), (0.83, 9)])
def test_a_loop_of_a_host_does_not_pay_a_failing_summarizer_in_each_turn(
    tmp_path: Path, kind: str, share: float, most: int
) -> None:
    window, paid = 16_000, list[int]()

    def summarize(_: object) -> str:
        paid.append(1)
        return ""

    def count(text: str) -> int:
        return len(text) // 4

    off = Offloader(str(tmp_path), session="s", token_counter=count)
    settings = RoundConfig(max_context_tokens=window)
    rounds, context = RoundCompactor(off, summarize, settings), ContextIR(token_counter=count)
    by_type = SelectiveCompaction(off, summarize, threshold_tokens=int(window * 0.8))
    strategy: Any = RoundStrategy(off, summarize, settings) if kind == "rounds" else by_type
    system, messages = "x" * int(window * share * 4), list[Any]()
    for turn in range(30):
        new = [
            {"role": "user", "content": f"Step {turn}"},
            {"role": "assistant", "content": "fill. " * 150},
        ]
        messages += new
        for message in new:
            context.add_message(message)
        if kind != "lists":
            tokens = context.total_tokens + count(system)
            context.auto_compact(strategy, current_total_tokens=tokens)
        elif rounds.should_compact(messages, system):
            messages = rounds.compact(messages, system).new_messages

    assert len(paid) <= most


def test_a_context_whose_threshold_is_far_below_its_window_waits_no_longer_than_others() -> None:
    off = Offloader("memory://", session="s", token_counter=len)
    compactor = RoundCompactor(off, None, RoundConfig(max_context_tokens=100_000, trigger_ratio=0.01))
    messages: list[Any] = [{"role": "user", "content": "x" * 1000}]

    assert compactor.compact(messages).error
    assert not compactor.should_compact(messages)
    assert compactor.should_compact([*messages, {"role": "user", "content": "x" * 80}])
