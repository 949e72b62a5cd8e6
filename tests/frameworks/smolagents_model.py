"""A model of smolagents that follows a script. Only for tests in an environment with smolagents."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

from frameworks.scenario import QUERY, Call, Script, report
from smolagents import ChatMessage, Model, Tool
from smolagents.models import (
    ChatMessageStreamDelta,
    ChatMessageToolCall,
    ChatMessageToolCallFunction,
    ChatMessageToolCallStreamDelta,
    MessageRole,
    get_tool_json_schema,
)
from smolagents.monitoring import TokenUsage


class ScriptedModel(Model):
    """Answers as `script` says.

    With `is_code`, it writes its calls as code for a `CodeAgent`.
    """

    def __init__(self, script: Script, *, is_code: bool = False) -> None:
        super().__init__(model_id="scripted")
        self.script = script
        self.is_code = is_code

    def generate(self, messages: Any, tools_to_call_from: Any = None, **_: Any) -> ChatMessage:
        tools = [tool for tool in tools_to_call_from or () if isinstance(tool, Tool)]
        self.script.offered = {t.name: get_tool_json_schema(t)["function"]["parameters"] for t in tools}
        system = [_text(message) for message in messages if message.role == MessageRole.SYSTEM]
        said = self.script.reply(texts_of(messages), *system)
        read, written = self.script.usage()
        details = {"cached_tokens": read, "cache_write_tokens": written}
        usage = {"prompt_tokens": read + written + 1, "prompt_tokens_details": details}
        return ChatMessage(
            MessageRole.ASSISTANT,
            **(_as_code(said) if self.is_code else _as_calls(said)),
            raw=SimpleNamespace(usage=usage),
            token_usage=TokenUsage(read + written + 1, 1),
        )

    def generate_stream(self, messages: Any, **options: Any) -> Any:
        made = self.generate(messages, **options)
        calls = [
            ChatMessageToolCallStreamDelta(
                index=i,
                id=call.id,
                type="function",
                function=ChatMessageToolCallFunction(json.dumps(call.function.arguments), call.function.name),
            )
            for i, call in enumerate(made.tool_calls or ())
        ]
        yield ChatMessageStreamDelta(
            content=made.content, tool_calls=calls or None, token_usage=made.token_usage
        )


def texts_of(messages: Any) -> list[str]:
    """Return the texts that a model is sent after its system prompt, in order."""
    return [printed(_text(message)) for message in messages if message.role != MessageRole.SYSTEM]


_AROUND = r"(?:Observation:\n)?(?:Execution logs:\n)?(.*?)(?:\n?Last output from code snippet:\nNone)?"


def printed(observation: str) -> str:
    """Return what a tool returned or code printed, of an observation of a step."""
    found = re.fullmatch(_AROUND, observation, re.DOTALL)
    return found[1] if found else observation


def tool(tool_name: str = QUERY, *, returns: Any = report, type_: str = "any") -> Tool:
    """Return a tool that returns what `returns` returns."""

    class Sales(Tool):
        name = tool_name
        description = "Sales."
        inputs: dict[str, Any] = {"note": {"type": "string", "description": "N.", "nullable": True}}  # noqa: RUF012 # the framework's signature
        output_type = type_

        def forward(self, note: str = "") -> Any:  # noqa: ARG002 # what a model writes
            return returns()

    return Sales()


def _text(message: Any) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(block.get("text", "") for block in message.content)


def _listed(said: list[Call] | str) -> list[Call]:
    return [Call("final_answer", {"answer": said}, "call_end")] if isinstance(said, str) else said


def _as_calls(said: list[Call] | str) -> dict[str, Any]:
    calls = [
        ChatMessageToolCall(ChatMessageToolCallFunction(call.arguments, call.name), call.id, "function")
        for call in _listed(said)
    ]
    return {"content": "", "tool_calls": calls}


def _as_code(said: list[Call] | str) -> dict[str, Any]:
    lines = []
    for call in _listed(said):
        made = f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
        lines.append(made if call.name == "final_answer" else f"print({made})")
    return {"content": "Thought: look.\n<code>\n" + "\n".join(lines) + "\n</code>"}
