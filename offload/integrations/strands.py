"""Strands: offloading as a plugin of an agent, and a `Storage` for what Strands itself stores.

    agent = Agent(model=model, tools=tools, plugins=[StrandsOffloadPlugin("s3://bucket/prefix")])

A large tool result leaves when it is appended: the agent's messages, and so its session manager, hold its
placeholder. What leaves later, by age or in a sweep, leaves what the model is sent. The model gets the
tools that read back, and the lines of the system prompt that explain them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Unpack
from weakref import WeakKeyDictionary

from offload.errors import ConfigError, MissingExtraError, NotFoundError, OffloadError
from offload.integrations._objects import ObjectStore
from offload.integrations._sessions import is_error
from offload.layout import VALUE
from offload.offloader import Offloader
from offload.options import OptionArguments
from offload.registry import open_store
from offload.session import check_name, new_name
from offload.threads import in_thread

try:
    from strands import Agent
    from strands.hooks import AfterToolCallEvent, AfterToolsEvent
    from strands.middleware import InvokeModelStage
    from strands.middleware.stages import InvokeModelContext
    from strands.plugins import Plugin
    from strands.storage import Storage
    from strands.tools import PythonAgentTool
    from strands.types.exceptions import StorageError
except ImportError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[strands]'") from error

# What Strands' own `ContextOffloader` puts in the place of a result, and the tool that reads there. Beyond
# any size that it shows, a text is a result like another.
_OWN_PREVIEW = re.compile(
    r"\[Offloaded: \d+ blocks, ~[\d,]+ tokens\]\n.*^\[Stored references:\]$", re.DOTALL | re.MULTILINE
)
_OWN_TOOL = "retrieve_offloaded_content"
_OWN_CHARS = 100_000

__all__ = ["OffloadStorage", "StrandsOffloadPlugin"]


class StrandsOffloadPlugin(Plugin):
    """Offloads the messages of an agent, each agent's in a session of its own.

    The caller's policy decides as anywhere. A tool result that leaves is replaced in the agent's messages;
    of all that leaves later they keep the original, and the model alone sees the placeholder. What goes to
    the user stays, as does what Strands' own `ContextOffloader` made.
    `offloader(agent).restore(agent.messages)` gives the originals back.

    Args:
        store: as for `Offloader`.
        session: the session of every agent that has this plugin; without one it is that of the agent's
            session manager, and an agent without a session manager has a session with a name of its own,
            `offloader(agent).session`.
        storage_options: as for `Offloader`.
        options: what else an `Offloader` takes: `policy`, `on_error`, `redact` and so on.

    Raises:
        ConfigError: as for `Offloader`.
    """

    name = "offload"

    def __init__(
        self,
        store: Any = None,
        *,
        session: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        super().__init__()
        opened = open_store(store, storage_options=storage_options)
        self._open = partial(Offloader, opened, **options)
        self._open(session=session)  # what cannot work is told here, not when an agent is made
        self._session = session
        self._offloaders: WeakKeyDictionary[Agent, Offloader] = WeakKeyDictionary()

    def offloader(self, agent: Agent) -> Offloader:
        """Return the `Offloader` of an agent that has this plugin.

        Raises:
            ConfigError: the agent has it not.
        """
        if agent not in self._offloaders:
            raise ConfigError(f"agent {agent.name!r} was made without this plugin: give it in plugins=[…]")
        return self._offloaders[agent]

    def init_agent(self, agent: Agent) -> None:
        """Give an agent its session, the tools that read back, and the hooks that offload.

        Raises:
            ConfigError: no session can have the name of the session manager's.
        """
        manager = agent._session_manager  # noqa: SLF001 # agent.session_id does not say whether it lasts
        name = self._session or getattr(manager, "session_id", None)
        offloader = self._offloaders[agent] = self._open(session=name)
        agent.tool_registry.process_tools([_tool(offloader, told) for told in offloader.tools.definitions()])
        conversation = _Conversation(offloader)
        agent.add_hook(conversation.note_call, AfterToolCallEvent)
        agent.add_hook(conversation.offload_results, AfterToolsEvent)
        agent.add_middleware(InvokeModelStage.Input, conversation.prepared)


class _Conversation:
    """The messages of one agent, and the calls in them whose results stay."""

    def __init__(self, offloader: Offloader) -> None:
        self._offloader = offloader
        self._kept: set[str] = set()
        self._is_looked_through = False

    def note_call(self, event: AfterToolCallEvent) -> None:
        """Note a call whose result is the answer to the user: that of an agent that the work is handed to."""
        if getattr(event.selected_tool, "delegate", False):
            self._kept.add(event.tool_use["toolUseId"])

    async def offload_results(self, event: AfterToolsEvent) -> None:
        """Offload what the tools of a turn returned, in the message that is about to be appended."""
        messages, content = event.agent.messages, event.message["content"]
        self._kept.update(_strands_own([*messages[-1:], event.message]))
        given = {**event.message, "content": list(content)}
        out = await self._offloader.aoffload([*messages, given], pinned=self._kept)
        content[:] = out.messages[-1]["content"]

    async def prepared(self, context: InvokeModelContext) -> InvokeModelContext:
        """Return what the model is sent, as it is after offloading."""
        if not self._is_looked_through:  # a session that goes on has results of an earlier process
            self._kept.update(_strands_own(context.messages))
            self._is_looked_through = True
        out = await self._offloader.aoffload(context.messages, pinned=self._kept)
        system = _instructed(context.system_prompt, self._offloader.prompt())
        return context.replace(messages=out.messages, system_prompt=system)


def _strands_own(messages: Iterable[Any]) -> Iterator[str]:
    """Yield the calls whose results Strands' own offloader made: its previews, and what it read back."""
    parts = [part for message in messages for part in message["content"]]
    readings = {
        part["toolUse"]["toolUseId"] for part in parts if part.get("toolUse", {}).get("name") == _OWN_TOOL
    }
    for result in (part["toolResult"] for part in parts if "toolResult" in part):
        text = "".join(block.get("text", "") for block in result["content"])
        is_own = result["toolUseId"] in readings or _OWN_PREVIEW.match(text)
        if is_own and len(text) <= _OWN_CHARS:
            yield result["toolUseId"]


