"""pydantic-ai: offloading as a capability of an agent, and a store for the harness's spilled results.

    agent = Agent(model, tools=[query_sales], capabilities=[OffloadCapability("s3://bucket/prefix")])

What leaves does so just before a model request, in the history of the run too: `all_messages()` holds
placeholders. The model gets the tools that read back, and the instructions that explain them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Unpack

from offload.errors import CorruptError, MissingExtraError, NotFoundError
from offload.integrations._objects import ObjectStore
from offload.integrations._sessions import Sessions
from offload.layout import FILE
from offload.offloader import Offloader
from offload.options import OptionArguments
from offload.registry import open_store
from offload.threads import in_thread

try:
    from pydantic_ai import RunContext, Tool
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import (
        ModelMessage,
        ModelResponse,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
        is_multi_modal_content,
        tool_return_ta,
    )
    from pydantic_ai.toolsets import FunctionToolset
except ImportError as error:
    raise MissingExtraError(f"{error}; it comes with: pip install 'offload[pydantic-ai]'") from error

__all__ = ["OffloadCapability", "OffloadOverflowStore"]


class OffloadCapability(AbstractCapability[Any]):
    """Offloads the messages of an agent, each conversation's in a session of its own.

    The caller's policy decides as anywhere. Results and prompts leave, and arguments of calls; files in
    them stay, and what the framework itself reads: results of tools of a kind, native tools, system prompts.

    Args:
        store: as for `Offloader`.
        session: the session of every conversation; without one a run's `conversation_id`, which its
            messages carry from run to run, is the name of its session.
        storage_options: as for `Offloader`.
        options: what else an `Offloader` takes: `policy`, `on_error`, `redact` and so on.

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
        self._conversations = Sessions(store, session, storage_options, options)

    def offloader(self, conversation: str | None = None) -> Offloader:
        """Return the `Offloader` of a conversation, or of what has none.

        Raises:
            ConfigError: no session can have the conversation's id for a name.
        """
        return self._conversations.named(conversation)

    def restore(self, messages: Sequence[ModelMessage]) -> list[ModelMessage]:
        """Return the messages of a conversation with every placeholder replaced by what it stands for.

        A result that was no text comes back as its JSON does: a model of pydantic as a dict.

        Raises:
            ExpiredError: what a placeholder stands for was collected.
            CorruptError: a record is damaged.
            StoreError: the store could not be read.
        """
        ids = (message.conversation_id for message in reversed(messages))
        offloader = self.offloader(next(filter(None, ids), None))
        given = [_blocks_of(message) for message in messages]
        return list(map(_message_of, messages, given, offloader.restore(given)))

    def get_instructions(self) -> str:
        """Return the lines that tell the model how to work with placeholders."""
        return self._conversations.own.prompt()

    def get_toolset(self) -> FunctionToolset[Any]:
        """Return the tools that read back."""
        return FunctionToolset(
            [
                Tool.from_schema(
                    partial(self._answer, told["name"]),
                    told["name"],
                    told["description"],
                    told["input_schema"],
                    takes_ctx=True,
                )
                for told in self._conversations.own.tools.definitions()
            ]
        )

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        """Replace what leaves in the request, and in the history of the run where it stands there too."""
        sent = request_context.messages
        given = [_blocks_of(message) for message in sent]
        out = await self.offloader(ctx.conversation_id).aoffload(given)
        new = list(map(_message_of, sent, given, out.messages))
        left = {id(was): now for was, now in zip(sent, new, strict=True) if now is not was}
        if left:
            ctx.messages[:] = [left.get(id(message), message) for message in ctx.messages]
            request_context.messages = new
        return request_context

    # A model may call an argument `self` or `ctx`.
    async def _answer(self, name: str, ctx: RunContext[Any], /, **arguments: Any) -> str:
        return await in_thread(self.offloader(ctx.conversation_id).tools.call, name, arguments)


def _blocks_of(message: ModelMessage) -> dict[str, Any]:
    """Return a message in the format of Bedrock Converse, where JSON is a result too."""
    role = "assistant" if isinstance(message, ModelResponse) else "user"
    return {"role": role, "content": [block for part in message.parts for block in _part_blocks(part)]}


