"""`OffloadCapability` in an agent of pydantic-ai; `OffloadOverflowStore` alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import ClassVar

import pytest
from frameworks import scenario
from frameworks.objects_story import ObjectsStory
from frameworks.scenario import ANSWER, QUERY, QUESTION, Call, Script, needle, report
from frameworks.story import Story, Told

pytest.importorskip("pydantic_ai", reason="in the environment of the group integration-pydantic-ai")

from frameworks.scripted_pydantic import agent, awaited, results, streamed, sync, texts, tool
from pydantic_ai import DeferredToolRequests, DeferredToolResults, Tool, ToolFailed, ToolOutput
from pydantic_ai.messages import ModelMessagesTypeAdapter

from offload import ConfigError
from offload.integrations.pydantic_ai import OffloadCapability, OffloadOverflowStore
from offload.testing import FaultyStore


def helper_of(script, capability, *tools):
    made = agent(script, capability, *tools, name="helper")

    async def helper(input: str) -> str:  # noqa: A002 # as in other frameworks
        return str((await made.run(input)).output)

    return Tool(helper)


class TestStory(Story):
    extra, without, second_try, keeps_late = "pydantic-ai", "pydantic_ai", 2, False
    tool = staticmethod(tool)
    ways = (sync, awaited, streamed)
    own_arguments: ClassVar = {"self": 1, "ctx": 2, "name": "x"}
    missed: ClassVar = [0, 0, 5301]
    agents: ClassVar = ["critic"]
    errors: ClassVar = (ToolFailed(report()),)
    helpers: ClassVar = ((helper_of, {}), (helper_of, {"session": "team"}))
    # It restores the value: see the tests of its messages.
    left_out: ClassVar = ("test_a_value_is_offloaded_as_the_text_that_the_framework_makes_of_it",)
    # Its scripted model reports no usage in a stream.
    some_ways: ClassVar = {"test_a_request_that_the_provider_s_cache_missed_is_noticed": (sync, awaited)}

    def plugin(self, store, **options):
        return OffloadCapability(store, **options)

    def play(self, script, plugin, *tools, way=sync, owner="alice", asked=QUESTION, saved=None, **options):
        before = ModelMessagesTypeAdapter.validate_json(saved) if saved else None
        made = agent(script, plugin, *tools, name="critic", **options)
        result = way(made, asked, message_history=before, conversation_id=owner)
        messages = result.all_messages()
        assert texts(messages)[:-1] == script.seen[-1]
        restored = plugin.restore(messages)
        return Told(
            texts(messages)[-1],
            plugin.offloader(messages[-1].conversation_id),
            results(messages),
            lambda: results(restored),
            result.all_messages_json().decode(),
            texts(restored)[0],
        )


def test_a_conversation_with_an_empty_id_is_refused_and_never_shared(store):
    with pytest.raises(ConfigError, match="session name must be a str"):
        sync(agent(scenario.whole_run(), OffloadCapability(store)), conversation_id="")

    assert list(store.keys()) == []


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


def test_a_spilled_result_is_read_back_under_its_handle_from_another_process_s_store(s3_bucket):
    options = {"storage_options": s3_bucket.storage_options}
    first, second = (OffloadOverflowStore(s3_bucket.url, **options) for _ in range(2))

    handle = asyncio.run(first.write("run/call_0.0", report().encode()))
    asyncio.run(first.write("run/call_0.0", b"again"))

    assert asyncio.run(second.read(handle)) == b"again"


class TestObjects(ObjectsStory):
    damage = OSError

    def space(self, store, owner="alice"):
        return OffloadOverflowStore(store, namespace=owner)

    def write(self, space, name, data):
        return asyncio.run(space.write(name, data))

    def read(self, space, name):
        with suppress(FileNotFoundError):
            return asyncio.run(space.read(name))


@pytest.mark.parametrize("handle", ["run/call_1.0", "../other/run/call_0.0", "", "/etc/passwd"])
def test_a_handle_that_nothing_was_stored_under_is_a_file_that_is_not_there(store, handle):
    asyncio.run(OffloadOverflowStore(store, namespace="other").write("run/call_0.0", b"theirs"))

    with pytest.raises(FileNotFoundError):
        asyncio.run(OffloadOverflowStore(store).read(handle))
