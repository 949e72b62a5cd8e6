"""agno: offloading as a tool hook of an agent or team, with the tools that read back as a toolkit.

    offloading = OffloadTools("s3://bucket/prefix")
    agent = Agent(model=model, tools=[run_sql, offloading], tool_hooks=[offloading.hook])

A large tool result leaves as it is returned: the run, and so its database, holds its placeholder. agno has
no hook that knows the session before a model call, so what a policy wants seen once first, such as the
results of file readers, stays in view.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, Unpack
from uuid import UUID

from offload.errors import MissingExtraError
from offload.integrations._sessions import Sessions
from offload.offloader import Offloader
from offload.options import OptionArguments
from offload.threads import in_thread

try:
    from agno.run import RunContext
    from agno.tools import Toolkit
    from agno.tools.function import Function, ToolResult
except ImportError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[agno]'") from error

__all__ = ["OffloadTools"]


class OffloadTools(Toolkit):
    """Offloads what the tools of an agent return, each session's in a session of its own.

    The caller's policy decides as anywhere. A text leaves, also the text beside media; any other value, a
    stream among them, stays as the tool returned it, and so does what agno shows to the user: the results of
    tools with `show_result` or `stop_after_tool_call`. The toolkit brings the lines that explain
    placeholders.

    Args:
        store: as for `Offloader`.
        session: the session of every run; without one the name of agno's session is that of ours. Where a
            run is given no session, and sees none of its agent's history, it is the id of the run.
        storage_options: as for `Offloader`.
        options: what else an `Offloader` takes: `policy`, `redact` and so on. With `on_error="raise"` agno
            gives the model the error as the result, and the run goes on without what the tool returned.

    Raises:
        ConfigError: as for `Offloader`.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        session: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        self._sessions = Sessions(store, session, storage_options, options)
        super().__init__(name="offload", instructions=self._sessions.own.prompt(), add_instructions=True)
        for told in self._sessions.own.tools.definitions():
            self.functions[told["name"]] = _function(told, partial(self._answer, told["name"]))
            self.async_functions[told["name"]] = _function(told, partial(self._aanswer, told["name"]))

    def offloader(self, session_id: str) -> Offloader:
        """Return the `Offloader` of an agno session, or of a run without one by the run's id.

        Raises:
            ConfigError: no session can have that name.
        """
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
        """Run a tool; offload the text that it returned. For `tool_hooks` of sync and async runs."""
        returned, runner = func(**arguments), agent or team
        if _is_shown(name, [*_listed(runner, "tools"), *_listed(run_context, "tools")]):
            return returned
        call = _call_id(run_context, name, arguments)
        offloader = self._of_run(run_context, runner)
        offload = partial(offloader.offload_text, tool_name=name, tool_use_id=call, readers="keep")
        return _later(returned, offload) if isawaitable(returned) else _offloaded(returned, offload)

    def _of_run(self, run_context: RunContext, runner: Any) -> Offloader:
        is_named = run_context.session_id and not _is_drawn(run_context.session_id, runner)
        return self.offloader(run_context.session_id if is_named else run_context.run_id)

    # What a model calls by these names agno drops: the session is the host's to name.
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
    """Tell whether agno drew the id, once for all runs of an agent, none of which sees the others."""
    if getattr(runner, "session_id", None) != session_id or getattr(runner, "add_history_to_context", False):
        return False
    try:
        return UUID(session_id).version == 4  # noqa: PLR2004 # random
    except ValueError:
        return False


def _listed(holder: Any, name: str) -> list[Any]:
    found = getattr(holder, name, None)
    return found if isinstance(found, list) else []


def _is_shown(name: str, tools: Iterable[Any]) -> bool:
    """Tell whether agno shows to the user what the tool called `name` returns."""
    kits = [{**each.functions, **each.async_functions} for each in tools if isinstance(each, Toolkit)]
    found = [each for each in tools if isinstance(each, Function) and each.name == name]
    found += [kit[name] for kit in kits if name in kit]
    return any(each.show_result or each.stop_after_tool_call for each in found)


def _function(told: Mapping[str, Any], entrypoint: Callable[..., Any]) -> Function:
    """Return a tool that reads back. Whatever a model makes its arguments gets an answer."""
    return Function(
        name=told["name"],
        description=told["description"],
        parameters=told["input_schema"],
        entrypoint=entrypoint,
        skip_entrypoint_processing=True,
    )


def _offloaded(returned: Any, offload: Callable[[str], str]) -> Any:
    if isinstance(returned, ToolResult):
        return returned.model_copy(update={"content": offload(returned.content)})
    return offload(returned) if isinstance(returned, str) else returned


async def _later(returned: Awaitable[Any], offload: Callable[[str], str]) -> Any:
    return await in_thread(_offloaded, await returned, offload)


def _call_id(run_context: RunContext, name: str, arguments: Mapping[str, Any]) -> str | None:
    """Return the id of the call that runs, which agno does not tell a hook; None if it could be several."""
    calls = next((m.tool_calls for m in reversed(run_context.messages or ()) if m.role == "assistant"), None)
    found = [call for call in calls or () if _is_of(call.get("function") or {}, name, arguments)]
    return found[0].get("id") if len(found) == 1 else None


def _is_of(function: Mapping[str, Any], name: str, arguments: Mapping[str, Any]) -> bool:
    try:
        return function.get("name") == name and json.loads(function.get("arguments") or "{}") == arguments
    except ValueError:
        return False
