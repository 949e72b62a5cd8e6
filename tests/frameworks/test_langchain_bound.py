"""`OffloadMiddleware` in an agent of LangChain whose model binds its thinking."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from binding import Binding
from frameworks.anthropic_server import serving
from frameworks.bound import BOUND, long_run, outputs
from frameworks.bound_story import BoundStory
from frameworks.scenario import QUERY, QUESTION, READER

pytest.importorskip("langchain_anthropic", reason="in the environment of the group integration-langchain")

from frameworks.scripted import tool
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from offload.integrations.langchain import OffloadMiddleware

THREAD = {"configurable": {"thread_id": "alice"}, "recursion_limit": 200}


def agent(server, output, saver, *middleware, **options):
    chat = ChatAnthropic(base_url=server.url, api_key="k", max_retries=0, **options)
    tools = [tool(name, returns=output) for name in (QUERY, READER)]
    return create_agent(chat, tools, middleware=middleware, checkpointer=saver)


def invoked(agent, text):
    return agent.invoke({"messages": [HumanMessage(text)]}, THREAD)["messages"]


def ainvoked(agent, text):
    async def run():
        return (await agent.ainvoke({"messages": [HumanMessage(text)]}, THREAD))["messages"]

    return asyncio.run(run())


class TestBoundStory(BoundStory):
    ways = tuple(itertools.product((invoked, ainvoked), ({}, {"output_version": "v1"}, {"streaming": True})))
    saver: Any = None

    def restart(self):
        self.saver = self.saver or InMemorySaver()
        self.middleware = OffloadMiddleware(self.store)

    def ask(self, text, way):
        run, options = way
        self.agent = self.graph(**options)
        self.messages = run(self.agent, text)

    def graph(self, **options):
        options |= {"model": self.server.model}
        return agent(self.server, self.output, self.saver, self.middleware, **options)

    def restored(self):
        return self.middleware.offloader("alice").restore(self.messages)

    def results(self, messages):
        return [m.content for m in messages if isinstance(m, ToolMessage) and m.name in (QUERY, READER)]

    def thinking(self, messages):
        kinds = ("thinking", "redacted_thinking", "reasoning", "non_standard")
        contents = [m.content for m in messages if m.type == "ai" and isinstance(m.content, list)]
        return sum(block["type"] in kinds for content in contents for block in content)

    def edit(self):
        first = next(message for message in self.messages if isinstance(message, ToolMessage))
        edited = first.model_copy(update={"content": "a shorter result"})
        self.agent.update_state(THREAD, {"messages": [edited]})


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


@pytest.mark.parametrize("run", [invoked, ainvoked])
def test_thinking_that_a_provider_refuses_is_removed_once_and_the_run_goes_on(store, run):
    middleware = OffloadMiddleware(store)
    provider = Binding()
    with serving(long_run(), provider) as server:
        made = agent(server, outputs(), InMemorySaver(), middleware, Edits(), model=BOUND)
        messages = run(made, QUESTION)

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
