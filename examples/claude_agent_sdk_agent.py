"""A Claude Agent SDK agent with one tool that returns a large result.

pip install 'offload[claude-agent-sdk]'
ANTHROPIC_API_KEY=… python examples/claude_agent_sdk_agent.py "Which file is the largest?"
"""

import asyncio
import sys
import sysconfig
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool

from offload import Offloader
from offload.integrations.claude_agent_sdk import offloaded


def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


@tool("list_files", "List the files in the packages of this Python with their sizes.", {})
async def listing(_arguments: Any) -> dict[str, Any]:
    """Return the list as the result of a tool."""
    return {"content": [{"type": "text", "text": list_files()}]}


async def main() -> None:
    """Run the agent once."""
    off = Offloader("./context")
    python = create_sdk_mcp_server("python", tools=[listing])
    mine = ClaudeAgentOptions(mcp_servers={"python": python}, allowed_tools=["mcp__python__list_files"])

    async for message in query(prompt=" ".join(sys.argv[1:]), options=offloaded(mine, off)):
        if isinstance(message, ResultMessage):
            print(message.result)
    print(f"offloaded: {sum(record.chars for record in off.records()):,} characters")


asyncio.run(main())
