"""`OffloadTools` in an agent of agno, with its database."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUERY, QUESTION, READER, Call, Script, needle, report
from frameworks.story import Story, Told

pytest.importorskip("agno", reason="in the environment of the group integration-agno")

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.db.json import JsonDb
from agno.exceptions import StopAgentRun
from agno.media import Image
from agno.run.agent import CustomEvent
from agno.team import Team
from agno.tools import Toolkit
from agno.tools.function import Function, ToolResult
from frameworks.agno_model import ScriptedModel, tool
from pydantic import BaseModel

from offload.integrations.agno import OffloadTools
from offload.testing import FaultyStore


def agent(script, offloading, *tools, db=None, **options):
    return Agent(
        model=ScriptedModel(script),
        tools=[*(tools or [tool()]), offloading],
        tool_hooks=[offloading.hook],
        db=db or InMemoryDb(),
        telemetry=False,
        **options,
    )


def run(agent, session="alice", asked=QUESTION):
    return agent.run(asked, session_id=session)


def arun(agent, session="alice", asked=QUESTION):
    return asyncio.run(agent.arun(asked, session_id=session))


def stream_run(agent, session="alice", asked=QUESTION):
    [*_, last] = agent.run(asked, session_id=session, stream=True, yield_run_output=True)
    return last


RUNS = pytest.mark.parametrize("run", [run, arun, stream_run])


def results(output):
    return [message.content for message in output.messages if message.role == "tool"]


def as_dicts(output):
    return [message.to_dict() for message in output.messages]


class Sales(BaseModel):
    rows: list[dict[str, int]]


@dataclass
class Total:
    report: str


ROWS = [{"account": n, "amount": n * 31} for n in range(2000)]


def lines():
    yield from report().splitlines(keepends=True)


async def lines_later():
    for line in lines():
        yield line


VALUES = (
    lambda: {"rows": ROWS},
    lambda: ROWS,
    lambda: Sales(rows=ROWS),
    lambda: Total(report()),
    lines,
    lambda: map(str.upper, lines()),
    lambda: iter(ROWS),
)


class TestStory(Story):
    extra, without = "agno", "agno.tools"
    tool = staticmethod(tool)
    ways = (run, arun, stream_run)
    agents: ClassVar = ["critic"]
    shows_requests = False
    unnamed: ClassVar = (None, "")
    values: ClassVar = tuple({"returns": value} for value in VALUES)
    left_out: ClassVar = (
        # Its hook sees no usage.
        "test_a_request_that_the_provider_s_cache_missed_is_noticed",
        # Its hook sees a result once, when the tool returns it.
        "test_an_item_that_could_not_be_stored_is_offloaded_as_soon_as_it_can",
        "test_a_file_reader_result_is_shown_once_in_full",
        "test_a_long_user_message_is_offloaded_and_kept_by_the_framework",
        # The error becomes the tool's result: tested below.
        "test_the_caller_may_have_a_failure_end_the_run",
        # The agent that leads a team has its members as other tools: tested below.
        "test_an_agent_that_is_a_tool_and_its_caller_read_each_other_s_items",
    )

    def plugin(self, store, **options):
        return OffloadTools(store, **options)

    def forge(self, session):
        return {"run_context": {"session_id": session}}

    def play(self, script, plugin, *tools, way=run, owner="alice", asked=QUESTION, saved=None, **options):
        tools = tools or (tool(is_async=way is arun),)
        with TemporaryDirectory() as folder:
            for name, text in (saved or {}).items():
                Path(folder, name).write_text(text)
            options |= {"db": JsonDb(folder), "add_history_to_context": saved is not None}
            output = way(agent(script, plugin, *tools, name="critic", **options), owner, asked)
            files = {path.name: path.read_text() for path in Path(folder).iterdir()}
        off = plugin.offloader(owner or output.run_id)

        def restored():
            return [m["content"] for m in off.restore(as_dicts(output)) if m["role"] == "tool"]

        return Told(output.content, off, results(output), restored, files)


def test_a_failure_can_replace_the_result_on_request(store):
    """agno makes a hook's error the tool result: the run continues, and the model sees the error."""
    faulty = FaultyStore(store, verb="put", is_lasting=True)
    script = Script([scenario.ask(), scenario.end])

    run(agent(script, OffloadTools(faulty, on_error="raise")))

    assert "failed as requested" in script.seen[1][-1]
    assert needle("alice") not in script.shown(2)


