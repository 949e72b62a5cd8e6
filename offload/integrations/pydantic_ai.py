"""pydantic-ai: offloading as a capability of an agent, and an overflow store for the harness."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Unpack

from pydantic import TypeAdapter

from offload.agent._refusals import repairs
from offload.base.threads.calls import in_thread
from offload.engine.settings.options import SessionArguments
from offload.errors import CorruptError, needs_extra
from offload.integrations._objects import ObjectStore, StorageOptions
from offload.integrations._parts import changed_parts
from offload.integrations._sessions import Sessions, agent_named
from offload.messages.bedrock import PART, call_block, fixed_block, result_block, signed_blocks
from offload.offloader import Offloader
from offload.reading.tools.answers import error_for_model
from offload.storage.layout import FILE

with needs_extra("pydantic-ai"):
    from pydantic_ai import RunContext, Tool, exceptions, messages as sdk
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.toolsets import FunctionToolset

_THINKING = TypeAdapter(sdk.ThinkingPart)
# Before release 2.64, which the harness does not take yet, no request is sent twice.
_SendAgain = getattr(exceptions, "RetryModelRequest", None)

__all__ = ["OffloadCapability", "OffloadOverflowStore"]


class _Caller(NamedTuple):
    """The run whose tool runs: its conversation, and the outermost run."""

    conversation: str | None
    outermost: str | None


_caller: ContextVar[_Caller | None] = ContextVar("offload_pydantic_ai_caller", default=None)


class OffloadCapability(AbstractCapability[Any]):
    """Offloads the messages of an agent, with one session per conversation.

    Tool results, prompts and tool-call arguments are offloaded just before a model request, and at the end of
    a run that waits for deferred tool calls, in the run's history too. Files in them are kept, as are parts
    that the framework reads: results of tools with a kind, native tools and system prompts.

    Arguments and errors are those of `Offloader`. Without `session`, the `conversation_id`, which messages
    carry from run to run, is the session name. An agent that a tool runs continues the conversation of the
    tool's run, unless it is given another one.
    """

    def __init__(self, store: Any = None, **options: Unpack[SessionArguments]) -> None:
        self._conversations = Sessions(store, **options)

    def offloader(self, conversation: str | None = None) -> Offloader:
        """Return the `Offloader` of a conversation, or of messages without one."""
        return self._conversations.named(conversation)

    def restore(self, messages: Sequence[sdk.ModelMessage]) -> list[sdk.ModelMessage]:
        """Return the messages of a conversation with every placeholder replaced by its content.

        A result that was not a text is restored from its JSON: a pydantic model as a dict. Errors are those
        of `Offloader.restore`.
        """
        ids = (message.conversation_id for message in reversed(messages))
        offloader = self.offloader(next(filter(None, ids), None))
        converted = [_blocks_of(message) for message in messages]
        return list(map(_message_of, messages, converted, offloader.restore(converted)))

    def get_instructions(self) -> str:
        """Return the instructions on placeholders for the model."""
        return self._conversations.own.prompt()

    def get_toolset(self) -> FunctionToolset[Any]:
        """Return the retrieval tools."""
        return FunctionToolset(
            [
                Tool.from_schema(
                    partial(self._answer, tool["name"]),
                    tool["name"],
                    tool["description"],
                    tool["input_schema"],
                    takes_ctx=True,
                )
                for tool in self._conversations.own.tools.definitions()
            ]
        )

    def get_default_conversation_id(self, run_id: str) -> str | None:  # noqa: ARG002 # the framework's signature
        """Return the conversation of the run whose tool starts this one, or None."""
        caller = _caller.get()
        return None if caller is None else caller.conversation

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: Any,  # noqa: ARG002 # the framework's signature
        tool_def: Any,  # noqa: ARG002  # pydantic-ai passes it by name
        args: Any,
        handler: Any,
    ) -> Any:
        """Run a tool; an agent that it runs continues the conversation."""
        outer = _caller.get()
        outermost = ctx.run_id if outer is None else outer.outermost
        token = _caller.set(_Caller(ctx.conversation_id, outermost))
        try:
            return await handler(args)
        finally:
            _caller.reset(token)

    async def before_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        """Offload the messages of the request, and replace changed ones in the run's history too."""
        before = request_context.messages
        reply = next(
            (message for message in reversed(before) if isinstance(message, sdk.ModelResponse)), None
        )
        if reply is not None:
            self._of_run(ctx).report_usage(reply)
        model = request_context.model.model_name
        request_context.messages = await self._offloaded(ctx, before, ctx.messages, model)
        return request_context

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: Any, error: Exception
    ) -> Any:
        """Have a request sent once more whose thinking the provider refused, without what it refused."""
        sent = [_blocks_of(message) for message in request_context.messages]
        is_first = getattr(request_context, "attempt", 1) == 1
        is_repaired = is_first and await in_thread(repairs, self._of_run(ctx), sent, error)
        raise _SendAgain() if is_repaired and _SendAgain else error

    async def prepare_model_request(self, ctx: RunContext[Any], request_context: Any) -> Any:
        """Offload the messages again for a second attempt, as after a repair."""
        if request_context.attempt > 1:
            given, model = request_context.messages, request_context.model.model_name
            request_context.messages = await self._offloaded(ctx, given, ctx.messages, model)
        return request_context

    async def after_run(self, ctx: RunContext[Any], *, result: Any) -> Any:
        """Offload results that the model has not seen, as of a run that waits for deferred tool calls."""
        history = result.all_messages()
        if history and isinstance(history[-1], sdk.ModelRequest):
            await self._offloaded(ctx, list(history), history, ctx.model.model_name)
        return result

    async def _offloaded(
        self,
        ctx: RunContext[Any],
        before: list[sdk.ModelMessage],
        history: list[sdk.ModelMessage],
        model: str,
    ) -> list[sdk.ModelMessage]:
        """Return messages with placeholders, which replace them in the run's history too."""
        converted = [_blocks_of(message) for message in before]
        offloader = self._of_run(ctx)
        agent = agent_named(offloader, ctx.agent and ctx.agent.name)
        out = await offloader.aoffload(converted, model=model, agent_name=agent)
        after = list(map(_message_of, before, converted, out.messages))
        changed = {id(old): new for old, new in zip(before, after, strict=True) if new is not old}
        if changed:
            history[:] = [changed.get(id(message), message) for message in history]
        return after if changed else before

    # Positional only: a model may send arguments named `self` or `ctx`.
    async def _answer(self, name: str, ctx: RunContext[Any], /, **arguments: Any) -> str:
        return await in_thread(self._of_run(ctx).tools.call, name, arguments)

    def _of_run(self, ctx: RunContext[Any]) -> Offloader:
        """Return the `Offloader` of a run; an agent that a tool runs has messages of its own."""
        caller = _caller.get()
        is_outermost = caller is None or caller.outermost == ctx.run_id
        agent = "" if is_outermost else f"agent {ctx.agent and ctx.agent.name}"
        return self._conversations.named(ctx.conversation_id, agent)


