"""`OffloadCrew` in agents, tasks and crews of CrewAI."""

from __future__ import annotations

import asyncio
import json
import re
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUERY, QUESTION, READER, Call, Script, needle, report
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

from offload import Offloader
from offload.engine.policy.tool_names import TOOL_NAMES
from offload.integrations.crewai import OffloadCrew
from offload.testing import FaultyStore

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


def agent(script, offloading, *tools, is_native=True, **options):
    return Agent(
        **{"role": "analyst", "goal": "Answers.", "backstory": "An analyst.", **options},
        llm=scripted(script, is_native=is_native),
        tools=[*(tools or [tool()]), *(offloading.tools if offloading else [])],
    )


def crew(agent, *others, **options):
    asked = Task(description=QUESTION, expected_output="A sentence.", agent=agent, **options)
    return Crew(agents=[agent, *others], tasks=[asked])


def run(agent):
    return crew(agent).kickoff().raw


def run_in_thread(agent):
    return asyncio.run(crew(agent).kickoff_async()).raw


def arun(agent):
    return asyncio.run(crew(agent).akickoff()).raw


def run_alone(agent):
    return agent.kickoff(QUESTION).raw


RUNS = pytest.mark.parametrize("run", [run, run_in_thread, arun, run_alone])
MODELS = pytest.mark.parametrize("is_native", [True, False])


class TestStory(Story):
    extra, without, failure = "crewai", "crewai.tools", HookAborted
    tool = staticmethod(tool)
    ways = (run, arun, run_alone, run_in_thread)
    calls: ClassVar = [None]
    agents: ClassVar = ["analyst"]
    left_out: ClassVar = (
        # Its models report no cache.
        "test_a_request_that_the_provider_s_cache_missed_is_noticed",
        # A tool is not run twice with equal arguments, and a crew has no messages: its own tests are below.
        "test_what_the_host_saves_has_the_placeholder_and_never_the_original",
        "test_a_store_that_fails_in_the_middle_costs_no_result_and_ends_no_run",
        "test_an_item_that_could_not_be_stored_is_offloaded_as_soon_as_it_can",
        "test_a_new_process_continues_from_what_was_saved_and_the_store",
        "test_a_second_question_in_the_same_process_continues_from_what_was_saved",
        "test_a_file_reader_result_is_shown_once_in_full",
        "test_a_long_user_message_is_offloaded_and_kept_by_the_framework",
        "test_results_of_concurrent_calls_are_all_offloaded",
        # Tested below, without function calling too.
        "test_a_call_that_makes_no_sense_gets_an_answer_and_ends_no_run",
        "test_the_error_of_a_tool_is_kept",
    )

    def plugin(self, store, **options):
        return partial(OffloadCrew, store, **options)

    def play(self, script, plugin, *tools, way=run, owner="alice", **_):
        offloading = plugin(session=owner)
        return Told(way(agent(script, offloading, *tools)), offloading.offloader)


def test_a_model_without_function_calling_searches_and_reads_an_offloaded_result(store):
    def ref(texts):
        return re.findall(r"\[Offloaded: .* id ([a-z]{10})\]", "\n".join(texts))[-1]

    def search(texts):
        return Call("context_grep", {"pattern": "needle of", "id": ref(texts)}, "")

    def read(texts):
        line = scenario.NEEDLE_LINE
        return Call("context_read", {"id": ref(texts), "part": f"{line}"}, "")

    script = Script([scenario.ask(), search, read, scenario.end])

    answer = run(agent(script, OffloadCrew(store), is_native=False))

    assert needle("alice") not in script.shown(2)
    assert len(script.shown(2)) < 10_000
    assert script.shown(3).count(needle("alice")) == 1
    assert script.shown(4).count(needle("alice")) == 2
    assert answer == ANSWER


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

    [output] = crew(agent(scenario.whole_run(), offloading)).kickoff().tasks_output

    kept = [path.read_bytes() for path in Path(FOLDER).rglob("*.db")]
    assert any(b"[Offloaded:" in each for each in kept)
    assert not any(b"entry 01500" in each for each in kept)
    assert "entry 01500" not in str(output.messages)
    restored = offloading.offloader.restore(output.messages)
    assert next(m["content"] for m in restored if m["role"] == "tool") == report()


def twice(name=QUERY):
    """Return a script that calls a tool twice, and that tool, which returns two reports."""
    turns = [lambda _, n=n: Call(name, {"n": n}, f"call_{n}") for n in range(2)]
    return Script([*turns, scenario.end]), tool(name, returns=lambda n: report(("alice", "bob")[n]))


@RUNS
def test_a_store_that_fails_in_the_middle_costs_no_result_and_ends_no_run(store, run, caplog):
    faulty = FaultyStore(store, verb="put", nth=2, is_lasting=True)
    script, numbered = twice()

    answer = run(agent(script, OffloadCrew(faulty), numbered))

    assert scenario.refs(script.seen[1])
    assert script.seen[2][-1] == report("bob")
    assert "originals are kept" in caplog.text
    assert answer == ANSWER


