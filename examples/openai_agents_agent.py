"""An OpenAI Agents SDK agent with one tool that returns a large result.

pip install 'offload[openai-agents]'
OPENAI_API_KEY=… python examples/openai_agents_agent.py "Which file is the largest?"
"""

import asyncio
import sys
import sysconfig
from pathlib import Path

from agents import Agent, Runner, function_tool

from offload.integrations.openai_agents import OffloadRuns


@function_tool
def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


async def main() -> None:
    """Run the agent once."""
    offloading = OffloadRuns("./context")
    agent = Agent(name="librarian", model="gpt-5", tools=[list_files, *offloading.tools])

    conversation = offloading.conversation()
    result = await Runner.run(agent, " ".join(sys.argv[1:]), run_config=conversation.run_config())

    print(result.final_output)
    records = conversation.offloader.records()
    print(f"offloaded: {sum(record.chars for record in records):,} characters")


asyncio.run(main())
