"""The SDK's tool runner: retrieval tools, and offloading of its conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any, cast

from anthropic.lib.streaming import BetaAsyncMessageStream, BetaMessageStream
from anthropic.lib.tools import (
    BetaAsyncBuiltinFunctionTool,
    BetaAsyncStreamingToolRunner,
    BetaAsyncToolRunner,
    BetaBuiltinFunctionTool,
    BetaStreamingToolRunner,
    BetaToolRunner,
    ToolError,
)
from anthropic.types.beta import BetaToolParam

from offload.integrations._sessions import is_error
from offload.offloader import Offloader
from offload.threads import in_thread


def tools(offloader: Offloader) -> list[BetaBuiltinFunctionTool]:
    """Return the retrieval tools of `offloader` for the tool runner of `Anthropic`."""
    return [_RetrievalTool(offloader, tool) for tool in offloader.tools.definitions()]


def async_tools(offloader: Offloader) -> list[BetaAsyncBuiltinFunctionTool]:
    """Return the retrieval tools of `offloader` for the tool runner of `AsyncAnthropic`."""
    return [_AsyncRetrievalTool(offloader, tool) for tool in offloader.tools.definitions()]


def offloaded(
    runner: BetaToolRunner[Any] | BetaStreamingToolRunner[Any], offloader: Offloader
) -> Iterator[Any]:
    """Iterate over `runner`, and offload its messages before each request.

    Use this instead of iterating over the runner. Placeholders replace items in the runner's own history. A
    tool runs once, after the loop body for the message with its call. Errors are those of
    `Offloader.offload`.
    """
    first = offloader.offload(_history(runner))
    runner.set_messages_params(partial(_sent, messages=first.messages))
    for item in runner:
        yield item
        reply = item.get_final_message() if isinstance(item, BetaMessageStream) else item
        # The calls of a truncated message never run.
        results = runner.generate_tool_call_response() if reply.stop_reason == "tool_use" else None
        if results is not None:
            history = _history(runner)
            out = offloader.offload([*history, reply.to_param(), results])
            _take_over(runner, history, out.messages, results)


async def aoffloaded(
    runner: BetaAsyncToolRunner[Any] | BetaAsyncStreamingToolRunner[Any], offloader: Offloader
) -> AsyncIterator[Any]:
    """Iterate over a runner of `AsyncAnthropic` as `offloaded` does, using the store in a thread."""
    first = await offloader.aoffload(_history(runner))
    runner.set_messages_params(partial(_sent, messages=first.messages))
    async for item in runner:
        yield item
        reply = await item.get_final_message() if isinstance(item, BetaAsyncMessageStream) else item
        results = await runner.generate_tool_call_response() if reply.stop_reason == "tool_use" else None
        if results is not None:
            history = _history(runner)
            out = await offloader.aoffload([*history, reply.to_param(), results])
            _take_over(runner, history, out.messages, results)


def _history(runner: Any) -> list[Any]:
    """Return the messages that the runner sent last, through its only public accessor, a setter."""
    messages: list[Any] = []

    def read(params: Any) -> Any:
        messages.extend(params["messages"])
        return params

    runner.set_messages_params(read)
    return messages


def _take_over(runner: Any, history: list[Any], messages: list[Any], results: Any) -> None:
    """Update the runner's history and tool results after offloading."""
    # `results` is the object that the runner is about to send.
    results["content"] = messages[-1]["content"]
    earlier = messages[: len(history)]
    if any(new is not old for new, old in zip(earlier, history, strict=True)):
        runner.set_messages_params(partial(_sent, messages=earlier))


def _sent(params: Any, messages: list[Any]) -> Any:
    return {**params, "messages": messages}


class _RetrievalTool(BetaBuiltinFunctionTool):
    """A retrieval tool that answers calls with any arguments."""

    def __init__(self, offloader: Offloader, definition: Mapping[str, Any]) -> None:
        self._answer = partial(offloader.tools.call, definition["name"])
        self._definition = definition

    def to_dict(self) -> BetaToolParam:
        return cast("BetaToolParam", dict(self._definition))

    def call(self, input: object) -> str:  # noqa: A002 # the SDK's signature
        answer = self._answer(cast("Mapping[str, Any]", input))
        if is_error(answer):
            raise ToolError(answer)
        return answer


class _AsyncRetrievalTool(BetaAsyncBuiltinFunctionTool):
    """A retrieval tool for `AsyncAnthropic`."""

    def __init__(self, offloader: Offloader, definition: Mapping[str, Any]) -> None:
        self._tool = _RetrievalTool(offloader, definition)

    def to_dict(self) -> BetaToolParam:
        return self._tool.to_dict()

    async def call(self, input: object) -> str:  # noqa: A002 # the SDK's signature
        return await in_thread(self._tool.call, input)
