"""The proxy of the Model Context Protocol, for a host whose model binds its thinking."""

from __future__ import annotations

from typing import Any

import pytest
from binding import Binding

pytest.importorskip("mcp", reason="its tests run in an environment of their own: make test-integration-mcp")

from frameworks.mcp_talk import records_of
from frameworks.mcp_wrapped import big_text
from frameworks.test_mcp_proxy import listed, opened, through_proxy
from mcp import Client

from offload_backends.memory import MemoryStore

NAMES = ("big", "small", "many", "rows", "report", "table")


def test_results_and_tools_are_the_same_for_every_request_also_after_a_restart() -> None:
    provider, store = Binding(), MemoryStore()
    messages: list[Any] = [{"role": "user", "content": "go"}]

    async def talk(client: Client) -> None:
        for turn in range(6):
            tools = [tool.model_dump(mode="json") for tool in (await listed(client)).values()]
            provider.check(messages, tools=tools)
            [signature] = provider.sign(messages, tools=tools)
            call = {"type": "tool_use", "id": f"toolu_{len(messages)}", "name": NAMES[turn], "input": {}}
            thinking = {"type": "thinking", "thinking": "", "signature": signature}
            result = await client.call_tool(NAMES[turn], {"seed": len(messages)})
            shown = [block.model_dump(mode="json") for block in result.content]
            answer = {"type": "tool_result", "tool_use_id": call["id"], "content": shown}
            messages.append({"role": "assistant", "content": [thinking, call]})
            messages.append({"role": "user", "content": [answer]})

    for _ in range(2):
        through_proxy(talk, opened(store))

    assert provider.checked == 12
    assert len(provider.signatures(messages)) == 12
    assert big_text(1) in records_of(store).values()
    assert len(str(messages)) < 40_000
