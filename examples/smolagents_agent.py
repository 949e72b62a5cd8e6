"""A smolagents agent with one tool that returns a large result.

pip install 'offload[smolagents]' 'smolagents[openai]'
OPENAI_API_KEY=… python examples/smolagents_agent.py "Which file is the largest?"
"""

import sys
import sysconfig
from pathlib import Path

from smolagents import OpenAIModel, ToolCallingAgent, tool

from offload.integrations.smolagents import OffloadSteps


@tool
def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


offloading = OffloadSteps("./context")
agent = ToolCallingAgent(
    model=OpenAIModel("gpt-5"),
    tools=[list_files, *offloading.tools],
    step_callbacks=[offloading],
    instructions=offloading.prompt,
    verbosity_level=0,
)

print(agent.run(" ".join(sys.argv[1:])))
records = offloading.offloader.records()
print(f"offloaded: {sum(record.chars for record in records):,} characters")
