"""`OffloadCrew` in agents, tasks and crews of CrewAI."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUERY, QUESTION, Call, Script, needle, report
from frameworks.story import Story, Told

pytest.importorskip("crewai", reason="in the environment of the group integration-crewai")

from frameworks.crewai_model import FOLDER, scripted, tool  # sets what CrewAI reads when it is imported

# isort: split
from crewai import Agent, Crew, Task
from crewai.events import ToolUsageFinishedEvent, crewai_event_bus
from crewai.hooks import HookAborted, clear_all_global_hooks, get_after_tool_call_hooks
from crewai.tools import BaseTool
from crewai.tools.tool_failure import ToolFailure
from pydantic import BaseModel, TypeAdapter

from offload.integrations.crewai import OffloadCrew

# CrewAI uses names that it deprecates itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:crewai", "ignore:function_calling_llm")

RESUMED = """
import json, sys
from frameworks import scenario, test_crewai as ours
from offload.integrations.crewai import OffloadCrew

given = json.load(sys.stdin)
grep = lambda _: scenario.Call("context_grep", {"pattern": "needle of"}, "c")
script = scenario.Script([grep, scenario.end])
offloading = OffloadCrew(given["url"], session="alice", storage_options=given["options"])
ours.run(ours.agent(script, offloading))
print(json.dumps(script.seen))
"""


def agent(script, offloading, *tools, is_native=True, backstory="An analyst.", **options):
    return Agent(
        **{"role": "analyst", "goal": "Answers.", "backstory": backstory, **options},
        llm=scripted(script, is_native=is_native),
        tools=[*(tools or [tool()]), *(offloading.tools if offloading else [])],
    )


def crew(agent, *others, **options):
    asked = Task(description=QUESTION, expected_output="A sentence.", agent=agent, **options)
    return Crew(agents=[agent, *others], tasks=[asked])


def run(agent):
    return crew(agent).kickoff().tasks_output[0]


def run_in_thread(agent):
    return asyncio.run(crew(agent).kickoff_async()).tasks_output[0]


def arun(agent):
    return asyncio.run(crew(agent).akickoff()).tasks_output[0]


def run_alone(agent):
    return agent.kickoff(QUESTION)


def results(messages):
    return [message["content"] for message in messages if message["role"] == "tool"]


class Sales(BaseModel):
    text: str


SALES = Sales(text=report())
MODELS = pytest.mark.parametrize("is_native", [True, False])


class TestStory(Story):
    extra, without, failure = "crewai", "crewai.tools", HookAborted
    tool = staticmethod(tool)
    ways = tuple((way, True) for way in (run, arun, run_alone, run_in_thread))
    alike = (ways[0], ways[1], ways[3])
    some_ways: ClassVar = dict.fromkeys(
        (
            "test_a_model_searches_and_reads_an_offloaded_result",
            "test_the_error_of_a_tool_is_kept",
            "test_a_call_that_makes_no_sense_gets_an_answer_and_ends_no_run",
            "test_a_value_is_offloaded_as_the_text_that_the_framework_makes_of_it",
        ),
        ((run, True), (arun, True), (run_alone, True), (run_in_thread, True), (run, False)),
    )
    second_try, keeps_late = 2, False
    required: ClassVar = ["id", "offset", "part"]
    instructs, refusal = "backstory", "rror"
    errors: ClassVar = (ValueError(report()), ToolFailure(message=report()))
    values: ClassVar = (
        {"returns": lambda: {"rows": report()}},
        {"returns": lambda: [report()]},
        {"returns": lambda: SALES},
        {"returns": lambda: SALES, "result_schema": Sales},
    )
    calls: ClassVar = [None]
    agents: ClassVar = ["analyst"]
    left_out: ClassVar = (
        # Its models report no cache.
        "test_a_request_that_the_provider_s_cache_missed_is_noticed",
        # A crew does not go on from messages.
        "test_a_new_process_continues_from_what_was_saved_and_the_store",
        "test_a_second_question_in_the_same_process_continues_from_what_was_saved",
        "test_a_long_user_message_is_offloaded_and_kept_by_the_framework",
        # It is made for one session.
        "test_a_session_that_is_named_is_that_of_every_run",
        # A coworker is no tool: tested below.
        "test_an_agent_that_is_a_tool_and_its_caller_read_each_other_s_items",
    )

    def plugin(self, store, **options):
        return partial(OffloadCrew, store, **options)

    def play(self, script, plugin, *tools, way=(run, True), owner="alice", asked=QUESTION, **options):
        (go, is_native), off = way, (offloading := plugin(session=owner)).offloader
        output = go(agent(script, offloading, *tools, is_native=is_native, **options))
        messages = [*output.messages]
        return Told(
            output.raw, off, results(messages), lambda: results(off.restore(messages)), repr(messages), asked
        )


def test_the_events_of_a_run_have_the_placeholder_and_never_the_original(store):
    noted = []
    with crewai_event_bus.scoped_handlers():

        @crewai_event_bus.on(ToolUsageFinishedEvent)
        def note(_source, event):
            noted.append(str(event.output))

        run(agent(scenario.whole_run(), OffloadCrew(store)))
        crewai_event_bus.flush()

    assert any("[Offloaded:" in output for output in noted)
    assert "entry 01500" in report()
    assert "entry 01500" not in "".join(noted)


def test_the_output_and_crewais_database_have_the_placeholder_which_restore_replaces(store):
    offloading = OffloadCrew(store)

    output = run(agent(scenario.whole_run(), offloading))

    kept = [path.read_bytes() for path in Path(FOLDER).rglob("*.db")]
    assert any(b"[Offloaded:" in each for each in kept)
    assert not any(b"entry 01500" in each for each in kept)
    assert "entry 01500" not in str(output.messages)
    restored = offloading.offloader.restore(output.messages)
    assert next(m["content"] for m in restored if m["role"] == "tool") == report()


def test_a_new_process_reads_the_items_of_the_session(s3_bucket):
    options = s3_bucket.storage_options
    run(agent(scenario.whole_run(), OffloadCrew(s3_bucket.url, session="alice", storage_options=options)))

    seen = scenario.in_new_process(RESUMED, {"url": s3_bucket.url, "options": options})

    assert needle("alice") in seen[1][-1]


@MODELS
def test_a_result_that_is_the_answer_is_kept_in_full(store, is_native):
    offloading = OffloadCrew(store)
    made = tool(result_as_answer=True)

    answer = run(agent(Script([scenario.ask()]), offloading, made, is_native=is_native)).raw

    assert answer.strip() == report().strip()
    assert offloading.offloader.records() == []


def test_a_result_from_crewais_cache_is_offloaded_and_answers_of_the_retrieval_tools_are_never_cached(store):
    calls = []

    def count():
        calls.append(1)
        return report()

    def listing(_):
        return Call("context_list", {}, "l")

    again = Call(QUERY, {}, "call_1")
    script = Script([listing, scenario.ask(), lambda _: again, listing, scenario.end])

    run(agent(script, OffloadCrew(store), tool(returns=count), cache=True))

    assert calls == [1]
    first, second = scenario.refs(script.seen[3])
    assert first == second
    assert script.seen[1][-1].startswith("[0 stored")
    assert script.seen[4][-1].startswith("[1 stored")


def test_a_coworker_with_the_tools_shares_the_session(store):
    offloading = OffloadCrew(store)
    inner = Script([scenario.ask(), scenario.tell])
    coworker = agent(inner, offloading, role="researcher")
    arguments = {"task": "Look.", "context": "None.", "coworker": "researcher"}
    delegate = Call("delegate_work_to_coworker", arguments, "call_d")
    outer = Script([lambda _: delegate, scenario.search_told, scenario.end])

    crew(agent(outer, offloading, allow_delegation=True), coworker).kickoff()

    assert needle("alice") not in "\n".join(inner.seen[1])
    assert needle("alice") in outer.seen[2][-1]
    assert scenario.agents_of(offloading.offloader) == ["researcher"]


def test_copies_of_a_crew_keep_its_session(store):
    offloading = OffloadCrew(store)
    script = Script([scenario.ask(), scenario.end] * 2)

    outputs = crew(agent(script, offloading)).kickoff_for_each([{"n": "1"}, {"n": "2"}])

    assert [output.raw for output in outputs] == [ANSWER, ANSWER]
    assert scenario.refs(script.seen[1]) == scenario.refs(script.seen[3])
    assert len(offloading.offloader.records()) == 1


def test_an_agent_and_a_task_without_the_tools_are_sent_all_in_full(store):
    offloading = OffloadCrew(store)
    scripts = [Script([scenario.ask(), scenario.end]) for _ in range(2)]

    run(agent(scripts[0], None))
    crew(agent(scripts[1], offloading), tools=[tool()]).kickoff()

    for script in scripts:
        assert script.seen[1][-1] == report()
    assert offloading.offloader.records() == []


def test_a_task_with_the_tools_is_offloaded(store):
    script = scenario.whole_run()

    crew(agent(script, None), tools=[tool(), *OffloadCrew(store).tools]).kickoff()

    scenario.check_whole_run(script)


def test_the_model_gets_the_instructions_once_also_without_a_system_prompt_of_the_framework(store):
    offloading, script = OffloadCrew(store), scenario.whole_run()

    run(agent(script, offloading, use_system_prompt=False))

    assert [system.count(offloading.offloader.prompt()) for system in script.system] == [1] * 4


def test_the_hooks_are_registered_once_and_again_after_all_were_cleared(store):
    clear_all_global_hooks()
    for _ in range(3):
        offloading = OffloadCrew(store)
    assert len(get_after_tool_call_hooks()) == 1

    clear_all_global_hooks()
    script = scenario.whole_run()
    run(agent(script, OffloadCrew(store)))

    scenario.check_whole_run(script)
    assert offloading.offloader.records() == []


def test_a_tool_loaded_from_a_checkpoint_has_no_session_and_says_so(store):
    [saved, *_] = OffloadCrew(store).tools
    [loaded] = TypeAdapter(list[BaseTool]).validate_python([json.loads(saved.model_dump_json())])

    assert loaded.run() == "Error: no stored items are available in this run"
