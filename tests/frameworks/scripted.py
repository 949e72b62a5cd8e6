"""A chat model of LangChain that follows a script. Only for tests in an environment with LangChain."""

from __future__ import annotations

from typing import Any

from frameworks.scenario import QUERY, Call, Script, report
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool


class ScriptedModel(BaseChatModel):
    """Answers as `script` says."""

    script: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> ScriptedModel:
        declared = [convert_to_openai_tool(tool)["function"] for tool in tools]
        self.script.offered = {each["name"]: each["parameters"] for each in declared}
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        system = [message.text for message in messages if message.type == "system"]
        said = self.script.reply([message.text for message in messages if message.type != "system"], *system)
        read, written = self.script.usage()
        details = {"cache_read": read, "cache_creation": written}
        total = read + written + 1
        usage = {"input_tokens": total, "output_tokens": 1, "total_tokens": total + 1}
        answer = _answer(said).model_copy(update={"usage_metadata": usage | {"input_token_details": details}})
        return ChatResult(generations=[ChatGeneration(message=answer)])


def scripted(script: Script) -> ScriptedModel:
    return ScriptedModel(script=script)


def tool(name: str = QUERY, *, returns: Any = report) -> StructuredTool:
    """Return a tool that returns what `returns` returns."""

    def now(note: str = "") -> Any:
        return returns()

    async def later(note: str = "") -> Any:
        return returns()

    return StructuredTool.from_function(now, later, name=name, description="Sales.")


def _answer(said: list[Call] | str) -> AIMessage:
    if isinstance(said, str):
        return AIMessage(said)
    return AIMessage(
        "", tool_calls=[{"name": call.name, "args": call.arguments, "id": call.id} for call in said]
    )
