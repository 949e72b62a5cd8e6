"""A CrewAI agent with one tool that returns a large result.

pip install 'offload[crewai]'
OPENAI_API_KEY=… python examples/crewai_agent.py "Which file is the largest?"
"""

import sys
import sysconfig
from pathlib import Path

from crewai import Agent, Crew, Task
from crewai.tools import tool

from offload.integrations.crewai import OffloadCrew


@tool("list_files")
def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


offloading = OffloadCrew("./context")
librarian = Agent(
    role="librarian",
    goal="Answer questions about files.",
    backstory="You keep the files.",
    llm="openai/gpt-5",
    tools=[list_files, *offloading.tools],
)
task = Task(description=" ".join(sys.argv[1:]), expected_output="A sentence.", agent=librarian)

print(Crew(agents=[librarian], tasks=[task]).kickoff().raw)
records = offloading.offloader.records()
print(f"offloaded: {sum(record.chars for record in records):,} characters")
