"""A LlamaIndex agent with one tool that returns a large result.

pip install 'offload[llama-index]' llama-index-llms-openai
OPENAI_API_KEY=… python examples/llama_index_agent.py "Which file is the largest?"
"""

import asyncio
import sys
import sysconfig
from pathlib import Path

from llama_index.core.workflow import Context
from llama_index.llms.openai import OpenAI

from offload.integrations.llama_index import OffloadContexts, OffloadFunctionAgent


def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


async def main(question: str) -> None:
    """Ask the agent, and print its answer."""
    offloading = OffloadContexts("./context", session="files")
    agent = OffloadFunctionAgent(
        llm=OpenAI(model="gpt-5"), tools=[list_files], offloading=offloading, streaming=False
    )
    context = Context(agent)

    print(await agent.run(question, ctx=context))
    records = (await offloading.offloader(context)).records()
    print(f"offloaded: {sum(record.chars for record in records):,} characters")


asyncio.run(main(" ".join(sys.argv[1:])))
