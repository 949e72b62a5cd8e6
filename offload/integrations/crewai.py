"""CrewAI: offloading by hooks of tool and model calls, and the retrieval tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Unpack

from offload.engine.settings.options import SessionArguments
from offload.errors import OffloadError, needs_extra
from offload.integrations._sessions import agent_named, refuse_references
from offload.messages.calls import main_argument
from offload.offloader import Offloader

with needs_extra("crewai"):
    from crewai.hooks import (
        HookAborted,
        LLMCallHookContext,
        ToolCallHookContext,
        get_after_tool_call_hooks,
        get_before_llm_call_hooks,
        register_after_tool_call_hook,
        register_before_llm_call_hook,
    )
    from crewai.tools import BaseTool
    from crewai.tools.tool_failure import ToolFailure
    from pydantic import Field, PrivateAttr

# Starts of the text that CrewAI makes of an exception, with and without function calling.
_ERRORS = ("Error executing tool: ", "\nI encountered an error while trying to use the tool.")

__all__ = ["OffloadCrew"]


class OffloadCrew:
    """Offloads the messages of the agents that have its tools, in one session.

    CrewAI's hooks are those of the process. The constructor registers two, once: `after_tool_call` replaces
    results when their tool returns; `before_llm_call` replaces other items and results that the model sees
    first, and adds the instructions to the system message. Errors and results that are the answer
    (`result_as_answer`) are kept. An agent or task without `tools` is not offloaded.

    Arguments and errors are those of `Offloader`. With `on_error="raise"`, `HookAborted` ends the run.

    Attributes:
        tools: the retrieval tools: `Agent(tools=[*yours, *offloading.tools])`, or those of a task.
        offloader: the `Offloader` of the session.
    """

    def __init__(self, store: Any = None, **options: Unpack[SessionArguments]) -> None:
        refuse_references(options)
        self.offloader: Offloader = Offloader(store, **options)
        self.tools: list[_RetrievalTool] = [_tool(each, self) for each in self.offloader.tools.definitions()]
        self._errors: set[int] = set()
        if _after_tool_call not in get_after_tool_call_hooks():
            register_after_tool_call_hook(_after_tool_call)
        if _before_llm_call not in get_before_llm_call_hooks():
            register_before_llm_call_hook(_before_llm_call)

    def _result(self, context: ToolCallHookContext, text: str) -> str | None:
        """Return the placeholder of a tool's result, or None to keep the result."""
        if isinstance(context.raw_tool_result, ToolFailure) or text.startswith(_ERRORS):
            self._errors.add(hash(text))
            return None
        if getattr(context.tool, "result_as_answer", False):
            return None
        name, title = context.tool_name, main_argument(context.tool_name, context.tool_input)
        agent = agent_named(self.offloader, getattr(context.agent, "role", None))
        return self.offloader.offload_text(
            text, tool_name=name, file_readers="keep", title=title, agent_name=agent
        )

    def _messages(self, messages: list[Any], role: Any) -> list[Any]:
        """Return the offloaded messages of a request, in which nothing marks an error."""
        results = [message for message in messages if message["role"] == "tool"]
        errors = {each["tool_call_id"] for each in results if hash(each["content"]) in self._errors}
        agent = agent_named(self.offloader, role)
        out = self.offloader.offload(messages, pinned=errors, agent_name=agent)
        return _instructed(out.messages, self.offloader.prompt())


def _never(_arguments: Any = None, _result: Any = None) -> bool:
    return False


class _RetrievalTool(BaseTool):
    """A retrieval tool that answers calls with any arguments; one from a checkpoint has no session."""

    # The answers change with the session. A checkpoint has no functions.
    cache_function: Any = Field(default=_never, exclude=True)
    _offloading: Any = PrivateAttr(None)

    def _run(self, /, **arguments: Any) -> str:
        if self._offloading is None:
            return "Error: no stored items are available in this run"
        answer: str = self._offloading.offloader.tools.call(self.name, arguments)
        return answer

    def _validate_kwargs(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return kwargs


def _tool(definition: Mapping[str, Any], offloading: OffloadCrew) -> _RetrievalTool:
    name, description = definition["name"], definition["description"]
    tool = _RetrievalTool(name=name, description=description, args_schema=definition["input_schema"])
    tool._offloading = offloading  # noqa: SLF001 # a private attribute is in no checkpoint
    return tool


def _after_tool_call(context: ToolCallHookContext) -> str | None:
    task_tools, text = getattr(context.task, "tools", None), context.tool_result
    offloading = _offloading_of(task_tools or getattr(context.agent, "tools", None))
    if offloading is None or not isinstance(text, str):
        return None
    with _aborting():
        return offloading._result(context, text)  # noqa: SLF001 # hooks are functions of the process


def _before_llm_call(context: LLMCallHookContext) -> None:
    offloading = _offloading_of(getattr(context.executor, "original_tools", None))
    if offloading is not None:
        with _aborting():
            role = getattr(context.agent, "role", None)
            context.messages[:] = offloading._messages(list(context.messages), role)  # noqa: SLF001 # hooks are functions of the process


def _offloading_of(tools: Any) -> OffloadCrew | None:
    found = (tool for tool in tools or () if isinstance(tool, _RetrievalTool))
    return next((tool._offloading for tool in found), None)  # noqa: SLF001 # a private attribute is in no checkpoint


def _instructed(messages: list[Any], prompt: str) -> list[Any]:
    first = messages[0] if messages else {}
    if first.get("role") != "system":
        return [{"role": "system", "content": prompt}, *messages]
    if prompt in first["content"]:
        return messages
    return [{**first, "content": f"{first['content']}\n\n{prompt}"}, *messages[1:]]


@contextmanager
def _aborting() -> Iterator[None]:
    """Raise CrewAI's `HookAborted` for an error; it ignores all others of a hook."""
    try:
        yield
    except OffloadError as error:
        raise HookAborted(str(error), source="offload") from error
