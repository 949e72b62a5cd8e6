"""LangChain 1.x and LangGraph: offloading as a middleware of an agent, and a byte store.

    agent = create_agent(model, tools, middleware=[OffloadMiddleware("s3://bucket/prefix")])

A large tool result leaves when it is appended: the state of the graph, and so every checkpoint, holds its
placeholder. What leaves later, by age or in a sweep, leaves just before a model call. The model gets the
tools that read back, and the lines of the system prompt that explain them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, NotRequired, Unpack
from uuid import UUID

from offload.errors import MissingExtraError, NotFoundError, OffloadError
from offload.integrations._objects import ObjectStore
from offload.integrations._sessions import Sessions, is_error
from offload.layout import VALUE
from offload.offloader import Offloader
from offload.options import OptionArguments
from offload.registry import open_store
from offload.session import new_name
from offload.store import OffloadStore
from offload.threads import in_thread

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain.agents.middleware.types import ExtendedModelResponse, OmitFromInput
    from langchain_core.messages import SystemMessage, ToolMessage
    from langchain_core.runnables.config import ensure_config
    from langchain_core.stores import BaseStore
    from langchain_core.tools import BaseTool, ToolException
    from langgraph.types import Command
except ImportError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[langchain]'") from error

__all__ = ["OffloadByteStore", "OffloadMiddleware", "thread_id"]


def thread_id() -> str | None:
    """Return the id of the LangGraph thread that runs here; None for an empty one and for what is no text."""
    found = ensure_config().get("configurable", {}).get("thread_id")
    if isinstance(found, UUID):
        return str(found)
    return found if isinstance(found, str) and found else None


def _first(named: str | None, other: str | None) -> str | None:
    return named or other


class _State(AgentState[Any]):
    """The state of an agent, and in a run without a thread the name of its session.

    It is no input: whom a session belongs to is not for the caller's caller to say. And it is given once:
    agents that others call have names of their own, and hand their whole state back.
    """

    offload_session: NotRequired[Annotated[str | None, OmitFromInput, _first]]  # type: ignore[valid-type] # the base is one


class OffloadMiddleware(AgentMiddleware[Any, Any, Any]):
    """Offloads the messages of an agent, each thread's in a session of its own.

    The caller's policy decides as anywhere. A tool result that leaves is replaced in the state of the
    graph, with its id, name, status and artifact kept; of all else the state keeps the original, and the
    model alone sees the placeholder. `offloader(thread).restore(messages)` gives the originals back.

    Where a result leaves late, the graph streams a second update of its model node.

    Args:
        store: as for `Offloader`.
        session: the session of every thread; without one a thread's id is the name of its session, and a
            run without a thread has a session of its own, whose name is `offload_session` in its state.
        storage_options: as for `Offloader`.
        options: what else an `Offloader` takes: `policy`, `on_error`, `redact` and so on.

    Attributes:
        tools: the tools that read back, which the agent offers its model.

    Raises:
        ConfigError: as for `Offloader`.
    """

    state_schema = _State

    def __init__(
        self,
        store: Any = None,
        *,
        session: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        self._threads = Sessions(store, session, storage_options, options)
        self._prompt = self._threads.own.prompt()
        self.tools = [
            _RetrievalTool(
                name=told["name"],
                description=told["description"],
                args_schema=told["input_schema"],
                handle_tool_error=True,
                session=partial(self._here, {}),
            )
            for told in self._threads.own.tools.definitions()
        ]

    def offloader(self, thread: str | None = None) -> Offloader:
        """Return the `Offloader` of a thread, or of a run without one by the name in its state.

        Without a name it is that of the one session; where threads have their own, that of a session that
        no run has.

        Raises:
            ConfigError: no session can have that name.
        """
        return self._threads.named(thread)

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:  # noqa: ARG002 # the framework's signature
        """Name the session of a run that has no thread."""
        if self._threads.is_shared or thread_id() or state.get("offload_session"):
            return None
        return {"offload_session": new_name()}

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Run a tool; offload what it returned, unless that is for the user."""
        returned = handler(self._bound(request))
        given = _for_the_model(request, returned)
        if not given:
            return returned
        before = request.state["messages"]
        pinned = _pinned(before, getattr(request.runtime, "tools", ()))
        out = self._here(request.state).offload([*before, *given], pinned=pinned)
        return _with_results(returned, iter(out.messages[len(before) :]))

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Do what `wrap_tool_call` does, in a thread."""
        returned = await handler(self._bound(request))
        given = _for_the_model(request, returned)
        if not given:
            return returned
        before = request.state["messages"]
        pinned = _pinned(before, getattr(request.runtime, "tools", ()))
        out = await self._here(request.state).aoffload([*before, *given], pinned=pinned)
        return _with_results(returned, iter(out.messages[len(before) :]))

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        """Call the model with the conversation as it is after offloading."""
        pinned = _pinned(request.messages, request.tools)
        out = self._here(request.state).offload(request.messages, pinned=pinned)
        return _with_update(request, out.messages, handler(self._prepared(request, out.messages)))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> Any:
        """Call the model with the conversation as it is after offloading, which is done in a thread."""
        pinned = _pinned(request.messages, request.tools)
        out = await self._here(request.state).aoffload(request.messages, pinned=pinned)
        return _with_update(request, out.messages, await handler(self._prepared(request, out.messages)))

    def _here(self, state: Mapping[str, Any]) -> Offloader:
        """Return the `Offloader` of the thread that runs here, or of the run whose state this is."""
        return self.offloader(thread_id() or state.get("offload_session") or new_name())

    def _bound(self, request: Any) -> Any:
        """Return `request` with a tool that reads back from the session that it is called in."""
        if not isinstance(request.tool, _RetrievalTool):
            return request
        session = self._here(request.state)
        return request.override(tool=request.tool.model_copy(update={"session": lambda: session}))

    def _prepared(self, request: ModelRequest[Any], messages: list[Any]) -> ModelRequest[Any]:
        return request.override(
            messages=messages, system_message=_instructed(request.system_message, self._prompt)
        )


class _RetrievalTool(BaseTool):
    """A tool that reads back. Whatever a model makes its arguments gets an answer."""

    session: Callable[[], Offloader]

    # A model may call an argument `self`.
    def _run(self, /, **arguments: Any) -> str:
        answer = self.session().tools.call(self.name, arguments)
        if is_error(answer):
            raise ToolException(answer)
        return answer

    async def _arun(self, /, **arguments: Any) -> str:
        return await in_thread(partial(self._run, **arguments))


def _for_the_model(request: Any, returned: Any) -> list[ToolMessage]:
    """Return the tool messages in what a tool returned, none if it goes to the user as it is."""
    return [] if getattr(request.tool, "return_direct", False) else _results(returned)


def _pinned(messages: Sequence[Any], tools: Sequence[Any]) -> set[str]:
    """Return the calls of tools whose results go to the user as they are."""
    direct = {tool.name for tool in tools if getattr(tool, "return_direct", False)}
    if not direct:
        return set()
    return {m.tool_call_id for m in messages if isinstance(m, ToolMessage) and m.name in direct}


def _results(returned: Any) -> list[ToolMessage]:
    """Return the tool messages in what a tool returned: one, a command that adds some, a list of both."""
    if isinstance(returned, list):
        return [message for each in returned for message in _results(each)]
    if isinstance(returned, Command):
        update = returned.update if isinstance(returned.update, Mapping) else {}
        return _results(update.get("messages"))
    return [returned] if isinstance(returned, ToolMessage) else []


def _with_results(returned: Any, results: Iterator[Any]) -> Any:
    """Return what a tool returned with the tool messages that `_results` found replaced, in order."""
    if isinstance(returned, list):
        return [_with_results(each, results) for each in returned]
    if isinstance(returned, Command) and _results(returned):
        messages = _with_results(returned.update["messages"], results)
        return replace(returned, update={**returned.update, "messages": messages})
    return next(results) if isinstance(returned, ToolMessage) else returned


def _with_update(request: ModelRequest[Any], messages: Sequence[Any], response: ModelResponse[Any]) -> Any:
    """Return the model's response, with the tool results that left late for their place in the state.

    A message that another middleware made for this call alone is not the state's, and stays out of it.
    """
    pairs = zip(request.messages, messages, strict=True)
    left = {id(old): new for old, new in pairs if new is not old and isinstance(new, ToolMessage) and new.id}
    held = [left[id(m)] for m in request.state["messages"] if id(m) in left] if left else []
    return ExtendedModelResponse(response, Command(update={"messages": held})) if held else response


def _instructed(message: SystemMessage | None, prompt: str) -> SystemMessage:
    if message is None or not message.content:
        return SystemMessage(prompt)
    if isinstance(message.content, str):
        return message.model_copy(update={"content": f"{message.content}\n\n{prompt}"})
    return message.model_copy(update={"content": [*message.content, {"type": "text", "text": prompt}]})


class OffloadByteStore(BaseStore[str, bytes]):
    """LangChain's key-value store of bytes, on any store: for caches of embeddings, documents, files.

    Args:
        store: a path, a URL or a store, as for `Offloader`.
        namespace: stores of other namespaces at the same URL see nothing of each other.
        storage_options: as for `Offloader`.

    Raises:
        ConfigError: an argument that cannot work. Nothing is read or written before the first call.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        namespace: str = "default",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        opened: OffloadStore = open_store(store, storage_options=storage_options)
        self._values = ObjectStore(opened, VALUE, namespace)

    def mget(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the value of each key, None where there is none.

        Raises:
            CorruptError: a value is damaged.
            StoreError: the store failed.
        """
        return [_value(found) for found in self._values.get_many(keys)]

    def mset(self, key_value_pairs: Sequence[tuple[str, bytes]]) -> None:
        """Give each key its value, in the place of an older one. Raises `StoreError`."""
        self._values.put_many(dict(key_value_pairs))

    def mdelete(self, keys: Sequence[str]) -> None:
        """Remove the keys; those that are not there are no error. Raises `StoreError`."""
        for key in keys:
            self._values.delete(key)

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Yield the keys that start with `prefix`, by listing the namespace. Raises `StoreError`."""
        for found in self._values.list():
            if found.name.startswith(prefix or ""):
                yield found.name


def _value(found: bytes | OffloadError) -> bytes | None:
    if isinstance(found, OffloadError) and not isinstance(found, NotFoundError):
        raise found
    return None if isinstance(found, NotFoundError) else found
