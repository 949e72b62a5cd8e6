"""An agent loop on the Anthropic SDK, with one tool that returns a large result.

pip install 'offload[anthropic]'
ANTHROPIC_API_KEY=… python examples/anthropic_loop.py "Which file is the largest?"
"""

import sys
import sysconfig
from pathlib import Path
from typing import Any

from anthropic import Anthropic

from offload import Offloader


def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


client, off = Anthropic(), Offloader("./context")
mine = {"name": "list_files", "description": list_files.__doc__, "input_schema": {"type": "object"}}
tools: list[Any] = [mine, *off.tools.definitions("anthropic")]
messages: list[Any] = [{"role": "user", "content": " ".join(sys.argv[1:])}]
while True:
    sent = off.offload(messages).messages
    reply = client.messages.create(
        model="claude-sonnet-5-5", max_tokens=4096, system=off.prompt(), messages=sent, tools=tools
    )
    off.report_usage(reply)
    messages.append({"role": "assistant", "content": reply.content})
    results = []
    for call in reply.content:
        if call.type == "tool_use":
            text = off.tools.call(call.name, call.input) if call.name in off.tools.names else list_files()
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": text})
    if not results:
        break
    messages.append({"role": "user", "content": results})

print(*[block.text for block in reply.content if block.type == "text"])
print(f"offloaded: {sum(record.chars for record in off.records()):,} characters")
