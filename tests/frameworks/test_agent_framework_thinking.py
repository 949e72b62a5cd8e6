"""`OffloadProvider` in an agent of the Microsoft Agent Framework whose model binds its thinking."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("agent_framework", reason="in the environment of the group integration-agent-framework")

from agent_framework import Agent, AgentSession, Content, FunctionTool, Message
from agent_framework.anthropic import AnthropicClient
from agent_framework.exceptions import ChatClientInvalidRequestException
from frameworks import bound_server

from offload.integrations.agent_framework import OffloadProvider, _blocks_of, _message_of
from offload.messages.thinking import signed_thinking, with_thinking, without_thinking

RUNS = 3


def tool(name: str) -> FunctionTool:
    def call(n: int) -> str:
        return bound_server.result(n)

    return FunctionTool(name=name, description="Sales.", func=call)


def agent(server: Any, provider: OffloadProvider, instructions: str = "You sell.") -> Agent:
    client = AnthropicClient(model=server.model, api_key="k")
    tools = [*map(tool, bound_server.TOOLS)]
    return Agent(client, instructions, tools=tools, context_providers=[provider])


async def asked(made: Agent, text: str, session: AgentSession, *, streams: bool) -> None:
    if not streams:
        await made.run(text, session=session)
        return
    stream = made.run(text, session=session, stream=True)
    async for _ in stream:
        pass
    await stream.get_final_response()


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_no_request_changes_what_thinking_is_bound_to(store, streams, restarts):
    async def conversation(server: Any) -> AgentSession:
        session = AgentSession(session_id="alice")
        made = agent(server, OffloadProvider(store))
        for n in range(RUNS):
            if restarts:
                made = agent(server, OffloadProvider(store))
                session = AgentSession.from_dict(session.to_dict())
            await asked(made, f"Question {n}?", session, streams=streams)
        return session

    # The framework does not keep thinking that is not shown.
    with bound_server.serving(redacts=False) as server:
        session = asyncio.run(conversation(server))
        bound_server.check(server, requests=RUNS * bound_server.CALLS, thinking=10)
    [messages] = [s["messages"] for s in session.state.values() if "messages" in s]
    restored = OffloadProvider(store).restore(messages, "alice")
    contents = [content for message in restored for content in message.contents]
    calls = [c.parse_arguments()["n"] for c in contents if c.type == "function_call"]
    results = [c.result for c in contents if c.type == "function_result"]
    assert results == [bound_server.result(n) for n in calls]


def test_a_change_by_the_host_removes_the_thinking_behind_it(store):
    async def conversation(server: Any) -> list[Any]:
        session = AgentSession(session_id="alice")
        made = agent(server, OffloadProvider(store))
        await made.run("Question?", session=session)
        [messages] = [s["messages"] for s in session.state.values() if "messages" in s]
        [result] = [c for m in messages for c in m.contents if c.call_id == "toolu_0" and c.items]
        result.items = [Content.from_text("a shorter result")]
        result.result = "a shorter result"
        await made.run("Question?", session=session)
        return [m for s in session.state.values() for m in s.get("messages", ())]

    with bound_server.serving(redacts=False) as server:
        messages = asyncio.run(conversation(server))
        assert server.refusals == []
        sent = server.thinking_sent()
    kept = [c for m in messages for c in m.contents if c.type == "text_reasoning"]
    assert len(kept) > sent, "the session keeps what requests leave out"


@pytest.mark.parametrize("streams", [False, True])
def test_thinking_that_a_provider_refuses_is_removed_once(store, streams):
    async def conversation(server: Any) -> None:
        session, provider = AgentSession(session_id="alice"), OffloadProvider(store)
        await asked(agent(server, provider), "Question?", session, streams=streams)
        changed = agent(server, provider, "You buy.")
        if streams:  # an error in a stream ends the run
            with pytest.raises(ChatClientInvalidRequestException, match="bound to a different conversation"):
                await asked(changed, "Question?", session, streams=True)
        await asked(changed, "Question?", session, streams=streams)

    with bound_server.serving(redacts=False) as server:
        asyncio.run(conversation(server))
        assert len(server.refusals) == 1
        assert "bound to a different conversation" in server.refusals[0]
        sent = [server.binding.signatures(request["messages"]) for request in server.requests]
    first = bound_server.CALLS
    assert sent[first]
    assert not sent[first + 1]
    assert sent[-1]


def thinking(**fields: Any) -> Message:
    return Message("assistant", [Content.from_text_reasoning(**fields)])


@pytest.mark.parametrize(
    ("message", "count"),
    [
        (thinking(text="so", protected_data="signature"), 1),
        (thinking(text="so"), 0),
        (thinking(id="rs_1", text="so", protected_data="gAAAA"), 0),
        (thinking(protected_data=json.dumps([{"type": "reasoning.text", "signature": "s"}])), 1),
        (thinking(protected_data=json.dumps([{"type": "reasoning.encrypted", "data": "d"}])), 0),
    ],
)
def test_only_thinking_of_models_that_bind_counts_as_signed(message, count):
    assert len(signed_thinking(_blocks_of(message))) == count


def test_thinking_that_was_removed_comes_back_as_it_was():
    message = thinking(text="so", protected_data="signature")
    old = _blocks_of(message)
    bare, removed = without_thinking(old, signed_thinking(old))
    without = _message_of(message, old, bare)
    assert [content.type for content in without.contents] == ["text"]
    assert _message_of(without, bare, with_thinking(bare, removed)).contents == message.contents
