"""The SDK's tool runner: retrieval tools, and offloading of its conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

from anthropic.lib import tools as sdk
from anthropic.lib.streaming import BetaAsyncMessageStream, BetaMessageStream

from offload.base.threads.calls import in_thread
from offload.integrations._sessions import is_error
from offload.offloader import Offloader


def tools(offloader: Offloader) -> list[sdk.BetaFunctionTool[Any]]:
    """Return the retrieval tools of `offloader` for the tool runner of `Anthropic`."""
    return [sdk.beta_tool(_answer(offloader, tool["name"]), **tool) for tool in offloader.tools.definitions()]


def async_tools(offloader: Offloader) -> list[sdk.BetaAsyncFunctionTool[Any]]:
    """Return the retrieval tools of `offloader` for the tool runner of `AsyncAnthropic`."""

    def in_threads(tool: sdk.BetaFunctionTool[Any]) -> sdk.BetaAsyncFunctionTool[Any]:
        async def run(**arguments: Any) -> Any:
            return await in_thread(tool.call, arguments)

        return sdk.beta_async_tool(
            run, name=tool.name, description=tool.description, input_schema=tool.input_schema
        )

    return [in_threads(tool) for tool in tools(offloader)]


def offloaded(
    runner: sdk.BetaToolRunner[Any] | sdk.BetaStreamingToolRunner[Any], offloader: Offloader
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
        offloader.report_usage(reply)
        # The calls of a truncated message never run.
        results = runner.generate_tool_call_response() if reply.stop_reason == "tool_use" else None
        if results is not None:
            history = _history(runner)
            out = offloader.offload([*history, reply.to_param(), results])
            _take_over(runner, history, out.messages, results)


async def aoffloaded(
    runner: sdk.BetaAsyncToolRunner[Any] | sdk.BetaAsyncStreamingToolRunner[Any], offloader: Offloader
) -> AsyncIterator[Any]:
    """Iterate over a runner of `AsyncAnthropic` as `offloaded` does, using the store in a thread."""
    first = await offloader.aoffload(_history(runner))
    runner.set_messages_params(partial(_sent, messages=first.messages))
    async for item in runner:
        yield item
        reply = await item.get_final_message() if isinstance(item, BetaAsyncMessageStream) else item
        offloader.report_usage(reply)
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


def _answer(offloader: Offloader, name: str) -> Callable[..., str]:
    def answer(**arguments: Any) -> str:
        text = offloader.tools.call(name, arguments)
        if is_error(text):
            raise sdk.ToolError(text)
        return text

    return answer
