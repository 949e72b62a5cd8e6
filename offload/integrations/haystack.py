"""Haystack: offloading as a hook of an agent, the retrieval tools as a toolset, and a store for results."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from typing import Any, Self, Unpack

from offload.base.text import decode_text, encode_text
from offload.base.threads.calls import in_thread
from offload.engine.policy import OffloadPolicy
from offload.engine.settings.options import SessionArguments
from offload.errors import ConfigError, needs_extra
from offload.integrations._objects import ObjectStore, StorageOptions
from offload.integrations._parts import changed_parts
from offload.integrations._sessions import Sessions, model_named
from offload.messages.bedrock import PART, call_block, fixed_block, result_block, signed_blocks
from offload.offloader import Offloader
from offload.records.session.names import check_name, new_name
from offload.storage.layout import FILE

with needs_extra("haystack"):
    from haystack.components.agents import State
    from haystack.components.agents.state import replace_values
    from haystack.core.serialization import default_from_dict, default_to_dict, generate_qualified_class_name
    from haystack.dataclasses import ChatMessage, ReasoningContent, TextContent, ToolCall, ToolCallResult
    from haystack.hooks.tool_result_offloading import ToolResultStore
    from haystack.tools import Tool, Toolset

_log = logging.getLogger("offload")

# Where a run's hook context has its session.
_KEY = "offload"

__all__ = ["OffloadToolResultStore", "OffloadToolset"]


class OffloadToolset(Toolset):
    """Offloads the messages of agents, with one session per run, and gives the model the retrieval tools.

    An agent needs it twice: as a toolset, and as a hook at `before_llm`, which replaces tool results, prompts
    and tool-call arguments in the run's messages, and adds the instructions to the system message. A tool
    that ends the run (`exit_conditions`) has its result kept. An agent without the tools is not offloaded.

    Arguments and errors are those of `Offloader`. Without `session`, a run has the session of its
    `hook_context`, see `context`, or a new session: `message.meta["offload_session"]` of changed messages.
    """

    allowed_hook_points = ("before_llm", "after_tool", "after_run")

    def __init__(self, store: Any = None, **options: Unpack[SessionArguments]) -> None:
        self._arguments = {"store": store, **options}
        self._sessions = Sessions(store, **options)
        self._is_warned = False
        definitions = self._sessions.own.tools.definitions()
        super().__init__(tools=[_tool(each, self._sessions.own) for each in definitions])

    def offloader(self, session: str | None = None) -> Offloader:
        """Return the `Offloader` of a session, by default that of the constructor."""
        return self._sessions.named(session)

    def context(self, session: str) -> dict[str, Any]:
        """Return the `hook_context` of a run with this session: `agent.run(messages, hook_context=…)`."""
        return {_KEY: _RunSession(self.offloader(session))}

    def restore(self, messages: Sequence[ChatMessage], session: str | None = None) -> list[ChatMessage]:
        """Return the messages of a session with every placeholder replaced by its content.

        Errors are those of `Offloader.restore`.
        """
        converted = list(map(_blocks_of, messages))
        return list(map(_message_of, messages, converted, self.offloader(session).restore(converted)))

    def run(self, state: State) -> None:
        """Offload the messages of a run; called by the agent. Raises `ConfigError` for a wrong session."""
        if not self._has_tools(state):
            return
        offloader, before = self._of_run(state), state.data["messages"]
        reply = next((message for message in reversed(before) if message.is_from("assistant")), None)
        if reply is not None and isinstance(reply.meta.get("usage"), Mapping):
            offloader.report_usage(reply.meta["usage"])
        # A later run may pass messages on with the instructions or without.
        before = _instructed(before, offloader.prompt())
        converted = list(map(_blocks_of, before))
        out = offloader.offload(converted, model=model_named(offloader, _model(before)))
        noted = {"offload_session": offloader.session}
        after = list(map(partial(_message_of, meta=noted), before, converted, out.messages))
        state.set("messages", after, handler_override=replace_values)

    async def run_async(self, state: State) -> None:
        """Run `run` in a thread."""
        await in_thread(self.run, state)

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments for a pipeline's file.

        Raises `ConfigError` for arguments that a file cannot have: store objects, functions, and
        `storage_options`, which may have credentials.
        """
        given = {name: _plain(name, value) for name, value in self._arguments.items() if value is not None}
        return {"type": generate_qualified_class_name(type(self)), "data": given}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the toolset of `to_dict`. Raises `ConfigError` for invalid arguments."""
        given = dict(data["data"])
        if "policy" in given:
            given["policy"] = OffloadPolicy.model_validate(given["policy"])
        return cls(**given)

    def _has_tools(self, state: State) -> bool:
        offered = {tool.name for tool in state.data["tools"]}
        has_tools = all(tool.name in offered for tool in self.tools)
        if not has_tools and not self._is_warned:
            self._is_warned = True
            _log.warning("an agent has the hook without the toolset: its messages are not offloaded")
        return has_tools

    def _of_run(self, state: State) -> Offloader:
        """Return the offloader of a run, which gets a new session if it has none."""
        context = state.data.get("hook_context") or {}
        if self._sessions.session is None and _KEY not in context:
            context = {**context, **self.context(new_name())}
            state.set("hook_context", context)
        return _offloader_of(context, self._sessions.own)


class _RunSession:
    """The session of a run, which a model cannot write, as it could write a name."""

    def __init__(self, offloader: Offloader) -> None:
        self.offloader = offloader

    def __deepcopy__(self, memo: Any) -> Self:
        return self


def _offloader_of(context: Mapping[str, Any], own: Offloader) -> Offloader:
    run = context.get(_KEY)
    if run is None:
        return own
    if not isinstance(run, _RunSession):
        raise ConfigError(
            f"hook_context[{_KEY!r}] must be from OffloadToolset.context(session), got {type(run).__name__}"
        )
    return run.offloader


class _RetrievalTool(Tool):
    """A retrieval tool that answers calls with any arguments, also one named `self`."""

    def invoke(self, /, **arguments: Any) -> Any:
        return self.function(**arguments)

    async def invoke_async(self, /, **arguments: Any) -> Any:
        return await in_thread(partial(self.invoke, **arguments))


def _tool(definition: Mapping[str, Any], own: Offloader) -> Tool:
    # The agent overwrites an argument `state` of a model.
    def answer(state: State, **arguments: Any) -> str:
        offloader = _offloader_of(state.data.get("hook_context") or {}, own)
        return offloader.tools.call(definition["name"], arguments)

    names = ("name", "description", "input_schema")
    return _RetrievalTool(*(definition[name] for name in names), answer)


def _instructed(messages: list[ChatMessage], prompt: str) -> list[ChatMessage]:
    systems = [message for message in messages if message.is_from("system")]
    if any(prompt in (message.text or "") for message in systems):
        return messages
    if not systems or messages[0] is not systems[0]:
        return [ChatMessage.from_system(prompt), *messages]
    content = [TextContent(f"{systems[0].text}\n\n{prompt}")]
    return [replace(systems[0], _content=content), *messages[1:]]


def _plain(name: str, value: Any) -> Any:
    """Return an argument as plain data. Raises `ConfigError` if it cannot be in a file."""
    value = fspath(value) if isinstance(value, PathLike) else value
    value = value.model_dump(mode="json") if isinstance(value, OffloadPolicy) else value
    try:
        if name != "storage_options":
            return json.loads(json.dumps(value))
    except TypeError:
        pass
    raise ConfigError(f"{name} cannot be serialized; set it on the loaded toolset's constructor instead")


def _model(messages: Sequence[ChatMessage]) -> Any:
    """Return the name of the model that gave all replies, None if there is none or more than one."""
    names = {str(message.meta.get("model") or "") for message in messages if message.is_from("assistant")}
    return names.pop() if len(names) == 1 else None


def _blocks_of(message: ChatMessage) -> dict[str, Any]:
    """Return a message in the Bedrock Converse format, one block per part."""
    role = message.role.value
    content = [block for part in _parts(message) for block in _blocks(part)]
    return {"role": "user" if role == "tool" else role, "content": content or [fixed_block()]}


def _message_of(
    message: ChatMessage, old: dict[str, Any], new: dict[str, Any], meta: Mapping[str, Any] | None = None
) -> ChatMessage:
    if new is old:
        return message
    pairs = [(part, _blocks(part)) for part in _parts(message)]
    parts = changed_parts(pairs, new["content"], _with_block, _built)
    return replace(message, _content=parts, _meta={**message.meta, **(meta or {})})


def _parts(message: ChatMessage) -> Any:
    return message._content  # noqa: SLF001 # the public properties lose the order of the parts


def _blocks(part: Any) -> list[dict[str, Any]]:
    """Return the blocks of a part: one, or more if it has several signatures."""
    signatures = _signatures(part)
    return signed_blocks(part.reasoning_text, signatures, part.to_dict()) if signatures else [_block(part)]


def _signatures(part: Any) -> list[str]:
    """Return the signatures of the thinking in a part, by Anthropic's generator and Bedrock's."""
    if not isinstance(part, ReasoningContent):
        return []
    contents = [each.get("reasoning_content") or {} for each in part.extra.get("reasoning_contents") or ()]
    found = [
        (each.get("reasoning_text") or {}).get("signature") or each.get("redacted_thinking")
        for each in contents
    ]
    return [each for each in (*found, part.extra.get("signature")) if each]


def _built(block: dict[str, Any]) -> Any:
    return ReasoningContent.from_dict(block[PART]) if PART in block else TextContent(block["text"])


def _block(part: Any) -> dict[str, Any]:
    match part:
        case TextContent():
            return {"text": part.text}
        case ToolCall():
            return call_block(_call_id(part), part.tool_name, part.arguments)
        case ToolCallResult():
            content = [_result_block(i, each) for i, each in enumerate(_contents(part))]
            return result_block(_call_id(part.origin), content, is_error=part.error)
        case ReasoningContent():
            return fixed_block(part.reasoning_text)
    return fixed_block()


def _with_block(part: Any, block: dict[str, Any]) -> Any:
    """Return a part with its block replaced, the inverse of `_block`."""
    match part:
        case ToolCall():
            return replace(part, arguments=block["toolUse"]["input"])
        case ToolCallResult(result=str()):
            return replace(part, result=block["toolResult"]["content"][0]["text"])
        case ToolCallResult():
            contents = zip(part.result, block["toolResult"]["content"], strict=True)
            return replace(part, result=[_result_value(each, changed) for each, changed in contents])
    return replace(part, text=block["text"])


def _contents(part: ToolCallResult) -> Sequence[Any]:
    return [TextContent(part.result)] if isinstance(part.result, str) else part.result


def _result_block(index: int, value: Any) -> dict[str, Any]:
    return {"text": value.text} if isinstance(value, TextContent) else {"kept": index}


def _result_value(value: Any, block: dict[str, Any]) -> Any:
    return replace(value, text=block["text"]) if "text" in block else value


def _call_id(call: ToolCall) -> str:
    """Return the id of a call; some models give none."""
    return str(call.id or call.tool_name)


class OffloadToolResultStore(ToolResultStore):
    """Haystack's `ToolResultStore` on any store, for its `ToolResultOffloadHook` and compactor.

    Texts and bytes are stored, and different contents never share a reference, also under one key.

    `store`, `storage_options` and errors are those of `offload.Offloader`. The default is a new session;
    other sessions cannot read the results.
    """

    supports_binary_content = True

    def __init__(
        self, store: Any = None, *, session: str | None = None, storage_options: StorageOptions = None
    ) -> None:
        self._arguments = {"store": store, "session": session, "storage_options": storage_options}
        name = new_name() if session is None else check_name(session)
        self._objects = ObjectStore(store, FILE, name, storage_options)

    def write(self, *, key: str, content: str | bytes) -> str:
        """Store `content`; return its reference, which ends in `key`. Raises `StoreError`."""
        kind, data = ("text", encode_text(content)) if isinstance(content, str) else ("bytes", content)
        name = f"{kind}-{hashlib.sha256(data).hexdigest()[:16]}/{key}"
        self._objects.put(name, data)
        return name

    def read(self, reference: str) -> str | bytes:
        """Return the content of a reference.

        Raises `FileNotFoundError` for an unknown one, `CorruptError` and `StoreError`.
        """
        data = self._objects.get(reference)
        if data is None:
            raise FileNotFoundError(f"no tool result is stored under {reference!r:.80}")
        return decode_text(data) if reference.startswith("text-") else data

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments for a pipeline's file; `ConfigError` as for `OffloadToolset.to_dict`."""
        given = {name: _plain(name, value) for name, value in self._arguments.items() if value is not None}
        return dict(default_to_dict(self, **given))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> OffloadToolResultStore:
        """Return the store of `to_dict`. Raises `ConfigError` for invalid arguments."""
        return default_from_dict(cls, data)  # type: ignore[no-any-return] # mypy does not see the framework