def _blocks_of(message: sdk.ModelMessage) -> dict[str, Any]:
    """Return a message in the Bedrock Converse format, in which results may be JSON."""
    role = "assistant" if isinstance(message, sdk.ModelResponse) else "user"
    return {"role": role, "content": [block for part in message.parts for block in _part_blocks(part)]}


def _message_of(message: sdk.ModelMessage, old: dict[str, Any], new: dict[str, Any]) -> sdk.ModelMessage:
    if new is old:
        return message
    if isinstance(message, sdk.ModelResponse):
        pairs = [(part, _part_blocks(part)) for part in message.parts]
        return replace(message, parts=changed_parts(pairs, new["content"], _with_blocks, _built))
    old_blocks, new_blocks, parts = iter(old["content"]), iter(new["content"]), []
    for part in message.parts:
        count = len(_part_blocks(part))
        blocks = list(islice(new_blocks, count))
        parts.append(part if blocks == list(islice(old_blocks, count)) else _with_blocks(part, *blocks))
    return replace(message, parts=parts)


def _built(block: dict[str, Any]) -> sdk.ModelResponsePart:
    return _THINKING.validate_python(block[PART]) if PART in block else sdk.TextPart(block["text"])


def _part_blocks(part: Any) -> list[dict[str, Any]]:
    """Return the blocks of a part: one, or one per element of a user prompt."""
    match part:
        case sdk.UserPromptPart(content=str(text)) | sdk.TextPart(content=text):
            return [{"text": text}]
        case sdk.UserPromptPart(content=contents):
            return [{"text": each} if isinstance(each, str) else fixed_block() for each in contents]
        case sdk.ToolCallPart(tool_kind=None):
            return [call_block(part.tool_call_id, part.tool_name, part.args)]
        case sdk.ToolReturnPart(tool_kind=None):
            content = [_result_block(i, each) for i, each in enumerate(_contents(part))]
            return [result_block(part.tool_call_id, content, is_error=part.outcome != "success")]
        case sdk.ThinkingPart(content=text, signature=signature):
            whole = _THINKING.dump_python(part, mode="json")
            return signed_blocks(text, [signature], whole) if signature else [fixed_block(text)]
    return [fixed_block()]


