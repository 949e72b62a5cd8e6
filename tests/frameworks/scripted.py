"""A chat model of LangChain that follows a script. Only for tests in an environment with LangChain."""

from __future__ import annotations

from typing import Any

from frameworks.scenario import QUERY, Call, Script, report
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool


class ScriptedModel(BaseChatModel):
    """Answers as `script` says; `system` holds the system prompts that it was sent, `offered` the tools."""

    script: Any
    system: list[str]
    offered: list[str]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> ScriptedModel:
        self.offered[:] = [tool["name"] if isinstance(tool, dict) else tool.name for tool in tools]
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        if messages[0].type == "system":
            self.system.append(messages[0].text)
        said = self.script.reply([message.text for message in messages if message.type != "system"])
        read, written = self.script.usage()
        details = {"cache_read": read, "cache_creation": written}
        total = read + written + 1
        usage = {"input_tokens": total, "output_tokens": 1, "total_tokens": total + 1}
        answer = _answer(said).model_copy(update={"usage_metadata": usage | {"input_token_details": details}})
        return ChatResult(generations=[ChatGeneration(message=answer)])


def scripted(script: Script) -> ScriptedModel:
    return ScriptedModel(script=script, system=[], offered=[])


def tool(name: str = QUERY, *, returns: Any = report) -> StructuredTool:
    """Return a tool that takes nothing and returns what `returns` returns."""

    async def later() -> Any:
        return returns()

    return StructuredTool.from_function(lambda: returns(), later, name=name, description="Sales.")  # noqa: PLW0108 # one without arguments


def _answer(said: Call | list[Call] | str) -> AIMessage:
    if isinstance(said, str):
        return AIMessage(said)
    calls = said if isinstance(said, list) else [said]
    return AIMessage(
        "", tool_calls=[{"name": call.name, "args": call.arguments, "id": call.id} for call in calls]
    )
