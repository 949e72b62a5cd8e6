"""Sessions of the OpenAI Agents SDK as `RunConversation.memory` has them kept."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import replace

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUERY, READER, SHOWN_ONCE, Call, Script, needle, report

pytest.importorskip("agents", reason="in the environment of the group integration-openai-agents")

from agents import OpenAIConversationsSession, Runner, RunState, SQLiteSession
from frameworks.scripted_openai import agent, kept, outputs, sync, texts, tool

from offload import ConfigError, OffloadPolicy
from offload.integrations.openai_agents import OffloadRuns
from offload.testing import FaultyStore


@pytest.fixture
def session():
    with closing(SQLiteSession("alice")) as opened:
        yield opened


def test_a_long_user_message_is_replaced_in_the_session_too(store, session):
    script = Script([scenario.end])
    offloading = OffloadRuns(
        store, policy=OffloadPolicy.model_validate({"types": {"user_message": {"min_tokens": 1000}}})
    )
    alice = offloading.conversation("alice")

    sync(agent(script, offloading), report(), session=alice.memory(session), run_config=alice.run_config())

    assert scenario.refs(script.seen[0])
    assert texts(kept(session)) == [*script.seen[0], ANSWER]


@pytest.mark.parametrize("is_new_process", [False, True])
def test_an_approved_reader_result_is_shown_once_in_full_too(store, session, is_new_process):
    script = Script([scenario.ask(READER), scenario.ask("lookup", "call_1"), scenario.end])
    reader = replace(tool(READER), needs_approval=True)
    offloading = OffloadRuns(store, policy=SHOWN_ONCE)
    made = agent(script, offloading, reader, tool("lookup", returns=lambda: "42"))
    alice = offloading.conversation("alice")

    state = sync(made, session=alice.memory(session), run_config=alice.run_config()).to_state()
    [asked] = state.get_interruptions()
    state.approve(asked)
    if is_new_process:
        alice = OffloadRuns(store, policy=SHOWN_ONCE).conversation("alice")
    sync(made, state, session=alice.memory(session), run_config=alice.run_config())

    assert script.seen[1][-1] == report()
    assert scenario.refs([script.seen[2][2]])


RESUMED_STATE = """
import asyncio, json, sys
from agents import Agent, Runner, RunState
from frameworks import scenario
from frameworks.scripted_openai import scripted
from frameworks.test_openai_agents_session import risky
from offload.integrations.openai_agents import OffloadRuns

given = json.load(sys.stdin)
script = scenario.Script([scenario.search, scenario.read, scenario.end])
offloading = OffloadRuns(given["url"], storage_options=given["options"])
agent = Agent(name="analyst", model=scripted(script), tools=[*risky(), *offloading.tools])

async def run():
    state = await RunState.from_json(agent, given["state"])
    state.approve(state.get_interruptions()[0])
    return await Runner.run(agent, state, run_config=offloading.conversation("alice").run_config())

