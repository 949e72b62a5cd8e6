"""The types of `offload_tool_results`, checked by mypy and never run."""

from __future__ import annotations

from typing import Any, assert_type

from offload import (
    ContentBlock,
    OffloadedToolResults,
    ToolResultBlock,
    ToolResultMessage,
    offload_tool_results,
)


def check(messages: list[ToolResultMessage], plain: list[dict[str, Any]]) -> None:
    """Hold each type of the function."""
    done = offload_tool_results(messages, "out")
    assert_type(done, OffloadedToolResults[ToolResultMessage])
    assert_type(done.messages[0]["content"], list[ContentBlock])
    assert_type(done.offloaded_count, int)
    assert_type(done.files, list[str])
    for block in done.messages[0]["content"]:
        if block["type"] == "tool_result":
            assert_type(block["content"], str | list[ContentBlock])
    # Other dicts of the structure keep their own type.
    assert_type(offload_tool_results(plain, "out").messages, list[dict[str, Any]])


result: ToolResultBlock = {"type": "tool_result", "tool_use_id": "x", "content": "text"}
message: ToolResultMessage = {"role": "user", "content": [result, {"type": "text", "text": "and"}]}
offload_tool_results([message], "out")
offload_tool_results([{"role": "user", "content": [result]}], "out")
wrong: ToolResultMessage = {"role": "tool", "content": []}  # type: ignore[typeddict-item]
nameless: ToolResultBlock = {"type": "tool_result", "content": "x"}  # type: ignore[typeddict-item]
