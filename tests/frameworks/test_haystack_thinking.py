"""`OffloadToolset` in an agent of Haystack whose model binds its thinking."""

from __future__ import annotations

import os
from typing import Any, ClassVar

import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"
pytest.importorskip("haystack", reason="in the environment of the group integration-haystack")

from frameworks.bound_story import BoundStory, ConvertedStory
from frameworks.haystack_model import tool
from frameworks.scenario import QUERY, READER
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ReasoningContent
from haystack.utils import Secret
from haystack_integrations.components.generators.anthropic import AnthropicChatGenerator

from offload.integrations import haystack as ours
from offload.integrations.haystack import OffloadToolset

CONTENTS: dict[str, Any] = {
    "reasoning_contents": [
        {"reasoning_content": {"reasoning_text": {"text": "a", "signature": "sig-a"}}},
        {"reasoning_content": {"redacted_thinking": "data-b"}},
    ]
}
# Of a model that binds nothing.
OTHERS = {"id": "rs_1", "encrypted_content": "gAAAA"}


class TestBoundStory(BoundStory):
    # The agent shows no model, so that of the replies is told.
    told_first = None
    messages: Any = ()

    def restart(self):
        self.offloading = OffloadToolset(self.store)

    def ask(self, text, way):  # noqa: ARG002 # it has one way
        generator = AnthropicChatGenerator(model=self.server.model, api_key=Secret.from_token("k"))
        tools = [tool(name, returns=self.output) for name in (QUERY, READER)]
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


class TestConverted(ConvertedStory):
    module: ClassVar = ours
    # All signatures of a message leave and come back together.
    signed: ClassVar = ((ChatMessage.from_assistant(reasoning=ReasoningContent("a", CONTENTS)), 2),)
    unsigned: ClassVar = (ChatMessage.from_assistant("So.", reasoning=ReasoningContent("hm", OTHERS)),)
