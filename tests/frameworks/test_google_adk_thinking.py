"""`AdkOffloadPlugin` in an app of Google ADK whose model binds its thinking."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("google.adk", reason="in the environment of the group integration-google-adk")

from frameworks import bound_server
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.anthropic_llm import AnthropicLlm
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools import FunctionTool
from google.genai import types

from offload.integrations.google_adk import AdkOffloadPlugin

RUNS = 3


def tool(tool_name: str) -> FunctionTool:
    def call(n: int) -> str:
        return bound_server.result(n)

    call.__name__, call.__doc__ = tool_name, "Sales."
    return FunctionTool(call)


class Running:
    """An app and one session; with `restarts`, each run has a new app."""

    def __init__(self, server: Any, store: Any, *, restarts: bool) -> None:
        self.server, self.store, self.restarts = server, store, restarts
        self.sessions = InMemorySessionService()
        asyncio.run(self.sessions.create_session(app_name="app", user_id="alice", session_id="s"))
        self.plugin = AdkOffloadPlugin(store)

    def run(self, text: str, instruction: str = "You sell.") -> None:
        if self.restarts:
            self.plugin = AdkOffloadPlugin(self.store)
        llm = AnthropicLlm(model=self.server.model)
        tools = [*map(tool, bound_server.TOOLS)]
        agent = LlmAgent(name="seller", model=llm, tools=tools, instruction=instruction)
        app = App(name="app", root_agent=agent, plugins=[self.plugin])
        runner = Runner(app=app, session_service=self.sessions)
        message = types.Content(role="user", parts=[types.Part(text=text)])

        async def events() -> None:
            async for _ in runner.run_async(user_id="alice", session_id="s", new_message=message):
                pass

        asyncio.run(events())

    def session(self) -> Any:
        return asyncio.run(self.sessions.get_session(app_name="app", user_id="alice", session_id="s"))


@pytest.mark.parametrize("restarts", [False, True])
def test_no_request_changes_what_thinking_is_bound_to(store, restarts):
    with bound_server.serving() as server:
        app = Running(server, store, restarts=restarts)
        for n in range(RUNS):
            app.run(f"Question {n}?")
        bound_server.check(server, requests=RUNS * bound_server.CALLS, thinking=10)
    session = app.session()
    restored = app.plugin.offloader(session).restore([e.content for e in session.events])
    parts = [part for content in restored for part in content.parts]
    results = [p.function_response.response["result"] for p in parts if p.function_response]
    shown = [p.function_call.args["n"] for p in parts if p.function_call]
    assert results == [bound_server.result(n) for n in shown]


def test_a_change_by_the_host_removes_the_thinking_behind_it(store):
    with bound_server.serving() as server:
        app = Running(server, store, restarts=False)
        app.run("Question?")
        app.run("Question?")
        before = server.thinking_sent()
        events = app.sessions.sessions["app"]["alice"]["s"].events
        event = next(e for e in events if e.get_function_responses())
        event.get_function_responses()[0].response = {"result": "a shorter result"}
        app.run("Question?")
        assert server.refusals == []
        assert 0 < server.thinking_sent() < before + 5
    kept = [p for e in app.session().events for p in e.content.parts if p.thought]
    assert len(kept) > server.thinking_sent(), "the events keep what requests leave out"


def test_thinking_that_a_provider_refuses_is_removed_once_and_the_run_goes_on(store):
    with bound_server.serving() as server:
        app = Running(server, store, restarts=False)
        app.run("Question?")
        app.run("Question?", "You buy.")
        assert len(server.refusals) == 1
        assert "bound to a different conversation" in server.refusals[0]
        sent = [server.binding.signatures(request["messages"]) for request in server.requests]
    first = bound_server.CALLS
    assert sent[first]
    assert not sent[first + 1]
    assert sent[-1]
    [answer] = app.session().events[-1].content.parts
    assert answer.text.startswith("The answer")
