"""OpenAI Agents SDK: offloading in agent runs, the retrieval tools, sessions on any store."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Unpack

from offload.agent._refusals import repairs
from offload.base.threads.calls import in_thread
from offload.engine.settings.options import StoreArguments
from offload.errors import ConfigError, needs_extra
from offload.integrations._objects import StorageOptions
from offload.integrations._sessions import OPEN, Sessions, agent_named
from offload.integrations._transcripts import Names, Transcripts, TranscriptTurns
from offload.messages.thinking import signed_thinking
from offload.offloader import Offloader
from offload.storage.layout import random_letters

with needs_extra("openai-agents"):
    from agents import FunctionTool, OpenAIConversationsSession, RunConfig, RunHooks, SessionSettings
    from agents.memory.session_settings import resolve_session_limit
    from agents.run_config import CallModelData, ModelInputData
    from agents.tool_context import ToolContext

_log = logging.getLogger("offload")

# The project of the transcripts of its sessions.
_PROJECT = "openai-agents"

__all__ = ["OffloadRuns", "OffloadSession", "RunConversation"]


class OffloadRuns:
    """Offloads the model input of a program's agents, with one session per conversation.

    The items of a run's result are the originals. A result that the SDK sends as Python, `str` of a dict, a
    model or a dataclass, is stored as JSON, which `restore` returns.

    Arguments and errors are those of `Offloader` without `session`. Every agent of a run needs the retrieval
    tools, `tools`: the input of an agent without them is not offloaded.
    """

    def __init__(self, store: Any = None, **options: Unpack[StoreArguments]) -> None:
        self._sessions = Sessions(store, **options)
        self._named = lru_cache(OPEN)(self._open)
        self.tools = [
            FunctionTool(
                name=tool["name"],
                description=tool["description"],
                params_json_schema=tool["input_schema"],
                on_invoke_tool=partial(_answer, tool["name"]),
                strict_json_schema=False,  # strict makes every argument required
            )
            for tool in self._sessions.own.tools.definitions()
        ]

    def conversation(self, name: str | None = None) -> RunConversation:
        """Return the conversation `name`, which any process that can reach the store may continue.

        Without a name, each call starts a new one; `conversation.offloader.session` is its name. Raises
        `ConfigError` if `name` is not a valid session name.
        """
        return self._open(None) if name is None else self._named(name)

    def _open(self, name: str | None) -> RunConversation:
        return RunConversation(self._sessions.open(session=name))


class RunConversation:
    """One conversation: the model input of its runs, and the items in the SDK's session.

    Attributes:
        offloader: the `Offloader` of its session; `offloader.restore(items)` restores the originals.
        prompt: instructions that its agents get.
        items: the latest full conversation.
        hooks: hooks for runs, which report each reply's usage to `offloader`.
    """

    def __init__(self, offloader: Offloader) -> None:
        self.offloader = offloader
        self.prompt: str = offloader.prompt()
        self.items: list[Any] = []
        self.hooks = _UsageHooks(offloader)
        self._answered: set[str] = set()
        # The model of the last request.
        self._model: str | None = None
        self._agent: str | None = None

    def run_config(self, base: RunConfig | None = None) -> RunConfig:
        """Return a configuration for runs of this conversation, which extends `base`.

        The `call_model_input_filter` of `base` runs first. Do not wrap the returned filter: the retrieval
        tools find their conversation through it.
        """
        base = RunConfig() if base is None else base
        made = _InputFilter(self, base.call_model_input_filter, base.model)
        return replace(base, call_model_input_filter=made)

    def memory(self, session: Any) -> Any:
        """Return a wrapper of the SDK's `session` that stores placeholders.

        Items that are offloaded later are stored in full. Raises `ConfigError` if OpenAI stores the items.
        """
        if isinstance(session, OpenAIConversationsSession):
            raise ConfigError(
                "session must store its items itself, got OpenAIConversationsSession; use SQLiteSession"
            )
        return _Memory(session, self)

    async def state_json(self, state: Any, **options: Any) -> dict[str, Any]:
        """Return `state.to_json(**options)` of an interrupted run, with placeholders for tool results.

        `RunState.from_json` of the SDK reads it. Results that the model has to see first are kept.
        """
        saved: dict[str, Any] = state.to_json(**options)
        # In the order of the conversation; nested runs are elsewhere in the state.
        sections = [saved["original_input"], saved["generated_items"], saved]
        items = list({(part["type"], part["call_id"]): part for part in _calls_in(sections)}.values())
        sent = await self._offloaded(items)
        outputs = {
            old["call_id"]: (old["output"], new["output"])
            for old, new in zip(items, sent, strict=True)
            if new is not old and _result_id(old)
        }
        replaced: dict[str, Any] = _with_outputs(saved, outputs)
        return replaced

    async def repair(self, error: BaseException) -> bool:
        """Omit from the next run the thinking that a provider refused, or send again what it lacks.

        `error` is that of a run. Return whether there is any; then run the agent with `items` again.
        """
        return await in_thread(repairs, self.offloader, self.items, error)

    async def outgoing(self, items: list[Any], model: str | None, agent: str | None = None) -> list[Any]:
        """Return the input of the model with a name for `items`, the conversation so far of an agent."""
        self._model, self._agent = model, agent_named(self.offloader, agent)
        sent = await self.placed(items, is_sent=True)
        # The rest of a reasoning item still has the signatures.
        return [new for old, new in zip(items, sent, strict=True) if new is old or not _is_emptied(old, new)]

    async def placed(self, items: list[Any], *, is_sent: bool = False) -> list[Any]:
        """Return an item in the place of each of `items`, the conversation so far."""
        self.items = items
        return await self._offloaded(items, is_sent=is_sent)

    async def _offloaded(self, items: list[Any], *, is_sent: bool = False) -> list[Any]:
        out = await self.offloader.aoffload(
            items, pinned=self._answered, model=self._model, agent_name=self._agent, is_sent=is_sent
        )
        return out.messages

    async def answer(self, name: str, arguments: str, call_id: str) -> str:
        """Return the answer to a model's call of a retrieval tool."""
        # If OpenAI stores the conversation, a result comes without the call that names its tool.
        self._answered.add(call_id)
        return await in_thread(self.offloader.tools.call, name, arguments)


