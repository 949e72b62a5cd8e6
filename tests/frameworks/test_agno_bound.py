"""`OffloadTools` in an agent of agno whose model binds its thinking."""

from __future__ import annotations

import asyncio

import pytest
from binding import Binding
from frameworks import scenario
from frameworks.anthropic_server import serving
from frameworks.bound import BOUND, check_bound_run, long_run, outputs
from frameworks.scenario import QUERY, QUESTION, READER, Script, end

pytest.importorskip("agno", reason="in the environment of the group integration-agno")

from agno.agent import Agent
from agno.db.json import JsonDb
from agno.models.anthropic import Claude
from agno.tools.function import Function

from offload.integrations.agno import OffloadTools


def agent(server, offloading, output, folder):
    def now(note: str = "") -> object:
        return output()

    client = {"base_url": server.url, "max_retries": 0}
    return Agent(
        model=Claude(id=BOUND, api_key="k", client_params=client),
        tools=[
            *(Function(name=name, description="D.", entrypoint=now) for name in (QUERY, READER)),
            offloading,
        ],
        tool_hooks=[offloading.hook],
        pre_hooks=[offloading.offload_input],
        db=JsonDb(str(folder)),
        add_history_to_context=True,
        telemetry=False,
    )


def run(agent):
    return agent.run(QUESTION, session_id="alice")


def arun(agent):
    return asyncio.run(agent.arun(QUESTION, session_id="alice"))


def stream_run(agent):
    [*_, last] = agent.run(QUESTION, session_id="alice", stream=True, yield_run_output=True)
    return last


@pytest.mark.parametrize("run", [run, arun, stream_run])
def test_nothing_that_was_sent_changes_also_after_a_restart(store, run, tmp_path):
    script = Script([*long_run().turns, scenario.ask(QUERY, "later"), end])
    made: list[str] = []
    output = outputs(made)
    with serving(script, Binding()) as server:
        for _ in range(2):
            done = run(agent(server, OffloadTools(store), output, tmp_path))

    check_bound_run(server)
    off = OffloadTools(store).offloader("alice")
    restored = off.restore([m.to_dict() for m in done.messages])
    results = [m["content"] for m in restored if m["role"] == "tool" and m["tool_name"] in (QUERY, READER)]
    assert results == made
