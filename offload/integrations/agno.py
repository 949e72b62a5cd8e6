"""agno: offloading as a tool hook of an agent or team, and the retrieval tools as a toolkit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, Unpack
from uuid import UUID

from offload.base.threads.calls import in_thread
from offload.engine.settings.options import SessionArguments
from offload.errors import needs_extra
from offload.integrations._sessions import Sessions, agent_named, refuse_journal
from offload.messages.calls import main_argument
from offload.offloader import Offloader

with needs_extra("agno"):
    from agno.exceptions import AgentRunException
    from agno.run import RunContext
    from agno.run.base import BaseRunOutputEvent
    from agno.tools import Toolkit
    from agno.tools.function import Function, ToolResult

__all__ = ["OffloadTools"]


class OffloadTools(Toolkit):
    """Offloads tool results, with one session per agno session, and explains placeholders to the model.

    A result is offloaded when its tool returns, as the text that agno gives the model: `str` of a dict or a
    model, the text next to media, the joined texts of a stream. Events in a stream are for the user and are
    kept, as are results that agno shows to the user: those of tools with `show_result` or
    `stop_after_tool_call`.

    Arguments and errors are those of `Offloader`. Without `session`, agno's session name is used, or the
    run's id for a run that has no session and does not see its agent's history. With `on_error="raise"`, agno
    gives the model the error as the tool result, and the run continues without the output.
    """

    def __init__(self, store: Any = None, **options: Unpack[SessionArguments]) -> None:
        refuse_journal(options)
        self._sessions = Sessions(store, **options)
        super().__init__(name="offload", instructions=self._sessions.own.prompt(), add_instructions=True)
        for tool in self._sessions.own.tools.definitions():
            self.functions[tool["name"]] = _function(tool, partial(self._answer, tool["name"]))
            self.async_functions[tool["name"]] = _function(tool, partial(self._aanswer, tool["name"]))

    def offloader(self, session_id: str) -> Offloader:
        """Return the `Offloader` of an agno session, or of a run without a session by the run's id."""
        return self._sessions.named(session_id)

    def hook(
        self,
        name: str,
        func: Callable[..., Any],
        arguments: dict[str, Any],
        run_context: RunContext,
        *,
        agent: Any = None,
        team: Any = None,
    ) -> Any:
        """Run a tool and offload its result; for `tool_hooks` of sync and async runs."""
        runner = agent or team
        tools = [*_listed(runner, "tools"), *_listed(run_context, "tools")]
        if _is_shown(name, tools) or _is_answer_of_member(name, team):
            return func(**arguments)
        offloader = self._of_run(run_context, runner)
        offload = partial(
            offloader.offload_text,
            tool_name=name,
            tool_use_id=_call_id(run_context, name, arguments),
            file_readers="keep",
            title=main_argument(name, arguments),
            agent_name=agent_named(offloader, getattr(runner, "name", None)),
        )
        shorten = partial(_raise_shorter, offloader, offload)
        try:
            returned = func(**arguments)
        except Exception as error:
            shorten(error)
            raise
        return _later(returned, offload, shorten) if isawaitable(returned) else _offloaded(returned, offload)

    def offload_input(
        self, run_input: Any, run_context: RunContext, *, agent: Any = None, team: Any = None
    ) -> None:
        """Offload a long user message; for `pre_hooks`. The input of the run becomes the placeholder."""
        text = run_input.input_content
        if isinstance(text, str):
            runner = agent or team
            offloader = self._of_run(run_context, runner)
            run_input.input_content = offloader.offload_text(
                text,
                item_type="user_message",
                agent_name=agent_named(offloader, getattr(runner, "name", None)),
            )

    def _of_run(self, run_context: RunContext, runner: Any) -> Offloader:
        is_named = run_context.session_id and not _is_drawn(run_context.session_id, runner)
        return self.offloader(run_context.session_id if is_named else run_context.run_id)

    # agno drops arguments of these names from a model's call, so only the host chooses the session.
    def _answer(
        self, name: str, /, run_context: RunContext, _agno_agent: Any, _agno_team: Any, **arguments: Any
    ) -> str:
        return self._of_run(run_context, _agno_agent or _agno_team).tools.call(name, arguments)

    async def _aanswer(
        self, name: str, /, run_context: RunContext, _agno_agent: Any, _agno_team: Any, **arguments: Any
    ) -> str:
        offloader = self._of_run(run_context, _agno_agent or _agno_team)
        return await in_thread(offloader.tools.call, name, arguments)


