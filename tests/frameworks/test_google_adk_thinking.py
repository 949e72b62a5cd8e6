"""`AdkOffloadPlugin` in an app of Google ADK whose model binds its thinking."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("google.adk", reason="in the environment of the group integration-google-adk")

from frameworks.adk_model import tool
from frameworks.bound_story import RepairedStory
from frameworks.scenario import QUERY, READER
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.anthropic_llm import AnthropicLlm
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from offload.integrations.google_adk import AdkOffloadPlugin

SESSION = {"user_id": "alice", "session_id": "s"}


class TestBoundStory(RepairedStory):
    def restart(self):
        self.plugin = AdkOffloadPlugin(self.store)
        if not hasattr(self, "sessions"):
            self.sessions = InMemorySessionService()
            asyncio.run(self.sessions.create_session(app_name="app", **SESSION))
        tools = [tool(name, returns=self.output) for name in (QUERY, READER)]
        llm = AnthropicLlm(model=self.server.model)
        agent = LlmAgent(name="seller", model=llm, tools=tools, instruction=self.instructions)
        app = App(name="app", root_agent=agent, plugins=[self.plugin])
        self.runner = Runner(app=app, session_service=self.sessions)

    def ask(self, text, way):  # noqa: ARG002 # it has one way
        message = types.Content(role="user", parts=[types.Part(text=text)])

        async def events():
            async for _ in self.runner.run_async(**SESSION, new_message=message):
                pass

        asyncio.run(events())

    def restored(self):
        session = asyncio.run(self.sessions.get_session(app_name="app", **SESSION))
        return self.plugin.offloader(session).restore([event.content for event in session.events])

    def results(self, messages):
        parts = [part for content in messages for part in content.parts]
        return [part.function_response.response["result"] for part in parts if part.function_response]

    def thinking(self, messages):
        return sum(bool(part.thought) for content in messages for part in content.parts)

    def edit(self):
        events = self.sessions.sessions["app"]["alice"]["s"].events
        event = next(event for event in events if event.get_function_responses())
        event.get_function_responses()[0].response = {"result": "a shorter result"}