def _instructed(system: Any, prompt: str) -> Any:
    if not system:
        return prompt
    return f"{system}\n\n{prompt}" if isinstance(system, str) else [*system, {"text": prompt}]


def _tool(offloader: Offloader, told: Mapping[str, Any]) -> PythonAgentTool:
    """Return a tool that reads back. Whatever a model makes its arguments gets an answer."""

    async def answer(tool_use: Any, /, **_state: Any) -> Any:
        text = await in_thread(offloader.tools.call, told["name"], tool_use["input"])
        status = "error" if is_error(text) else "success"
        return {"toolUseId": tool_use["toolUseId"], "status": status, "content": [{"text": text}]}

    spec = {
        "name": told["name"],
        "description": told["description"],
        "inputSchema": {"json": told["input_schema"]},
    }
    return PythonAgentTool(told["name"], spec, answer)


class OffloadStorage(Storage):
    """A place for what Strands stores, such as its own `ContextOffloader`, on any store.

    What is stored here may be overwritten and deleted, as Strands has it: its `ContextOffloader` deletes
    after 20 cycles, unless it is told `evict_after_cycles=None`. Keys are data: any text is one.

    Args:
        store: a path, a URL or a store, as for `offload.Offloader`.
        session: whose keys they are; other sessions do not see them. Strands puts no name of an agent into
            its keys, so agents that share a session may overwrite each other's. Without one it is a
            session with a name of its own.
        storage_options: as for `offload.Offloader`.

    Raises:
        ConfigError: an argument that cannot work. Nothing is read or written before the first call.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        session: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        opened = open_store(store, storage_options=storage_options)
        self._values = ObjectStore(opened, VALUE, new_name() if session is None else check_name(session))

    async def write(self, key: str, data: bytes) -> None:
        """Store `data` under `key`, in the place of what is there. Raises Strands' `StorageError`."""
        await _told(self._values.put, key, data)

    async def read(self, key: str) -> bytes | None:
        """Return what is under `key`, None if nothing is. Raises `StorageError`, also for damaged data."""
        try:
            found: bytes = await _told(self._values.get, key)
        except StorageError as error:
            if isinstance(error.__cause__, NotFoundError):
                return None
            raise
        return found

    async def delete(self, key: str) -> None:
        """Remove what is under `key`; nothing there is success. Raises `StorageError`."""
        await _told(self._values.delete, key)

    async def list(self, query: str = "") -> list[str]:
        """Return the keys that begin with `query`, sorted. Raises `StorageError`."""
        found = await _told(lambda: list(self._values.list()))
        return sorted(each.name for each in found if each.name.startswith(query))


async def _told(function: Any, *arguments: Any) -> Any:
    """Return what `function` returns in a thread; what fails in a store fails as Strands has it."""
    try:
        return await in_thread(function, *arguments)
    except OffloadError as error:
        raise StorageError(str(error)) from error
