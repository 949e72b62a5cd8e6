"""`OffloadSteps` in agents of smolagents that call tools and that write code."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, ClassVar

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUERY, QUESTION, READER, Call, Script, needle, report
from frameworks.story import Story, Told

pytest.importorskip("smolagents", reason="in the environment of the group integration-smolagents")

from frameworks.smolagents_model import ScriptedModel, printed, tool
from smolagents import ActionStep, ChatMessage, CodeAgent, TaskStep, Tool, ToolCallingAgent
from smolagents.memory import Timing, ToolCall
from smolagents.utils import AgentError

from offload import OffloadPolicy, Rule
from offload.engine.policy.tool_names import RETRIEVAL_TOOLS, TOOL_NAMES
from offload.integrations.smolagents import OffloadSteps
from offload.testing import FaultyStore


def calling(script, offloading, *tools, kind=ToolCallingAgent, **options):
    return kind(
        tools=[*(tools or [tool()]), *offloading.tools],
        model=ScriptedModel(script, is_code=kind is CodeAgent),
        step_callbacks=[offloading],
        verbosity_level=0,
        **options,
    )


def coding(script, offloading, *tools, **options):
    options = {"max_print_outputs_length": 1_000_000, **options}
    return calling(script, offloading, *tools, kind=CodeAgent, **options)


AGENTS = pytest.mark.parametrize("agent", [calling, coding])


def written(script, offloading, *tools, **options):
    """Return an agent whose model writes the code that `script` says."""
    made = coding(script, offloading, *tools, **options)
    made.model = WritingModel(script)
    return made


class WritingModel(ScriptedModel):
    def generate(self, *_: Any, **__: Any) -> ChatMessage:
        return ChatMessage("assistant", f"<code>\n{self.script.reply([])}\n</code>")


def observations(agent):
    return [step.observations for step in agent.memory.steps if isinstance(step, ActionStep)]


def results(steps):
    """Return what the steps before the last observed."""
    return [printed(step.observations or "") for step in steps[:-1] if isinstance(step, ActionStep)]


def content(offloading, ref):
    return b"".join(offloading.offloader.content(ref)).decode()


def many():
    return {str(n): {"amount": n, "note": None, "state": "settled"} for n in range(3000)}


def streamed(agent, asked=QUESTION, **options):
    return list(agent.run(asked, stream=True, **options))[-1].output


def run(agent, asked=QUESTION, **options):
    return agent.run(asked, **options)


class TestStory(Story):
    extra, without, second_try, keeps_late = "smolagents", "smolagents", 2, False
    tool = staticmethod(tool)
    ways = tuple((made, way) for made in (calling, coding) for way in (run, streamed))
    alike = (*ways[:2], ways[0])
    some_ways: ClassVar = {
        "test_a_second_question_in_the_same_process_continues_from_what_was_saved": ways[:2]
    }
    refusal = "[Ee]rror"
    agents: ClassVar = ["critic"]
    shows_requests = False
    own_tools = ("final_answer",)
    values: ClassVar = (
        {"returns": many},
        {"returns": lambda: [*many().items()]},
        {"returns": lambda: {f"{n:09}" for n in range(3000)}},
    )
    left_out: ClassVar = (
        # Tested below: the task in the first step, a step of several calls, managed agents.
        "test_a_long_user_message_is_offloaded_and_kept_by_the_framework",
        "test_results_of_concurrent_calls_are_all_offloaded",
        "test_an_agent_that_is_a_tool_and_its_caller_read_each_other_s_items",
        # It is made for one session.
        "test_a_session_that_is_named_is_that_of_every_run",
    )

    def plugin(self, store, **options):
        return partial(OffloadSteps, store, **options)

    def play(
        self,
        script,
        plugin,
        *tools,
        way=(calling, run),
        owner="alice",
        asked=QUESTION,
        saved=None,
        **options,
    ):
        """Save the memory, and continue after its first step."""
        made_by, go = way
        offloading = plugin(session=owner)
        options["instructions"] = options.get("instructions", "") + offloading.prompt
        made = made_by(script, offloading, *tools, name="critic", description="Judges.", **options)
        if saved:
            done = {"tool_calls": [ToolCall(QUERY, {}, "call_0")], "observations": saved[1]["observations"]}
            made.memory.steps = [TaskStep(QUESTION), ActionStep(1, Timing(0.0, 1.0), model_output="", **done)]
        answer = go(made, asked, reset=not saved)
        kept = json.loads(json.dumps(made.memory.get_full_steps()))
        off, steps = offloading.offloader, made.memory.steps
        return Told(answer, off, results(steps), lambda: results(offloading.restore(steps)), kept)


def test_an_agent_that_streams_its_outputs_offloads_as_well(store):
    script = scenario.whole_run()

    assert calling(script, OffloadSteps(store), stream_outputs=True).run(QUESTION) == ANSWER

    scenario.check_whole_run(script)


def test_a_long_task_is_shown_once_in_full(store):
    script = Script([scenario.ask("ping"), scenario.end])
    offloading = OffloadSteps(
        store, policy=OffloadPolicy(types={"user_message": Rule(min_tokens=1000, after_replies=1)})
    )
    made = calling(script, offloading, tool("ping", returns=lambda: "pong"))

    made.run(report())

    assert needle("alice") in script.shown(1)
    assert needle("alice") not in script.shown(2)
    assert scenario.refs(script.seen[1])
    [task, *_] = offloading.restore(made.memory.steps)
    assert isinstance(task, TaskStep)
    assert task.task == report()


def test_long_arguments_of_a_call_are_offloaded(store):
    def write(_):
        return Call("send", {"text": report()}, "call_0")

    class Send(Tool):
        name = "send"
        description = "Sends."
        inputs: dict[str, Any] = {"text": {"type": "string", "description": "Text."}}  # noqa: RUF012 # the framework's signature
        output_type = "string"

        def forward(self, text: str) -> str:
            return str(len(text))

    script = Script([write, scenario.ask("ping", "call_1"), scenario.end])
    offloading = OffloadSteps(store, policy=scenario.SHOWN_ONCE)
    made = calling(script, offloading, Send(), tool("ping", returns=lambda: "pong"))

    made.run(QUESTION)

    assert needle("alice") not in script.shown(3)
    [_, restored, *_] = offloading.restore(made.memory.steps)
    assert restored.tool_calls[0].arguments == {"text": report()}


def test_a_small_value_of_python_is_shown_as_it_is(store):
    script = Script([scenario.ask(), scenario.end])

    calling(script, OffloadSteps(store), tool(returns=lambda: {"a": None})).run(QUESTION)

    assert "{'a': None}" in script.seen[1][-1]


def test_prints_before_an_error_are_kept(store):
    script = Script([lambda _: f"print({QUERY}())\n1 / 0", lambda _: "final_answer('x')"])
    made = written(script, OffloadSteps(store))

    made.run(QUESTION)

    assert needle("alice") in observations(made)[0]


def test_an_image_is_kept(store):
    image = pytest.importorskip("PIL.Image").new("RGB", (64, 64))
    script = Script([scenario.ask(), scenario.end])
    made = calling(script, OffloadSteps(store), tool(returns=lambda: image, type_="image"))

    made.run(QUESTION, images=[image])

    assert made.memory.steps[0].task_images == [image]
    assert made.memory.steps[1].observations_images == [image]
    assert "Stored 'image.png'" in observations(made)[0]


def test_results_of_parallel_calls_are_one_item(store):
    calls = [Call(QUERY, {}, f"call_{n}") for n in range(8)]
    offloading = OffloadSteps(store)
    made = calling(Script([lambda _: calls, scenario.end]), offloading)

    made.run(QUESTION)

    [ref] = scenario.refs(observations(made)[:1])
    assert content(offloading, ref) == "\n".join([report().strip()] * 8)


def test_the_logs_and_the_last_value_of_code_are_two_items(store):
    script = Script([lambda _: f"print({QUERY}())\n{READER}()", lambda _: "final_answer('x')"])
    offloading = OffloadSteps(
        store, policy=OffloadPolicy.model_validate({"file_readers": {"after_replies": 0}})
    )
    made = written(script, offloading, tool(), tool(READER, returns=lambda: report("bob")))

    made.run(QUESTION)

    refs = scenario.refs(observations(made)[:1])
    assert [content(offloading, ref) for ref in refs] == [report(), report("bob")]
    assert observations(made)[0].startswith("Execution logs:\n[Offloaded:")
    assert "]\nLast output from code snippet:\n[Offloaded:" in observations(made)[0]


def test_a_last_value_that_smolagents_cuts_is_stored_whole_or_stays_cut(store):
    def first_step(store):
        script = Script([lambda _: f"{QUERY}()", lambda _: "final_answer('x')"])
        offloading = OffloadSteps(store)
        made = written(script, offloading)
        made.run(QUESTION)
        return observations(made)[0], offloading

    shown, offloading = first_step(store)
    cut, _ = first_step(FaultyStore(store, verb="put", is_lasting=True))

    [ref] = scenario.refs([shown])
    assert content(offloading, ref) == report()
    assert len(cut) < 21_000
    assert needle("alice") not in cut


def test_an_answer_that_code_prints_is_kept(store):
    line = 100

    def show(texts):
        return Call("context_read", {"id": scenario.refs(texts)[-1], "part": f"1-{line}"}, "c")

    offloading = OffloadSteps(store)
    script = Script([scenario.ask(), show, scenario.end])

    coding(script, offloading).run(QUESTION)

    assert f"entry {line:05}" in script.seen[2][-1]
    assert len(offloading.offloader.records()) == 1


def test_code_that_prints_a_whole_stored_item_is_offloaded_again(store):
    def show_all(_):
        [ref] = scenario.refs(observations(made)[:1])
        return f"for n in range(11):\n    print(context_read('{ref}', n * 8000))"

    script = Script([lambda _: f"print({QUERY}())", show_all, lambda _: "final_answer('x')"])
    offloading = OffloadSteps(store)
    made = written(script, offloading)

    made.run(QUESTION)

    assert all(len(text) < 3000 for text in observations(made))
    assert len(offloading.offloader.records()) == 2


def test_code_that_prints_more_than_the_answer_of_a_tool_is_offloaded(store):
    def compare(_):
        [ref] = scenario.refs(observations(made)[:1])
        return f"print(context_diff('{ref}', '{ref}'))\nprint('a long line\\n' * 8000)"

    script = Script([lambda _: f"print({QUERY}())", compare, lambda _: "final_answer('x')"])
    offloading = OffloadSteps(store, tools=RETRIEVAL_TOOLS)
    made = written(script, offloading)

    made.run(QUESTION)

    assert all(len(text) < 3000 for text in observations(made))


HELPER = {"name": "helper", "description": "Helps."}


def delegate(_):
    return Call("helper", {"task": "Look."}, "call_0")


@pytest.mark.parametrize("has_tools", [True, False])
def test_a_managed_agent_has_tools_and_callbacks_of_its_own(store, has_tools, caplog):
    offloading = OffloadSteps(store)
    inner = Script([scenario.ask(), *([scenario.search] if has_tools else []), scenario.end])
    helper = calling(inner, offloading, **HELPER)
    if not has_tools:
        for name in TOOL_NAMES:
            del helper.tools[name]
    outer = Script([delegate, scenario.end])

    calling(outer, offloading, managed_agents=[helper]).run(QUESTION)

    assert (needle("alice") not in inner.shown(2)) == has_tools
    assert ("'helper' has no retrieval tools" in caplog.text) != has_tools
    assert ANSWER in outer.seen[1][-1]


def test_a_long_report_of_a_managed_agent_is_offloaded(store):
    offloading = OffloadSteps(store)
    helper = calling(Script([lambda _: report()]), offloading, **HELPER)
    outer = Script([delegate, scenario.search, scenario.end])

    calling(outer, offloading, managed_agents=[helper]).run(QUESTION)

    assert needle("alice") not in outer.shown(2)
    assert needle("alice") in outer.seen[2][-1]


@AGENTS
def test_a_final_answer_is_kept(store, agent):
    script = Script([lambda _: Call("final_answer", {"answer": report()}, "c")])
    made = agent(script, OffloadSteps(store))

    assert made.run(QUESTION) == report()

    assert scenario.refs(observations(made)) == []


def test_an_interrupted_run_is_resumed(store):
    offloading = OffloadSteps(store)
    script = scenario.whole_run()
    made = calling(script, offloading)
    stop = made.interrupt
    made.step_callbacks.register(ActionStep, lambda step: stop() if step.step_number == 1 else None)

    with pytest.raises(AgentError, match="interrupted"):
        made.run(QUESTION)
    kept = observations(made)
    stop = lambda: None  # noqa: E731 # the callback ends no other run
    result = made.run("Go on.", reset=False)

    assert scenario.refs(kept)
    assert observations(made)[0] == kept[0]
    assert needle("alice") in script.seen[2][-1]
    assert result == ANSWER
