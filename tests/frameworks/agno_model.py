"""A model of agno that follows a script. Only for tests in an environment with agno."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.tools.function import Function
from frameworks.scenario import QUERY, Script, chat_calls, report


class ScriptedModel(Model):
    """Answers as `script` says."""

    def __init__(self, script: Script) -> None:
        super().__init__(id="scripted", name="scripted", provider="scripted")
        self.script = script

    def invoke(self, *, messages: Any, tools: Any = None, **_: Any) -> ModelResponse:
        declared = [tool["function"] for tool in tools or ()]
        self.script.offered = {each["name"]: each["parameters"] for each in declared}
        system = [message.content for message in messages if message.role == "system"]
        said = self.script.reply(texts_of(messages), *system)
        text = said if isinstance(said, str) else None
        return ModelResponse(role="assistant", content=text, tool_calls=chat_calls(said))

    async def ainvoke(self, **options: Any) -> ModelResponse:
        return self.invoke(**options)

    def invoke_stream(self, **options: Any) -> Iterator[ModelResponse]:
        yield self.invoke(**options)

    async def ainvoke_stream(self, **options: Any) -> AsyncIterator[ModelResponse]:
        yield self.invoke(**options)

    def _parse_provider_response(self, response: Any, **_: Any) -> ModelResponse:
        raise NotImplementedError

    def _parse_provider_response_delta(self, response: Any) -> ModelResponse:
        raise NotImplementedError


def texts_of(messages: Any) -> list[str]:
    """Return the texts that a model is sent after its system message, in order; a tool call as its name."""
    return [text for message in messages if message.role != "system" for text in _texts(message)]


def tool(name: str = QUERY, *, returns: Any = report, is_async: bool = False) -> Function:
    """Return a tool that returns what `returns` returns."""

    def call(note: str = "") -> Any:
        return returns()

    async def later(note: str = "") -> Any:
        return returns()

    return Function(name=name, description="Sales.", entrypoint=later if is_async else call)


def _texts(message: Any) -> list[str]:
    calls = [call["function"]["name"] for call in message.tool_calls or ()]
    return calls or [str(message.content)]
