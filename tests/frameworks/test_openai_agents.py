"""`OffloadRuns` in runs of the OpenAI Agents SDK."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUESTION, Call, Script, report
from frameworks.story import Story, Told

pytest.importorskip("agents", reason="in the environment of the group integration-openai-agents")

from agents import Agent, RunConfig, Runner, SQLiteSession
from agents.run_config import ModelInputData
from frameworks.scripted_openai import (
    WAYS,
    agent,
    awaited,
    kept,
    outputs,
    scripted,
    streamed,
    sync,
    texts,
    tool,
)
from pydantic import BaseModel

from offload import ConfigError, OffloadPolicy
from offload.integrations.openai_agents import OffloadRuns

REMEMBERED = tuple((run, True) for run in (sync, awaited, streamed))


def helper_of(script, offloading, *tools):
    return agent(script, offloading, *tools, name="helper").as_tool("helper", "Helps.")


class Row(BaseModel):
    account: int
    state: str
    settled: datetime


class Sales(BaseModel):
    rows: list[Row]
    total: int | None = None


@dataclass
class Total:
    rows: list[Row]


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ROWS = [Row(account=n, state="it's settled", settled=NOON) for n in range(1000)]
NAMES = {"names": {f"name {n}" for n in range(3000)}}
VALUES = (ROWS, {"rows": ROWS, "total": None}, Sales(rows=ROWS), Total(ROWS), NAMES)


class TestStory(Story):
    """Runs without a session of the SDK, whose results have the originals, and with one."""

    extra, without, second_try = "openai-agents", "agents", 2
    tool = staticmethod(tool)
    ways = (*((run, False) for run in (sync, awaited, streamed)), *REMEMBERED)
    some_ways: ClassVar = {
        "test_what_the_host_saves_has_the_placeholder_and_never_the_original": REMEMBERED,
        "test_a_store_that_fails_in_the_middle_costs_no_result_and_ends_no_run": REMEMBERED,
        "test_results_of_concurrent_calls_are_all_offloaded": REMEMBERED,
        "test_a_second_question_in_the_same_process_continues_from_what_was_saved": REMEMBERED,
    }
    agents: ClassVar = ["analyst"]
    alike = (ways[0], ways[-1], ways[1])
    helpers: ClassVar = ((helper_of, {}),)
    values: ClassVar = tuple({"returns": lambda value=value: value} for value in VALUES)
    # An error of this tool ends the run: the SDK makes texts only of those of its decorator's tools.
    left_out: ClassVar = (
        "test_the_error_of_a_tool_is_kept",
        # A conversation names its session.
        "test_a_session_that_is_named_is_that_of_every_run",
    )

    def plugin(self, store, **options):
        return OffloadRuns(store, **options)

    def play(
        self, script, plugin, *tools, way=(sync, True), owner="alice", asked=QUESTION, saved=(), **given
    ):
        (run, remembers), alice = way, plugin.conversation(owner)
        options = {"run_config": alice.run_config(), "hooks": alice.hooks}
        with closing(SQLiteSession(alice.offloader.session)) as session:
            asyncio.run(session.add_items([*(saved or ())]))
            if remembers:
                options["session"] = alice.memory(session)
            result = run(agent(script, plugin, *tools, **given), asked, **options)
            items = kept(session) if remembers else result.to_input_list()
        restored = alice.offloader.restore(items)
        return Told(
            result.final_output, alice.offloader, outputs(items), lambda: outputs(restored), items, asked
        )


@WAYS
def test_the_caller_reads_the_original(store, run):
    offloading = OffloadRuns(store)
    made = agent(Script([scenario.ask()]), offloading, tool_use_behavior="stop_on_first_tool")

    result = run(made, run_config=offloading.conversation("alice").run_config())

    assert result.final_output == report()


def test_two_conversations_at_once_through_one_agent_read_their_own(store):
    offloading = OffloadRuns(store)
    scripts = {owner: scenario.whole_run() for owner in ("alice", "bob")}
    shared = agent(Script([]), offloading)

    def started(owner, script):
        tools = [tool(returns=lambda: report(owner)), *offloading.tools]
        made = shared.clone(model=scripted(script), tools=tools)
        return Runner.run(made, QUESTION, run_config=offloading.conversation(owner).run_config())

    async def run():
        await asyncio.gather(*(started(*each) for each in scripts.items()))

    asyncio.run(run())

    for owner, script in scripts.items():
        scenario.check_whole_run(script, owner)


def test_unnamed_conversations_are_separate_and_continue_under_their_new_names(store):
    offloading = OffloadRuns(store)

    first, second = offloading.conversation(), offloading.conversation(None)

    assert first.offloader.session != second.offloader.session
    name = first.offloader.session
    assert offloading.conversation(name).offloader.session == name
    wrongs: list[Any] = ["", 7, True]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match="session name must be a str"):
            offloading.conversation(wrong)


def test_a_caller_who_hands_on_the_items_of_a_result_has_the_same_placeholder_sent(store):
    first, second = Script([scenario.ask(), scenario.end]), Script([scenario.end])
    offloading = OffloadRuns(store)
    config = offloading.conversation("alice").run_config()

    result = sync(agent(first, offloading), run_config=config)
    asked = [*result.to_input_list(), {"role": "user", "content": "And then?"}]
    sync(agent(second, OffloadRuns(store)), asked, run_config=config)

    assert outputs(result.to_input_list()) == [report()]
    assert second.seen[0] == [*first.seen[1], ANSWER, "And then?"]


def test_a_conversation_has_the_latest_items_in_full(store):
    script = scenario.whole_run()
    offloading = OffloadRuns(store)
    alice = offloading.conversation("alice")

    sync(agent(script, offloading), run_config=alice.run_config())

    assert outputs(alice.items)[0] == report()
    assert texts(alice.items)[3:] == script.seen[3][3:]


def test_a_result_in_blocks_is_offloaded_and_its_image_kept(store):
    image = {"type": "input_image", "image_url": "https://example.com/chart.png"}
    blocks = [{"type": "text", "text": report()}, {"type": "image", "image_url": image["image_url"]}]
    script = Script([scenario.ask(), scenario.end])
    offloading = OffloadRuns(store)
    made = agent(script, offloading, tool(returns=lambda: blocks))

    sync(made, run_config=offloading.conversation("alice").run_config())

    [sent] = outputs(made.model.last_call.input)
    assert scenario.refs([sent[0]["text"]])
    assert sent[1]["image_url"] == image["image_url"]


def test_the_items_of_a_run_have_the_value_that_a_tool_returned(store):
    alice = (offloading := OffloadRuns(store)).conversation("alice")
    made = agent(Script([scenario.ask(), scenario.end]), offloading, tool(returns=lambda: NAMES))

    result = sync(made, run_config=alice.run_config())

    assert len(alice.offloader.records()) == 1
    assert result.new_items[1].output is NAMES
    assert outputs(result.to_input_list()) == [str(NAMES)]


@pytest.mark.parametrize("value", [{"k": True}, Sales(rows=ROWS[:2]), {"a", "b"}, "{'k': True}", 7])
def test_a_small_result_is_sent_as_the_sdk_writes_it(store, value):
    script = Script([scenario.ask(), scenario.end])
    offloading = OffloadRuns(store)
    config = offloading.conversation("alice").run_config()

    sync(agent(script, offloading, tool(returns=lambda: value)), run_config=config)

    assert script.seen[1][-1] == str(value)


@WAYS
def test_if_openai_stores_the_conversation_results_are_offloaded_and_retrieval_answers_kept(store, run):
    whole = lambda sent: Call("context_read", {"id": scenario.refs(sent)[-1]}, "call_read")  # noqa: E731 # one turn
    script = Script([scenario.ask(), whole, scenario.end])
    offloading = OffloadRuns(store, policy=OffloadPolicy.preset("economy"))
    alice = offloading.conversation("alice")

    run(agent(script, offloading), conversation_id="conv_1", run_config=alice.run_config())

    [placeholder] = script.seen[1]
    assert scenario.refs([placeholder])
    [answer] = script.seen[2]
    assert "entry 00001" in answer
    assert len(alice.offloader.records()) == 1


def test_a_tool_of_a_run_without_a_conversation_answers_an_error_and_logs_the_fix(store, caplog):
    script = Script([lambda _: Call("context_list", {}, "c"), scenario.end])

    sync(agent(script, OffloadRuns(store)))

    assert script.seen[1][-1] == "Error: no stored items are available in this run"
    assert "run_config()" in caplog.text


def test_the_callers_own_configuration_and_filter_still_apply(store):
    async def shorten(data):
        cut = [*data.model_data.input[:-1], {"role": "user", "content": "Shortened."}]
        return ModelInputData(cut, "Of the filter.")

    script = Script([scenario.end])
    offloading = OffloadRuns(store)
    made = agent(script, offloading)
    base = RunConfig(workflow_name="sales", call_model_input_filter=shorten)
    config = offloading.conversation("alice").run_config(base)

    sync(made, run_config=config)

    assert script.seen == [["Shortened."]]
    assert made.model.last_call.system_instructions.startswith("Of the filter.\n\n")
    assert config.workflow_name == "sales"
    assert base.call_model_input_filter is shorten


def test_an_agent_without_the_tools_is_sent_all_in_full(store, caplog):
    script = Script([scenario.ask(), scenario.ask(call="call_1"), scenario.end])
    offloading = OffloadRuns(store)
    alice = offloading.conversation("alice")
    made = Agent(name="poor", model=scripted(script), tools=[tool()], instructions="Be brief.")

    sync(made, run_config=alice.run_config())

    assert script.seen[2][-1] == report()
    assert made.model.last_call.system_instructions == "Be brief."
    assert alice.offloader.records() == []
    assert caplog.text.count("'poor'") == 1
