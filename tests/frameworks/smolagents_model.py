"""A model of smolagents that follows a script. Only for tests in an environment with smolagents."""

from __future__ import annotations

import json
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
    """Answers as `script` says; `system` holds the system prompts that it was sent, `offered` the tools.

    With `is_code`, it writes its calls as code for a `CodeAgent`.
    """

    def __init__(self, script: Script, *, is_code: bool = False) -> None:
        super().__init__(model_id="scripted")
        self.script = script
        self.is_code = is_code
        self.system: list[str] = []
        self.offered: dict[str, Any] = {}

    def generate(self, messages: Any, tools_to_call_from: Any = None, **_: Any) -> ChatMessage:
        tools = [tool for tool in tools_to_call_from or () if isinstance(tool, Tool)]
        self.offered = {tool.name: get_tool_json_schema(tool)["function"] for tool in tools}
        self.system += [_text(message) for message in messages if message.role == MessageRole.SYSTEM]
        said = self.script.reply(texts_of(messages))
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
    return [_text(message) for message in messages if message.role != MessageRole.SYSTEM]


def tool(tool_name: str = QUERY, *, returns: Any = report, type_: str = "any") -> Tool:
    """Return a tool that takes nothing and returns what `returns` returns."""

    class Sales(Tool):
        name = tool_name
        description = "Sales."
        inputs: dict[str, Any] = {}  # noqa: RUF012 # the framework's signature
        output_type = type_

        def forward(self) -> Any:
            return returns()

    return Sales()


def _text(message: Any) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(block.get("text", "") for block in message.content)


def _listed(said: Call | list[Call] | str) -> list[Call]:
    if isinstance(said, str):
        return [Call("final_answer", {"answer": said}, "call_end")]
    return said if isinstance(said, list) else [said]


def _as_calls(said: Call | list[Call] | str) -> dict[str, Any]:
    calls = [
        ChatMessageToolCall(ChatMessageToolCallFunction(call.arguments, call.name), call.id, "function")
        for call in _listed(said)
    ]
    return {"content": "", "tool_calls": calls}


def _as_code(said: Call | list[Call] | str) -> dict[str, Any]:
    lines = []
    for call in _listed(said):
        made = f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
        lines.append(made if call.name == "final_answer" else f"print({made})")
    return {"content": "Thought: look.\n<code>\n" + "\n".join(lines) + "\n</code>"}