class _InputFilter:
    """Filter of the model input, through which the retrieval tools find their conversation."""

    def __init__(self, conversation: RunConversation, first: Any, model: Any) -> None:
        self.conversation = conversation
        self._first = first
        self._model = model
        self._warned: set[str] = set()

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        model_input = data.model_data if self._first is None else self._first(data)
        if inspect.isawaitable(model_input):
            model_input = await model_input
        if not any(map(_is_retrieval_tool, data.agent.tools)):
            self._warn(data.agent.name)
            return model_input
        instructions = "\n\n".join(filter(None, [model_input.instructions, self.conversation.prompt]))
        model = _model_name(self._model or data.agent.model)
        sent = await self.conversation.outgoing(model_input.input, model, data.agent.name)
        return ModelInputData(sent, instructions)

    def _warn(self, agent: str) -> None:
        if agent not in self._warned:
            self._warned.add(agent)
            _log.warning("agent %r has no retrieval tools: its input is not offloaded", agent)


class _UsageHooks(RunHooks[Any]):
    def __init__(self, offloader: Offloader) -> None:
        self._offloader = offloader

    async def on_llm_end(self, _context: Any, agent: Any, response: Any) -> None:
        if any(map(_is_retrieval_tool, agent.tools)):
            self._offloader.report_usage(response.usage)


class _Memory:
    """An SDK session wrapper that offloads items as they are added."""

    def __init__(self, session: Any, conversation: RunConversation) -> None:
        self._session = session
        self._conversation = conversation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    # The SDK passes `wrapper` to sessions with this parameter.
    async def add_items(self, items: list[Any], wrapper: Any = None) -> None:
        options = {} if wrapper is None else {"wrapper": wrapper}
        # After an approval in another process, a result comes without the call that names its tool.
        before = self._conversation.items or await self._session.get_items(**options)
        placed = (await self._conversation.placed([*before, *items]))[len(before) :]
        # Thinking is left out whenever it is sent.
        kept = [old if _is_emptied(old, new) else new for old, new in zip(items, placed, strict=True)]
        await self._session.add_items(kept, **options)