def test_an_item_that_could_not_be_stored_is_offloaded_before_the_next_request(store):
    faulty = FaultyStore(store, verb="put", nth=1)
    offloading = OffloadCrew(faulty)
    script = Script([scenario.ask(), scenario.ask("lookup", "call_1"), scenario.end])

    run(agent(script, offloading, tool(), tool("lookup", returns=lambda: "42")))

    assert faulty.failures == 1
    assert scenario.refs(script.seen[2])
    assert needle("alice") not in script.shown(3)


def test_a_new_process_reads_the_items_of_the_session(s3_bucket):
    options = s3_bucket.storage_options
    run(agent(scenario.whole_run(), OffloadCrew(s3_bucket.url, session="alice", storage_options=options)))

    seen = scenario.in_new_process(RESUMED, {"url": s3_bucket.url, "options": options})

    assert needle("alice") in seen[1][-1]


@pytest.mark.parametrize("run", [run, run_alone])
def test_a_file_reader_result_is_shown_once_in_full(store, run):
    script, numbered = twice(READER)

    run(agent(script, OffloadCrew(store, policy=scenario.SHOWN_ONCE), numbered))

    assert script.seen[1][-1] == report("alice")
    assert scenario.refs(script.seen[2])
    assert needle("alice") not in script.shown(3)
    assert script.seen[2][-1] == report("bob")


@RUNS
def test_results_of_concurrent_calls_are_all_offloaded(store, run):
    calls = [Call(QUERY, {"n": n}, f"call_{n}") for n in range(8)]
    script = Script([lambda _: calls, scenario.end])
    offloading = OffloadCrew(store)

    run(agent(script, offloading, tool(returns=lambda n: f"{n}\n{report()}")))

    shown = scenario.refs(script.seen[1])
    contents = [b"".join(offloading.offloader.content(ref)).decode() for ref in shown]
    assert contents == [f"{n}\n{report()}" for n in range(8)]


class Sales(BaseModel):
    text: str


SALES = Sales(text=report())


@pytest.mark.parametrize(
    ("given", "options"),
    [({"rows": report()}, {}), ([report()], {}), (SALES, {}), (SALES, {"result_schema": Sales})],
)
@MODELS
def test_a_value_is_offloaded_as_the_text_that_crewai_makes_of_it(store, given, options, is_native):
    made = tool(returns=lambda: given, **options)
    offloading = OffloadCrew(store)

    run(agent(Script([scenario.ask(), scenario.end]), offloading, made, is_native=is_native))

    [record] = offloading.offloader.records()
    content = b"".join(offloading.offloader.content(record.ref)).decode()
    assert content.startswith(made.format_output_for_agent(given))


@MODELS
def test_a_result_that_is_the_answer_is_kept_in_full(store, is_native):
    offloading = OffloadCrew(store)
    made = tool(result_as_answer=True)

    answer = run(agent(Script([scenario.ask()]), offloading, made, is_native=is_native))

    assert answer.strip() == report().strip()
    assert offloading.offloader.records() == []


def fail():
    raise ValueError(report())


@pytest.mark.parametrize("returns", [fail, lambda: ToolFailure(message=report())])
@MODELS
def test_the_error_of_a_tool_or_a_failure_that_it_reports_is_kept(store, returns, is_native):
    offloading = OffloadCrew(store)
    script = Script([scenario.ask(), scenario.end])

    run(agent(script, offloading, tool(returns=returns), is_native=is_native))

    assert needle("alice") in script.shown(2)
    assert offloading.offloader.records() == []


def test_a_result_from_crewais_cache_is_offloaded_and_answers_of_the_retrieval_tools_are_never_cached(store):
    calls = []

    def count():
        calls.append(1)
        return report()

    def listing(_):
        return Call("context_list", {}, "l")

    script = Script([listing, scenario.ask(), scenario.ask(call="call_1"), listing, scenario.end])

    crew(made := agent(script, OffloadCrew(store), tool(returns=count), cache=True)).kickoff()

    assert made.llm._offered == {QUERY, *TOOL_NAMES}
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


@pytest.mark.parametrize(
    "arguments",
    [{}, {"id": 7}, {"id": None, "offset": None}, {"id": "abcdefghij", "x": 1}, {"id": "../../etc/passwd"}],
)
@MODELS
def test_a_call_that_makes_no_sense_gets_an_answer_and_ends_no_run(store, arguments, is_native):
    script = Script([lambda _: Call("context_read", arguments, "c"), scenario.end])

    answer = run(agent(script, OffloadCrew(store), is_native=is_native))

    assert "rror" in script.shown(2)
    assert answer == ANSWER


@pytest.mark.parametrize("options", [{}, {"use_system_prompt": False}])
def test_the_model_gets_the_instructions_once_after_its_own(store, options):
    offloading = OffloadCrew(store)
    made = agent(scenario.whole_run(), offloading, **options)

    run(made)

    prompt = offloading.offloader.prompt()
    assert [system.count(prompt) for system in made.llm._system] == [1] * 4
    assert made.llm._system[0].endswith(prompt)


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


def test_an_unnamed_session_is_new_and_continues_under_its_name(store):
    first, second = OffloadCrew(store), OffloadCrew(store)
    run(agent(scenario.whole_run(), first))

    assert first.offloader.session != second.offloader.session
    assert len(Offloader(store, session=first.offloader.session).records()) == 1
