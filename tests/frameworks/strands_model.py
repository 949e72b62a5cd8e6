"""A model of Strands that follows a script. Only for tests in an environment with Strands."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from frameworks.scenario import QUERY, Call, Script, report
from strands.models import Model
from strands.tools import PythonAgentTool


class ScriptedModel(Model):
    """Answers as `script` says."""

    def __init__(self, script: Script) -> None:
        self.script = script

    def update_config(self, **_: Any) -> None: ...

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(
        self, messages: Any, tool_specs: Any = None, *_: Any, system_prompt_content: Any = None, **__: Any
    ) -> AsyncIterator[Any]:
        self.script.offered = {spec["name"]: spec["inputSchema"]["json"] for spec in tool_specs or ()}
        system = "\n".join(block.get("text", "") for block in system_prompt_content or ())
        said = self.script.reply(texts_of(messages), system)
        for event in _events(said):
            yield event
        read, written = self.script.usage()
        cached = {"cacheReadInputTokens": read, "cacheWriteInputTokens": written}
        usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": read + written + 2, **cached}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}


def texts_of(messages: Any) -> list[str]:
    """Return the texts that a model is sent, in order; a tool call as its name."""
    return [_text(part) for message in messages for part in message["content"]]


def tool(name: str = QUERY, *, returns: Any = report) -> PythonAgentTool:
    """Return a tool that returns what `returns` returns, a text or a whole result."""
    spec = {"name": name, "description": "Sales.", "inputSchema": {"json": {"type": "object"}}}

    def call(tool_use: Any, **_: Any) -> Any:
        made = returns()
        result = {"status": "success", "content": [{"text": made}]} if isinstance(made, str) else made
        return {"toolUseId": tool_use["toolUseId"], **result}

    return PythonAgentTool(name, spec, call)


def _text(part: Any) -> str:
    if "toolUse" in part:
        return str(part["toolUse"]["name"])
    if "toolResult" in part:
        return "".join(block.get("text", "") for block in part["toolResult"]["content"])
    return str(part.get("text", ""))


def _events(said: list[Call] | str) -> Iterator[Any]:
    yield {"messageStart": {"role": "assistant"}}
    if isinstance(said, str):
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": said}}}
        yield {"contentBlockStop": {}}
    else:
        for call in said:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": call.name, "toolUseId": call.id}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(call.arguments)}}}}
            yield {"contentBlockStop": {}}
    yield {"messageStop": {"stopReason": "end_turn" if isinstance(said, str) else "tool_use"}}