class OffloadSession:
    """The SDK's `Session` on any store, for any number of processes: `OffloadSession("alice", url)`.

    Each addition is one compressed object that is never rewritten, so that no writer loses what another one
    stored. It stores the items as they are: `RunConversation.memory` wraps it, to store placeholders.

    Args:
        session_id: its name in the store, any text.
        session_settings: settings of the SDK, such as the `limit` of the items of a run.
        store: with `storage_options`, as for `offload.Offloader`, whose errors the methods raise.
    """

    def __init__(
        self,
        session_id: str,
        store: Any = None,
        *,
        storage_options: StorageOptions = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        given: Any = session_id
        if not isinstance(given, str) or not given:
            raise ConfigError(f"session_id must be a text, got {given!r:.80}")
        self.session_id = session_id
        self.session_settings = session_settings or SessionSettings()
        self._names = Names(_PROJECT, session_id)
        self._transcripts = Transcripts(store, storage_options)
        self._turns = TranscriptTurns()

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items, at most the latest `limit`. Raises `CorruptError` if some are damaged."""
        most = resolve_session_limit(limit, self.session_settings)
        items = [*(await self._turns.take(self._names, self._items)).values()]
        # As for SQLite, a negative limit is none.
        return items if most is None or most < 0 else items[max(0, len(items) - most) :]

    async def add_items(self, items: list[Any]) -> None:
        """Store items, in one object."""
        if items:
            entries = [{"uuid": random_letters(), "item": item} for item in items]
            await self._turns.take(self._names, self._transcripts.append, self._names, entries)

    async def pop_item(self) -> Any | None:
        """Remove the latest item and return it; None without one."""
        return await self._turns.take(self._names, self._pop)

    async def clear_session(self) -> None:
        """Delete all items."""
        await self._turns.take(self._names, self._transcripts.delete, self._names)

    def _items(self) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for entry in self._transcripts.load(self._names) or ():
            if "popped" in entry:
                items.pop(entry["popped"], None)
            else:
                items[entry["uuid"]] = entry["item"]
        return items

    def _pop(self) -> Any | None:
        items = self._items()
        if not items:
            return None
        # By its id, so that an item that another process adds now is not removed in its place.
        name, item = items.popitem()
        self._transcripts.append(self._names, [{"popped": name}])
        return item


async def _answer(name: str, context: ToolContext[Any], arguments: str) -> str:
    input_filter = context.run_config and context.run_config.call_model_input_filter
    if not isinstance(input_filter, _InputFilter):
        _log.error("%s: this run has no conversation; pass it RunConversation.run_config()", name)
        return "Error: no stored items are available in this run"
    return await input_filter.conversation.answer(name, arguments, context.tool_call_id)


def _is_retrieval_tool(tool: Any) -> bool:
    function = getattr(tool, "on_invoke_tool", None)
    return isinstance(function, partial) and function.func is _answer


def _model_name(model: Any) -> str | None:
    """Return the name of a model, which may be all that is given of it."""
    name = model if isinstance(model, str) else getattr(model, "model", None)
    return name if isinstance(name, str) else None


def _is_emptied(old: Any, new: Any) -> bool:
    """Return whether signed thinking was left out of an item."""
    return bool(signed_thinking(old)) and not signed_thinking(new)


def _calls_in(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the function calls and results in a part of a saved state, without looking into results."""
    if isinstance(value, list):
        for each in value:
            yield from _calls_in(each)
    elif isinstance(value, Mapping):
        if value.get("type") in ("function_call", "function_call_output") and "call_id" in value:
            yield value
        yield from _calls_in([each for name, each in value.items() if name != "output"])


def _with_outputs(value: Any, outputs: Mapping[str, tuple[Any, Any]]) -> Any:
    """Return a part of a saved state with outputs replaced, by the id of the call: old and new."""
    if isinstance(value, list):
        return [_with_outputs(each, outputs) for each in value]
    if not isinstance(value, Mapping):
        return value
    result: Any = value.get("raw_item") if value.get("type") == "tool_call_output_item" else value
    old, new = outputs.get(_result_id(result), (None, None))
    if old is None or result["output"] != old:
        return {name: _with_outputs(each, outputs) for name, each in value.items()}
    if result is value:
        return {**value, "output": new}
    # The item of a run has the tool's own value too.
    return {**value, "raw_item": {**result, "output": new}, "output": new}


def _result_id(item: Any) -> Any:
    is_result = isinstance(item, Mapping) and item.get("type") == "function_call_output"
    return item.get("call_id") if is_result else None
