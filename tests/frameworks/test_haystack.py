"""`OffloadToolset` in an agent of Haystack, and `OffloadToolResultStore` under its own hook."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from typing import ClassVar

import pytest
from frameworks import scenario
from frameworks.objects_story import ObjectsStory
from frameworks.scenario import QUERY, QUESTION, Call, Script, needle, report
from frameworks.story import Story, Told

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"
pytest.importorskip("haystack", reason="in the environment of the group integration-haystack")

from frameworks.haystack_model import ScriptedGenerator, tool
from haystack import Pipeline
from haystack.components.agents import Agent, State
from haystack.components.builders import AnswerBuilder
from haystack.core.errors import BreakpointException
from haystack.dataclasses import Breakpoint, ChatMessage, FileContent, ImageContent, TextContent
from haystack.hooks import hook
from haystack.hooks.tool_result_offloading import AlwaysOffload, ToolResultOffloadHook
from haystack.tools import AgentTool

from offload import ConfigError, Offloader, OffloadPolicy
from offload.integrations.haystack import OffloadToolResultStore, OffloadToolset
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

DELEGATED = {"messages": [{"role": "user", "content": [{"text": "Look."}]}]}
IMAGE = ImageContent("aGk=", mime_type="image/png")


def agent(script, offloading, *tools, hooks=None, **options):
    return Agent(
        chat_generator=ScriptedGenerator(script),
        tools=[*(tools or [tool()]), offloading],
        hooks={"before_llm": [offloading], **(hooks or {})},
        **options,
    )


def run(agent, context=None, asked=QUESTION, before=()):
    return agent.run([*before, ChatMessage.from_user(asked)], hook_context=context)


def arun(agent, context=None, asked=QUESTION, before=()):
    return asyncio.run(agent.run_async([*before, ChatMessage.from_user(asked)], hook_context=context))


RUNS = pytest.mark.parametrize("run", [run, arun])


def results(output):
    return [result.result for message in output["messages"] for result in message.tool_call_results]


def helper_of(script, offloading, *tools):
    inner = agent(script, offloading, *tools)
    shared = {"hook_context": "hook_context"}
    return AgentTool(inner, name="helper", description="Looks.", inputs_from_state=shared)


class TestStory(Story):
    extra, without, second_try, keeps_late = "haystack", "haystack.tools", 2, False
    tool = staticmethod(tool)
    ways = (run, arun)
    instructs = "system_prompt"
    helpers: ClassVar = ((helper_of, {}),)
    missed: ClassVar = [0, 0, 5301]
    # A run's context names its session.
    left_out: ClassVar = ("test_a_session_that_is_named_is_that_of_every_run",)

    def plugin(self, store, **options):
        return OffloadToolset(store, **options)

    def forge(self, session):
        return {"state": {"hook_context": {"offload": session}}}

    def told_helper(self, text):
        return {"messages": [{"role": "user", "content": [{"text": text}]}]}

    def play(self, script, plugin, *tools, way=run, owner="alice", asked=QUESTION, saved=(), **options):
        messages = [ChatMessage.from_dict(each) for each in saved or ()]
        context = owner and plugin.context(owner)
        output = way(agent(script, plugin, *tools, **options), context, asked, messages)
        noted = [m.meta["offload_session"] for m in output["messages"] if "offload_session" in m.meta]
        owner = owner or next(iter(noted), None)
        restored = plugin.restore(output["messages"], owner)
        assert restored[-1] is output["messages"][-1]
        return Told(
            output["last_message"].text,
            plugin.offloader(owner),
            results(output),
            lambda: results({"messages": restored}),
            [message.to_dict() for message in output["messages"]],
            next(message.text for message in restored if message.is_from("user")),
        )


def test_two_runs_at_once_with_one_toolset_read_their_own(store):
    offloading = OffloadToolset(store)
    scripts = {owner: scenario.whole_run() for owner in ("alice", "bob")}

    def started(owner, script):
        made = agent(script, offloading, tool(returns=lambda: report(owner)))
        return made.run_async([ChatMessage.from_user(QUESTION)], hook_context=offloading.context(owner))

    async def go():
        await asyncio.gather(*(started(*each) for each in scripts.items()))

    asyncio.run(go())

    for owner, script in scripts.items():
        scenario.check_whole_run(script, owner)


def test_a_model_cannot_name_the_session_of_a_sub_agent(store):
    offloading = OffloadToolset(store)
    run(agent(scenario.whole_run(), offloading), offloading.context("alice"))
    inner = Script([lambda _: Call("context_list", {}, "l"), scenario.end])
    arguments = {**DELEGATED, "hook_context": {"offload": "alice"}}
    outer = Script([lambda _: Call("look", arguments, "d"), scenario.end])
    look = AgentTool(agent(inner, offloading), name="look", description="Looks.")

    run(agent(outer, offloading, look))

    assert "OffloadToolset.context(session), got str" in outer.seen[1][-1]
    assert inner.seen == []


def test_a_session_that_is_no_context_is_reported_with_the_fix(store):
    with pytest.raises(ConfigError, match=r"OffloadToolset.context\(session\), got str"):
        run(agent(Script([]), OffloadToolset(store)), {"offload": "alice"})


def test_calls_to_which_a_model_gives_no_id_are_offloaded_and_restored(store):
    offloading = OffloadToolset(store, session="s")
    both = lambda _: [Call(QUERY, {}, ""), Call("lookup", {}, "")]  # noqa: E731 # one turn
    script = Script([both, scenario.search, scenario.end])
    lookup = tool("lookup", returns=lambda: report("bob"))

    output = run(agent(script, offloading, tool(), lookup))

    first, second, _ = results(output)
    assert "query_sales result" in first
    assert "lookup result" in second
    assert needle("bob") in script.seen[2][-1]
    restored = results({"messages": offloading.restore(output["messages"])})
    assert restored[:2] == [report("alice"), report("bob")]


def test_only_texts_in_a_result_with_media_are_offloaded(store):
    file = FileContent("aGk=", mime_type="application/pdf")
    raw = tool(returns=lambda: [TextContent(report()), IMAGE, file], outputs_to_string={"raw_result": True})
    offloading = OffloadToolset(store, session="s")

    output = run(agent(Script([scenario.ask(), scenario.end]), offloading, raw))

    [[text, *media]] = results(output)
    assert scenario.refs([text.text])
    assert media == [IMAGE, file]
    [restored] = results({"messages": offloading.restore(output["messages"])})
    assert restored == [TextContent(report()), IMAGE, file]


def test_what_a_tool_writes_to_the_state_is_kept(store):
    writing = tool(returns=lambda: {"rows": report()}, outputs_to_state={"rows": {"source": "rows"}})
    script, schema = Script([scenario.ask(), scenario.end]), {"rows": {"type": str}}

    output = run(agent(script, OffloadToolset(store), writing, state_schema=schema))

    assert output["rows"] == report()
    assert scenario.refs(results(output))


@RUNS
def test_the_result_of_a_tool_that_ends_the_run_is_kept(store, run):
    made = agent(Script([scenario.ask()]), OffloadToolset(store), exit_conditions=[QUERY])

    output = run(made)

    assert output["exit_reason"] == QUERY
    assert output["last_message"].tool_call_result.result == report()


@RUNS
def test_a_hook_that_saves_the_messages_after_a_tool_can_save_placeholders(store, run):
    saved = []

    @hook
    def save(state: State):
        saved.append(json.dumps([message.to_dict() for message in state.data["messages"]]))

    offloading = OffloadToolset(store)
    run(agent(scenario.whole_run(), offloading, hooks={"after_tool": [offloading, save]}))

    assert len(saved) == 3
    assert "[Offloaded:" in saved[0]
    assert "entry 01500" not in "".join(saved)


def test_the_messages_of_a_run_that_reaches_its_last_step_are_offloaded_by_the_next(store):
    offloading = OffloadToolset(store)
    context = offloading.context("alice")
    output = run(agent(Script([scenario.ask()]), offloading, max_agent_steps=1), context)
    script = Script([scenario.search, scenario.end])

    agent(script, offloading).run(output["messages"], hook_context=context)

    assert results(output) == [report()]
    assert scenario.refs(script.seen[0])
    assert needle("alice") in script.seen[1][-1]


def test_a_prompt_in_the_messages_of_a_run_before_is_not_added_again(store):
    offloading, script = OffloadToolset(store), Script([scenario.end, scenario.end])
    made = agent(script, offloading, system_prompt="Be brief.")

    first = run(made)
    made.run([*first["messages"], ChatMessage.from_user("And then?")])

    assert script.system[1].count(offloading.offloader().prompt()) == 1


def test_an_agent_without_the_tools_is_sent_all_in_full(store, caplog):
    offloading = OffloadToolset(store, session="s")
    script = Script([scenario.ask(), scenario.ask(call="call_1"), scenario.end])
    made = agent(script, offloading)

    made.run([ChatMessage.from_user(QUESTION)], tools=[QUERY])

    assert script.seen[2][-1] == report()
    assert {*script.system} == {""}
    assert offloading.offloader().records() == []
    assert caplog.text.count("without the toolset") == 1


def test_a_pipeline_is_saved_and_loaded_with_its_offloading(tmp_path, monkeypatch):
    monkeypatch.setenv("HAYSTACK_DESERIALIZATION_ALLOWLIST", "offload.*,frameworks.*")
    policy = OffloadPolicy.preset("economy")
    offloading = OffloadToolset(tmp_path, session="alice", policy=policy)
    pipeline = Pipeline()
    pipeline.add_component("agent", agent(None, offloading))

    loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=["offload.*", "frameworks.*"])
    made = loaded.get_component("agent")
    made.chat_generator.script = script = scenario.whole_run()
    loaded.run({"agent": {"messages": [ChatMessage.from_user(QUESTION)]}})

    scenario.check_whole_run(script)
    [record] = Offloader(tmp_path, session="alice").records()
    assert record.tool_name == QUERY
    assert made.hooks["before_llm"][0].offloader().policy == policy


def test_a_snapshot_after_the_agent_has_the_placeholder_and_never_the_original(store, tmp_path, monkeypatch):
    monkeypatch.setenv("HAYSTACK_PIPELINE_SNAPSHOT_SAVE_ENABLED", "true")
    pipeline = Pipeline()
    pipeline.add_component("agent", agent(scenario.whole_run(), OffloadToolset(store)))
    pipeline.add_component("answer", AnswerBuilder())
    pipeline.connect("agent.messages", "answer.replies")
    asked = {"agent": {"messages": [ChatMessage.from_user(QUESTION)]}, "answer": {"query": QUESTION}}

    with pytest.raises(BreakpointException):
        pipeline.run(asked, break_point=Breakpoint("answer", snapshot_file_path=str(tmp_path)))

    [snapshot] = [path.read_text() for path in tmp_path.rglob("*.json")]
    assert "[Offloaded:" in snapshot
    assert "entry 01500" not in snapshot


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("store", {"store": MemoryStore()}),
        ("redact", {"redact": str.lower}),
        ("storage_options", {"store": "s3://bucket/prefix", "storage_options": {"key": "k", "secret": "x"}}),
    ],
)
def test_an_argument_that_a_file_cannot_have_is_named(name, arguments):
    with pytest.raises(ConfigError, match=f"{name} cannot be serialized"):
        OffloadToolset(**arguments).to_dict()


# The store


def kept(store, session="alice"):
    return OffloadToolResultStore(store, session=session)


class TestObjects(ObjectsStory):
    def space(self, store, owner="alice"):
        return kept(store, owner)

    def write(self, space, name, data):
        return space.write(key=name, content=data)

    def read(self, space, name):
        with suppress(FileNotFoundError):
            return space.read(name)


def hooked(results_store):
    """Return an agent whose results Haystack's own hook keeps in a store, and its script."""
    script = Script([scenario.ask(), scenario.end])
    offload = ToolResultOffloadHook(results_store, {"*": AlwaysOffload()})
    generator = ScriptedGenerator(script)
    return Agent(chat_generator=generator, tools=[tool()], hooks={"after_tool": [offload]}), script


