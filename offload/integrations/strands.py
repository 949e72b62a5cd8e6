"""Strands: offloading as a plugin of an agent, and a `Storage` for what Strands itself stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from copy import copy
from typing import Any, Self, TypeVar, Unpack
from weakref import WeakKeyDictionary

from offload.agent._refusals import repairs
from offload.base.threads.calls import in_thread
from offload.engine.settings.options import SessionArguments
from offload.errors import ConfigError, OffloadError, needs_extra
from offload.integrations._objects import ObjectStore, StorageOptions
from offload.integrations._sessions import Sessions, agent_named, is_error
from offload.offloader import Offloader
from offload.reading.tools.answers import error_for_model
from offload.records.session.names import check_name, new_name
from offload.storage.layout import VALUE

with needs_extra("strands"):
    from strands import Agent
    from strands.hooks import (
        AfterInvocationEvent,
        AfterModelCallEvent,
        AfterToolCallEvent,
        AfterToolsEvent,
        BeforeInvocationEvent,
        BeforeToolCallEvent,
        MultiAgentInitializedEvent,
    )
    from strands.middleware import InvokeModelStage
    from strands.middleware.stages import InvokeModelContext
    from strands.plugins import MultiAgentPlugin, Plugin
    from strands.storage import Storage, storage as protocol
    from strands.tools import PythonAgentTool
    from strands.types.exceptions import StorageError

# The preview of Strands' own `ContextOffloader`, its retrieval tool, and a limit above the size of both.
_OWN_PREVIEW = re.compile(
    r"\[Offloaded: \d+ blocks, ~[\d,]+ tokens\]\n.*^\[Stored references:\]$", re.DOTALL | re.MULTILINE
)
_OWN_TOOL = "retrieve_offloaded_content"
_OWN_CHARS = 100_000

_T = TypeVar("_T")

__all__ = ["OffloadStorage", "StrandsOffloadPlugin"]


class StrandsOffloadPlugin(Plugin, MultiAgentPlugin):
    """Offloads the messages of agents, with one session per agent, swarm or graph.

    A placeholder replaces a tool result in the agent's messages, and in what an interrupted agent saves. All
    other placeholders are only in the model's request; the messages keep the original. Results for the user
    and results of Strands' own `ContextOffloader` are kept. `offloader(agent).restore(agent.messages)`
    restores the originals.

    Arguments and errors are those of `Offloader`. Without `session`, an agent has the session of its session
    manager, or a new session without one: `offloader(agent).session`. The agents of a swarm or graph that has
    this plugin too share the session of its session manager, or a new one. An agent without a session manager
    that a tool of another agent runs has the session of that agent from then on.
    """

    name = "offload"

    def __init__(self, store: Any = None, **options: Unpack[SessionArguments]) -> None:
        super().__init__()
        self._sessions = Sessions(store, **options)
        self._conversations: WeakKeyDictionary[Agent, _AgentConversation] = WeakKeyDictionary()

    def offloader(self, agent: Agent) -> Offloader:
        """Return the `Offloader` of an agent. Raises `ConfigError` if it does not have this plugin."""
        if agent not in self._conversations:
            raise ConfigError(f"agent {agent.name!r} does not have this plugin; pass it in plugins=[…]")
        return self._conversations[agent].offloader

    def init_agent(self, agent: Agent) -> None:
        """Set up an agent with its session, the retrieval tools and the hooks.

        Raises `ConfigError` if the session manager's id is not a valid session name.
        """
        name = self._name_of(agent._session_manager)  # noqa: SLF001 # agent.session_id may be a temporary id
        conversation = self._conversations[agent] = _AgentConversation(self._sessions, name)
        tools = conversation.offloader.tools.definitions()
        agent.tool_registry.process_tools([_tool(conversation, each) for each in tools])
        agent.add_hook(conversation.join_caller, BeforeInvocationEvent)
        agent.add_hook(conversation.begin_call, BeforeToolCallEvent)
        agent.add_hook(conversation.end_call, AfterToolCallEvent)
        agent.add_hook(conversation.offload_results, AfterToolsEvent)
        agent.add_hook(conversation.offload_pending, AfterInvocationEvent)
        agent.add_hook(conversation.repair, AfterModelCallEvent)
        agent.add_middleware(InvokeModelStage.Input, conversation.prepared)

    def init_multi_agent(self, orchestrator: Any) -> None:
        """Give the agents of a swarm or graph one session, those of nested ones too.

        Raises `ConfigError` if none of them has this plugin, or if the session manager's id is not a valid
        session name.
        """
        orchestrator.add_hook(self._share_session, MultiAgentInitializedEvent)

    def _share_session(self, event: MultiAgentInitializedEvent) -> None:
        manager = getattr(event.source, "session_manager", None)
        given = self._name_of(manager)
        name = given or new_name()
        agents = [agent for agent in _agents_of(event.source) if agent in self._conversations]
        if not agents:
            raise ConfigError("no agent of the swarm or graph has this plugin; pass it in plugins=[…]")
        for agent in agents:
            self._conversations[agent].move(name, is_given=given is not None)

    def _name_of(self, manager: Any) -> str | None:
        return self._sessions.session or getattr(manager, "session_id", None)


def _agents_of(executor: Any) -> Iterator[Any]:
    nodes = getattr(executor, "nodes", None)
    if not isinstance(nodes, Mapping):
        yield executor
        return
    for node in nodes.values():
        yield from _agents_of(node.executor)


class _RunningCall:
    """A call of a tool, which may run other agents."""

    def __init__(self, caller: _AgentConversation, outer: _RunningCall | None) -> None:
        self.caller = caller
        self.outer = outer
        self.is_running = True


_call: ContextVar[_RunningCall | None] = ContextVar("offload_strands_call", default=None)


class _AgentConversation:
    """The messages of one agent, and the calls whose results are kept.

    Args:
        sessions: the sessions of its plugin.
        name: the session that the host gives it; None for a new one.
    """

    def __init__(self, sessions: Sessions, name: str | None) -> None:
        self._sessions = sessions
        self._is_given = name is not None
        self.offloader = sessions.open(session=name)
        self._kept: set[str] = set()
        self._is_scanned = False
        # The messages of the last request, and whether it is the second try of one.
        self._given: list[Any] = []
        self._is_repaired = False

    def move(self, name: str, *, is_given: bool) -> None:
        """Continue in the session `name`; `is_given` by the host, it is final."""
        self._is_given = is_given
        self.offloader = self._sessions.open(session=name)

    def join_caller(self, _event: BeforeInvocationEvent) -> None:
        """Continue in the session of the agent whose tool runs this one, unless the host gave it one."""
        call = _call.get()
        if call is None or not call.is_running or self._is_given:
            return
        name = call.caller.offloader.session
        if name != self.offloader.session:
            self.move(name, is_given=False)

    def begin_call(self, _event: BeforeToolCallEvent) -> None:
        """Note that a tool of this agent runs."""
        _call.set(_RunningCall(self, _call.get()))

    def end_call(self, event: AfterToolCallEvent) -> None:
        """Note the end of a call; keep the result of a delegate agent, which is the answer to the user."""
        call = _call.get()
        if call is not None and call.caller is self:
            call.is_running = False
            _call.set(call.outer)
        if getattr(event.selected_tool, "delegate", False):
            self._kept.add(event.tool_use["toolUseId"])

    async def offload_results(self, event: AfterToolsEvent) -> None:
        messages, content = event.agent.messages, event.message["content"]
        self._kept.update(_strands_own([*messages[-1:], event.message]))
        copied = {**event.message, "content": list(content)}
        placed = await self._offloaded([*messages, copied], event.agent, event.agent.model, is_sent=False)
        content[:] = placed[-1]["content"]

    async def offload_pending(self, event: AfterInvocationEvent) -> None:
        """Offload the results that an interrupted agent saves until it resumes."""
        state: Any = getattr(event.agent, "_interrupt_state", None)  # Strands shows it to no hook
        pending = getattr(state, "pending_tool_execution", None)
        if results := getattr(pending, "completed_tool_results", None):
            message = {"role": "user", "content": [{"toolResult": result} for result in results]}
            given, agent = [*event.agent.messages, message], event.agent
            placed = await self._offloaded(given, agent, agent.model, is_sent=False)
            state.set_pending_tool_results([part["toolResult"] for part in placed[-1]["content"]])

    async def prepared(self, context: InvokeModelContext) -> InvokeModelContext:
        if not self._is_scanned:  # a resumed session has results of an earlier process
            self._kept.update(_strands_own(context.messages))
            self._is_scanned = True
        replies = (message for message in reversed(context.messages) if message["role"] == "assistant")
        self.offloader.report_usage((next(replies, None) or {}).get("metadata"))
        messages = await self._offloaded(context.messages, context.agent, context.model)
        self._given = context.messages
        system = _instructed(context.system_prompt, self.offloader.prompt())
        return context.replace(messages=messages, system_prompt=system)

    async def repair(self, event: AfterModelCallEvent) -> None:
        """Have a request sent once more whose thinking the provider refused, without what it refused."""
        failed, given = event.exception, self._given
        is_first = failed is not None and not self._is_repaired
        self._is_repaired = is_first and await in_thread(repairs, self.offloader, given, failed)
        event.retry = event.retry or self._is_repaired

    async def _offloaded(
        self, messages: list[Any], agent: Any, model: Any, *, is_sent: bool = True
    ) -> list[Any]:
        name, called = agent_named(self.offloader, agent.name), _model_name(model)
        out = await self.offloader.aoffload(
            messages, pinned=self._kept, model=called, agent_name=name, is_sent=is_sent
        )
        return out.messages


def _model_name(model: Any) -> str | None:
    config = model.get_config()
    name = config.get("model_id") if isinstance(config, Mapping) else None
    return name if isinstance(name, str) else None


def _strands_own(messages: Iterable[Any]) -> Iterator[str]:
    """Yield the calls whose results Strands' own offloader produced: previews, and results of its tool."""
    parts = [part for message in messages for part in message["content"]]
    retrievals = {
        part["toolUse"]["toolUseId"] for part in parts if part.get("toolUse", {}).get("name") == _OWN_TOOL
    }
    for result in (part["toolResult"] for part in parts if "toolResult" in part):
        text = "".join(block.get("text", "") for block in result["content"])
        is_own = result["toolUseId"] in retrievals or _OWN_PREVIEW.match(text)
        if is_own and len(text) <= _OWN_CHARS:
            yield result["toolUseId"]


