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
from typing import Any

from offload.errors import MissingExtraError, NotFoundError, OffloadError
from offload.hooks import in_thread
from offload.integrations._objects import VALUES, NamedObjects
from offload.integrations._sessions import Sessions
from offload.offloader import Offloader
from offload.registry import open_store
from offload.store import OffloadStore

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
    from langchain.agents.middleware.types import ExtendedModelResponse
    from langchain_core.messages import SystemMessage, ToolMessage
    from langchain_core.runnables.config import ensure_config
    from langchain_core.stores import BaseStore
    from langchain_core.tools import BaseTool
    from langgraph.types import Command
except ImportError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[langchain]'") from error

__all__ = ["OffloadByteStore", "OffloadMiddleware", "thread_id"]


def thread_id() -> str | None:
    """Return the id of the LangGraph thread that runs here, or None."""
    found = ensure_config().get("configurable", {}).get("thread_id")
    return None if found is None else str(found)


class OffloadMiddleware(AgentMiddleware[Any, Any, Any]):
    """Offloads the messages of an agent, each thread's in a session of its own.

    The caller's policy decides as anywhere. A tool result that leaves is replaced in the state of the
    graph, with its id, name, status and artifact kept; of all else the state keeps the original, and the
    model alone sees the placeholder. `offloader(thread).restore(messages)` gives the originals back.

    Where a result leaves late, the graph streams a second update of its model node.

    Args:
        store: as for `Offloader`.
        session: the session of every thread; without one a thread's id is the name of its session, and
            runs without a thread share one session with a name of its own.
        storage_options: as for `Offloader`.
        options: what else an `Offloader` takes: `policy`, `on_error`, `redact` and so on.

    Attributes:
        tools: the tools that read back, which the agent offers its model.

    Raises:
        ConfigError: as for `Offloader`.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        session: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._threads = Sessions(store, session, storage_options, options)
        self._prompt = self._threads.own.prompt()
        self.tools = [
            _ReadBack(
                name=told["name"],
                description=told["description"],
                args_schema=told["input_schema"],
                answer=self._answer,
            )
            for told in self._threads.own.tools.definitions()
        ]

    def offloader(self, thread: str | None = None) -> Offloader:
        """Return the `Offloader` of a thread, or of runs without one.

        Raises:
            ConfigError: no session can have the thread's id for a name.
        """
        return self._threads.named(thread)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Run a tool; offload what it returned."""
        returned = handler(request)
        given = _results(returned)
        if not given:
            return returned
        before = request.state["messages"]
        out = self._here().offload([*before, *given])
        return _with_results(returned, iter(out.messages[len(before) :]))

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Run a tool; offload what it returned, in a thread."""
        returned = await handler(request)
        given = _results(returned)
        if not given:
            return returned
        before = request.state["messages"]
        out = await self._here().aoffload([*before, *given])
        return _with_results(returned, iter(out.messages[len(before) :]))

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> Any:
        """Call the model with the conversation as it is after offloading."""
        out = self._here().offload(request.messages)
        return _with_update(request, out.messages, handler(self._prepared(request, out.messages)))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> Any:
        """Call the model with the conversation as it is after offloading, which is done in a thread."""
        out = await self._here().aoffload(request.messages)
        return _with_update(request, out.messages, await handler(self._prepared(request, out.messages)))

    def _here(self) -> Offloader:
        return self.offloader(thread_id())

    def _answer(self, name: str, arguments: Mapping[str, Any]) -> str:
        return self._here().tools.call(name, arguments)

    def _prepared(self, request: ModelRequest[Any], messages: list[Any]) -> ModelRequest[Any]:
        return request.override(
            messages=messages, system_message=_instructed(request.system_message, self._prompt)
        )


class _ReadBack(BaseTool):
    """A tool that reads back. Whatever a model makes its arguments gets an answer."""

    answer: Callable[[str, Mapping[str, Any]], str]

    # A model may call an argument `self`.
    def _run(self, /, **arguments: Any) -> str:
        return self.answer(self.name, arguments)

    async def _arun(self, /, **arguments: Any) -> str:
        return await in_thread(partial(self.answer, self.name, arguments))


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
        self._values = NamedObjects(opened, VALUES, namespace)

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
