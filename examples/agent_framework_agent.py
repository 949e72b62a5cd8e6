"""A Microsoft Agent Framework agent with one tool that returns a large result.

pip install 'offload[agent-framework]' agent-framework-openai
OPENAI_API_KEY=… python examples/agent_framework_agent.py "Which file is the largest?"
"""

import asyncio
import sys
import sysconfig
from pathlib import Path

from agent_framework import Agent, AgentSession
from agent_framework.openai import OpenAIChatClient

from offload.integrations.agent_framework import OffloadProvider


def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


async def main() -> None:
    """Run the agent once."""
    offloading = OffloadProvider("./context")
    client = OpenAIChatClient(model="gpt-5")
    agent = Agent(client=client, tools=[list_files], context_providers=[offloading])

    session = AgentSession()
    print(await agent.run(" ".join(sys.argv[1:]), session=session))

    records = offloading.offloader(session.session_id).records()
    print(f"offloaded: {sum(record.chars for record in records):,} characters")


asyncio.run(main())