def _is_drawn(session_id: str, runner: Any) -> bool:
    """Return whether the id is a random one for all runs of an agent, which do not see each other."""
    if getattr(runner, "session_id", None) != session_id or getattr(runner, "add_history_to_context", False):
        return False
    try:
        return UUID(session_id).version == 4  # noqa: PLR2004 # the version of random ids
    except ValueError:
        return False


def _listed(holder: Any, name: str) -> list[Any]:
    value = getattr(holder, name, None)
    return value if isinstance(value, list) else []


def _is_shown(name: str, tools: Iterable[Any]) -> bool:
    kits = [{**each.functions, **each.async_functions} for each in tools if isinstance(each, Toolkit)]
    functions = [each for each in tools if isinstance(each, Function) and each.name == name]
    functions += [kit[name] for kit in kits if name in kit]
    return any(each.show_result or each.stop_after_tool_call for each in functions)


def _is_answer_of_member(name: str, team: Any) -> bool:
    """Return whether a tool that agno adds to a team passes a member's answer to the user."""
    return getattr(team, "respond_directly", False) and name.startswith("delegate_task_to_member")


def _function(tool: Mapping[str, Any], entrypoint: Callable[..., Any]) -> Function:
    return Function(
        name=tool["name"],
        description=tool["description"],
        parameters=tool["input_schema"],
        entrypoint=entrypoint,
        skip_entrypoint_processing=True,
    )


def _offloaded(returned: Any, offload: Callable[[str], str]) -> Any:
    """Return a tool's result with its text replaced, or the same object if it is kept."""
    if isinstance(returned, ToolResult):
        return returned.model_copy(update={"content": offload(returned.content)})
    if isinstance(returned, AsyncIterator):
        return _astreamed(returned, offload)
    if isinstance(returned, Iterator):
        return _streamed(returned, offload)
    text = str(returned)
    placeholder = offload(text)
    return returned if placeholder == text else placeholder


async def _later(
    returned: Awaitable[Any], offload: Callable[[str], str], shorten: Callable[[Exception], None]
) -> Any:
    try:
        value = await returned
    except Exception as error:
        await in_thread(shorten, error)
        raise
    return await in_thread(_offloaded, value, offload)


def _raise_shorter(offloader: Offloader, offload: Callable[[str], str], error: Exception) -> None:
    """Raise an error with a placeholder, if the text of `error` is longer than the model may see at once."""
    if isinstance(error, AgentRunException):  # it directs the run
        return
    text, most = str(error), offloader.policy.max_view_tokens
    if most is not None and offloader.options.count_or_estimate(text)[0] > most:
        raise RuntimeError(offload(text)) from error


def _streamed(stream: Iterator[Any], offload: Callable[[str], str]) -> Iterator[Any]:
    """Yield the events of a stream, and one text for the texts before each."""
    texts: list[str] = []
    for each in stream:
        if isinstance(each, BaseRunOutputEvent):
            yield from map(offload, _taken(texts))
            yield each
        else:
            texts.append(str(each))
    yield from map(offload, _taken(texts))


async def _astreamed(stream: AsyncIterator[Any], offload: Callable[[str], str]) -> AsyncIterator[Any]:
    texts: list[str] = []
    async for each in stream:
        if isinstance(each, BaseRunOutputEvent):
            for text in _taken(texts):
                yield await in_thread(offload, text)
            yield each
        else:
            texts.append(str(each))
    for text in _taken(texts):
        yield await in_thread(offload, text)


def _taken(texts: list[str]) -> list[str]:
    """Return the joined texts, none for an empty list, and empty the list."""
    joined = ["".join(texts)] * bool(texts)
    texts.clear()
    return joined


def _call_id(run_context: RunContext, name: str, arguments: Mapping[str, Any]) -> str | None:
    """Return the id of the current call, which agno does not pass to a hook; None if several calls match."""
    calls = next((m.tool_calls for m in reversed(run_context.messages or ()) if m.role == "assistant"), None)
    matches = [call for call in calls or () if _is_call_of(call.get("function") or {}, name, arguments)]
    return matches[0].get("id") if len(matches) == 1 else None


def _is_call_of(function: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> bool:
    try:
        return function.get("name") == name and json.loads(function.get("arguments") or "{}") == arguments
    except ValueError:
        return False
