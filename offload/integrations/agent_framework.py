"""Microsoft Agent Framework: offloading as a context provider of an agent."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, Unpack

from offload.agent._refusals import repairs
from offload.base.threads.calls import in_thread
from offload.engine.settings.options import SessionArguments
from offload.errors import OffloadError, needs_extra
from offload.integrations._parts import changed_parts
from offload.integrations._sessions import Sessions, agent_named, model_named
from offload.messages.bedrock import PART, call_block, fixed_block, result_block, signed_blocks
from offload.messages.calls import main_argument
from offload.messages.thinking import signed_thinking
from offload.offloader import Offloader

with needs_extra("agent-framework"):
    from agent_framework import (
        ChatContext,
        ChatMiddleware,
        ChatResponse,
        Content,
        ContextProvider,
        FunctionInvocationContext,
        FunctionMiddleware,
        FunctionTool,
        Message,
        MiddlewareFailure,
    )

# Names in a usage of Bedrock, whose parser accepts both kinds of clients: those that include cached tokens in
# the input tokens, as the total shows, and those that do not.
_USAGE = {
    "inputTokens": "input_token_count",
    "outputTokens": "output_token_count",
    "totalTokens": "total_token_count",
    "cacheReadInputTokens": "cache_read_input_token_count",
    "cacheWriteInputTokens": "cache_creation_input_token_count",
}

__all__ = ["OffloadProvider"]


class OffloadProvider(ContextProvider):
    """Offloads the messages of agents, with one session per agent session.

    A placeholder replaces the text of a tool result when the tool returns. All other placeholders are only in
    the model's request; the agent session keeps the original. If the service stores the conversation, only
    tool results are offloaded.

    Arguments and errors are those of `Offloader`. Without `session`, the id of the agent session is the
    session name; a run without an agent session has a new one.
    """

    def __init__(self, store: Any = None, **options: Unpack[SessionArguments]) -> None:
        super().__init__("offload")
        self._sessions = Sessions(store, **options)

    def offloader(self, session_id: str | None = None) -> Offloader:
        """Return the `Offloader` of an agent session by its id; without one, that of `session`."""
        return self._sessions.named(session_id)

    def restore(self, messages: Sequence[Message], session_id: str | None = None) -> list[Message]:
        """Return the messages of an agent session with every placeholder replaced by its content.

        Errors are those of `Offloader.restore`.
        """
        converted = list(map(_blocks_of, messages))
        return list(map(_message_of, messages, converted, self.offloader(session_id).restore(converted)))

    async def before_run(self, *, agent: Any, session: Any, context: Any, state: Any) -> None:  # noqa: ARG002 # the framework's signature
        """Add the retrieval tools, the instructions and the middleware to a run."""
        offloader = self.offloader(session.session_id)
        name = agent_named(offloader, getattr(agent, "name", None))
        context.extend_tools(
            self.source_id, [_RetrievalTool(offloader, each) for each in offloader.tools.definitions()]
        )
        context.extend_instructions(self.source_id, offloader.prompt())
        context.extend_middleware(
            self.source_id, [_ResultMiddleware(offloader, name), _RequestMiddleware(offloader, name)]
        )


class _RetrievalTool(FunctionTool):
    def __init__(self, offloader: Offloader, tool: Mapping[str, Any]) -> None:
        # The framework hands a tool without a function to the user.
        self._call = partial(offloader.tools.call, tool["name"])
        super().__init__(
            name=tool["name"],
            description=tool["description"],
            func=self._call,
            input_model=tool["input_schema"],
        )

    async def invoke(self, *, arguments: Any = None, **_: Any) -> list[Content]:
        """Answer a call; the framework would reject wrong arguments without the reason."""
        return [Content.from_text(await in_thread(self._call, arguments))]


class _ResultMiddleware(FunctionMiddleware):
    """Offloads the result of each call before the framework adds it to the messages."""

    def __init__(self, offloader: Offloader, agent: str | None) -> None:
        self._offloader = offloader
        self._agent = agent

    async def process(
        self, context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]
    ) -> None:
        await call_next()
        if isinstance(context.result, Content):  # a request for approval
            return
        # A tool may return any value; the framework makes a text of it.
        items = Content.from_function_result("", result=context.result).items or []
        text = "\n".join(item.text or "" for item in items if item.type == "text")
        try:
            offloaded = await in_thread(self._offloaded, context, text)
        except OffloadError as error:  # any other exception would only replace the result
            raise MiddlewareFailure(str(error)) from error
        if offloaded != text:
            others = (item for item in items if item.type != "text")
            context.result = [Content.from_text(offloaded), *others]

    def _offloaded(self, context: FunctionInvocationContext, text: str) -> str:
        name, arguments = context.function.name, context.arguments
        return self._offloader.offload_text(
            text,
            tool_name=name,
            tool_use_id=context.metadata.get("call_id"),
            file_readers="keep",
            title=main_argument(name, arguments if isinstance(arguments, Mapping) else {}),
            agent_name=self._agent,
        )


class _RequestMiddleware(ChatMiddleware):
    """Offloads the messages of each request to the model, and reports its usage."""

    def __init__(self, offloader: Offloader, agent: str | None) -> None:
        self._offloader = offloader
        self._agent = agent

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        # A service that stores the conversation is sent only what is new.
        is_whole = not (context.options or {}).get("conversation_id")
        given = list(map(_blocks_of, context.messages)) if is_whole else []
        messages = list(context.messages)

        async def send() -> None:
            if is_whole:
                context.messages = await self._outgoing(context, messages, given)
            await call_next()

        async def repair_next() -> None:
            # The framework shows the error of a stream to no hook, and cannot begin it again.
            error = getattr(context.result, "_stream_error", None)
            if isinstance(error, Exception):
                await in_thread(repairs, self._offloader, given, error)

        context.stream_result_hooks.append(self._note)
        context.stream_cleanup_hooks.append(repair_next)
        try:
            await send()
        except Exception as error:
            if not await in_thread(repairs, self._offloader, given, error):
                raise
            await send()
        if isinstance(context.result, ChatResponse):
            self._note(context.result)

    async def _outgoing(
        self, context: ChatContext, before: list[Message], given: list[dict[str, Any]]
    ) -> list[Message]:
        names = (context.options or {}).get("model"), getattr(context.client, "model", None)
        model = model_named(self._offloader, *names)
        out = await self._offloader.aoffload(given, model=model, agent_name=self._agent)
        return list(map(_message_of, before, given, out.messages))

    def _note(self, response: ChatResponse) -> None:
        usage = response.usage_details or {}
        self._offloader.report_usage({name: usage.get(field) for name, field in _USAGE.items()})


def _blocks_of(message: Message) -> dict[str, Any]:
    role = "assistant" if message.role == "assistant" else "user"
    return {"role": role, "content": [b for c in message.contents for b in _blocks(message.role, c)]}


def _blocks(role: str, content: Content) -> list[dict[str, Any]]:
    """Return the blocks of a content: one, or more if it has several signatures."""
    signature = _signature_of(content)
    if signature is not None:
        return signed_blocks(content.text or "", [signature], content.to_dict())
    return [_block_of(role, content)]


def _signature_of(content: Content) -> str | None:
    """Return the signature of reasoning that is bound to what was sent before it, as Anthropic's is.

    That of OpenAI has an id. A router's is a list in JSON, whose parts name their format; it is returned in
    base64, as signatures are.
    """
    data = content.protected_data if content.type == "text_reasoning" else None
    if not data:
        return None
    try:
        details = json.loads(data)
    except ValueError:
        return None if content.id else data
    is_bound = bool(signed_thinking({"reasoning_details": details}))
    return b64encode(data.encode()).decode() if is_bound else None


def _built(block: dict[str, Any]) -> Content:
    return Content.from_dict(block[PART]) if PART in block else Content.from_text(block["text"])


def _block_of(role: str, content: Content) -> dict[str, Any]:
    match content.type:
        case "text" if role in ("user", "assistant"):
            return {"text": content.text or ""}
        case "function_call" if not (content.hosted or content.informational_only):
            return call_block(content.call_id, content.name, content.arguments)
        case "function_result":
            blocks = [_result_block(item) for item in _items(content)]
            return result_block(content.call_id, blocks, is_error=content.exception is not None)
    return fixed_block(content.text or "")


def _message_of(message: Message, old: dict[str, Any], new: dict[str, Any]) -> Message:
    if new is old:
        return message
    changed = copy(message)
    pairs = [(content, _blocks(message.role, content)) for content in message.contents]
    changed.contents = changed_parts(pairs, new["content"], _with_block, _built)
    return changed


def _with_block(content: Content, block: dict[str, Any]) -> Content:
    """Return content with its block replaced, the inverse of `_block_of`."""
    changed = copy(content)
    changed.raw_representation = None
    if "text" in block:
        changed.text = block["text"]
        return changed
    if "toolUse" in block:
        changed.arguments = block["toolUse"]["input"]
        return changed
    blocks = block["toolResult"]["content"]
    media = (item for item in _items(content) if item.type != "text")
    changed.items = [Content.from_text(each["text"]) if "text" in each else next(media) for each in blocks]
    changed.result = "\n".join(each["text"] for each in blocks if each.get("text"))
    return changed


def _items(content: Content) -> Sequence[Content]:
    """Return the items of a result; an older one has only a text."""
    return content.items or [Content.from_text(str(content.result or ""))]


def _result_block(item: Content) -> dict[str, Any]:
    return {"text": item.text or ""} if item.type == "text" else {"kept": item.type}
