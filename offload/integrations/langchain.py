"""LangChain 1.x and LangGraph: offloading as a middleware of an agent, and a byte store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Annotated, Any, NotRequired, Unpack
from uuid import UUID

from offload.agent._refusals import repairs
from offload.base.threads.calls import in_thread
from offload.base.threads.locks import Lock
from offload.engine.settings.options import SessionArguments
from offload.errors import OffloadError, needs_extra
from offload.integrations._objects import ObjectStore, StorageOptions, found
from offload.integrations._sessions import OPEN, Sessions, agent_named, is_error
from offload.offloader import Offloader
from offload.reading.tools.answers import error_for_model
from offload.records.session.names import new_name
from offload.storage.layout import VALUE

# Names of runs without a thread that are known at once; a run beyond these would get a second one.
_RUNS = 16_384

with needs_extra("langchain"):
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain.agents.middleware.types import ExtendedModelResponse, OmitFromInput
    from langchain_core.messages import AIMessage, SystemMessage, ToolMessage
    from langchain_core.runnables.config import ensure_config
    from langchain_core.stores import BaseStore
    from langchain_core.tools import BaseTool, ToolException
    from langgraph.types import Command

__all__ = ["OffloadByteStore", "OffloadMiddleware", "thread_id"]


def thread_id() -> str | None:
    """Return the id of the current LangGraph thread; None if it is empty or neither a text nor a UUID."""
    thread = ensure_config().get("configurable", {}).get("thread_id")
    if isinstance(thread, UUID):
        return str(thread)
    return thread if isinstance(thread, str) and thread else None


def _agent_of(offloader: Offloader) -> str | None:
    """Return the name of the agent that runs, as LangChain notes it in the run's metadata."""
    return agent_named(offloader, ensure_config().get("metadata", {}).get("lc_agent_name"))


_naming = Lock()


@lru_cache(_RUNS)
def _name_of(_control: Any) -> str:
    return new_name()


def _run_name(runtime: Any) -> str:
    """Return the session name of a run without a thread: that of the whole run, with all agents in it.

    A graph gives its control to the graphs and agents that run in it.
    """
    control = getattr(runtime, "control", None)
    if control is None:
        return new_name()
    with _naming:  # nodes run in several threads
        return _name_of(control)


def _first(name: str | None, other: str | None) -> str | None:
    return name or other


class _SessionState(AgentState[Any]):
    """State of an agent, with a session name for runs without a thread, which only the host chooses.

    The first name wins, because a subagent returns its whole state, including its own session name.
    """

    offload_session: NotRequired[Annotated[str | None, OmitFromInput, _first]]  # type: ignore[valid-type] # mypy does not see the base