@RUNS
def test_haystacks_own_hook_keeps_its_results_in_the_store(store, run):
    made, script = hooked(kept(store))

    output = run(made)

    [reference] = output["messages"][2].meta["tool_result_offloaded"]
    assert reference in script.seen[1][-1]
    assert kept(store).read(reference) == report()
    assert any(report().encode() in store.get(found.key) for found in store.keys())


@pytest.mark.parametrize("content", ["", "x", "é\udcff", b"", b"hello", bytes(range(256))])
@pytest.mark.parametrize("key", ["1_x_call.txt", "a/b"])
def test_what_is_written_is_read_with_its_type(store, content, key):
    made = kept(store)

    reference = made.write(key=key, content=content)

    assert made.read(reference) == content
    assert reference.endswith("/1_x_call.txt") == (key == "1_x_call.txt")


def test_two_runs_with_one_key_do_not_overwrite_each_other(store):
    made = kept(store)

    references = [made.write(key="1_x_call.txt", content=owner) for owner in ("alice", "bob", "alice")]

    assert references[0] == references[2] != references[1]
    assert [made.read(each) for each in references[:2]] == ["alice", "bob"]


def test_a_store_that_fails_keeps_the_result_in_the_message(store):
    made, script = hooked(kept(FaultyStore(store, verb="put", is_lasting=True)))

    run(made)

    assert script.seen[1][-1] == report()


def test_the_store_is_loaded_from_what_it_saves(tmp_path):
    made = OffloadToolResultStore(tmp_path, session="alice")
    reference = made.write(key="k", content="x")

    assert OffloadToolResultStore.from_dict(made.to_dict()).read(reference) == "x"
