"""`OffloadTools` in an agent of agno whose model binds its thinking."""

from __future__ import annotations

from typing import ClassVar

import pytest
from frameworks.bound_story import BoundStory
from frameworks.scenario import QUERY, READER

pytest.importorskip("agno", reason="in the environment of the group integration-agno")

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.anthropic import Claude
from frameworks.agno_model import tool
from frameworks.test_agno import arun, run, stream_run

from offload.integrations.agno import OffloadTools


class TestBoundStory(BoundStory):
    ways = (run, arun, stream_run)
    left_out: ClassVar = (
        # It sees a result once, when the tool returns it, and no request.
        "test_a_change_by_the_host_removes_the_thinking_behind_it_and_restore_returns_it",
        "test_the_model_of_the_request_is_told",
    )

    def restart(self):
        self.offloading = OffloadTools(self.store)
        self.db = getattr(self, "db", InMemoryDb())

    def ask(self, text, way):
        client = {"base_url": self.server.url, "max_retries": 0}
        made = Agent(
            model=Claude(id=self.server.model, api_key="k", client_params=client),
            tools=[*(tool(name, returns=self.output) for name in (QUERY, READER)), self.offloading],
            tool_hooks=[self.offloading.hook],
            pre_hooks=[self.offloading.offload_input],
            db=self.db,
            add_history_to_context=True,
            telemetry=False,
        )
        self.messages = [message.to_dict() for message in way(made, asked=text).messages]

    def restored(self):
        return self.offloading.offloader("alice").restore(self.messages)

    def results(self, messages):
        return [message["content"] for message in messages if message["role"] == "tool"]

    def thinking(self, messages):
        return sum("signature" in str(message) for message in messages)
