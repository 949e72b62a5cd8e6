"""An agno agent with one tool that returns a large result.

pip install 'offload[agno]' anthropic
ANTHROPIC_API_KEY=… python examples/agno_agent.py "Which file is the largest?"
"""

import sys
import sysconfig
from pathlib import Path

from agno.agent import Agent
from agno.models.anthropic import Claude

from offload.integrations.agno import OffloadTools


def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


offloading = OffloadTools("./context")
model = Claude(id="claude-sonnet-5")
agent = Agent(model=model, tools=[list_files, offloading], tool_hooks=[offloading.hook], telemetry=False)

run = agent.run(" ".join(sys.argv[1:]), session_id="files")

print(run.content)
records = offloading.offloader("files").records()
print(f"offloaded: {sum(record.chars for record in records):,} characters")
