"""A pydantic-ai agent with one tool that returns a large result.

pip install 'offload[pydantic-ai]' 'pydantic-ai-slim[anthropic]'
ANTHROPIC_API_KEY=… python examples/pydantic_ai_agent.py "Which file is the largest?"
"""

import sys
import sysconfig
from pathlib import Path

from pydantic_ai import Agent

from offload.integrations.pydantic_ai import OffloadCapability


def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


offloading = OffloadCapability("./context")
agent = Agent("anthropic:claude-sonnet-5", tools=[list_files], capabilities=[offloading])

result = agent.run_sync(" ".join(sys.argv[1:]))

print(result.output)
records = offloading.offloader(result.conversation_id).records()
print(f"offloaded: {sum(record.chars for record in records):,} characters")
