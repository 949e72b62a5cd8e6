"""`OffloadToolset` in an agent of Haystack whose model binds its thinking."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"
pytest.importorskip("haystack", reason="in the environment of the group integration-haystack")

from frameworks.bound_story import BoundStory
from frameworks.scenario import QUERY, READER
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ReasoningContent
from haystack.tools import Tool
from haystack.utils import Secret
from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator

from offload.integrations.haystack import OffloadToolset, _blocks_of, _message_of
from offload.messages.thinking import signed_thinking, with_thinking, without_thinking


class TestBoundStory(BoundStory):
    # The agent shows no model, so that of the replies is told.
    told_first = None
    messages: Any = ()

    def restart(self):
        self.offloading = OffloadToolset(self.store)

    def ask(self, text, way):  # noqa: ARG002 # it has one way
        generator = AnthropicChatGenerator(model=self.server.model, api_key=Secret.from_token("k"))
        fields = {"type": "object", "properties": {"note": {"type": "string"}}}
        tools = [Tool(name, "Sales.", fields, lambda **_: self.output()) for name in (QUERY, READER)]
        agent = Agent(
            chat_generator=generator,
            tools=[*tools, self.offloading],
            hooks={"before_llm": [self.offloading]},
            system_prompt="You sell.",
        )
        asked = [*self.messages, ChatMessage.from_user(text)]
        done = agent.run(asked, hook_context=self.offloading.context("alice"))
        self.messages = [message for message in done["messages"] if not message.is_from("system")]

    def restored(self):
        return OffloadToolset(self.store).restore(self.messages, "alice")

    def results(self, messages):
        return [each.result for message in messages for each in message.tool_call_results]

    def thinking(self, messages):
        return sum(message.reasoning is not None for message in messages)

    def edit(self):
        first = next(message for message in self.messages if message.tool_call_results)
        edited = ChatMessage.from_tool("a shorter result", origin=first.tool_call_result.origin)
        self.messages = [edited if message is first else message for message in self.messages]


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
