"""A model of Google ADK that follows a script. Only for tests in an environment with ADK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from frameworks.scenario import QUERY, Call, report
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import FunctionTool
from google.genai import types


class ScriptedModel(BaseLlm):
    """Answers as `script` says.

    Without `has_ids` its calls have no ids, as those of Gemini.
    """

    model: str = "scripted"
    script: Any
    has_ids: bool = True

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncIterator[Any]:  # noqa: ARG002, FBT002 # the framework's signature
        config = llm_request.config
        declared = [told for each in config.tools or () for told in each.function_declarations]
        self.script.offered = {told.name: told.parameters_json_schema for told in declared}
        said = self.script.reply(texts_of(llm_request.contents), config.system_instruction)
        read, written = self.script.usage()
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=read + written + 1, cached_content_token_count=read
        )
        yield LlmResponse(
            content=types.Content(role="model", parts=_parts(said, has_ids=self.has_ids)),
            usage_metadata=usage,
        )


def texts_of(contents: Any) -> list[str]:
    """Return the texts that a model is sent, in order; a tool call as its name."""
    return [_text(part) for content in contents for part in content.parts]


def tool(name: str = QUERY, *, returns: Any = report) -> FunctionTool:
    """Return a tool that returns what `returns` returns."""

    def call(note: str = "") -> Any:
        return returns()

    call.__name__ = name
    call.__doc__ = "Sales."
    return FunctionTool(call)


def _text(part: types.Part) -> str:
    if part.function_call:
        return str(part.function_call.name)
    if part.function_response:
        values = list((part.function_response.response or {}).values())
        return values[0] if len(values) == 1 and isinstance(values[0], str) else json.dumps(values)
    return part.text or ""


def _parts(said: list[Call] | str, *, has_ids: bool) -> list[types.Part]:
    if isinstance(said, str):
        return [types.Part(text=said)]
    return [
        types.Part(
            function_call=types.FunctionCall(
                name=call.name, args=call.arguments, id=call.id if has_ids else None
            )
        )
        for call in said
    ]
