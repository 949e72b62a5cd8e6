"""`OffloadCapability` in an agent of pydantic-ai; `OffloadOverflowStore` alone."""

from __future__ import annotations

import asyncio

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUERY, READER, Call, Script, needle, report

pytest.importorskip("pydantic_ai", reason="in the environment of the group integration-pydantic-ai")

from frameworks.scripted_pydantic import WAYS, agent, awaited, results, sync, texts, tool
from pydantic_ai import DeferredToolRequests, DeferredToolResults, Tool, ToolOutput
from pydantic_ai.messages import ModelMessagesTypeAdapter

from offload import ConfigError, StoreUnavailableError
from offload.integrations.pydantic_ai import OffloadCapability, OffloadOverflowStore
from offload.testing import FaultyStore
from offload.tools import TOOL_NAMES
from offload_backends.memory import MemoryStore

RESUMED = """
import json, sys
from frameworks import scenario
from frameworks.scripted_pydantic import ScriptedModel, tool
from offload.integrations.pydantic_ai import OffloadCapability
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessagesTypeAdapter

given = json.load(sys.stdin)
script = scenario.Script([scenario.search, scenario.read, scenario.end])
capability = OffloadCapability(given["url"], storage_options=given["options"])
agent = Agent(ScriptedModel(script), tools=[tool()], capabilities=[capability])
agent.run_sync("And then?", message_history=ModelMessagesTypeAdapter.validate_json(given["messages"]))
print(json.dumps(script.seen))
"""


@WAYS
def test_a_model_searches_and_reads_an_offloaded_result(store, run):
    script = scenario.whole_run()

    result = run(agent(script, OffloadCapability(store)))

    scenario.check_whole_run(script)
    assert texts(result.all_messages())[-1] == ANSWER


@WAYS
def test_the_history_contains_the_placeholder_and_never_the_original(store, run):
    script = scenario.whole_run()
    capability = OffloadCapability(store)

    messages = run(agent(script, capability)).all_messages()

    assert texts(messages) == [*script.seen[3], ANSWER]
    assert "entry 01500" in report()
    assert b"entry 01500" not in ModelMessagesTypeAdapter.dump_json(messages)
    assert results(capability.restore(messages)) == [report(), *results(messages)[1:]]


def test_the_placeholder_is_the_same_whenever_and_wherever_it_is_made(store):
    seen = []
    for into in (store, store, MemoryStore()):
        script = Script([scenario.ask(), scenario.end])
        sync(agent(script, OffloadCapability(into)), conversation_id="alice")
        seen.append(script.seen[1])

    assert scenario.refs(seen[0])
    assert seen[1:] == [seen[0]] * 2


@WAYS
@pytest.mark.parametrize("options", [{}, {"session": "team"}])
def test_an_agent_that_a_tool_runs_and_its_caller_read_each_others_items(store, run, options):
    capability = OffloadCapability(store, **options)
    inner = Script([scenario.search_told, scenario.ask(call="call_1"), scenario.tell])
    owners = iter(["alice", "bob"])
    query = tool(returns=lambda: report(next(owners)))
    helper = agent(inner, OffloadCapability(store, **options), query)

    async def delegate(request: str) -> str:
        return str((await helper.run(request)).output)

    outer = Script(
        [
            scenario.ask(),
            lambda texts: Call("delegate", {"request": scenario.tell(texts)}, "call_d"),
            scenario.search_told,
            scenario.end,
        ]
    )
    result = run(agent(outer, capability, query, Tool(delegate)))

    assert needle("alice") in inner.seen[1][-1]
    assert needle("bob") in outer.seen[3][-1]
    assert results(capability.restore(result.all_messages()))[0] == report()
    assert len(list(store.keys("r/"))) == 2


def test_a_run_after_one_with_a_tool_has_a_conversation_of_its_own(store):
    capability = OffloadCapability(store)
    made = [sync(agent(Script([scenario.ask(), scenario.end]), capability)) for _ in range(2)]

    assert len({result.conversation_id for result in made}) == 2


def test_two_conversations_with_one_call_id_read_their_own(store):
    capability = OffloadCapability(store)
    scripts = {}
    for owner in ("alice", "bob"):
        scripts[owner] = scenario.whole_run()
        mine = tool(returns=lambda owner=owner: report(owner))
        sync(agent(scripts[owner], capability, mine), conversation_id=owner)

    for owner, other in (("alice", "bob"), ("bob", "alice")):
        scenario.check_whole_run(scripts[owner], owner)
        assert needle(other) not in scripts[owner].shown(4)
        assert scenario.calls_of(capability.offloader(owner)) == ["call_0"]


