"""`OffloadCapability` in an agent of pydantic-ai whose model binds its thinking."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from frameworks.bound_story import RepairedStory
from frameworks.scenario import QUERY, READER

pytest.importorskip("pydantic_ai", reason="in the environment of the group integration-pydantic-ai")

from frameworks.scripted_pydantic import awaited, results, streamed, sync, tool
from pydantic_ai import Agent
from pydantic_ai.messages import ThinkingPart, ToolReturnPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from offload.integrations.pydantic_ai import OffloadCapability


class TestBoundStory(RepairedStory):
    ways = (sync, awaited, streamed)
    messages: Any = ()

    def restart(self):
        self.capability = OffloadCapability(self.store)
        self.agent = Agent(
            AnthropicModel(
                self.server.model, provider=AnthropicProvider(api_key="k", base_url=self.server.url)
            ),
            tools=[tool(name, returns=self.output) for name in (QUERY, READER)],
            capabilities=[self.capability],
            instructions=self.instructions,
        )

    def ask(self, text, way):
        self.messages = way(self.agent, text, message_history=[*self.messages]).all_messages()

    def restored(self):
        assert self.capability.offloader(self.messages[-1].conversation_id).records()
        return self.capability.restore(self.messages)

    def results(self, messages):
        return results(messages)

    def thinking(self, messages):
        return sum(isinstance(part, ThinkingPart) for message in messages for part in message.parts)

    def edit(self):
        at = next(n for n, m in enumerate(self.messages) if isinstance(m.parts[0], ToolReturnPart))
        parts = [replace(self.messages[at].parts[0], content="a shorter result")]
        self.messages[at] = replace(self.messages[at], parts=parts)