def test_an_item_that_a_policy_shows_first_is_kept(store):
    script = Script([scenario.ask(READER), scenario.ask(READER, "call_1"), scenario.end])

    run(agent(script, OffloadTools(store), tool(READER)))

    assert script.seen[2].count(report()) == 2


def test_of_two_calls_alike_neither_result_is_taken_for_that_of_the_other(store):
    owners = iter(["alice", "bob"])
    calls = [Call(QUERY, {}, "call_0"), Call(QUERY, {}, "call_1")]
    script, offloading = Script([lambda _: calls, scenario.end]), OffloadTools(store)

    shown = results(run(agent(script, offloading, tool(returns=lambda: report(next(owners))))))

    off = offloading.offloader("alice")
    contents = [b"".join(off.content(ref)).decode() for ref in scenario.refs(shown)]
    assert contents == [report("alice"), report("bob")]
    assert scenario.calls_of(off) == [None, None]


def _named(function):
    function.__name__ = QUERY
    return function


PICTURE = Image(url="https://example.com/chart.png")


@RUNS
def test_only_the_text_next_to_media_is_offloaded(store, run):
    given = ToolResult(content=report(), metadata={"k": "v"}, images=[PICTURE])
    script = Script([scenario.ask(), scenario.end])

    output = run(agent(script, OffloadTools(store), tool(returns=lambda: given)))

    assert scenario.refs(script.seen[1])
    assert given.content == report()
    assert [image.url for image in output.images] == [PICTURE.url]


@pytest.mark.parametrize("is_declared", [True, False])
def test_an_async_stream_is_offloaded(store, is_declared):
    script = Script([scenario.ask(), scenario.end])
    streams = _named(lines_later) if is_declared else tool(returns=lines_later, is_async=True)
    off = OffloadTools(store)

    arun(agent(script, off, streams))

    [ref] = scenario.refs(script.seen[1])
    assert b"".join(off.offloader("alice").content(ref)).decode() == report()


def test_streams_of_concurrent_calls_are_all_offloaded(store):
    calls = [Call(QUERY, {}, f"call_{n}") for n in range(4)]

    shown = results(arun(agent(Script([lambda _: calls, scenario.end]), OffloadTools(store), _named(lines))))

    assert len(shown) == 4
    assert all(map(scenario.refs, ([text] for text in shown)))


@dataclass
class HalfDone(CustomEvent):
    percent: int = 50


def test_the_events_in_a_stream_are_sent_and_the_texts_around_them_keep_their_order(store):
    def noisy():
        yield report()
        yield HalfDone()
        yield "rest"

    script = Script([scenario.ask(), scenario.end])
    made = agent(script, OffloadTools(store), _named(noisy))

    sent = [*made.run(QUESTION, session_id="alice", stream=True, stream_events=True)]

    assert len([event for event in sent if isinstance(event, HalfDone)]) == 1
    placeholder, event, rest = script.seen[1][-1].partition("HalfDone(")
    assert scenario.refs([placeholder])
    assert event
    assert rest.endswith(")rest")


def test_a_stream_that_fails_is_the_error_that_agno_makes_of_it(store):
    def failing():
        yield report()
        raise RuntimeError("the table is locked")

    script = Script([scenario.ask(), scenario.end])

    run(agent(script, OffloadTools(store), _named(failing)))

    assert script.seen[1][-1] == "the table is locked"


@pytest.mark.parametrize(("run", "is_async"), [(run, False), (arun, False), (arun, True)])
@pytest.mark.parametrize("times", [1, 8])
def test_an_error_is_offloaded_only_above_the_ceiling(store, run, is_async, times):
    def fail():
        raise RuntimeError(report()[:20_000] * times)

    offloading = OffloadTools(store)
    script = Script([scenario.ask(), scenario.end])

    output = run(agent(script, offloading, tool(returns=fail, is_async=is_async)))

    [message] = [message for message in output.messages if message.role == "tool"]
    assert message.tool_call_error
    assert bool(scenario.refs(script.seen[1])) is (times == 8)
    assert len(offloading.offloader("alice").records()) == (times == 8)
    assert output.content == ANSWER


