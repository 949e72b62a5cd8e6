"""A Haystack agent with one tool that returns a large result.

pip install 'offload[haystack]'
OPENAI_API_KEY=… python examples/haystack_agent.py "Which file is the largest?"
"""

import sys
import sysconfig
from pathlib import Path

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool

from offload.integrations.haystack import OffloadToolset


@tool
def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


offloading = OffloadToolset("./context", session="files")
model = OpenAIChatGenerator(model="gpt-5")
agent = Agent(chat_generator=model, tools=[list_files, offloading], hooks={"before_llm": [offloading]})

result = agent.run([ChatMessage.from_user(" ".join(sys.argv[1:]))])

print(result["last_message"].text)
records = offloading.offloader().records()
print(f"offloaded: {sum(record.chars for record in records):,} characters")
