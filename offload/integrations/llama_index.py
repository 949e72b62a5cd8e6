"""LlamaIndex: offloading in a function-calling agent, alone or in an agent workflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Unpack

from offload.base.threads.calls import in_thread
from offload.engine.settings.options import SessionArguments
from offload.errors import needs_extra
from offload.integrations._parts import changed_parts
from offload.integrations._sessions import Sessions, agent_named, model_named
from offload.messages.bedrock import PART, call_block, fixed_block, result_block, signed_blocks
from offload.offloader import Offloader
from offload.records.session.names import new_name

with needs_extra("llama-index"):
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.core.base.llms.types import ChatMessage, TextBlock, ThinkingBlock, ToolCallBlock
    from llama_index.core.bridge.pydantic import Field
    from llama_index.core.tools import FunctionTool, ToolMetadata
    from llama_index.core.workflow import Context

# Where a workflow's context has the name of its session, and where LlamaIndex has the results of the run.
_KEY = "offload_session"
_RESULTS = "current_tool_calls"
_ROLES = {"chatbot": "assistant", "model": "assistant", "developer": "system"}
_RESULT_ROLES = ("tool", "function")

__all__ = ["OffloadContexts", "OffloadFunctionAgent"]


class OffloadContexts:
    """The sessions of workflow contexts, which the agents of a program share.

    Arguments and errors are those of `Offloader`. Without `session`, the session is that of the context's
    store (`offload_session`), else the `session_id` of the memory, else a new one, noted in the store.

    Attributes:
        tools: the retrieval tools, which `OffloadFunctionAgent` adds.
    """

    def __init__(self, store: Any = None, **options: Unpack[SessionArguments]) -> None:
        self._sessions = Sessions(store, **options)
        self.prompt: str = self._sessions.own.prompt()
        self.tools = [self._tool(each) for each in self._sessions.own.tools.definitions()]

    async def offloader(self, ctx: Any, memory: Any = None) -> Offloader:
        """Return the `Offloader` of a context, which gets a session if it has none."""
        if self._sessions.session is not None:
            return self._sessions.own
        name = await ctx.store.get(_KEY, default=None)
        if name is None:
            name = getattr(memory, "session_id", None) or new_name()
            await ctx.store.set(_KEY, name)
        return self._sessions.named(name)

    async def restore(self, ctx: Any, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return messages of a context with every placeholder replaced by its content.

        Errors are those of `Offloader.restore`.
        """
        converted = [_blocks_of(message) for message in messages]
        restored = await (await self.offloader(ctx)).arestore(converted)
        return list(map(_message_of, messages, converted, restored))

    def _tool(self, definition: Mapping[str, Any]) -> FunctionTool:
        # The agent sets the context, whichever arguments a model sends.
        async def answer(ctx: Any, **arguments: Any) -> str:
            return await in_thread((await self.offloader(ctx)).tools.call, definition["name"], arguments)

        answer.__annotations__["ctx"] = Context
        return FunctionTool(async_fn=answer, metadata=_Metadata(definition))


class _Metadata(ToolMetadata):
    def __init__(self, definition: Mapping[str, Any]) -> None:
        super().__init__(definition["description"], definition["name"], fn_schema=None)
        self._schema = definition["input_schema"]

    def get_parameters_dict(self) -> dict[str, Any]:
        return dict(self._schema)


