"""A model of pydantic-ai that follows a script. Only for tests in an environment with pydantic-ai."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from frameworks.scenario import QUERY, QUESTION, Script, report
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.usage import RequestUsage


class ScriptedModel(FunctionModel):
    """Answers as `script` says."""

    def __init__(self, script: Script) -> None:
        super().__init__(self._reply, stream_function=self._stream)
        self.script = script

    def _reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.script.offered = {tool.name: tool.parameters_json_schema for tool in info.function_tools}
        said = self.script.reply(texts(messages), info.instructions)
        read, written = self.script.usage()
        usage = RequestUsage(
            input_tokens=read + written + 1, cache_read_tokens=read, cache_write_tokens=written
        )
        if isinstance(said, str):
            return ModelResponse([TextPart(said)], usage=usage)
        parts = [ToolCallPart(call.name, call.arguments, call.id) for call in said]
        return ModelResponse(parts, usage=usage)

    async def _stream(
        self, messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        for i, part in enumerate(self._reply(messages, info).parts):
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                yield {
                    i: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)
                }


def tool(name: str = QUERY, *, returns: Any = report) -> Tool[Any]:
    """Return a tool that returns what `returns` returns."""

    def call(note: str = "") -> Any:
        return returns()

    return Tool(call, name=name, description="Sales.")


def agent(script, capability, *tools, **options):
    return Agent(ScriptedModel(script), tools=tools or [tool()], capabilities=[capability], **options)


def sync(agent, asked=QUESTION, **options):
    """Run in a new event loop: the framework does not close its own."""
    with closing(asyncio.new_event_loop()) as loop:
        asyncio.set_event_loop(loop)
        try:
            return agent.run_sync(asked, **options)
        finally:
            asyncio.set_event_loop(None)


def awaited(agent, asked=QUESTION, **options):
    return asyncio.run(agent.run(asked, **options))


def streamed(agent, asked=QUESTION, **options):
    async def run():
        async with agent.run_stream(asked, **options) as result:
            await result.get_output()
            return result

    return asyncio.run(run())


def results(messages):
    return [p.content for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]


WAYS = pytest.mark.parametrize("run", [sync, awaited, streamed])


def texts(messages: Sequence[ModelMessage]) -> list[str]:
    """Return what each part of the messages shows a model."""
    return [_text(part) for message in messages for part in message.parts]


def _text(part: Any) -> Any:
    if isinstance(part, ToolReturnPart):
        return part.model_response_str()
    if isinstance(part, ToolCallPart):
        return part.args_as_json_str()
    content = part.content
    return content if isinstance(content, str) else "\n".join(c for c in content if isinstance(c, str))