def _with_blocks(part: Any, *blocks: dict[str, Any]) -> Any:
    """Return a part with its blocks replaced, the inverse of `_part_blocks`."""
    match part:
        case sdk.UserPromptPart(content=list() | tuple() as contents):
            pairs = zip(contents, blocks, strict=True)
            return replace(part, content=[block.get("text", each) for each, block in pairs])
        case sdk.ToolCallPart():
            return replace(part, args=blocks[0]["toolUse"]["input"])
        case sdk.ToolReturnPart():
            contents = _contents(part)
            values = [_result_value(block, contents) for block in blocks[0]["toolResult"]["content"]]
            return replace(part, content=values if part.files else values[0])
    return replace(part, content=blocks[0]["text"])


def _contents(part: sdk.ToolReturnPart) -> list[Any]:
    """Return the values of a result: one, or files and the values next to them."""
    return list(part.content) if part.files and isinstance(part.content, list) else [part.content]


def _result_block(index: int, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"text": value}
    if value is None or sdk.is_multi_modal_content(value):
        return {"kept": index}
    try:
        return {"json": sdk.tool_return_ta.dump_python(value, mode="json", by_alias=True)}
    except Exception:  # noqa: BLE001 # a caller's value may raise anything; keep it
        return {"kept": index}


def _result_value(block: dict[str, Any], contents: list[Any]) -> Any:
    if "kept" in block:
        return contents[block["kept"]]
    return block["text"] if "text" in block else block["json"]


class OffloadOverflowStore:
    """The harness's `OverflowStore` on any store: `ToolOutputLimits(store=OffloadOverflowStore(url))`.

    `store`, `storage_options` and errors are those of `Offloader`. Other namespaces do not see the data.
    """

    def __init__(
        self, store: Any = None, *, namespace: str = "tool-output", storage_options: StorageOptions = None
    ) -> None:
        self._objects = ObjectStore(store, FILE, namespace, storage_options)

    async def write(self, key: str, data: bytes) -> str:
        """Store `data` under `key`, overwriting what exists; return the key. Raises `StoreError`."""
        await in_thread(self._objects.put, key, data)
        return key

    async def read(self, handle: str) -> bytes:
        """Return the data stored under `handle`.

        Raises `FileNotFoundError`, and `OSError` if the data is damaged or the store failed (`StoreError`).
        """
        try:
            data = await in_thread(self._objects.get, handle)
        except CorruptError as error:
            raise OSError(error_for_model(error)) from error
        if data is None:
            raise FileNotFoundError(f"no data is stored under {handle!r:.80}")
        return data
