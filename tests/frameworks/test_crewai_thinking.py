"""`OffloadCrew` in a crew of CrewAI whose model binds its thinking."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("crewai", reason="in the environment of the group integration-crewai")

from frameworks import bound_server
from frameworks.bound import outputs
from frameworks.crewai_model import tool  # sets what CrewAI reads when it is imported
from frameworks.scenario import QUERY, READER

# isort: split
from crewai import LLM, Agent, Crew, Task

from offload.integrations.crewai import OffloadCrew

# CrewAI uses names that it deprecates itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:crewai")


def test_a_run_with_thinking_is_never_refused_and_sends_none_back(store):
    with bound_server.serving() as server:
        offloading = OffloadCrew(store, session="alice")
        thinking = {"type": "enabled", "budget_tokens": 1024}
        llm = LLM(f"anthropic/{server.model}", api_key="k", base_url=server.url, thinking=thinking)
        output = outputs()
        tools = [tool(name, returns=output) for name in (QUERY, READER)]
        agent = Agent(
            role="seller", goal="Sells.", backstory="A seller.", llm=llm, tools=[*tools, *offloading.tools]
        )
        asked = Task(description="Question?", expected_output="A sentence.", agent=agent)
        assert Crew(agents=[agent], tasks=[asked]).kickoff().raw == "The answer 5."
        assert server.refusals == []
        assert not any("signature" in json.dumps(request["messages"]) for request in server.requests)
    assert offloading.offloader.records()
