"""`OffloadMiddleware` in an agent of LangChain, with LangGraph's checkpointer."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUERY, QUESTION, READER, SHOWN_ONCE, Call, Script, needle, report
from frameworks.story import Story, Told

pytest.importorskip("langchain", reason="in the environment of the group integration-langchain")

from frameworks.scripted import scripted, tool
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.load import dumpd, load
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command

from offload.integrations.langchain import OffloadMiddleware

ASKED = {"messages": [HumanMessage(QUESTION)]}


def thread(name="alice"):
    return {"configurable": {"thread_id": name}}


def agent(script, middleware, *tools, **options):
    given = {"checkpointer": InMemorySaver(), "name": "critic", **options}
    return create_agent(scripted(script), list(tools) or [tool()], middleware=[middleware], **given)


def saved(agent):
    """Return all that the checkpointer holds."""
    saver = agent.checkpointer
    return repr((saver.storage, saver.blobs, saver.writes))


def results(state):
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def run(agent, config, messages=ASKED["messages"]):
    return agent.invoke({"messages": messages}, config)


def arun(agent, config, messages=ASKED["messages"]):
    return asyncio.run(agent.ainvoke({"messages": messages}, config))


@pytest.mark.filterwarnings("ignore:The function `load` is in beta")
class TestStory(Story):
    extra, without, keeps_late = "langchain", "langchain.agents.middleware", False
    tool = staticmethod(tool)
    ways = (run, arun)
    own_arguments: ClassVar = {"self": 1, "config": {}, "run_manager": 2, "function": 3, "name": "x"}
    agents: ClassVar = ["critic"]
    errors: ClassVar = (ToolMessage(report(), tool_call_id="call_0", name=QUERY, status="error"),)
    instructs = "system_prompt"
    unnamed: ClassVar = (None, "", 7)
    # An agent that is a tool has a state of its own: tested below.
    left_out: ClassVar = ("test_an_agent_that_is_a_tool_and_its_caller_read_each_other_s_items",)

    def plugin(self, store, **options):
        return OffloadMiddleware(store, **options)

    def play(self, script, plugin, *tools, way=run, owner="alice", asked=QUESTION, saved=(), **options):
        before = [load(each, allowed_objects="all") for each in saved or ()]
        options |= {} if owner else {"checkpointer": None}
        config = {} if owner is None else thread(owner)
        state = way(agent(script, plugin, *tools, **options), config, [*before, HumanMessage(asked)])
        messages, off = state["messages"], plugin.offloader(state.get("offload_session") or owner)
        saved = [dumpd(message) for message in messages]
        return Told(
            messages[-1].text,
            off,
            [m.content for m in results(state)],
            lambda: [m.content for m in results({"messages": off.restore(messages)})],
            saved,
            messages[0].content,
        )


@pytest.mark.parametrize("run", [run, arun])
def test_every_checkpoint_contains_the_placeholder_and_never_the_original(store, run):
    middleware = OffloadMiddleware(store)
    made = agent(Script([scenario.ask(), scenario.end]), middleware)

    state = run(made, thread())

    assert "[Offloaded:" in saved(made)
    assert "entry 01500" in report()
    assert "entry 01500" not in saved(made)
    assert middleware.offloader("alice").restore(results(state))[0].content == report()


class Shortening(AgentMiddleware):
    """Changes, for the call alone, what the model is sent."""

    def wrap_model_call(self, request, handler):
        cut = [
            m.model_copy(update={"content": m.content.replace("settled", "open")}) for m in request.messages
        ]
        return handler(request.override(messages=cut))


def test_a_message_of_another_middleware_for_one_call_is_never_added_to_the_state(store):
    script = Script([scenario.ask(READER), scenario.ask("lookup", "call_1"), scenario.end])
    made = create_agent(
        scripted(script),
        [tool(READER), tool("lookup", returns=lambda: "42")],
        middleware=[Shortening(), OffloadMiddleware(store, policy=SHOWN_ONCE)],
    )

    state = run(made, {})

    assert scenario.refs(script.seen[2])
    assert results(state)[0].content == report()


def test_a_result_keeps_its_id_name_status_artifact_and_other_blocks(store):
    image = {"type": "image", "base64": "aGk=", "mime_type": "image/png"}
    given = ToolMessage(
        [{"type": "text", "text": report()}, image],
        tool_call_id="call_0",
        name=QUERY,
        id="message-1",
        artifact={"rows": [1, 2]},
        additional_kwargs={"k": "v"},
    )
    middleware = OffloadMiddleware(store)
    made = agent(
        Script([scenario.ask(), scenario.end]),
        middleware,
        tool(returns=lambda: Command(update={"messages": [given]})),
    )

    state = run(made, thread())

    [left] = results(state)
    assert scenario.refs([left.text])
    assert needle("alice") not in left.text
    assert left.content[1:] == [image]
    assert left.model_copy(update={"content": ""}) == given.model_copy(update={"content": ""})
    assert middleware.offloader("alice").restore([left]) == [given]
    assert given.content == [{"type": "text", "text": report()}, image]


@pytest.mark.parametrize("run", [run, arun])
def test_an_answer_that_could_not_be_read_back_has_the_status_of_an_error(store, run):
    wrong = Call("context_read", {"id": "abcdefghij"}, "w"), Call("context_grep", {"pattern": ""}, "w")
    looks = [lambda _, call=call: call for call in wrong]
    script = Script([scenario.ask(), *looks, scenario.search, scenario.end])

    state = run(agent(script, OffloadMiddleware(store)), thread())

    assert [result.status for result in results(state)] == ["success", "error", "error", "success"]
    assert results(state)[1].content.startswith("Error: ")


def shown_to_the_user(returns=report):
    made = tool("show_report", returns=returns)
    made.return_direct = True
    return made


def unnamed():
    return Command(update={"messages": [ToolMessage(report(), tool_call_id="call_0")]})


def with_artifact():
    return report(), {"rows": [1, 2]}


@pytest.mark.parametrize("run", [run, arun])
@pytest.mark.parametrize("returns", [report, unnamed, with_artifact])
def test_a_result_for_the_user_is_kept_in_any_form_also_in_the_turns_after_it(store, run, returns):
    direct = shown_to_the_user(returns)
    direct.response_format = "content_and_artifact" if returns is with_artifact else "content"
    script = Script([scenario.ask("show_report"), scenario.ask(call="call_1"), scenario.end])
    made = agent(script, OffloadMiddleware(store), direct, tool())

    shown = run(made, thread())["messages"][-1]
    first, usual = results(run(made, thread()))

    assert shown.content == first.content == report()
    assert first.artifact == ({"rows": [1, 2]} if returns is with_artifact else None)
    assert usual.content.startswith("[Offloaded:")


class _Selector(AgentMiddleware):
    """Hides a tool from the model once it has a result, as middlewares that select tools do."""

    def wrap_model_call(self, request, handler):
        if any(message.type == "tool" for message in request.messages):
            request = request.override(tools=[each for each in request.tools if each.name != "show_report"])
        return handler(request)


def test_a_result_for_the_user_is_kept_while_its_tool_is_hidden_from_the_model(store):
    script = Script([scenario.ask("show_report"), scenario.ask(call="call_1"), scenario.end])
    made = create_agent(
        scripted(script),
        [shown_to_the_user(), tool()],
        middleware=[_Selector(), OffloadMiddleware(store)],
        checkpointer=InMemorySaver(),
    )

    run(made, thread())
    direct, usual = results(run(made, thread()))

    assert direct.content == report()
    assert usual.content.startswith("[Offloaded:")


@pytest.mark.parametrize("run", [run, arun])
def test_a_result_for_the_user_next_to_another_is_kept_and_the_other_offloaded(store, run):
    def both(_):
        return [Call("show_report", {}, "call_0"), Call(QUERY, {}, "call_1")]

    script = Script([both, scenario.end])

    state = run(agent(script, OffloadMiddleware(store), shown_to_the_user(), tool()), thread())

    direct, usual = results(state)
    assert direct.content == report()
    assert usual.content.startswith("[Offloaded:")


def test_a_result_with_an_artifact_keeps_the_artifact_and_offloads_the_content(store):
    made = tool(returns=with_artifact)
    made.response_format = "content_and_artifact"
    script = Script([scenario.ask(), scenario.end])

    [result] = results(run(agent(script, OffloadMiddleware(store), made), thread()))

    assert result.content.startswith("[Offloaded:")
    assert result.artifact == {"rows": [1, 2]}


class Odd:
    """Compares as a DataFrame does, and cannot be copied."""

    def __eq__(self, other):
        return [self is other]

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self):
        raise ValueError("the truth value is ambiguous")

    def __deepcopy__(self, memo):
        raise TypeError("cannot be copied")


def test_an_artifact_that_cannot_be_copied_or_compared_is_kept_with_its_result(store):
    odd = {"frame": Odd(), "rows": [Odd()]}
    large = tool(returns=lambda: ToolMessage(report(), tool_call_id="call_0", name=QUERY, artifact=odd))
    middleware = OffloadMiddleware(store)
    script = Script([scenario.ask(), scenario.ask(call="call_1"), scenario.end])

    state = run(create_agent(scripted(script), [large], middleware=[middleware]), thread())

    for result in results(state):
        assert result.content.startswith("[Offloaded:")
    assert results(state)[0].artifact["frame"] is odd["frame"]
    assert middleware.offloader("alice").restore(results(state))[0].artifact["frame"] is odd["frame"]


@pytest.mark.parametrize("run", [run, arun])
def test_a_reference_in_an_allowed_field_gives_the_tool_the_text_and_the_state_the_reference(store, run):
    written = []

    def write(path: str, content: str) -> str:
        """Write a file."""
        written.append((path, content))
        return "ok"

    async def later(path: str, content: str) -> str:
        return write(path, content)

    def pass_on(field):
        def turn(texts):
            ref = scenario.refs(texts)[-1]
            reference = {"$ref": ref, "lines": str(scenario.NEEDLE_LINE)}
            return Call("write_file", {"path": "a", "content": "b", field: reference}, f"call_{field}")

        return turn

    script = Script([scenario.ask(), pass_on("path"), pass_on("content"), lambda _: ANSWER])
    writer = StructuredTool.from_function(write, later, name="write_file")
    middleware = OffloadMiddleware(store, reference_fields=["write_file.content"])

    state = run(agent(script, middleware, tool(), writer), thread())

    assert written == [("a", needle("alice") + "\n")]
    _, refused, accepted = results(state)
    assert (refused.status, refused.tool_call_id) == ("error", "call_path")
    assert refused.content.startswith("Error: path of write_file must not be a reference")
    assert accepted.content == "ok"
    assert needle("alice") not in repr(state["messages"])


@pytest.mark.parametrize("is_one", [True, False])
def test_other_updates_of_a_command_or_of_several_are_unchanged(store, is_one):
    aside = HumanMessage("As you asked.", id="aside")
    answer = ToolMessage(report(), tool_call_id="call_0", name=QUERY)
    messages, other = {"messages": [answer, aside]}, {"structured_response": "kept"}
    given = Command(update=messages | other) if is_one else [Command(update=other), Command(update=messages)]
    made = agent(
        Script([scenario.ask(), scenario.end]), OffloadMiddleware(store), tool(returns=lambda: given)
    )

    state = run(made, thread())

    assert scenario.refs([results(state)[0].content])
    assert "entry 01500" not in saved(made)
    assert state["messages"][3] == aside
    assert state["structured_response"] == "kept"
    assert answer.content == report()


def test_the_prompt_is_a_block_behind_those_of_the_host(store):
    script, middleware = Script([scenario.end]), OffloadMiddleware(store)
    given = SystemMessage([{"type": "text", "text": "Be brief.", "cache_control": {}}])

    run(agent(script, middleware, system_prompt=given), thread())

    assert script.system == ["Be brief." + middleware.offloader().prompt()]


class Team(MessagesState):
    """A state that shows the session of its run."""

    offload_session: str


def as_subgraph(agent):
    return agent


def as_function(agent):
    def call(state):
        made = agent.invoke({"messages": state["messages"]})
        return {name: made[name] for name in ("messages", "offload_session")}

    return call


def run_graph(node, first, second):
    """Run a graph whose second agent reads what the first got; return its state and that agent's script."""
    script = Script([scenario.search, scenario.read, scenario.end])
    asking = create_agent(scripted(Script([scenario.ask(), scenario.end])), [tool()], middleware=[first])
    reading = create_agent(scripted(script), [tool()], middleware=[second])
    graph = StateGraph(Team)
    graph.add_node("first", node(asking))
    graph.add_node("second", node(reading))
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    return graph.compile().invoke(ASKED), script


