"""A model of LlamaIndex that follows a script. Only for tests in an environment with LlamaIndex."""

from __future__ import annotations

from typing import Any

from frameworks.scenario import QUERY, Call, Script, report
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.llms.mock import MockFunctionCallingLLM
from llama_index.core.tools import FunctionTool, ToolSelection


def scripted(script: Script, *, has_calls: bool = True) -> MockFunctionCallingLLM:
    """Return a model that answers as `script` says.

    Without `has_calls` its messages have no blocks for their calls, as those of some providers.
    """

    def answer(messages: Any, tools: Any = (), **_: Any) -> ChatMessage:
        script.offered = {each.metadata.name: each.metadata.get_parameters_dict() for each in tools}
        blocks = [block.text for m in messages if m.role.value == "system" for block in m.blocks]
        said = script.reply(texts_of(messages), "\n".join(blocks))
        if has_calls or isinstance(said, str):
            return _message(said)
        return ChatMessage(role="assistant", additional_kwargs={"tool_calls": said})

    kind = MockFunctionCallingLLM if has_calls else _WithoutCalls
    return kind(response_generator=answer, is_chat_model=True)


class _WithoutCalls(MockFunctionCallingLLM):
    def get_tool_calls_from_response(self, response: Any, **_: Any) -> list[ToolSelection]:
        calls = response.message.additional_kwargs.get("tool_calls", ())
        return [
            ToolSelection(tool_id=call.id, tool_name=call.name, tool_kwargs=call.arguments) for call in calls
        ]


def texts_of(messages: Any) -> list[str]:
    """Return the texts that a model is sent after its system message, in order; a tool call as its name."""
    return [_text(block) for m in messages if m.role.value != "system" for block in m.blocks]


def tool(name: str = QUERY, *, returns: Any = report, **options: Any) -> FunctionTool:
    """Return a tool that returns what `returns` returns."""

    def call(note: str = "") -> Any:
        return returns()

    return FunctionTool.from_defaults(call, name=name, description="Sales.", **options)


def _text(block: Any) -> str:
    return block.tool_name if isinstance(block, ToolCallBlock) else getattr(block, "text", "")


def _message(said: list[Call] | str) -> ChatMessage:
    if isinstance(said, str):
        return ChatMessage(role="assistant", blocks=[TextBlock(text=said)])
    blocks = [
        ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=call.arguments) for call in said
    ]
    return ChatMessage(role="assistant", blocks=blocks)