@pytest.mark.parametrize("run", [run, arun])
def test_an_error_that_stops_the_run_still_does(store, run):
    def stop():
        raise StopAgentRun(report() * 2)

    script = Script([scenario.ask(), scenario.end])

    run(agent(script, OffloadTools(store), tool(returns=stop)))

    assert len(script.seen) == 1


@pytest.mark.parametrize("ask", [Agent.run, lambda made, *text, **of: asyncio.run(made.arun(*text, **of))])
@pytest.mark.parametrize("times", [1, 8])
def test_a_users_text_is_offloaded_before_the_run_only_above_the_ceiling(store, ask, times):
    offloading = OffloadTools(store)
    script = Script([scenario.search if times == 8 else scenario.end, scenario.end])
    made = agent(script, offloading, pre_hooks=[offloading.offload_input])
    asked = (QUESTION + report()[:20_000] + needle("alice")) * times

    ask(made, asked, session_id="alice")

    assert (script.seen[0][0] == asked) is (times == 1)
    assert len(offloading.offloader("alice").records()) == (times == 8)
    if times == 8:
        assert needle("alice") in script.seen[1][-1]


@pytest.mark.parametrize("value", [7, ["a", "b"], {"k": "v"}, None])
def test_a_small_value_is_kept_for_other_hooks_too(store, value):
    offloading = OffloadTools(store)
    seen = []

    def look(func, arguments):
        seen.append(func(**arguments))
        return "seen"

    made = agent(Script([scenario.ask(), scenario.end]), offloading, tool(returns=lambda: value))
    made.tool_hooks.insert(0, look)

    run(made)

    assert seen == [value]
    assert offloading.offloader("alice").records() == []


@pytest.mark.parametrize("run", [run, arun])
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_members_answer_is_offloaded_for_the_leader_and_kept_for_the_user(store, run, is_direct):
    offloading = OffloadTools(store)
    member = Agent(name="analyst", model=ScriptedModel(Script([lambda _: report()])), telemetry=False)
    delegated = Call("delegate_task_to_member", {"member_id": "analyst", "task": "Look."}, "call_0")
    script = Script([lambda _: delegated, scenario.end])
    team = Team(
        members=[member],
        model=ScriptedModel(script),
        tools=[offloading],
        tool_hooks=[offloading.hook],
        respond_directly=is_direct,
        telemetry=False,
    )

    output = run(team)

    if is_direct:
        assert report().strip() in output.content
        assert offloading.offloader("alice").records() == []
    else:
        assert scenario.refs(script.seen[1])


def test_an_agent_with_history_reads_items_of_the_last_run_in_the_next(store):
    script = Script([scenario.ask(), scenario.end, scenario.search, scenario.end])
    made = agent(script, OffloadTools(store), add_history_to_context=True)

    run(made, None)
    run(made, None)

    assert needle("alice") in script.seen[3][-1]


@pytest.mark.parametrize("flag", ["stop_after_tool_call", "show_result"])
@pytest.mark.parametrize("is_in_a_kit", [True, False])
@pytest.mark.parametrize("run", [run, arun, stream_run])
@pytest.mark.parametrize("returns", [report, lines])
def test_a_result_for_the_user_is_kept_in_full(store, run, flag, is_in_a_kit, returns):
    def show_report():
        """Sales."""
        return returns()

    if is_in_a_kit:
        shown = Toolkit(tools=[show_report], **{f"{flag}_tools": ["show_report"]})
    else:
        shown = Function(name="show_report", entrypoint=show_report, **{flag: True})
    offloading = OffloadTools(store)

    output = run(agent(Script([scenario.ask("show_report"), scenario.end]), offloading, shown))

    assert results(output) == [report()]
    if flag == "show_result" or is_in_a_kit:
        assert report() in output.content
    assert offloading.offloader("alice").records() == []