@pytest.mark.parametrize("node", [as_subgraph, as_function])
@pytest.mark.parametrize("is_shared", [True, False])
def test_an_agent_of_a_graph_without_a_thread_reads_what_an_earlier_one_offloaded(store, node, is_shared):
    first = OffloadMiddleware(store)
    second = first if is_shared else OffloadMiddleware(store)

    states = []
    for _ in range(2):
        state, script = run_graph(node, first, second)
        states.append(state)
        assert needle("alice") in script.shown(3)
        assert second.offloader(state["offload_session"]).restore(results(state))[0].content == report()
        assert len(second.offloader(state["offload_session"]).records()) == 1

    assert states[0]["offload_session"] != states[1]["offload_session"]


def test_agents_of_a_graph_that_run_at_once_without_a_thread_share_a_session(store):
    middleware = OffloadMiddleware(store)
    graph = StateGraph(MessagesState)
    names = []

    def node(number):
        made = create_agent(
            scripted(Script([scenario.ask(call=f"call_{number}"), scenario.end])),
            [tool(returns=lambda: report(f"agent {number}"))],
            middleware=[middleware],
        )

        def call(state):
            names.append(made.invoke({"messages": state["messages"]})["offload_session"])

        return call

    for number in range(8):
        graph.add_node(f"n{number}", node(number))
        graph.add_edge(START, f"n{number}")
    graph.compile().invoke(ASKED)

    assert len({*names}) == 1
    assert len(middleware.offloader(names[0]).records()) == 8