def test_a_conversation_cannot_read_items_of_another(store):
    capability = OffloadCapability(store)
    sync(agent(scenario.whole_run(), capability), conversation_id="alice")
    [record] = capability.offloader("alice").records()
    foreign = Script([lambda _: Call("context_read", {"id": record.ref}, "c"), scenario.end])
    unknown = Script([lambda _: Call("context_read", {"id": "abcdefghij"}, "c"), scenario.end])

    for script in (foreign, unknown):
        sync(agent(script, capability), conversation_id="mallory")

    assert foreign.seen[1][-1].replace(record.ref, "abcdefghij") == unknown.seen[1][-1]
    assert foreign.seen[1][-1].startswith("Error: ")


def test_runs_that_name_no_conversation_do_not_share_one(store):
    capability = OffloadCapability(store)
    first, second = (
        sync(agent(scenario.whole_run(), capability)).all_messages()[-1].conversation_id for _ in range(2)
    )

    assert first != second
    for conversation in (first, second):
        assert len(capability.offloader(conversation).records()) == 1


def test_a_conversation_with_an_empty_id_is_refused_and_never_shared(store):
    with pytest.raises(ConfigError, match="session name must be a str"):
        sync(agent(scenario.whole_run(), OffloadCapability(store)), conversation_id="")

    assert list(store.keys()) == []


def test_a_session_that_is_named_is_that_of_every_conversation(store):
    capability = OffloadCapability(store, session="team")

    messages = sync(agent(Script([scenario.ask(), scenario.end]), capability)).all_messages()
    script = Script([lambda _: Call("context_grep", {"pattern": "needle of"}, "c"), scenario.end])
    sync(agent(script, capability))

    assert needle("alice") in script.seen[1][-1]
    assert results(OffloadCapability(store, session="team").restore(messages)) == [report()]


@WAYS
def test_a_store_that_fails_in_the_middle_costs_no_result_and_ends_no_run(store, run, caplog):
    faulty = FaultyStore(store, verb="put", nth=2, is_lasting=True)
    script = Script([scenario.ask(), scenario.ask(call="call_1"), scenario.end])
    owners = iter(["alice", "bob"])
    made = agent(script, OffloadCapability(faulty), tool(returns=lambda: report(next(owners))))

    messages = run(made).all_messages()

    first, second = results(messages)
    assert first.startswith("[Offloaded:")
    assert second == script.seen[2][-1] == report("bob")
    assert "kept in the message" in caplog.text
    assert texts(messages)[-1] == ANSWER


def test_an_item_that_could_not_be_stored_is_offloaded_as_soon_as_it_can(store):
    faulty = FaultyStore(store, verb="put", nth=1)
    script = Script([scenario.ask(), scenario.ask("lookup", "call_1"), scenario.end])
    made = agent(script, OffloadCapability(faulty), tool(), tool("lookup", returns=lambda: "42"))

    messages = sync(made).all_messages()

    assert faulty.failures == 1
    assert script.seen[1][-1] == report()
    assert scenario.refs([script.seen[2][2]])
    assert results(messages)[0] == script.seen[2][2]


def test_the_caller_may_have_a_failure_end_the_run(store):
    faulty = FaultyStore(store, verb="put", is_lasting=True)

    with pytest.raises(StoreUnavailableError):
        sync(agent(scenario.whole_run(), OffloadCapability(faulty, on_error="raise")))


def test_a_new_process_continues_from_the_store_and_the_history(s3_bucket):
    script = Script([scenario.ask(), scenario.end])
    capability = OffloadCapability(s3_bucket.url, storage_options=s3_bucket.storage_options)
    result = sync(agent(script, capability))
    given = {
        "url": s3_bucket.url,
        "options": s3_bucket.storage_options,
        "messages": result.all_messages_json().decode(),
    }

    assert needle("alice") not in given["messages"]
    seen = scenario.in_new_process(RESUMED, given)

    assert seen[0] == [*script.seen[1], ANSWER, "And then?"]
    assert needle("alice") in seen[1][-1]
    assert f"entry {scenario.NEEDLE_LINE + 1:05}" in seen[2][-1]


@WAYS
def test_a_file_reader_result_is_shown_once_in_full_and_then_replaced_in_the_history_too(store, run):
    script = Script([scenario.ask(READER), scenario.ask(READER, "call_1"), scenario.end])
    owners = iter(["alice", "bob"])
    capability = OffloadCapability(store)
    made = agent(script, capability, tool(READER, returns=lambda: report(next(owners))))

    messages = run(made).all_messages()

    assert script.seen[1][-1] == report("alice")
    assert scenario.refs([script.seen[2][2]])
    assert results(messages) == [script.seen[2][2], report("bob")]
    assert results(capability.restore(messages)) == [report("alice"), report("bob")]


def deferring(script, capability):
    send = Tool(lambda: "Sent.", name="send", requires_approval=True)
    return agent(script, capability, tool(), send, output_type=[str, DeferredToolRequests])


