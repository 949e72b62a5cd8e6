"""`OffloadProvider` in an agent of the Microsoft Agent Framework whose model binds its thinking."""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

import pytest

pytest.importorskip("agent_framework", reason="in the environment of the group integration-agent-framework")

from agent_framework import Agent, AgentSession, Content, Message
from agent_framework.anthropic import AnthropicClient
from agent_framework.exceptions import ChatClientInvalidRequestException
from frameworks.agent_framework_model import tool
from frameworks.bound_story import ConvertedStory, RepairedStory
from frameworks.scenario import QUERY, READER

from offload.integrations import agent_framework as ours
from offload.integrations.agent_framework import OffloadProvider


class TestBoundStory(RepairedStory):
    # Each run with or without a stream; the framework does not keep thinking that is not shown.
    ways, redacts = (False, True), False
    session = AgentSession(session_id="alice")

    def restart(self):
        self.session = AgentSession.from_dict(self.session.to_dict())
        client = AnthropicClient(model=self.server.model, api_key="k")
        tools = [tool(name, returns=self.output) for name in (QUERY, READER)]
        provider = OffloadProvider(self.store)
        self.agent = Agent(client, self.instructions, tools=tools, context_providers=[provider])

    def ask_after_refusal(self, way):
        if way:  # an error in a stream ends the run
            with pytest.raises(ChatClientInvalidRequestException, match="bound to a different conversation"):
                self.ask("Question?", way)
        self.ask("Question?", way)

    def ask(self, text, way):
        asyncio.run(self._ask(text, streams=way))

    async def _ask(self, text, *, streams):
        if not streams:
            await self.agent.run(text, session=self.session)
            return
        stream = self.agent.run(text, session=self.session, stream=True)
        async for _ in stream:
            pass
        await stream.get_final_response()

    @property
    def messages(self):
        return [m for state in self.session.state.values() for m in state.get("messages", ())]

    def restored(self):
        return OffloadProvider(self.store).restore(self.messages, "alice")

    def results(self, messages):
        return [c.result for message in messages for c in message.contents if c.type == "function_result"]

    def thinking(self, messages):
        return sum(c.type == "text_reasoning" for message in messages for c in message.contents)

    def edit(self):
        result = next(c for m in self.messages for c in m.contents if c.type == "function_result")
        result.items = [Content.from_text("a shorter result")]
        result.result = "a shorter result"


def thought(**fields: Any) -> Message:
    return Message("assistant", [Content.from_text_reasoning(**fields)])


class TestConverted(ConvertedStory):
    module: ClassVar = ours

    def compared(self, message):
        return message.contents

    signed: ClassVar = (
        (thought(text="so", protected_data="signature"), 1),
        (thought(protected_data=json.dumps([{"type": "reasoning.text", "signature": "s"}])), 1),
    )
    unsigned: ClassVar = (
        thought(text="so"),
        thought(id="rs_1", text="so", protected_data="gAAAA"),
        thought(protected_data=json.dumps([{"type": "reasoning.encrypted", "data": "d"}])),
    )
