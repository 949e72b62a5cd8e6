"""A chat client of Agent Framework that follows a script. Only for tests in an environment with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    ResponseStream,
)
from frameworks.scenario import QUERY, Call, Script, report


class ScriptedClient(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Answers as `script` says.

    `stored` is the id of a conversation that the service stores; its client is sent only what is new.
    """

    def __init__(self, script: Script, *, stored: str | None = None) -> None:
        super().__init__()
        self.script = script
        self.stored = stored

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        self.script.offered = {tool.name: tool.parameters() for tool in options.get("tools") or ()}
        said = self.script.reply(texts_of(messages), options.get("instructions"))
        read, written = self.script.usage()
        usage: Any = {
            "input_token_count": read + written + 1,
            "output_token_count": 1,
            "total_token_count": read + written + 2,
            "cache_read_input_token_count": read,
            "cache_creation_input_token_count": written,
        }
        contents = _contents(said)
        if stream:
            return self._streamed([*contents, Content.from_usage(usage)])
        return self._whole(contents, usage)

    async def _whole(self, contents: list[Content], usage: Any) -> ChatResponse:
        message = Message("assistant", contents)
        return ChatResponse(messages=[message], usage_details=usage, conversation_id=self.stored)

    def _streamed(self, contents: list[Content]) -> ResponseStream[Any, Any]:
        async def updates() -> Any:
            for content in contents:
                yield ChatResponseUpdate(role="assistant", contents=[content], conversation_id=self.stored)

        return ResponseStream(updates(), finalizer=ChatResponse.from_updates)


def texts_of(messages: Sequence[Message]) -> list[str]:
    """Return the texts that a model is sent, in order; a tool call as its name."""
    return [_text(content) for message in messages for content in message.contents]


def tool(name: str = QUERY, *, returns: Any = report, is_async: bool = False, **options: Any) -> FunctionTool:
    """Return a tool that returns what `returns` returns."""

    def call(note: str = "") -> Any:
        return returns()

    async def later(note: str = "") -> Any:
        return returns()

    return FunctionTool(name=name, description="Sales.", func=later if is_async else call, **options)


def _text(content: Content) -> str:
    if content.type == "function_call":
        return str(content.name)
    return str(content.result if content.type == "function_result" else content.text)


def _contents(said: list[Call] | str) -> list[Content]:
    if isinstance(said, str):
        return [Content.from_text(said)]
    return [
        Content.from_function_call(call.id, call.name, arguments=json.dumps(call.arguments)) for call in said
    ]
