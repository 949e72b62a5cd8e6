"""A LangChain agent with one tool that returns a large result.

pip install 'offload[langchain]' langchain-anthropic
ANTHROPIC_API_KEY=… python examples/langchain_agent.py "Which file is the largest?"
"""

import sys
import sysconfig
from pathlib import Path

from langchain.agents import create_agent

from offload.integrations.langchain import OffloadMiddleware


def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


offloading = OffloadMiddleware("./context")
agent = create_agent("anthropic:claude-sonnet-5", [list_files], middleware=[offloading])

state = agent.invoke({"messages": [("user", " ".join(sys.argv[1:]))]})

print(state["messages"][-1].text)
records = offloading.offloader(state["offload_session"]).records()
print(f"offloaded: {sum(record.chars for record in records):,} characters")
