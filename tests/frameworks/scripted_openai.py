"""A model of the OpenAI Agents SDK that follows a script. Only for tests in an environment with the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import agents
import pytest
from agents import Agent, Runner, Usage
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from frameworks.scenario import QUERY, QUESTION, Call, Script, report
from openai.types.responses.response_usage import InputTokensDetails

# Traces go to a host of OpenAI.
agents.set_tracing_disabled(True)


def scripted(script: Script) -> ScriptedModel:
    """Return a model with as many answers as `script`; its `calls` say what it was sent."""

    def respond(call: Any) -> ModelStep:
        script.offered = {tool.name: tool.params_json_schema for tool in call.tools}
        said = script.reply(texts(call.input), call.system_instructions)
        return ModelStep(answer(said), usage=_usage(*script.usage()))

    return ScriptedModel([ModelStep.respond(respond)] * len(script.turns))


def tool(name: str = QUERY, *, returns: Any = report) -> agents.FunctionTool:
    """Return a tool that returns what `returns` returns."""

    async def invoke(_context: Any, _arguments: str) -> Any:
        return returns()

    schema = {"type": "object", "properties": {"note": {"type": "string"}}}
    return agents.FunctionTool(name, "Sales.", schema, invoke, strict_json_schema=False)


def agent(script, offloading, *tools, **options):
    options = {"name": "analyst", **options}
    return Agent(model=scripted(script), tools=[*(tools or [tool()]), *offloading.tools], **options)


def sync(agent, asked=QUESTION, **options):
    """Run in a new event loop: the SDK does not close its own."""
    with closing(asyncio.new_event_loop()) as loop:
        asyncio.set_event_loop(loop)
        try:
            return Runner.run_sync(agent, asked, **options)
        finally:
            asyncio.set_event_loop(None)


def awaited(agent, asked=QUESTION, **options):
    return asyncio.run(Runner.run(agent, asked, **options))


def streamed(agent, asked=QUESTION, **options):
    async def run():
        result = Runner.run_streamed(agent, asked, **options)
        async for _ in result.stream_events():
            pass
        return result

    return asyncio.run(run())


def kept(session):
    return asyncio.run(session.get_items())


def outputs(items):
    return [item["output"] for item in items if item.get("type") == "function_call_output"]


WAYS = pytest.mark.parametrize("run", [sync, awaited, streamed])


def texts(items: str | Sequence[Any]) -> list[str]:
    """Return what each input item shows a model."""
    return [items] if isinstance(items, str) else [_text(item) for item in items]


def _text(item: Any) -> str:
    content = next(item[key] for key in ("output", "arguments", "content") if key in item)
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content)


def _usage(read: int, written: int) -> Usage:
    details = InputTokensDetails(cached_tokens=read, cache_write_tokens=written)
    return Usage(requests=1, input_tokens=read + written + 1, input_tokens_details=details)


def answer(said: list[Call] | str) -> list[Any]:
    """Return an answer of a script as items of the SDK."""
    if isinstance(said, str):
        return [assistant_message(said)]
    return [function_call(call.name, call.arguments, call_id=call.id) for call in said]
