"""A server to be wrapped, as a program: its tools return what a proxy has to do with, large and small."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
from typing import Any

from mcp import MCPError, types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

RESULT_SCHEMA = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}
# As servers declare it for a function that returns a list of dictionaries.
ROWS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"result": {"type": "array", "items": {"type": "object", "additionalProperties": True}}},
    "required": ["result"],
    "title": "tableOutput",
    "x-wraps": True,
}
# By backtracking its pattern takes longer than anybody waits.
HOSTILE_SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string", "pattern": "^(a|aa)+$"}},
    "patternProperties": {"^(x|xx)+$": {"type": "integer"}},
}
PICKY_SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string", "pattern": "^x+$"}},
    "required": ["code"],
}


def big_text(seed: int = 0) -> str:
    """Return about 200 KB of lines that do not compress to nothing, with one needle."""
    draw = random.Random(seed)  # noqa: S311 # not a secret
    lines = [f"{n:05} {draw.getrandbits(256):064x} ünï" for n in range(2700)]
    lines[2000] = f"02000 the needle of {seed}"
    return "\n".join(lines)


def picture() -> str:
    """Return 24 KB of binary bytes as base64."""
    return base64.b64encode(random.Random(7).randbytes(24_000)).decode()  # noqa: S311 # not a secret


ROWS = [{"name": f"row {n}", "size": n} for n in range(3000)]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _results(seed: int) -> dict[str, dict[str, Any]]:
    big = big_text(seed)
    resource = {"uri": "file:///big.txt", "mimeType": "text/x-log", "text": big}
    blob = {"uri": "file:///picture", "mimeType": "image/png", "blob": picture()}
    return {
        "big": {"content": [_text(big)]},
        "huge": {"content": [_text(big * 10)]},
        "small": {"content": [_text("little")]},
        "failing": {"content": [_text(big)], "isError": True},
        "crashing": {"content": [_text(big * 10), _text("after it")], "isError": True},
        "report": {"content": [_text(big)], "structuredContent": {"result": big}},
        "picky": {"content": [_text("see code")], "structuredContent": {"code": "x" * 50_000}},
        "rows": {
            "content": [_text(json.dumps({"rows": ROWS}, indent=2))],
            "structuredContent": {"rows": ROWS},
        },
        "quiet": {"content": [], "structuredContent": {"rows": ROWS}},
        "table": {
            "content": [_text(json.dumps(row)) for row in ROWS],
            "structuredContent": {"result": ROWS},
        },
        "hostile": {
            "content": [_text("see code")],
            "structuredContent": {"code": "a" * 9000 + "!", "x" * 40 + "!": 1},
        },
        "links": {
            "content": [
                {"type": "image", "mimeType": "image/png", "data": "aGk="},
                *({"type": "resource_link", "uri": f"file:///{n}", "name": f"file {n}"} for n in range(500)),
                {"type": "text", "text": "that is all", "annotations": {"audience": ["user"]}},
            ]
        },
        "many": {"content": [_text(f"part {n} " + "a b c " * 40) for n in range(100)]},
        "embedded": {"content": [_text("two files"), {"type": "resource", "resource": resource}]},
        "binary": {"content": [{"type": "resource", "resource": blob}]},
        "image": {"content": [{"type": "image", "mimeType": "image/png", "data": picture()}]},
        "context_read": {"content": [_text("the wrapped server's own")]},
        "inner_context_read": {"content": [_text("the other one")]},
    }


SCHEMAS = {
    "report": RESULT_SCHEMA,
    "picky": PICKY_SCHEMA,
    "table": ROWS_SCHEMA,
    "hostile": HOSTILE_SCHEMA,
}


class _Handlers:
    """Results of the server. A tool that does more than return a value is a method."""

    own_tools = ("die", "busy", "ask", "wait", "was_cancelled", "announce", "refuse")

    def __init__(self) -> None:
        self._cancelled: list[str] = []

    async def list_tools(self, _context: Any, params: Any) -> Any:
        names = [*_results(0), *self.own_tools]
        is_first = params is None or params.cursor is None
        shown = names[:4] if is_first else names[4:]
        schema = {"type": "object", "properties": {"seed": {"type": "integer"}}}
        tools = [types.Tool(name=n, input_schema=schema, output_schema=SCHEMAS.get(n)) for n in shown]
        return types.ListToolsResult(tools=tools, next_cursor="second" if is_first else None)

    async def call_tool(self, context: Any, params: Any) -> Any:
        if params.name in self.own_tools:
            said = await getattr(self, params.name)(context)
            result = {"content": [_text(said)]}
        else:
            result = _results((params.arguments or {}).get("seed", 0))[params.name]
        return types.CallToolResult.model_validate(result)

    async def refuse(self, _context: Any) -> str:
        raise MCPError(-32000, big_text() * 10)

    async def die(self, _context: Any) -> str:
        os._exit(3)

    async def busy(self, context: Any) -> str:
        await context.session.report_progress(1, 2, "half")
        return "done"

    async def ask(self, context: Any) -> str:
        schema = {"type": "object", "properties": {}}
        answer = await context.session.elicit_form("which?", schema, context.request_id)
        return str(answer.action)

    async def wait(self, context: Any) -> str:
        await context.session.report_progress(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self._cancelled.append("wait")
            raise
        return "never"

    async def announce(self, context: Any) -> str:
        await context.session.send_tool_list_changed()
        return "announced"

    async def was_cancelled(self, _context: Any) -> str:
        return str(self._cancelled)

    async def list_resources(self, _context: Any, _params: Any) -> Any:
        return types.ListResourcesResult(resources=[types.Resource(uri="file:///notes", name="notes")])

    async def read_resource(self, _context: Any, params: Any) -> Any:
        contents = [types.TextResourceContents(uri=params.uri, text="notes of the wrapped server")]
        return types.ReadResourceResult(contents=contents)

    async def list_prompts(self, _context: Any, _params: Any) -> Any:
        return types.ListPromptsResult(prompts=[types.Prompt(name="greet")])


def wrapped_server() -> Any:
    """Return the server. It lists its tools on two pages."""
    handlers = _Handlers()
    return Server(
        "wrapped",
        instructions="Instructions of the wrapped server.",
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_read_resource=handlers.read_resource,
        on_list_prompts=handlers.list_prompts,
    )


async def _main() -> None:
    server = wrapped_server()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(_main())
