"""Items of pydantic-ai messages: offloaded, kept and restored."""

from __future__ import annotations

import pytest
from frameworks import scenario
from frameworks.scenario import QUERY, QUESTION, SHOWN_ONCE, Call, Script, report

pytest.importorskip("pydantic_ai", reason="in the environment of the group integration-pydantic-ai")

from frameworks.scripted_pydantic import ScriptedModel, agent, results, sync, tool
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ToolReturn
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from offload import OffloadPolicy
from offload.integrations.pydantic_ai import OffloadCapability

PICTURE = BinaryContent(b"\x89PNG", media_type="image/png")


def test_offloaded_messages_are_restored_deep_equal_and_others_are_the_same_object(store):
    plain = sync(agent(Script([scenario.ask(), scenario.end]), OffloadCapability(store, session="x")))
    given = plain.all_messages()
    capability = OffloadCapability(store, session="x")

    restored = capability.restore(given)
    again = sync(agent(Script([scenario.end]), capability), "And then?", message_history=restored)

    assert [a is b for a, b in zip(given, restored, strict=True)] == [True, True, False, True]
    assert results(restored) == [report()]
    sent = again.all_messages()[:4]
    assert results(sent) == results(given)
    assert capability.restore(sent) == restored
    assert results(restored) == [report()]


def test_a_long_user_message_is_offloaded_and_the_parts_next_to_it_are_kept(store):
    policy = OffloadPolicy.model_validate({"types": {"user_message": {"min_tokens": 1000}}})
    script, capability = Script([scenario.end]), OffloadCapability(store, policy=policy)
    given = [ModelRequest([UserPromptPart(report("bob"))])]

    run = sync(agent(script, capability), [report(), PICTURE, "Short."], message_history=given)

    *_, asked, _ = messages = run.all_messages()
    [*_, sent] = asked.parts
    assert scenario.refs([sent.content[0]])
    assert sent.content[1:] == [PICTURE, "Short."]
    [*_, restored] = [
        part for m in capability.restore(messages) for part in m.parts if part.part_kind == "user-prompt"
    ]
    assert restored.content == [report(), PICTURE, "Short."]
    # The history that the caller gave is not changed.
    assert scenario.refs(script.seen[0][:1])
    assert [part.content for part in given[0].parts] == [report("bob")]


def test_tool_call_arguments_are_offloaded_after_the_models_next_reply(store):
    long = {"path": "report.txt", "text": report()}
    script = Script([lambda _: Call("write", long, "call_0"), scenario.ask("lookup", "call_1"), scenario.end])
    written = []

    def write(path: str, text: str) -> str:
        written.append(text)
        return "Written."

    capability = OffloadCapability(store, policy=SHOWN_ONCE)
    made = Agent(
        ScriptedModel(script),
        tools=[write, tool("lookup", returns=lambda: "42")],
        capabilities=[capability],
    )

    messages = sync(made).all_messages()

    assert written == [report()]
    assert "entry 01500" in script.seen[1][1]
    assert "entry 01500" not in script.seen[2][1]
    assert capability.restore(messages)[1].parts[0].args == long


class Row(BaseModel):
    entry: int
    state: str


ROWS = [Row(entry=n, state="settled") for n in range(3000)]
JSON_ROWS = [row.model_dump() for row in ROWS]


@pytest.mark.parametrize("value", [JSON_ROWS, {"rows": JSON_ROWS}, ROWS, tuple(ROWS)])
def test_a_result_that_is_not_a_text_is_restored_from_its_json(store, value):
    search = lambda seen: Call("context_read", {"id": scenario.refs(seen)[0], "part": "/0"}, "c")  # noqa: E731 # one turn
    script = Script([scenario.ask(), search, scenario.end])
    capability = OffloadCapability(store)

    messages = sync(agent(script, capability, tool(returns=lambda: value))).all_messages()

    assert isinstance(results(messages)[0], str)
    [restored, _] = results(capability.restore(messages))
    assert restored == ({"rows": JSON_ROWS} if isinstance(value, dict) else JSON_ROWS)
    if not isinstance(value, dict):
        assert '"entry": 0' in script.seen[2][-1]


def test_files_in_a_result_are_kept_next_to_the_placeholder(store):
    capability = OffloadCapability(store)
    mixed = [JSON_ROWS, PICTURE, report()]
    made = agent(Script([scenario.ask(), scenario.end]), capability, tool(returns=lambda: mixed))

    messages = sync(made).all_messages()

    [[placeholder, *rest]] = results(messages)
    assert scenario.refs([placeholder])
    assert rest == [PICTURE]
    assert results(capability.restore(messages)) == [mixed]


def test_a_result_keeps_its_parts_for_the_client(store):
    made = agent(
        Script([scenario.ask(), scenario.end]),
        OffloadCapability(store),
        tool(returns=lambda: ToolReturn(report(), metadata={"rows": 3600})),
    )

    messages = sync(made).all_messages()

    [part] = messages[2].parts
    assert scenario.refs([part.content])
    assert (part.metadata, part.tool_call_id, part.tool_name) == ({"rows": 3600}, "call_0", QUERY)


def test_a_result_that_the_framework_reads_is_kept(store):
    call = ToolCallPart(QUERY, {}, "call_0", tool_kind="sales:report")
    kept = ToolReturnPart(QUERY, report(), "call_0", tool_kind="sales:report")
    given = [ModelRequest([UserPromptPart(QUESTION)]), ModelResponse([call]), ModelRequest([kept])]
    script = Script([scenario.end])

    messages = sync(agent(script, OffloadCapability(store)), "And then?", message_history=given)

    assert results(messages.all_messages()) == [report()]


class Shortening(AbstractCapability):
    """Changes, for the request alone, what the model is sent."""

    async def before_model_request(self, _ctx, request_context):
        request_context.messages = [_shortened(message) for message in request_context.messages]
        return request_context


def _shortened(message):
    if not any(isinstance(part, ToolReturnPart) for part in message.parts):
        return message
    parts = [
        ToolReturnPart(p.tool_name, p.content.replace("settled", "open"), p.tool_call_id)
        for p in message.parts
    ]
    return ModelRequest(parts)


def test_a_message_of_another_capability_for_one_request_is_never_added_to_the_history(store):
    script = Script([scenario.ask(), scenario.end])
    made = Agent(ScriptedModel(script), tools=[tool()], capabilities=[Shortening(), OffloadCapability(store)])

    messages = sync(made).all_messages()

    assert scenario.refs([script.seen[1][-1]])
    assert results(messages) == [report()]