def _message_of(message: ModelMessage, given: dict[str, Any], made: dict[str, Any]) -> ModelMessage:
    """Return `message` with the blocks `made` in the place of `given`."""
    if made is given:
        return message
    was, now, parts = iter(given["content"]), iter(made["content"]), []
    for part in message.parts:
        count = len(_part_blocks(part))
        blocks = list(islice(now, count))
        parts.append(part if blocks == list(islice(was, count)) else _with_blocks(part, blocks))
    return replace(message, parts=parts)


def _part_blocks(part: Any) -> list[dict[str, Any]]:
    """Return the blocks of a part: one, or one for each thing in a user's prompt."""
    match part:
        case UserPromptPart(content=str(text)) | TextPart(content=text):
            return [{"text": text}]
        case UserPromptPart(content=contents):
            return [{"text": each} if isinstance(each, str) else _fixed() for each in contents]
        case ToolCallPart(tool_kind=None):
            call = {"toolUseId": part.tool_call_id, "name": part.tool_name, "input": part.args}
            return [{"toolUse": call}]
        case ToolReturnPart(tool_kind=None):
            status = "success" if part.outcome == "success" else "error"
            content = [_result_block(i, each) for i, each in enumerate(_contents(part))]
            return [{"toolResult": {"toolUseId": part.tool_call_id, "content": content, "status": status}}]
        case ThinkingPart():
            return [_fixed(part.content)]
    return [_fixed()]


def _with_blocks(part: Any, blocks: list[dict[str, Any]]) -> Any:
    """Return a part with its blocks replaced, the inverse of `_part_blocks`."""
    match part:
        case UserPromptPart(content=list() | tuple() as contents):
            pairs = zip(contents, blocks, strict=True)
            return replace(part, content=[block.get("text", each) for each, block in pairs])
        case ToolCallPart():
            return replace(part, args=blocks[0]["toolUse"]["input"])
        case ToolReturnPart():
            contents = _contents(part)
            values = [_result_value(block, contents) for block in blocks[0]["toolResult"]["content"]]
            return replace(part, content=values if part.files else values[0])
    return replace(part, content=blocks[0]["text"])


def _fixed(text: str = "") -> dict[str, Any]:
    """Return a block that is counted and never leaves."""
    return {"reasoningContent": {"reasoningText": {"text": text}}}


def _contents(part: ToolReturnPart) -> list[Any]:
    """Return what a result holds: one value, or files and what stands beside them."""
    return list(part.content) if part.files and isinstance(part.content, list) else [part.content]


def _result_block(index: int, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"text": value}
    if value is None or is_multi_modal_content(value):
        return {"kept": index}
    try:
        return {"json": tool_return_ta.dump_python(value, mode="json", by_alias=True)}
    except Exception:  # noqa: BLE001 # a value of the caller's own may refuse in any way: it stays
        return {"kept": index}


def _result_value(block: dict[str, Any], contents: list[Any]) -> Any:
    if "kept" in block:
        return contents[block["kept"]]
    return block["text"] if "text" in block else block["json"]


class OffloadOverflowStore:
    """The harness's `OverflowStore`, on any store: `ToolOutputLimits(store=OffloadOverflowStore(url))`.

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
        namespace: str = "tool-output",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._objects = ObjectStore(open_store(store, storage_options=storage_options), FILE, namespace)

    async def write(self, key: str, data: bytes) -> str:
        """Store `data` under `key`, in the place of what is there; return the key. Raises `StoreError`."""
        await in_thread(self._objects.put, key, data)
        return key

    async def read(self, handle: str) -> bytes:
        """Return what is stored under `handle`.

        Raises:
            FileNotFoundError: nothing is.
            OSError: it is damaged; `StoreError`, which is one, if the store failed.
        """
        try:
            return await in_thread(self._objects.get, handle)
        except NotFoundError as error:
            raise FileNotFoundError(str(error)) from error
        except CorruptError as error:
            raise OSError(str(error)) from error