result = asyncio.run(run())
print(json.dumps([script.seen, result.final_output]))
"""


def risky():
    return [tool(returns=lambda: {"report": report()}), replace(tool("send"), needs_approval=True)]


BOTH = [Call(QUERY, {}, "call_0"), Call("send", {}, "call_1")]


def test_a_saved_state_of_an_interrupted_run_has_placeholders_and_continues_in_a_new_process(s3_bucket):
    calls = [Call(QUERY, {}, "call_1"), Call("send", {}, "call_2")]
    script = Script([scenario.ask(), lambda _: calls])
    offloading = OffloadRuns(s3_bucket.url, storage_options=s3_bucket.storage_options)
    alice = offloading.conversation("alice")
    made = agent(script, offloading, *risky())

    state = sync(made, run_config=alice.run_config()).to_state()
    before = state.to_string()
    saved = asyncio.run(alice.state_json(state))

    assert before.count("entry 01500") == 8
    assert "entry 01500" not in json.dumps(saved)
    assert state.to_string() == before
    given = {"url": s3_bucket.url, "options": s3_bucket.storage_options, "state": saved}
    seen, answer = scenario.in_new_process(RESUMED_STATE, given)
    assert answer == ANSWER
    assert len(scenario.refs(seen[0])) == 2 + 1
    assert needle("alice") in seen[1][-1]
    assert seen[0][:3] == script.seen[1][:3]


def test_the_session_of_an_interrupted_run_has_placeholders(store, session):
    offloading = OffloadRuns(store)
    alice = offloading.conversation("alice")
    made = agent(Script([lambda _: BOTH, scenario.end]), offloading, *risky())

    state = sync(made, session=alice.memory(session), run_config=alice.run_config()).to_state()
    waiting = json.dumps(kept(session))
    state.approve(state.get_interruptions()[0])
    sync(made, state, session=alice.memory(session), run_config=alice.run_config())

    assert "entry 01500" not in waiting
    assert scenario.refs([outputs(kept(session))[0]])


def test_the_saved_state_of_an_agent_inside_an_agent_has_placeholders_too(store):
    script = Script([lambda _: BOTH, scenario.search, scenario.end])
    offloading = OffloadRuns(store)
    alice = offloading.conversation("alice")
    inner = agent(script, offloading, *risky())
    delegate = Call("delegate", {"input": "Look."}, "call_d")
    outer = agent(Script([lambda _: delegate, scenario.end]), offloading, inner.as_tool("delegate", "x"))

    async def resumed(saved):
        state = await RunState.from_json(outer, saved)
        state.approve(state.get_interruptions()[0])
        return await Runner.run(outer, state, run_config=alice.run_config())

    state = sync(outer, run_config=alice.run_config()).to_state()
    saved = asyncio.run(alice.state_json(state))

    assert "entry 01500" in state.to_string()
    assert "entry 01500" not in json.dumps(saved)
    assert asyncio.run(resumed(saved)).final_output == ANSWER
    assert needle("alice") in script.seen[2][-1]


def test_a_saved_state_without_large_results_is_that_of_the_sdk(store):
    script = Script([lambda _: [Call("lookup", {}, "call_0"), Call("send", {}, "call_1")]])
    offloading = OffloadRuns(store)
    alice = offloading.conversation("alice")
    small = tool("lookup", returns=lambda: {"type": "function_call_output", "call_id": "call_0"})

    state = sync(agent(script, offloading, small, risky()[1]), run_config=alice.run_config()).to_state()

    assert asyncio.run(alice.state_json(state)) == state.to_json()


def test_a_store_that_fails_costs_no_result_of_a_saved_state(store, caplog):
    faulty = FaultyStore(store, verb="put", is_lasting=True)
    offloading = OffloadRuns(faulty)
    alice = offloading.conversation("alice")

    made = agent(Script([lambda _: BOTH]), offloading, *risky())
    state = sync(made, run_config=alice.run_config()).to_state()

    assert asyncio.run(alice.state_json(state)) == state.to_json()
    assert "originals are kept" in caplog.text


class Aware(SQLiteSession):
    """A session that wants the context of the run."""

    async def get_items(self, limit=None, wrapper=None):
        self.wrapper = wrapper
        return await super().get_items(limit)

    async def add_items(self, items, wrapper=None):
        self.wrapper = wrapper
        await super().add_items(items)

    async def pop_item(self, wrapper=None):
        self.wrapper = wrapper
        return await super().pop_item()

    async def clear_session(self, wrapper=None):
        self.wrapper = wrapper
        await super().clear_session()


def test_a_session_that_wants_the_context_of_the_run_gets_it(store):
    offloading = OffloadRuns(store)
    alice = offloading.conversation("alice")

    with closing(Aware("alice")) as session:
        made = agent(Script([scenario.end]), offloading)
        sync(made, session=alice.memory(session), run_config=alice.run_config(), context="of the caller")

    assert session.wrapper.context == "of the caller"


def test_memory_is_the_callers_session_in_all_else(store, session):
    memory = OffloadRuns(store).conversation("alice").memory(session)

    asyncio.run(memory.add_items([{"role": "user", "content": "Hi."}]))

    assert (memory.session_id, kept(session)) == ("alice", [{"role": "user", "content": "Hi."}])
    assert asyncio.run(memory.pop_item()) == {"role": "user", "content": "Hi."}
    assert kept(session) == []


def test_a_session_that_openai_keeps_is_refused(store):
    session = OpenAIConversationsSession(conversation_id="conv_1", openai_client=object())

    with pytest.raises(ConfigError, match="SQLiteSession"):
        OffloadRuns(store).conversation("alice").memory(session)
