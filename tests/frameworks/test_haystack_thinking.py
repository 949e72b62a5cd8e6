"""`OffloadToolset` in an agent of Haystack whose model binds its thinking."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"
pytest.importorskip("haystack", reason="in the environment of the group integration-haystack")

from frameworks import bound_server
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ReasoningContent
from haystack.tools import Tool
from haystack.utils import Secret
from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator

from offload.integrations.haystack import OffloadToolset, _blocks_of, _message_of
from offload.messages.thinking import signed_thinking, with_thinking, without_thinking

RUNS = 3


def agent(server: Any, offloading: OffloadToolset) -> Agent:
    generator = AnthropicChatGenerator(model=server.model, api_key=Secret.from_token("k"))
    fields = {"type": "object", "properties": {"n": {"type": "integer"}}}
    tools = [Tool(name, "Sales.", fields, bound_server.result) for name in bound_server.TOOLS]
    return Agent(
        chat_generator=generator,
        tools=[*tools, offloading],
        hooks={"before_llm": [offloading]},
        system_prompt="You sell.",
    )


def conversation(server: Any, store: Any, *, restarts: bool) -> tuple[OffloadToolset, list[ChatMessage]]:
    """Run an agent several times, each with the messages of the runs before."""
    messages: list[ChatMessage] = []
    offloading = OffloadToolset(store)
    for n in range(RUNS):
        if restarts:
            offloading = OffloadToolset(store)
        asked = [*messages, ChatMessage.from_user(f"Question {n}?")]
        run = agent(server, offloading).run(asked, hook_context=offloading.context("alice"))
        messages = [message for message in run["messages"] if not message.is_from("system")]
    return offloading, messages


@pytest.mark.parametrize("restarts", [False, True])
def test_no_request_changes_what_thinking_is_bound_to(store, restarts):
    with bound_server.serving() as server:
        offloading, messages = conversation(server, store, restarts=restarts)
        bound_server.check(server, requests=RUNS * bound_server.CALLS, thinking=10)
    restored = offloading.restore(messages, "alice")
    results = [r.result for m in restored for r in m.tool_call_results]
    shown = [c.arguments["n"] for m in restored for c in m.tool_calls]
    assert results == [bound_server.result(n) for n in shown]


def test_a_change_by_the_host_removes_the_thinking_behind_it_and_restore_returns_it(store):
    with bound_server.serving() as server:
        offloading, messages = conversation(server, store, restarts=False)
        first = next(m for m in messages if m.tool_call_results)
        changed = ChatMessage.from_tool("a shorter result", origin=first.tool_call_result.origin)
        edited = [changed if m is first else m for m in messages]
        asked = [*edited, ChatMessage.from_user("Question again?")]
        run = agent(server, offloading).run(asked, hook_context=offloading.context("alice"))
        assert server.refusals == []
        assert server.thinking_sent() < 8
    kept = [m for m in run["messages"] if not m.is_from("system")]
    assert [m.reasoning for m in kept[: len(edited)]] != [m.reasoning for m in edited]
    restored = OffloadToolset(store).restore(kept, "alice")[: len(edited)]
    assert [m._content for m in restored if not m.tool_calls and not m.tool_call_results] == [
        m._content for m in edited if not m.tool_calls and not m.tool_call_results
    ]
    assert [m.reasoning for m in restored] == [m.reasoning for m in edited]


def test_reasoning_of_other_models_is_never_removed(store):
    reasoning = ReasoningContent("hm", extra={"id": "rs_1", "encrypted_content": "gAAAA"})
    offloading = OffloadToolset(store)
    message = ChatMessage.from_assistant("So.", reasoning=reasoning)
    [restored] = offloading.restore([message], "alice")
    assert restored is message
    assert signed_thinking(_blocks_of(message)) == []


def test_all_signatures_of_a_message_leave_and_come_back_together(store):
    contents = [
        {"reasoning_content": {"reasoning_text": {"text": "a", "signature": "sig-a"}}},
        {"reasoning_content": {"redacted_thinking": "data-b"}},
    ]
    message = ChatMessage.from_assistant(reasoning=ReasoningContent("a", {"reasoning_contents": contents}))
    old = _blocks_of(message)
    bare, removed = without_thinking(old, signed_thinking(old))
    assert len(removed) == 3
    without = _message_of(message, old, bare)
    assert without.reasoning is None
    assert without.text
    assert _message_of(without, bare, with_thinking(bare, removed)) == message
