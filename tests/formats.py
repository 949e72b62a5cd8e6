"""One tool call and its result, as the messages of each API have them."""

from __future__ import annotations

import json
from typing import Any

from kit.conversation import tool_turn
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from offload.messages import formats

FORMATS = [adapter.name for adapter in formats.FORMATS]


def user(kind: str, text: str) -> Any:
    """Return a message of the user."""
    if kind == "langchain":
        return HumanMessage(text)
    if kind == "gemini-interactions":
        return {"type": "user_input", "content": [{"type": "text", "text": text}]}
    content = {"gemini": {"parts": [{"text": text}]}, "bedrock": {"content": [{"text": text}]}}
    return {"role": "user", **content.get(kind, {"content": text})}


def exchange(kind: str, name: str, arguments: dict[str, Any], result: str, call: str = "c") -> list[Any]:
    """Return the messages of a call and of its result."""
    if kind == "openai-chat":
        function = {"name": name, "arguments": json.dumps(arguments)}
        made = {"id": call, "type": "function", "function": function}
        answer = {"role": "tool", "tool_call_id": call, "content": result}
        return [{"role": "assistant", "content": None, "tool_calls": [made]}, answer]
    if kind in ("openai-responses", "gemini-interactions"):
        is_step = kind == "gemini-interactions"
        form = (
            {"id": call, "arguments": arguments}
            if is_step
            else {"call_id": call, "arguments": json.dumps(arguments)}
        )
        answer = (
            {"type": "function_result", "result": result}
            if is_step
            else {"type": "function_call_output", "output": result}
        )
        return [{"type": "function_call", "name": name, **form}, {**answer, "call_id": call}]
    if kind == "langchain":
        calls: Any = [{"id": call, "name": name, "args": arguments}]
        return [AIMessage("", tool_calls=calls), ToolMessage(result, tool_call_id=call)]
    if kind == "gemini":
        asked = {"functionCall": {"id": call, "name": name, "args": arguments}}
        found = {"functionResponse": {"id": call, "name": name, "response": {"result": result}}}
        return [{"role": "model", "parts": [asked]}, {"role": "user", "parts": [found]}]
    if kind == "bedrock":
        use = {"toolUse": {"toolUseId": call, "name": name, "input": arguments}}
        got = {"toolResult": {"toolUseId": call, "content": [{"text": result}]}}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [got]}]
    if kind != "anthropic":
        raise NotImplementedError(f"a call in the format {kind}")
    return tool_turn(call, result, name, arguments)