def test_who_calls_an_agent_cannot_name_the_session_that_it_reads(store):
    middleware = OffloadMiddleware(store)
    run(agent(Script([scenario.ask(), scenario.end]), middleware), thread("alice"))
    script = Script([lambda _: Call("context_list", {}, "l"), scenario.end])

    made = create_agent(scripted(script), [tool()], middleware=[middleware])
    state = made.invoke({**ASKED, "offload_session": "alice"})

    assert script.seen[1][-1].startswith("[0 stored")
    assert state["offload_session"] != "alice"


def test_a_run_without_a_thread_continues_under_the_name_in_its_state(store):
    made = create_agent(
        scripted(Script([scenario.ask(), scenario.end])), [tool()], middleware=[OffloadMiddleware(store)]
    )
    before = run(made, {})
    script = Script([scenario.search, scenario.read, scenario.end])

    again = create_agent(scripted(script), [tool()], middleware=[OffloadMiddleware(store)])
    asked = {"messages": [*before["messages"], HumanMessage("And then?")]}
    again.invoke(asked, thread(before["offload_session"]))

    assert needle("alice") in script.shown(3)


def test_an_agent_that_is_a_tool_of_a_run_without_a_thread_changes_nothing_of_that_run(store):
    middleware = OffloadMiddleware(store)
    inner = create_agent(scripted(Script([scenario.ask(), scenario.end])), [tool()], middleware=[middleware])

    def delegate() -> Command:
        state = inner.invoke(ASKED)
        done = ToolMessage("done", tool_call_id="d")
        return Command(update={"offload_session": state["offload_session"], "messages": [done]})

    script = Script([scenario.ask(), lambda _: Call("ask", {}, "d"), scenario.search, scenario.end])
    outer = create_agent(scripted(script), [tool(), tool("ask", returns=delegate)], middleware=[middleware])
    state = run(outer, {})

    assert needle("alice") in script.shown(4)
    assert middleware.offloader(state["offload_session"]).restore(results(state))[0].content == report()
