"""A model of CrewAI that follows a script. Only for tests in an environment with CrewAI."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from typing import Any

# Read when CrewAI is imported: it would send traces to its host, and keep databases in the user's folder.
os.environ |= {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_DISABLE_TRACKING": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "CREWAI_STORAGE_DIR": tempfile.mkdtemp(prefix="crewai-"),
    "OTEL_SDK_DISABLED": "true",
}

from crewai.llms.base_llm import BaseLLM
from crewai.tools import BaseTool
from frameworks.scenario import QUERY, Script, chat_calls, report
from pydantic import PrivateAttr

# Where CrewAI keeps its databases.
FOLDER = os.environ["CREWAI_STORAGE_DIR"]
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


class ScriptedModel(BaseLLM):
    """Answers as `script` says.

    With `is_native=False` it calls tools by text, as a model without function calling does.
    """

    is_native: bool = True
    _script: Any = PrivateAttr(None)

    def call(self, messages: Any, tools: Any = None, **_: Any) -> Any:
        declared = [tool["function"] for tool in tools or ()]
        self._script.offered |= {each["name"]: each["parameters"] for each in declared}
        said = self._script.reply(
            texts_of(messages), *(m["content"] for m in messages if m["role"] == "system")
        )
        return (chat_calls(said) or said) if self.is_native else _text(said)

    async def acall(self, messages: Any, *given: Any, **options: Any) -> Any:
        return self.call(messages, *given, **options)

    def supports_function_calling(self) -> bool:
        return self.is_native

    def get_context_window_size(self) -> int:
        return 1_000_000


def scripted(script: Script, *, is_native: bool = True) -> ScriptedModel:
    model = ScriptedModel(model="scripted", is_native=is_native)
    model._script = script
    return model


def texts_of(messages: Any) -> list[str]:
    """Return the texts that a model is sent after its system message, in order; a tool call as its name."""
    return [text for message in messages if message["role"] != "system" for text in _texts(message)]


class _Tool(BaseTool):
    _returns: Any = PrivateAttr(None)

    def _run(self, note: str = "") -> Any:  # noqa: ARG002 # what a model writes
        return self._returns()


def tool(name: str = QUERY, *, returns: Any = report, **options: Any) -> BaseTool:
    """Return a tool that returns what `returns` returns."""
    made = _Tool(name=name, description="Sales.", **options)
    made._returns = returns
    return made


def _texts(message: Any) -> list[str]:
    calls = [call["function"]["name"] for call in message.get("tool_calls") or ()]
    # What CrewAI adds for a model without function calling: the result behind its call, and a request.
    shown = str(message["content"]).split("\nObservation: ")
    return calls or [text for text in shown if not text.startswith("Analyze the tool result")]


def _text(said: Any) -> str:
    if isinstance(said, str):
        return f"Thought: I know.\nFinal Answer: {said}"
    [call] = said
    return f"Thought: I look.\nAction: {call.name}\nAction Input: {json.dumps(call.arguments)}"
