"""`OffloadMiddleware` in an agent of LangChain whose model binds its thinking."""

from __future__ import annotations

import asyncio

import pytest
from binding import Binding
from frameworks.anthropic_server import serving
from frameworks.bound import BOUND, TURNS, UNBOUND, call, check_bound_run, long_run, models_told, outputs
from frameworks.scenario import QUERY, QUESTION, READER, Script, end

pytest.importorskip("langchain_anthropic", reason="in the environment of the group integration-langchain")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from offload.integrations.langchain import OffloadMiddleware

ASKED = {"messages": [HumanMessage(QUESTION)]}
THREAD = {"configurable": {"thread_id": "alice"}, "recursion_limit": 100}


def agent(server, *middleware, model=BOUND, saver=None, **options):
    chat = ChatAnthropic(model=model, base_url=server.url, api_key="k", max_retries=0, **options)
    return create_agent(chat, _tools(), middleware=middleware, checkpointer=saver or InMemorySaver())


def _tools():
    made = outputs()

    def now(note: str = "") -> str:  # what the model writes in a long call
        return made()

    async def later(note: str = "") -> str:
        return made()

    return [StructuredTool.from_function(now, later, name=name, description="D.") for name in (QUERY, READER)]


def invoked(agent, given):
    return agent.invoke(given, THREAD)["messages"]


def ainvoked(agent, given):
    async def run():
        return (await agent.ainvoke(given, THREAD))["messages"]

    return asyncio.run(run())


WAYS = pytest.mark.parametrize("run", [invoked, ainvoked])


@WAYS
@pytest.mark.parametrize("options", [{}, {"output_version": "v1"}, {"streaming": True}])
def test_nothing_that_was_sent_changes_also_after_a_restart_and_all_is_restored(store, run, options):
    saver = InMemorySaver()
    with serving(Script([*long_run().turns, call(TURNS), end]), Binding()) as server:
        for _ in range(2):
            middleware = OffloadMiddleware(store)
            messages = run(agent(server, middleware, saver=saver, **options), ASKED)

    check_bound_run(server)
    restored = middleware.offloader("alice").restore(messages)
    made = outputs()
    results = [m.content for m in restored if isinstance(m, ToolMessage) and m.name in (QUERY, READER)]
    assert results[: TURNS - 2] == [made() for _ in range(TURNS - 2)]
    assert [m for m in restored if m.type == "ai"] == [m for m in messages if m.type == "ai"]


def test_the_model_of_the_request_is_told(store, monkeypatch):
    told = models_told(monkeypatch)
    with serving(Script([call(0), call(1), end]), Binding()) as server:
        invoked(agent(server, OffloadMiddleware(store), model=UNBOUND), ASKED)

    # Before each request, and behind each tool.
    assert len(told) == 5
    assert set(told) == {UNBOUND}


class Edits(AgentMiddleware):
    """Changes an early result in each request from the fifth on, behind the back of the other middleware."""

    def wrap_model_call(self, request, handler):
        return handler(request.override(messages=self._edited(request.messages)))

    async def awrap_model_call(self, request, handler):
        return await handler(request.override(messages=self._edited(request.messages)))

    def _edited(self, messages):
        return [
            m.model_copy(update={"content": "-"}) if i == 2 and len(messages) > 9 else m
            for i, m in enumerate(messages)
        ]


@WAYS
def test_thinking_that_a_provider_refuses_is_removed_once_and_the_run_goes_on(store, run):
    middleware = OffloadMiddleware(store)
    provider = Binding()
    with serving(long_run(), provider) as server:
        messages = run(agent(server, middleware, Edits()), ASKED)

    assert len(server.refusals) == 1
    assert "bound to a different conversation" in server.refusals[0]
    refused = provider.signatures(server.requests[5]["messages"])
    assert len(refused) > 4
    assert not provider.signatures(server.requests[6]["messages"])
    assert provider.signatures(server.requests[-1]["messages"])
    off = middleware.offloader("alice")
    sent = off.offload(messages).messages
    assert sent != messages
    assert [m for m in off.restore(sent) if m.type == "ai"] == [m for m in messages if m.type == "ai"]
