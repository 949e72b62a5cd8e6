"""An agent with one MCP server, which `offload mcp-proxy` wraps because its result is large.

pip install 'offload[mcp,anthropic]'
ANTHROPIC_API_KEY=… python examples/mcp_agent.py "Which file is the largest?"
"""

import asyncio
import sys
import sysconfig
from pathlib import Path
from typing import Any

from anthropic import Anthropic
from mcp import Client, StdioServerParameters
from mcp.server import MCPServer

from offload import Offloader

server = MCPServer("python")


@server.tool()
def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


async def main() -> None:
    """Run the agent once."""
    options: dict[str, Any] = {"model": "claude-sonnet-5-5", "max_tokens": 4096}
    messages: list[Any] = [{"role": "user", "content": " ".join(sys.argv[1:])}]
    proxy = ["mcp-proxy", "--store", "./context", "--session", "files", "--", sys.executable, __file__]
    async with Client(StdioServerParameters(command="offload", args=proxy)) as client:
        tools = (await client.list_tools()).tools
        options["tools"] = [{"name": each.name, "input_schema": each.input_schema} for each in tools]
        while (reply := Anthropic().messages.create(messages=messages, **options)).stop_reason == "tool_use":
            messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": []}]
            for call in [block for block in reply.content if block.type == "tool_use"]:
                result = await client.call_tool(call.name, call.input)
                text = "".join(part.text for part in result.content if part.type == "text")
                answer = {"type": "tool_result", "tool_use_id": call.id, "content": text}
                messages[-1]["content"].append(answer)
    print(*[block.text for block in reply.content if block.type == "text"])
    records = Offloader("./context", session="files").records()
    print(f"offloaded: {sum(record.chars for record in records):,} characters")


asyncio.run(main()) if sys.argv[1:] else server.run()
