"""A server of the Model Context Protocol as a program, with results of every size and form."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAC0lEQVR4nGNgQAYAAA4AAamRc7EAAAAASUVORK5CYII="
SIZED = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}


def lines(count: int) -> str:
    return "\n".join(f"line {n} of the server" for n in range(count))


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _results(count: int) -> dict[str, dict[str, Any]]:
    rows = [{"name": f"row {n}", "size": n} for n in range(count)]
    image = {"type": "image", "mimeType": "image/png", "data": PIXEL}
    return {
        "text": {"content": [_text(lines(count))]},
        "parts": {"content": [_text(lines(count)), image, _text("the end")]},
        "rows": {"content": [_text("see the structure")], "structuredContent": {"rows": rows}},
        "failing": {"content": [_text(lines(count))], "isError": True},
    }


async def _list_tools(_context: Any, _params: Any) -> Any:
    return types.ListToolsResult(tools=[types.Tool(name=name, input_schema=SIZED) for name in _results(0)])


async def _call_tool(_context: Any, params: Any) -> Any:
    return types.CallToolResult.model_validate(_results(params.arguments["count"])[params.name])


async def _main() -> None:
    server: Any = Server("tools", on_list_tools=_list_tools, on_call_tool=_call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(_main())
