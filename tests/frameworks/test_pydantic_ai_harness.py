"""`OffloadOverflowStore` under the `ToolOutputLimits` of pydantic-ai-harness."""

from __future__ import annotations

import asyncio
import re

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUESTION, Call, Script, needle, report

pytest.importorskip("pydantic_ai_harness", reason="in the group integration-pydantic-ai-harness")

from frameworks.scripted_pydantic import ScriptedModel, texts, tool
from pydantic_ai import Agent
from pydantic_ai_harness.tool_output_limits import Band, OverflowStore, Spill, ToolOutputLimits, Truncate

from offload.integrations.pydantic_ai import OffloadOverflowStore
from offload.testing import FaultyStore


def run(script, store):
    limits = ToolOutputLimits(
        bands=[Band(10_000, Spill(then=Truncate(max_chars=4_000)))], store=OffloadOverflowStore(store)
    )
    agent = Agent(ScriptedModel(script), tools=[tool()], capabilities=[limits])
    return asyncio.run(agent.run(QUESTION)).all_messages()


def find(seen):
    [handle] = re.findall(r"handle [`'\"]([^`'\"]+)", seen[-1])
    return Call("read_tool_result", {"handle": handle, "pattern": "needle of"}, "call_find")


def test_it_is_a_store_of_the_harness(store):
    assert isinstance(OffloadOverflowStore(store), OverflowStore)


def test_a_model_finds_results_that_the_harness_spilled_in_the_store(store):
    script = Script([scenario.ask(), find, scenario.end])

    messages = run(script, store)

    assert len(script.seen[1][-1]) < 10_000
    assert needle("alice") not in script.shown(2)
    assert needle("alice") in script.seen[2][-1]
    [key] = [found.key for found in store.keys()]
    assert report().encode() in store.get(key)
    assert texts(messages)[-1] == ANSWER


def test_a_store_that_fails_ends_no_run(store):
    script = Script([scenario.ask(), scenario.end])

    messages = run(script, FaultyStore(store, verb="put", is_lasting=True))

    assert len(script.seen[1][-1]) < 10_000
    assert texts(messages)[-1] == ANSWER


def test_a_handle_that_a_model_made_up_gets_an_answer(store):
    made_up = Call("read_tool_result", {"handle": "../../etc/passwd"}, "call_find")
    script = Script([lambda _: made_up, scenario.end])

    run(script, store)

    assert "No stored tool result" in script.seen[1][-1]