@pytest.mark.parametrize("run", [sync, awaited])
def test_the_history_of_a_run_that_waits_for_an_approval_has_the_placeholder(store, run):
    calls = [Call(QUERY, {}, "call_0"), Call("send", {}, "call_1")]
    script = Script([lambda _: calls, scenario.search, scenario.end])
    capability = OffloadCapability(store)
    made = deferring(script, capability)

    waiting = run(made)
    kept = waiting.all_messages()
    approved = DeferredToolResults(approvals={"call_1": True})
    saved = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(kept))
    resumed = sync(made, None, message_history=saved, deferred_tool_results=approved)

    assert b"entry 01500" not in ModelMessagesTypeAdapter.dump_json(kept)
    assert results(capability.restore(kept)) == [report()]
    assert script.seen[1][-2:] == [*results(kept), "Sent."]
    assert needle("alice") in script.seen[2][-1]
    assert resumed.output == ANSWER


def test_a_result_next_to_an_output_tool_is_offloaded_in_the_history(store):
    both = [Call(QUERY, {}, "call_0"), Call("final_result", {"response": 7}, "call_1")]
    capability = OffloadCapability(store)
    made = agent(Script([lambda _: both]), capability, output_type=ToolOutput(int), end_strategy="exhaustive")

    result = sync(made)

    assert result.output == 7
    assert scenario.refs(results(result.all_messages()))


def test_a_store_that_fails_ends_no_run_that_waits(store, caplog):
    calls = [Call(QUERY, {}, "call_0"), Call("send", {}, "call_1")]
    faulty = FaultyStore(store, verb="put", is_lasting=True)

    waiting = sync(deferring(Script([lambda _: calls]), OffloadCapability(faulty)))

    assert results(waiting.all_messages()) == [report()]
    assert "kept in the message" in caplog.text


def test_results_of_concurrent_calls_are_all_offloaded(store):
    calls = [Call(QUERY, {}, f"call_{n}") for n in range(8)]
    capability = OffloadCapability(store)

    messages = sync(agent(Script([lambda _: calls, scenario.end]), capability)).all_messages()

    assert len({ref for content in results(messages) for ref in scenario.refs([content])}) == 8
    assert results(capability.restore(messages)) == [report()] * 8


@WAYS
@pytest.mark.parametrize(
    "arguments",
    [{}, {"id": 7}, {"id": "abcdefghij", "self": 1, "ctx": 2, "name": "x"}, {"id": "../../etc/passwd"}],
)
def test_a_call_that_makes_no_sense_gets_an_answer_and_ends_no_run(store, run, arguments):
    script = Script([lambda _: Call("context_read", arguments, "c"), scenario.end])

    messages = run(agent(script, OffloadCapability(store))).all_messages()

    assert script.seen[1][-1].startswith("Error: ")
    assert texts(messages)[-1] == ANSWER


def test_the_model_gets_the_tools_and_instructions_after_the_callers_own(store):
    capability = OffloadCapability(store)
    made = agent(Script([scenario.end]), capability, instructions="Be brief.")

    sync(made)

    [info] = made.model.infos
    names = [tool.name for tool in info.function_tools]
    assert sorted(names) == sorted([QUERY, *TOOL_NAMES])
    assert info.instructions.startswith("Be brief.")
    assert capability.offloader().prompt() in info.instructions


def test_a_spilled_result_is_read_back_under_its_handle_from_another_process_s_store(s3_bucket):
    first, second = (
        OffloadOverflowStore(s3_bucket.url, storage_options=s3_bucket.storage_options) for _ in range(2)
    )

    handle = asyncio.run(first.write("run/call_0.0", report().encode()))
    asyncio.run(first.write("run/call_0.0", b"again"))

    assert asyncio.run(second.read(handle)) == b"again"


@pytest.mark.parametrize("handle", ["run/call_1.0", "../other/run/call_0.0", "", "/etc/passwd"])
def test_a_handle_that_nothing_was_stored_under_is_a_file_that_is_not_there(store, handle):
    ours = OffloadOverflowStore(store)
    asyncio.run(ours.write("run/call_0.0", b"ours"))
    asyncio.run(OffloadOverflowStore(store, namespace="other").write("run/call_0.0", b"theirs"))

    with pytest.raises(FileNotFoundError):
        asyncio.run(ours.read(handle))
    assert asyncio.run(ours.read("run/call_0.0")) == b"ours"


def test_a_spilled_result_that_is_damaged_is_an_error_of_the_system(store):
    spilled = OffloadOverflowStore(store)
    handle = asyncio.run(spilled.write("run/call_0.0", b"whole"))
    [found] = store.keys()
    store.put(found.key, b"\0", overwrite=True)

    with pytest.raises(OSError, match=r"truncated|does not start"):
        asyncio.run(spilled.read(handle))


def test_without_the_framework_the_error_names_the_command():
    assert "pip install 'offload[pydantic-ai]'" in scenario.import_error("pydantic_ai", without="pydantic_ai")


def test_a_request_that_the_provider_s_cache_missed_is_noticed(store, monkeypatch):
    missed = scenario.missed_tokens(monkeypatch)

    sync(agent(scenario.run_with_a_miss(), OffloadCapability(store)))

    assert missed == [0, 0, 5301]
