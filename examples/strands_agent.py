"""A Strands agent with one tool that returns a large result.

pip install 'offload[strands]' 'strands-agents[anthropic]'
ANTHROPIC_API_KEY=… python examples/strands_agent.py "Which file is the largest?"
"""

import sys
import sysconfig
from pathlib import Path

from strands import Agent, tool
from strands.models.anthropic import AnthropicModel

from offload.integrations.strands import StrandsOffloadPlugin


@tool
def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


offloading = StrandsOffloadPlugin("./context")
model = AnthropicModel(model_id="claude-sonnet-5", max_tokens=4096)
agent = Agent(model=model, tools=[list_files], plugins=[offloading], callback_handler=None)

print(agent(" ".join(sys.argv[1:])))
records = offloading.offloader(agent).records()
print(f"offloaded: {sum(record.chars for record in records):,} characters")