def _instructed(system: Any, prompt: str) -> Any:
    if not system:
        return prompt
    return f"{system}\n\n{prompt}" if isinstance(system, str) else [*system, {"text": prompt}]


def _tool(conversation: _AgentConversation, tool: Mapping[str, Any]) -> PythonAgentTool:
    async def answer(tool_use: Any, /, **_state: Any) -> Any:
        text = await in_thread(conversation.offloader.tools.call, tool["name"], tool_use["input"])
        status = "error" if is_error(text) else "success"
        return {"toolUseId": tool_use["toolUseId"], "status": status, "content": [{"text": text}]}

    spec = {
        "name": tool["name"],
        "description": tool["description"],
        "inputSchema": {"json": tool["input_schema"]},
    }
    return PythonAgentTool(tool["name"], spec, answer)


class OffloadStorage(Storage):
    """Strands' `Storage` on any store, for example for its own `ContextOffloader`.

    Values may be overwritten and deleted: `ContextOffloader` deletes them after 20 cycles unless it has
    `evict_after_cycles=None`. Any text is a valid key.

    `store`, `storage_options` and errors are those of `offload.Offloader`. The default is a new session;
    other sessions do not see the keys. Agents in one session may overwrite each other's values, because
    Strands' keys do not include the agent: give each one a `namespace`.
    """

    _prefix = ""

    def __init__(
        self, store: Any = None, *, session: str | None = None, storage_options: StorageOptions = None
    ) -> None:
        name = new_name() if session is None else check_name(session)
        self._values = ObjectStore(store, VALUE, name, storage_options)

    async def write(self, key: str, data: bytes) -> None:
        """Store `data` under `key`, overwriting what exists. Raises Strands' `StorageError`."""
        await _run(self._values.put, self._prefix + key, data)

    async def read(self, key: str) -> bytes | None:
        """Return the value of `key`, or None. Raises `StorageError`, also for damaged data."""
        return await _run(self._values.get, self._prefix + key)

    async def delete(self, key: str) -> None:
        """Delete `key`; a missing key is success. Raises `StorageError`."""
        await _run(self._values.delete, self._prefix + key)

    async def list(self, query: str = "") -> list[str]:
        """Return the keys that start with `query`, sorted. Raises `StorageError`."""
        found = await _run(lambda: sorted(value.key for value in self._values.list(self._prefix + query)))
        return [key.removeprefix(self._prefix) for key in found]

    def namespace(self, prefix: str) -> Self:
        """Return a view of the keys below `prefix`, without it; Strands adds no prefix of its own to it."""
        view, scope = copy(self), prefix.strip("/")
        marker = getattr(protocol, "_NAMESPACED", None)
        view.__dict__.update(_prefix=self._prefix + f"{scope}/" * bool(scope), _namespaced=marker)
        return view


async def _run(function: Callable[..., _T], *arguments: Any) -> _T:
    """Run `function` in a thread; raise Strands' error if the store fails."""
    try:
        return await in_thread(function, *arguments)
    except OffloadError as error:
        raise StorageError(error_for_model(error)) from error
