"""OpenAI Agents SDK: offloading in the runs of agents, tools that read back, sessions of placeholders.

    offloading = OffloadRuns("s3://bucket/prefix")
    agent = Agent(name="analyst", tools=[query_sales, *offloading.tools])

    alice = offloading.conversation("alice")
    memory = alice.memory(SQLiteSession("alice"))
    await Runner.run(agent, "How did the sales go?", session=memory, run_config=alice.run_config())

What leaves does so before each call of the model, and before the SDK's session keeps it. The items of the
run's result are the originals: offloading changes what a model reads, never what a caller does.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Unpack

from offload.errors import ConfigError, MissingExtraError
from offload.offloader import Offloader
from offload.options import OptionArguments
from offload.registry import open_store
from offload.threads import in_thread

try:
    from agents import FunctionTool, OpenAIConversationsSession, RunConfig
    from agents.run_config import CallModelData, ModelInputData
    from agents.tool_context import ToolContext
except ImportError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[openai-agents]'") from error

# Conversations whose histories are remembered; one that comes back later is looked up in the store.
_OPEN_CONVERSATIONS = 256

_log = logging.getLogger("offload")

__all__ = ["OffloadRuns", "RunConversation"]


class OffloadRuns:
    """Offloads what the agents of a program are sent, each conversation's in a session of its own.

    Args:
        store: as for `Offloader`.
        storage_options: as for `Offloader`.
        options: what else an `Offloader` takes, without `session`: `policy`, `on_error`, `redact` and so on.

    Attributes:
        tools: the tools that read back. Every agent of a run needs them: nothing leaves what one without
            is sent.

    Raises:
        ConfigError: as for `Offloader`.
    """

    def __init__(
        self,
        store: Any = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        opened = open_store(store, storage_options=storage_options)
        offered = Offloader(opened, **options)
        self._made = partial(Offloader, opened, **options)
        self._open = lru_cache(_OPEN_CONVERSATIONS)(lambda name: RunConversation(self._made(session=name)))
        self.tools = [
            FunctionTool(
                name=told["name"],
                description=told["description"],
                params_json_schema=told["input_schema"],
                on_invoke_tool=partial(_answer, told["name"]),
                strict_json_schema=False,  # strict makes every argument required
            )
            for told in offered.tools.definitions()
        ]

    def conversation(self, name: str | None = None) -> RunConversation:
        """Return the conversation called `name`, here and in any process that reaches the store.

        Without a name it is a new one at each call, and `conversation.offloader.session` names it.

        Raises:
            ConfigError: no session can have that name.
        """
        return RunConversation(self._made()) if name is None else self._open(name)


class RunConversation:
    """One conversation: what its runs send to models and what the SDK's session keeps of it.

    Args:
        offloader: its session.

    Attributes:
        offloader: its session; `offloader.restore(items)` gives originals back.
        prompt: the lines that the instructions of its agents get.
        items: the conversation as it was last seen, in full.
    """

    def __init__(self, offloader: Offloader) -> None:
        self.offloader = offloader
        self.prompt = offloader.prompt()
        self.items: list[Any] = []
        self._answered: set[str] = set()

    def run_config(self, base: RunConfig | None = None) -> RunConfig:
        """Return a configuration for runs of this conversation.

        Args:
            base: what else is configured. Its `call_model_input_filter` is asked first; one that is put
                around ours hides the conversation from the tools.
        """
        base = RunConfig() if base is None else base
        return replace(base, call_model_input_filter=_InputFilter(self, base.call_model_input_filter))

    def memory(self, session: Any) -> Any:
        """Return the SDK's `session` as one that keeps placeholders; what leaves late it keeps in full.

        Raises:
            ConfigError: a session whose items OpenAI keeps, which takes nothing but what was sent.
        """
        if isinstance(session, OpenAIConversationsSession):
            raise ConfigError("OpenAI keeps that session's items; give memory one such as SQLiteSession")
        return _Memory(session, self)

    async def outgoing(self, items: list[Any]) -> list[Any]:
        """Return what a model is sent instead of `items`, the conversation up to now."""
        self.items = items
        return (await self.offloader.aoffload(items, pinned=self._answered)).messages

    async def kept(self, before: list[Any], items: list[Any]) -> list[Any]:
        """Return what is kept of `items`, which come after `before`."""
        self.items = [*before, *items]
        out = await self.offloader.aoffload(self.items, pinned=self._answered)
        return out.messages[len(before) :]

    async def answer(self, name: str, arguments: str, call_id: str) -> str:
        """Return the answer to a model's call of a tool that reads back."""
        # Where OpenAI keeps the conversation, a result comes without the call that names its tool.
        self._answered.add(call_id)
        return await in_thread(self.offloader.tools.call, name, arguments)


class _InputFilter:
    """Is asked what a model is sent; by it the tools of a run know their conversation."""

    def __init__(self, conversation: RunConversation, first: Any) -> None:
        self.conversation = conversation
        self._first = first
        self._warned: set[str] = set()

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        given = data.model_data if self._first is None else self._first(data)
        if inspect.isawaitable(given):
            given = await given
        if not any(_reads_back(tool) for tool in data.agent.tools):
            self._warn(data.agent.name)
            return given
        instructions = "\n\n".join(filter(None, [given.instructions, self.conversation.prompt]))
        return ModelInputData(await self.conversation.outgoing(given.input), instructions)

    def _warn(self, agent: str) -> None:
        if agent not in self._warned:
            self._warned.add(agent)
            _log.warning(
                "agent %r has none of the tools that read back: nothing leaves what it is sent", agent
            )


class _Memory:
    """A session of the SDK around another, all of whose ways but one it has."""

    def __init__(self, session: Any, conversation: RunConversation) -> None:
        self._session = session
        self._conversation = conversation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    # The SDK hands `wrapper` to sessions that name it.
    async def add_items(self, items: list[Any], wrapper: Any = None) -> None:
        options = {} if wrapper is None else {"wrapper": wrapper}
        # A result may come without the call that names its tool: after an approval, in another process.
        before = self._conversation.items or await self._session.get_items(**options)
        await self._session.add_items(await self._conversation.kept(before, items), **options)


async def _answer(name: str, context: ToolContext[Any], arguments: str) -> str:
    asked = context.run_config and context.run_config.call_model_input_filter
    if not isinstance(asked, _InputFilter):
        return "Error: nothing is stored for this run; its host gave it no RunConversation.run_config()"
    return await asked.conversation.answer(name, arguments, context.tool_call_id)


def _reads_back(tool: Any) -> bool:
    invoked = getattr(tool, "on_invoke_tool", None)
    return isinstance(invoked, partial) and invoked.func is _answer
