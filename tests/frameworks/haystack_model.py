"""A chat generator of Haystack that follows a script. Only for tests in an environment with Haystack."""

from __future__ import annotations

from typing import Any

from frameworks.scenario import QUERY, Call, Script, report
from haystack import component
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool


@component
class ScriptedGenerator:
    """Answers as `script` says."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = Script([]) if script is None else script

    def to_dict(self) -> dict[str, Any]:
        return {"type": f"{type(self).__module__}.{type(self).__name__}", "init_parameters": {}}

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None, **_: Any) -> dict[str, Any]:
        self.script.offered = {tool.name: tool.parameters for tool in tools or ()}
        system = "\n\n".join(message.text or "" for message in messages if message.is_from("system"))
        said = self.script.reply(texts_of(messages), system)
        return {"replies": [_message(said, *self.script.usage())]}


def texts_of(messages: list[ChatMessage]) -> list[str]:
    """Return the texts that a model is sent after its system message, in order; a tool call as its name."""
    return [text for message in messages if not message.is_from("system") for text in _texts(message)]


def make_report(note: str = "") -> Any:  # what a model writes
    """Return the report; a function that a pipeline's file can name."""
    return report()


def tool(name: str = QUERY, *, returns: Any = make_report, **options: Any) -> Tool:
    """Return a tool that returns what `returns` returns."""
    called = make_report if returns is make_report else lambda note="": returns()  # noqa: ARG005 # what a model writes
    parameters = {"type": "object", "properties": {"note": {"type": "string"}}}
    return Tool(name, "Sales.", parameters, called, **options)


def _texts(message: ChatMessage) -> list[str]:
    results = [result.result for result in message.tool_call_results]
    shown = [
        result if isinstance(result, str) else "".join(getattr(part, "text", "") for part in result)
        for result in results
    ]
    return [*message.texts, *(call.tool_name for call in message.tool_calls), *shown]


def _message(said: list[Call] | str, read: int, written: int) -> ChatMessage:
    usage = {
        "prompt_tokens": read + written + 1,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": read},
    }
    if isinstance(said, str):
        return ChatMessage.from_assistant(said, meta={"usage": usage})
    calls = [ToolCall(call.name, call.arguments, call.id or None) for call in said]
    return ChatMessage.from_assistant(tool_calls=calls, meta={"usage": usage})
