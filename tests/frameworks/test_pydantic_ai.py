"""`OffloadCapability` in an agent of pydantic-ai; `OffloadOverflowStore` alone."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUERY, QUESTION, Call, Script, needle, report
from frameworks.story import Story, Told

pytest.importorskip("pydantic_ai", reason="in the environment of the group integration-pydantic-ai")

from frameworks.scripted_pydantic import WAYS, agent, awaited, results, streamed, sync, texts, tool
from pydantic_ai import DeferredToolRequests, DeferredToolResults, Tool, ToolFailed, ToolOutput
from pydantic_ai.messages import ModelMessagesTypeAdapter

from offload import ConfigError
from offload.engine.policy.tool_names import TOOL_NAMES
from offload.integrations.pydantic_ai import OffloadCapability, OffloadOverflowStore
from offload.testing import FaultyStore


class TestStory(Story):
    extra, without, second_try, keeps_late = "pydantic-ai", "pydantic_ai", 2, False
    tool = staticmethod(tool)
    ways = (sync, awaited, streamed)
    own_arguments: ClassVar = {"self": 1, "ctx": 2, "name": "x"}
    missed: ClassVar = [0, 0, 5301]
    agents: ClassVar = ["critic"]
    error = ToolFailed(report())
    # Its scripted model reports no usage in a stream.
    some_ways: ClassVar = {"test_a_request_that_the_provider_s_cache_missed_is_noticed": (sync, awaited)}

    def plugin(self, store, **options):
        return OffloadCapability(store, **options)

    def play(self, script, plugin, *tools, way=sync, owner="alice", asked=QUESTION, saved=None):
        before = ModelMessagesTypeAdapter.validate_json(saved) if saved else None
        made = agent(script, plugin, *tools, name="critic")
        result = way(made, asked, message_history=before, conversation_id=owner)
        messages = result.all_messages()
        assert texts(messages)[:-1] == script.seen[-1]
        restored = plugin.restore(messages)
        return Told(
            texts(messages)[-1],
            plugin.offloader(owner),
            results(messages),
            lambda: results(restored),
            result.all_messages_json().decode(),
            texts(restored)[0],
        )


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

    pass_on = lambda texts: Call("delegate", {"request": scenario.tell(texts)}, "call_d")  # noqa: E731 # one turn
    outer = Script([scenario.ask(), pass_on, scenario.search_told, scenario.end])
    result = run(agent(outer, capability, query, Tool(delegate)))

    assert needle("alice") in inner.seen[1][-1]
    assert needle("bob") in outer.seen[3][-1]
    assert results(capability.restore(result.all_messages()))[0] == report()
    assert len(list(store.keys("r/"))) == 2


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


BOTH = [Call(QUERY, {}, "call_0"), Call("send", {}, "call_1")]


def deferring(script, capability):
    send = Tool(lambda: "Sent.", name="send", requires_approval=True)
    return agent(script, capability, tool(), send, output_type=[str, DeferredToolRequests])


@pytest.mark.parametrize("run", [sync, awaited])
def test_the_history_of_a_run_that_waits_for_an_approval_has_the_placeholder(store, run):
    script = Script([lambda _: BOTH, scenario.search, scenario.end])
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
    faulty = FaultyStore(store, verb="put", is_lasting=True)

    waiting = sync(deferring(Script([lambda _: BOTH]), OffloadCapability(faulty)))

    assert results(waiting.all_messages()) == [report()]
    assert "originals are kept" in caplog.text


def test_the_model_gets_the_tools_and_instructions_after_the_callers_own(store):
    capability = OffloadCapability(store)
    made = agent(Script([scenario.end]), capability, instructions="Be brief.")

    sync(made)

    [info] = made.model.infos
    assert {tool.name for tool in info.function_tools} == {QUERY, *TOOL_NAMES}
    assert info.instructions.startswith("Be brief.")
    assert capability.offloader().prompt() in info.instructions


def test_a_spilled_result_is_read_back_under_its_handle_from_another_process_s_store(s3_bucket):
    options = {"storage_options": s3_bucket.storage_options}
    first, second = (OffloadOverflowStore(s3_bucket.url, **options) for _ in range(2))

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
