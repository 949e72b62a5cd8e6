"""`OffloadProvider` in agents of the Microsoft Agent Framework."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, ClassVar

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, QUESTION, READER, SHOWN_ONCE, Call, Script, needle, report
from frameworks.story import Story, Told

pytest.importorskip("agent_framework", reason="in the environment of the group integration-agent-framework")

from agent_framework import (
    SKIP_PARSING,
    Agent,
    AgentSession,
    Content,
    FileHistoryProvider,
    FunctionMiddleware,
    InMemoryHistoryProvider,
    Message,
    MiddlewareFailure,
    MiddlewareTermination,
    SummarizationStrategy,
)
from frameworks.agent_framework_model import ScriptedClient, tool
from pydantic import BaseModel

from offload.integrations.agent_framework import OffloadProvider


def agent(script, provider, *tools, **options):
    client = ScriptedClient(script, stored=options.pop("stored", None))
    client.function_invocation_configuration["include_detailed_errors"] = True
    providers = [*([provider] if provider else []), *options.pop("context_providers", ())]
    return Agent(client, tools=list(tools) or [tool()], context_providers=providers, **options)


def requests_of(agent):
    """Return a list that gets the messages of each request of an agent."""
    sent: list[Any] = []
    answered = agent.client._inner_get_response

    def note(*, messages, **options):
        sent.append(messages)
        return answered(messages=messages, **options)

    agent.client._inner_get_response = note
    return sent


def alice():
    return AgentSession(session_id="alice")


def awaited(agent, session=None, asked=QUESTION):
    return asyncio.run(agent.run(asked, session=session))


def streamed(agent, session=None, asked=QUESTION):
    async def run():
        stream = agent.run(asked, session=session, stream=True)
        async for _ in stream:
            pass
        return await stream.get_final_response()

    return asyncio.run(run())


RUNS = pytest.mark.parametrize("run", [awaited, streamed])


def history(session):
    return session.state["in_memory"]["messages"]


def results(messages):
    return [c.result for m in messages for c in m.contents if c.type == "function_result"]


def as_dicts(messages):
    return [message.to_dict() for message in messages if message.role != "tool"]


def helper_of(propagates):
    def made(script, provider, *tools):
        helper = agent(script, provider, *tools, name="helper")
        return helper.as_tool(arg_name="input", propagate_session=propagates)

    return made


class Row(BaseModel):
    account: str
    amount: int


ROWS = {f"r{n}": Row(account=f"{n:06}", amount=n) for n in range(2000)}
VALUES = (
    lambda: ROWS,
    lambda: [*ROWS.values()],
    lambda: Content.from_text(report()),
    lambda: [Content.from_text(report())],
    lambda: {"rows": [*range(9000)]},
)


class TestStory(Story):
    extra, without, failure = "agent-framework", "agent_framework", MiddlewareFailure
    tool = staticmethod(tool)
    ways = (awaited, streamed)
    own_arguments: ClassVar = {"self": 1, "offloader": {}, "name": 2, "context": 3, "ctx": 4}
    agents: ClassVar = ["critic"]
    helpers: ClassVar = ((helper_of(True), {}), (helper_of(False), {"session": "team"}))  # noqa: FBT003 # named there
    values: ClassVar = tuple(
        {"returns": value, **options} for value in VALUES for options in ({}, {"result_parser": SKIP_PARSING})
    )

    def plugin(self, store, **options):
        return OffloadProvider(store, **options)

    def play(self, script, plugin, *tools, way=awaited, owner="alice", asked=QUESTION, saved=None, **options):
        session = AgentSession.from_dict(saved) if saved else AgentSession(session_id=owner)
        owner = session.session_id
        tools = tools or (tool(is_async=way is streamed),)
        answer = way(agent(script, plugin, *tools, name="critic", **options), session, asked).text
        messages = history(session)
        restored = plugin.restore(messages, owner)
        assert as_dicts(restored) == as_dicts(messages)
        saved = json.loads(json.dumps(session.to_dict()))
        off = plugin.offloader(owner)
        return Told(answer, off, results(messages), lambda: results(restored), saved, messages[0].text)


@pytest.mark.filterwarnings("ignore:.FILE_HISTORY")
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_each", [True, False])
def test_a_history_of_files_never_holds_the_original(store, tmp_path, is_first, is_each):
    provider, files = OffloadProvider(store), FileHistoryProvider(tmp_path)
    script = scenario.whole_run()
    made = Agent(
        ScriptedClient(script),
        tools=[tool()],
        context_providers=[provider, files] if is_first else [files, provider],
        require_per_service_call_history_persistence=is_each,
    )

    awaited(made, alice())

    kept = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "[Offloaded:" in kept
    assert "entry 01500" not in kept
    scenario.check_whole_run(script)


def test_long_arguments_of_a_call_are_offloaded_in_later_requests(store):
    asked = [lambda _: Call("send", {"text": report()}, "call_0"), scenario.ask(call="call_1"), scenario.end]
    script, session = Script(asked), alice()

    def send(text: str) -> str:
        """Send."""
        return str(len(text))

    made = agent(script, OffloadProvider(store, policy=SHOWN_ONCE), send, tool())
    sent = requests_of(made)
    awaited(made, session)

    def arguments(messages):
        return str([c.arguments for m in messages for c in m.contents if c.type == "function_call"])

    assert needle("alice") not in arguments(sent[2])
    assert "[Offloaded:" in arguments(sent[2])
    assert needle("alice") in arguments(history(session))


def test_the_texts_of_a_result_are_one_item_and_media_are_kept(store):
    image = Content.from_data(b"hi", "image/png")
    given = [Content.from_text(report()), image, Content.from_text("small")]
    session, provider = alice(), OffloadProvider(store)

    awaited(agent(Script([scenario.ask(), scenario.end]), provider, tool(returns=lambda: given)), session)

    [left] = [c for m in history(session) for c in m.contents if c.type == "function_result"]
    assert scenario.refs([left.items[0].text])
    assert [item.uri for item in left.items[1:]] == [image.uri]
    assert results(provider.restore(history(session), "alice")) == [f"{report()}\nsmall"]
    assert given[0].text == report()


def test_texts_of_a_reader_are_offloaded_later_and_restored_as_they_were(store):
    image = Content.from_data(b"hi", "image/png")
    given = [Content.from_text(report()), Content.from_text("small"), image, Content.from_text("end")]
    script = Script([scenario.ask(READER), scenario.ask("ping", "call_1"), scenario.end])
    tools = tool(READER, returns=lambda: given), tool("ping", returns=lambda: "pong")
    session, provider = alice(), OffloadProvider(store, policy=SHOWN_ONCE)
    made = agent(script, provider, *tools)
    sent = requests_of(made)
    awaited(made, session)

    assert scenario.refs(script.seen[2])
    restored = provider.restore(sent[2], "alice")
    left, originals = [[c.to_dict() for m in ms for c in m.contents] for ms in (restored, history(session))]
    assert left == originals[:-1]


def test_a_result_that_ends_the_run_is_kept(store):
    class Ending(FunctionMiddleware):
        async def process(self, context, call_next):
            await call_next()
            raise MiddlewareTermination(result=context.result)

    class Answers(FunctionMiddleware):
        async def process(self, context, _call_next):
            context.result = report()
            raise MiddlewareTermination

    script = Script([scenario.ask(), scenario.end])
    response = awaited(agent(script, OffloadProvider(store), middleware=[Answers()]))

    assert results(response.messages) == [report()]
    assert len(script.seen) == 1


def test_middleware_of_the_agent_stays_and_sees_the_placeholder(store):
    seen = []

    class Notes(FunctionMiddleware):
        async def process(self, context, call_next):
            await call_next()
            seen.append(context.result[0].text)

    script = scenario.whole_run()

    awaited(agent(script, OffloadProvider(store), middleware=[Notes()]))

    scenario.check_whole_run(script)
    assert scenario.refs(seen[:1])
    assert len(seen) == 3


@RUNS
def test_a_call_that_waits_for_approval_is_offloaded_when_it_runs(store, run):
    session, provider = alice(), OffloadProvider(store)
    script = Script([scenario.ask(), scenario.search, scenario.end])
    made = agent(script, provider, tool(approval_mode="always_require"))

    asked = run(made, session)
    [request] = asked.user_input_requests
    answer = Message("user", [request.to_function_approval_response(approved=True)])
    response = run(made, session, asked=answer)

    assert response.text == ANSWER
    assert needle("alice") in script.seen[2][-1]
    assert "entry 01500" not in json.dumps(session.to_dict())


@RUNS
def test_a_service_that_stores_the_conversation_is_sent_placeholders(store, run):
    script = Script([scenario.ask(), scenario.search, scenario.end])
    session = alice()

    run(agent(script, OffloadProvider(store), stored="conv_1"), session)

    assert session.service_session_id == "conv_1"
    assert [len(texts) for texts in script.seen] == [1, 1, 1]
    assert scenario.refs(script.seen[1])
    assert needle("alice") in script.seen[2][-1]
    assert all(len(text) < 5000 for texts in script.seen for text in texts)


def test_a_service_that_stores_the_conversation_is_sent_what_a_reader_read_in_full(store):
    script = Script([scenario.ask(READER), scenario.end])

    awaited(agent(script, OffloadProvider(store), tool(READER), stored="conv_1"), alice())

    assert script.seen[1][-1] == report()


def ask_helper(task=lambda _: "Look."):
    return lambda texts: Call("helper", {"task": task(texts)}, "call_h")


@pytest.mark.parametrize("has_provider", [True, False])
def test_an_agent_that_is_a_tool_has_a_provider_of_its_own(store, has_provider):
    provider = OffloadProvider(store)
    inner = scenario.whole_run() if has_provider else Script([scenario.ask(), scenario.end])
    helper = agent(inner, provider if has_provider else None, name="helper")
    outer = Script([ask_helper(), scenario.end])

    response = awaited(agent(outer, provider, helper.as_tool()))

    assert response.text == ANSWER
    assert (needle("alice") in inner.shown(2)) != has_provider
    assert outer.seen[1][-1] == ANSWER


def test_a_long_answer_of_an_agent_that_is_a_tool_is_offloaded(store):
    helper = agent(Script([lambda _: report()]), None, name="helper")
    outer = Script([ask_helper(), scenario.search, scenario.end])

    awaited(agent(outer, OffloadProvider(store), helper.as_tool()))

    assert needle("alice") not in outer.shown(2)
    assert needle("alice") in outer.seen[2][-1]


def test_a_summary_of_messages_with_placeholders_stays_in_the_conversation(store, caplog):
    summaries = Script([summary] * 9)
    script = Script([*(scenario.ask(READER, f"call_{n}") for n in range(4)), scenario.end])
    strategy = SummarizationStrategy(client=ScriptedClient(summaries), target_count=3, threshold=0)
    provider = OffloadProvider(store, policy=SHOWN_ONCE)
    made = agent(script, provider, tool(READER), compaction_strategy=strategy)

    awaited(made, alice())

    assert "Rejected" not in caplog.text
    assert "[Offloaded:" in summaries.seen[1][-1]
    assert "a summary of 1" in summaries.seen[2][-1]


def summary(texts):
    return f"a summary of {len(re.findall('a summary', texts[-1]))}"


def test_a_provider_works_behind_a_history_of_the_caller(store):
    script, session = scenario.whole_run(), alice()

    awaited(
        agent(script, OffloadProvider(store), context_providers=[InMemoryHistoryProvider("mine")]), session
    )

    scenario.check_whole_run(script)
    assert scenario.refs(results(session.state["mine"]["messages"]))
