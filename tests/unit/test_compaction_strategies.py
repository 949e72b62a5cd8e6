"""Any compaction strategy works in an agent loop, behind one small protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from offload import ConfigError, Offloader
from offload.agent import AgentConfig, ContextManager
from offload.compaction import CompactionResult, MessageArchive, TypeRule
from offload.context import ContextIR, ItemType


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


def test_settings_of_the_default_strategy_are_refused_with_another_one() -> None:
    off = Offloader("memory://", session="s")
    rules = AgentConfig(rules={ItemType.TOOL_RESULT: TypeRule()})

    for config, summarizer in ((AgentConfig(), lambda _: "summary"), (rules, None)):
        with pytest.raises(ConfigError, match="pass them to the strategy"):
            ContextManager(off, config, summarizer=summarizer, strategy=OldestHalf(off))
