"""The tool runner of the SDK: tools that read back, and its conversation offloaded turn by turn."""

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
    """Return the tools that read back what `offloader` stored, for the tool runner of `Anthropic`."""
    return [_RetrievalTool(offloader, told) for told in offloader.tools.definitions()]


def async_tools(offloader: Offloader) -> list[BetaAsyncBuiltinFunctionTool]:
    """Return the tools that read back what `offloader` stored, for the tool runner of `AsyncAnthropic`."""
    return [_AsyncRetrievalTool(offloader, told) for told in offloader.tools.definitions()]


def offloaded(
    runner: BetaToolRunner[Any] | BetaStreamingToolRunner[Any], offloader: Offloader
) -> Iterator[Any]:
    """Yield what `runner` yields; offload its messages before each request, tool results first of all.

    Iterate this in the place of the runner. What leaves is replaced in the runner's own history. A tool
    runs once, when the loop's body is done with the message that calls it.

    Args:
        runner: a tool runner, or one that streams.
        offloader: whose session the messages go to.

    Raises:
        OffloadError: with `on_error="raise"`, what the store raised.
    """
    first = offloader.offload(_history(runner))
    runner.set_messages_params(partial(_sent, messages=first.messages))
    for item in runner:
        yield item
        reply = item.get_final_message() if isinstance(item, BetaMessageStream) else item
        # Calls of a message that was cut off are never run.
        results = runner.generate_tool_call_response() if reply.stop_reason == "tool_use" else None
        if results is not None:
            history = _history(runner)
            out = offloader.offload([*history, reply.to_param(), results])
            _take_over(runner, history, out.messages, results)


async def aoffloaded(
    runner: BetaAsyncToolRunner[Any] | BetaAsyncStreamingToolRunner[Any], offloader: Offloader
) -> AsyncIterator[Any]:
    """Do what `offloaded` does for a runner of `AsyncAnthropic`; the store is used in a thread."""
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
    """Return what the runner sent last; the one public way to it is that which changes it."""
    found: list[Any] = []

    def look(params: Any) -> Any:
        found.extend(params["messages"])
        return params

    runner.set_messages_params(look)
    return found


def _take_over(runner: Any, history: list[Any], messages: list[Any], results: Any) -> None:
    """Give the runner its history and the results of its tools as they are after offloading."""
    # The runner holds the results that it is about to send, and gave us that very object.
    results["content"] = messages[-1]["content"]
    earlier = messages[: len(history)]
    if any(new is not old for new, old in zip(earlier, history, strict=True)):
        runner.set_messages_params(partial(_sent, messages=earlier))


def _sent(params: Any, messages: list[Any]) -> Any:
    return {**params, "messages": messages}


class _RetrievalTool(BetaBuiltinFunctionTool):
    """A tool that reads back. Whatever a model makes its arguments gets an answer."""

    def __init__(self, offloader: Offloader, told: Mapping[str, Any]) -> None:
        self._answer = partial(offloader.tools.call, told["name"])
        self._told = told

    def to_dict(self) -> BetaToolParam:
        return cast("BetaToolParam", dict(self._told))

    def call(self, input: object) -> str:  # noqa: A002 # the SDK's signature
        answer = self._answer(cast("Mapping[str, Any]", input))
        if is_error(answer):
            raise ToolError(answer)
        return answer


class _AsyncRetrievalTool(BetaAsyncBuiltinFunctionTool):
    """The same for `AsyncAnthropic`."""

    def __init__(self, offloader: Offloader, told: Mapping[str, Any]) -> None:
        self._tool = _RetrievalTool(offloader, told)

    def to_dict(self) -> BetaToolParam:
        return self._tool.to_dict()

    async def call(self, input: object) -> str:  # noqa: A002 # the SDK's signature
        return await in_thread(self._tool.call, input)