class OffloadFunctionAgent(FunctionAgent):
    """A `FunctionAgent` whose requests are offloaded, with the retrieval tools and their instructions.

    Before each request, placeholders replace the large items of the run in the context, which the memory
    gets when the run ends, and in the results of the run (`output.tool_calls`). Items of earlier runs are
    replaced only in the request. Errors and results of tools with `return_direct` are kept.

    Args:
        offloading: the sessions; agents that share it, in one workflow too, share the session of a context.
        tools: your own tools.
        **options: the other arguments of `FunctionAgent`.
    """

    offloading: Any = Field(default=None, exclude=True)

    def __init__(
        self, *, offloading: OffloadContexts, tools: Iterable[Any] | None = None, **options: Any
    ) -> None:
        super().__init__(tools=[*(tools or ()), *offloading.tools], offloading=offloading, **options)

    async def take_step(self, ctx: Any, llm_input: Any, tools: Any, memory: Any) -> Any:
        """Take a step with the offloaded messages; called by the workflow."""
        offloader = await self.offloading.offloader(ctx, memory)
        results = await ctx.store.get(_RESULTS, default=[])
        run = await ctx.store.get(self.scratchpad_key, default=[])
        before = [*llm_input, *run]
        known = {block.tool_call_id for m in before for block in m.blocks if isinstance(block, ToolCallBlock)}
        # A later run does not have these results: only messages without calls need the names.
        names = {each.tool_id: each.tool_name for each in results if each.tool_id not in known}
        converted = [_blocks_of(message, names) for message in before]
        errors = [each.tool_id for each in results if each.tool_output.is_error]
        model = model_named(offloader, getattr(self.llm.metadata, "model_name", None))
        agent = agent_named(offloader, self.name)
        out = await offloader.aoffload(converted, pinned=errors, model=model, agent_name=agent)
        after = list(map(_message_of, before, converted, out.messages))
        request, new_run = after[: len(llm_input)], after[len(llm_input) :]
        changed = {_call_id(new): new for old, new in zip(run, new_run, strict=True) if new is not old}
        if changed:
            await ctx.store.set(self.scratchpad_key, new_run)
            await ctx.store.set(
                _RESULTS, [_with_message(each, changed.get(each.tool_id)) for each in results]
            )
        return await super().take_step(ctx, _instructed(request, self.offloading.prompt), tools, memory)


def _with_message(result: Any, message: ChatMessage | None) -> Any:
    """Return a result of the run with the blocks of its message, if they were replaced."""
    if message is None:
        return result
    output = result.tool_output.model_copy(update={"blocks": message.blocks, "raw_output": message.content})
    return result.model_copy(update={"tool_output": output})


def _instructed(messages: list[ChatMessage], prompt: str) -> list[ChatMessage]:
    if not messages or messages[0].role.value != "system":
        return [ChatMessage(role="system", content=prompt), *messages]
    first = messages[0].model_copy(update={"blocks": [*messages[0].blocks, TextBlock(text=prompt)]})
    return [first, *messages[1:]]


def _call_id(message: ChatMessage) -> str:
    return message.additional_kwargs.get("tool_call_id") or ""


def _blocks_of(message: ChatMessage, names: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return a message in the Bedrock Converse format, one block per block, or in one tool result."""
    role = message.role.value
    if role not in _RESULT_ROLES:
        blocks = [each for block in message.blocks for each in _blocks(block)]
        return {"role": _ROLES.get(role, role), "content": blocks or [fixed_block()]}
    call = _call_id(message)
    contents = [
        {"text": each.text} if isinstance(each, TextBlock) else {"kept": i}
        for i, each in enumerate(message.blocks)
    ]
    # The messages of some models do not have their calls.
    use = [call_block(call, names[call], {})] if call in names else []
    return {"role": "user", "content": [*use, result_block(call, contents)]}


def _message_of(message: ChatMessage, old: dict[str, Any], new: dict[str, Any]) -> ChatMessage:
    if new is old:
        return message
    if message.role.value in _RESULT_ROLES:
        contents = new["content"][-1]["toolResult"]["content"]
        return message.model_copy(update={"blocks": list(map(_with_block, message.blocks, contents))})
    pairs = [(block, _blocks(block)) for block in message.blocks]
    return message.model_copy(update={"blocks": changed_parts(pairs, new["content"], _with_block, _built)})


def _blocks(block: Any) -> list[dict[str, Any]]:
    """Return a block of LlamaIndex as a block of this format."""
    if isinstance(block, ThinkingBlock) and block.additional_information.get("signature"):
        signature = block.additional_information["signature"]
        return signed_blocks(block.content or "", [signature], block.model_dump(mode="json"))
    return [_block(block)]


def _built(block: dict[str, Any]) -> Any:
    return ThinkingBlock.model_validate(block[PART]) if PART in block else TextBlock(text=block["text"])


def _block(block: Any) -> dict[str, Any]:
    match block:
        case TextBlock():
            return {"text": block.text}
        case ToolCallBlock():
            return call_block(block.tool_call_id, block.tool_name, block.tool_kwargs)
        case ThinkingBlock():
            return fixed_block(block.content or "")
    return fixed_block()


def _with_block(block: Any, new: dict[str, Any]) -> Any:
    """Return a block with the text or arguments of `new`, the inverse of `_block`."""
    match block:
        case TextBlock() if block.text != new["text"]:
            return block.model_copy(update={"text": new["text"]})
        case ToolCallBlock() if block.tool_kwargs != new["toolUse"]["input"]:
            return block.model_copy(update={"tool_kwargs": new["toolUse"]["input"]})
    return block