class OffloadMiddleware(AgentMiddleware[Any, Any, Any]):
    """Offloads the messages of an agent, with one session per thread.

    A placeholder replaces a tool result in the graph's state, which keeps the result's id, name, status and
    artifact. All other placeholders are only in the model's request; the state keeps the original.
    `offloader(thread).restore(messages)` restores the originals. If a result is offloaded late, the graph
    streams a second update of its model node.

    Arguments and errors are those of `Offloader`. Without `session`, the thread id is the session name. A run
    without a thread has a new session, named `offload_session` in its state; all agents that run in one graph
    or in tools share it. `tools` are the retrieval tools.
    """

    state_schema = _SessionState

    def __init__(self, store: Any = None, **options: Unpack[SessionArguments]) -> None:
        self._threads = Sessions(store, resolves=True, **options)
        self._prompt = self._threads.own.prompt()
        # By the id of the reply: requests in which another middleware changed the messages of the state.
        self._changed: dict[str, list[Any]] = {}
        # Tools whose results go to the user; another middleware may hide them from a model call.
        self._direct: set[str] = set()
        self.tools: list[BaseTool] = [
            _RetrievalTool(
                name=tool["name"],
                description=tool["description"],
                args_schema=tool["input_schema"],
                handle_tool_error=True,
                session=partial(self._here, {}),
            )
            for tool in self._threads.own.tools.definitions()
        ]

    def offloader(self, thread: str | None = None) -> Offloader:
        """Return the `Offloader` of a thread, or of a run without a thread by the name in its state.

        Without a name, it is that of the constructor's `session`, or of a session that no run uses.
        """
        return self._threads.named(thread)

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Name the session of a run without a thread, as the run's other agents do."""
        if self._threads.session is not None or thread_id() or state.get("offload_session"):
            return None
        return {"offload_session": _run_name(runtime)}

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Run a tool and offload its result, unless the result is for the user.

        With `references`, content replaces them in the tool's arguments; a refused one is an error result.
        """
        prepared = self._resolved(self._bound(request))
        if isinstance(prepared, ToolMessage):
            return prepared
        return self._offloaded(request, handler(prepared))

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool as `wrap_tool_call` does, and offload its result in a thread."""
        prepared = await in_thread(self._resolved, self._bound(request))
        if isinstance(prepared, ToolMessage):
            return prepared
        return await in_thread(self._offloaded, request, await handler(prepared))

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        """Call the model with the offloaded conversation; once more if it refused its thinking."""
        messages = self._outgoing(request)
        try:
            response = handler(self._prepared(request, messages))
        except Exception as error:
            if not self._repairs(request, error):
                raise
            messages = self._outgoing(request)
            response = handler(self._prepared(request, messages))
        return _with_update(request, messages, self._noted(request, response))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> Any:
        """Call the model as `wrap_model_call` does, and offload in a thread."""
        messages = await in_thread(self._outgoing, request)
        try:
            response = await handler(self._prepared(request, messages))
        except Exception as error:
            if not await in_thread(self._repairs, request, error):
                raise
            messages = await in_thread(self._outgoing, request)
            response = await handler(self._prepared(request, messages))
        return _with_update(request, messages, self._noted(request, response))

    def _offloaded(self, request: Any, returned: Any) -> Any:
        before = self._as_sent(request.state["messages"])
        pinned = self._pinned(before, [request.tool, *getattr(request.runtime, "tools", ())])
        results = [] if getattr(request.tool, "return_direct", False) else _results(returned)
        if not results:
            return returned
        reply = next((message for message in reversed(before) if isinstance(message, AIMessage)), None)
        model = None if reply is None else _name_in(reply.response_metadata, "model_name", "model")
        offloader = self._here(request.state)
        out = offloader.offload(
            [*before, *results], pinned=pinned, model=model, agent_name=_agent_of(offloader), is_sent=False
        )
        return _with_results(returned, iter(out.messages[len(before) :]))

    def _as_sent(self, messages: list[Any]) -> list[Any]:
        """Return the messages of the state as the request had them that the last reply answers."""
        at = next((i for i in range(len(messages) - 1, -1, -1) if isinstance(messages[i], AIMessage)), None)
        given = None if at is None else self._changed.get(messages[at].id)
        return messages if given is None else [*given, *messages[at:]]

    def _outgoing(self, request: ModelRequest[Any]) -> list[Any]:
        pinned = self._pinned(request.messages, request.tools)
        model = _name_in(request.model_settings, "model") or _model_name(request.model)
        offloader = self._here(request.state)
        out = offloader.offload(request.messages, pinned=pinned, model=model, agent_name=_agent_of(offloader))
        return out.messages

    def _repairs(self, request: ModelRequest[Any], error: Exception) -> bool:
        return repairs(self._here(request.state), request.messages, error)

    def _pinned(self, messages: Sequence[Any], tools: Sequence[Any]) -> set[str]:
        """Return the ids of calls whose results go directly to the user."""
        self._direct |= {tool.name for tool in tools if getattr(tool, "return_direct", False)}
        return {m.tool_call_id for m in messages if isinstance(m, ToolMessage) and m.name in self._direct}

    def _noted(self, request: ModelRequest[Any], response: ModelResponse[Any]) -> ModelResponse[Any]:
        """Return the model's response; its usage is reported to the offloader."""
        if [*map(id, request.messages)] != [*map(id, request.state["messages"])]:
            given = [*request.messages]
            self._changed.update({m.id: given for m in response.result if isinstance(m, AIMessage) and m.id})
            for old in list(self._changed)[:-OPEN]:
                self._changed.pop(old, None)
        for message in response.result:
            if getattr(message, "usage_metadata", None):
                self._here(request.state).report_usage(message)
        return response

    def _here(self, state: Mapping[str, Any]) -> Offloader:
        """Return the `Offloader` of the current thread, or of the run with this state."""
        return self.offloader(thread_id() or state.get("offload_session") or new_name())

    def _bound(self, request: Any) -> Any:
        if not isinstance(request.tool, _RetrievalTool):
            return request
        session = self._here(request.state)
        return request.override(tool=request.tool.model_copy(update={"session": lambda: session}))

    def _resolved(self, request: Any) -> Any:
        """Return `request` with content in place of references, or the error result if one is refused."""
        offloader = self._here(request.state)
        if not offloader.options.reference_fields or isinstance(request.tool, _RetrievalTool):
            return request
        call = request.tool_call
        try:
            arguments = offloader.resolve(call["args"], call["name"])
        except OffloadError as error:
            text = f"Error: {error_for_model(error)}"
            return ToolMessage(text, tool_call_id=call["id"], name=call["name"], status="error")
        return request.override(tool_call={**call, "args": arguments})

    def _prepared(self, request: ModelRequest[Any], messages: list[Any]) -> ModelRequest[Any]:
        return request.override(
            messages=messages, system_message=_instructed(request.system_message, self._prompt)
        )


