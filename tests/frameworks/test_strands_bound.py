"""`StrandsOffloadPlugin` in an agent of Strands whose model binds its thinking."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic import BadRequestError
from binding import REFUSAL, BoundError
from frameworks.bound_server import CALLS, Server, serving
from frameworks.bound_story import RepairedStory
from frameworks.scenario import QUERY, READER

pytest.importorskip("strands", reason="in the environment of the group integration-strands")

from frameworks.strands_model import tool
from strands import Agent
from strands.agent.conversation_manager import NullConversationManager, SlidingWindowConversationManager
from strands.models.anthropic import AnthropicModel

from offload.integrations.strands import StrandsOffloadPlugin


class TestBoundStory(RepairedStory):
    # The framework's client of Anthropic loses thinking that is not shown.
    redacts = False
    server: Any
    agent: Any = None
    manager: Any = None

    def restart(self):
        self.plugin = StrandsOffloadPlugin(self.store, session="alice")
        client = {"base_url": self.server.url, "api_key": "k", "max_retries": 0}
        self.agent = Agent(
            model=AnthropicModel(client_args=client, model_id=self.server.model, max_tokens=100),
            tools=[tool(name, returns=lambda: self.output()) for name in (QUERY, READER)],  # noqa: PLW0108 # it is made later
            plugins=[self.plugin],
            system_prompt=self.instructions,
            callback_handler=None,
            conversation_manager=self.manager or NullConversationManager(),
            messages=self.agent.messages if self.agent else [],
        )

    def ask(self, text, way):  # noqa: ARG002 # it has one way
        self.agent(text)

    def restored(self):
        return self.plugin.offloader(self.agent).restore(self.agent.messages)

    def results(self, messages):
        blocks = [block for message in messages for block in message["content"]]
        return [block["toolResult"]["content"][0]["text"] for block in blocks if "toolResult" in block]

    def thinking(self, messages):
        return sum("reasoningContent" in block for message in messages for block in message["content"])

    def edit(self):
        blocks = [block for message in self.agent.messages for block in message["content"]]
        result = next(block["toolResult"] for block in blocks if "toolResult" in block)
        result["content"] = [{"text": "a shorter result"}]

    def test_a_conversation_manager_may_trim_since_the_thinking_behind_it_is_removed(self, store):
        self.manager = SlidingWindowConversationManager(window_size=10, per_turn=True)
        with serving(redacts=False) as server:
            self.begin(server, store)
            for _ in range(3):
                self.ask("Question?", None)

        assert server.refusals == []
        assert min(len(request["messages"]) for request in server.requests[-3:]) <= 12
        assert self.server.binding.signatures(server.requests[4]["messages"])
        off = self.plugin.offloader(self.agent)
        sent = off.offload(self.agent.messages).messages
        assert self.thinking(sent) < self.thinking(self.agent.messages)
        assert off.restore(sent) == off.restore(self.agent.messages)

    def test_a_second_refusal_is_the_error_of_the_run(self, store):
        class Stubborn(Server):
            def answer(self, request):
                self.requests.append(request)
                raise BoundError(REFUSAL.format(1, 0))

        with serving(redacts=False) as server:
            self.begin(server, store)
            self.ask("Question?", None)
            server.__class__ = Stubborn
            with pytest.raises(BadRequestError, match="bound to a different conversation"):
                self.ask("Question?", None)

        assert len(server.requests) == CALLS + 2
