"""A chat generator of Haystack that follows a script. Only for tests in an environment with Haystack."""

from __future__ import annotations

from typing import Any

from frameworks.scenario import QUERY, Call, Script, report
from haystack import component
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool


@component
class ScriptedGenerator:
    """Answers as `script` says; `system` holds the system prompts that it was sent, `offered` the tools."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = Script([]) if script is None else script
        self.system: list[str] = []
        self.offered: set[str] = set()

    def to_dict(self) -> dict[str, Any]:
        return {"type": f"{type(self).__module__}.{type(self).__name__}", "init_parameters": {}}

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None, **_: Any) -> dict[str, Any]:
        self.offered = {tool.name for tool in tools or ()}
        self.system += [message.text for message in messages if message.is_from("system")]
        said = self.script.reply(texts_of(messages))
        return {"replies": [_message(said, *self.script.usage())]}


def texts_of(messages: list[ChatMessage]) -> list[str]:
    """Return the texts that a model is sent after its system message, in order; a tool call as its name."""
    return [text for message in messages if not message.is_from("system") for text in _texts(message)]


def make_report() -> Any:
    """Return the report; a function that a pipeline's file can name."""
    return report()


def tool(name: str = QUERY, *, returns: Any = make_report, **options: Any) -> Tool:
    """Return a tool that takes nothing and returns what `returns` returns."""
    given = (
        {} if returns is make_report else {"function": lambda: returns()}  # noqa: PLW0108 # without arguments
    )
    parameters = {"type": "object", "properties": {}}
    return Tool(name, "Sales.", parameters, **{"function": make_report, **given, **options})


def _texts(message: ChatMessage) -> list[str]:
    results = [result.result for result in message.tool_call_results]
    shown = [
        result if isinstance(result, str) else "".join(getattr(part, "text", "") for part in result)
        for result in results
    ]
    return [*message.texts, *(call.tool_name for call in message.tool_calls), *shown]


def _message(said: Call | list[Call] | str, read: int, written: int) -> ChatMessage:
    usage = {
        "prompt_tokens": read + written + 1,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": read},
    }
    if isinstance(said, str):
        return ChatMessage.from_assistant(said, meta={"usage": usage})
    calls = [
        ToolCall(call.name, call.arguments, call.id or None)
        for call in (said if isinstance(said, list) else [said])
    ]
    return ChatMessage.from_assistant(tool_calls=calls, meta={"usage": usage})