def _model_name(model: Any) -> str | None:
    """Return the name of a chat model; its class decides which attribute has it."""
    names = ("model", "model_name", "model_id")
    return _name_in({name: getattr(model, name, None) for name in names}, *names)


def _name_in(values: Mapping[str, Any], *keys: str) -> str | None:
    return next((name for key in keys if isinstance(name := values.get(key), str) and name), None)


class _RetrievalTool(BaseTool):
    session: Callable[[], Offloader]

    # Positional only: a model may send an argument named `self`.
    def _run(self, /, **arguments: Any) -> str:
        answer = self.session().tools.call(self.name, arguments)
        if is_error(answer):
            raise ToolException(answer)
        return answer

    async def _arun(self, /, **arguments: Any) -> str:
        return await in_thread(partial(self._run, **arguments))


def _results(returned: Any) -> list[ToolMessage]:
    """Return the tool messages in a tool's result: a message, a command with messages, or a list of these."""
    if isinstance(returned, list):
        return [message for each in returned for message in _results(each)]
    if isinstance(returned, Command):
        update = returned.update if isinstance(returned.update, Mapping) else {}
        return _results(update.get("messages"))
    return [returned] if isinstance(returned, ToolMessage) else []


def _with_results(returned: Any, results: Iterator[Any]) -> Any:
    """Return a tool's result with its tool messages replaced, in the order of `_results`."""
    if isinstance(returned, list):
        return [_with_results(each, results) for each in returned]
    if isinstance(returned, Command) and _results(returned):
        messages = _with_results(returned.update["messages"], results)
        return replace(returned, update={**returned.update, "messages": messages})
    return next(results) if isinstance(returned, ToolMessage) else returned


def _with_update(request: ModelRequest[Any], messages: Sequence[Any], response: ModelResponse[Any]) -> Any:
    """Return the model's response with a state update for newly offloaded tool results.

    The update omits messages that another middleware made for this request and that are not in the state.
    """
    pairs = zip(request.messages, messages, strict=True)
    new = {id(old): new for old, new in pairs if new is not old and isinstance(new, ToolMessage) and new.id}
    changed = [new[id(m)] for m in request.state["messages"] if id(m) in new] if new else []
    return ExtendedModelResponse(response, Command(update={"messages": changed})) if changed else response


def _instructed(message: SystemMessage | None, prompt: str) -> SystemMessage:
    if message is None or not message.content:
        return SystemMessage(prompt)
    if isinstance(message.content, str):
        return message.model_copy(update={"content": f"{message.content}\n\n{prompt}"})
    return message.model_copy(update={"content": [*message.content, {"type": "text", "text": prompt}]})


class OffloadByteStore(BaseStore[str, bytes]):
    """LangChain's key-value store of bytes on any store, for caches of embeddings, documents and files.

    `store`, `storage_options` and errors are those of `Offloader`. Other namespaces do not see the values.
    """

    def __init__(
        self, store: Any = None, *, namespace: str = "default", storage_options: StorageOptions = None
    ) -> None:
        self._values = ObjectStore(store, VALUE, namespace, storage_options)

    def mget(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the value of each key, or None. Raises `CorruptError` and `StoreError`."""
        return list(map(found, self._values.get_many(keys)))

    def mset(self, key_value_pairs: Sequence[tuple[str, bytes]]) -> None:
        """Store each value under its key, overwriting an older one. Raises `StoreError`."""
        self._values.put_many(dict(key_value_pairs))

    def mdelete(self, keys: Sequence[str]) -> None:
        """Delete the keys, ignoring missing ones. Raises `StoreError`."""
        for key in keys:
            self._values.delete(key)

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Yield the keys that start with `prefix`, by listing the namespace. Raises `StoreError`."""
        return (value.key for value in self._values.list(prefix or ""))
