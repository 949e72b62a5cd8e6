"""An agent loop on the OpenAI SDK, with one tool that returns a large result.

pip install 'offload[openai]'
OPENAI_API_KEY=… python examples/openai_loop.py "Which file is the largest?"
"""

import sys
import sysconfig
from pathlib import Path
from typing import Any

from openai import OpenAI

from offload import Offloader


def list_files() -> str:
    """List the files in the packages of this Python with their sizes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))
    return "bytes,path\n" + "\n".join(f"{file.stat().st_size},{file}" for file in files)


client, off = OpenAI(), Offloader("./context")
mine = {"type": "function", "function": {"name": "list_files", "description": list_files.__doc__}}
tools: list[Any] = [mine, *off.tools.definitions("openai")]
question = " ".join(sys.argv[1:])
messages: list[Any] = [{"role": "system", "content": off.prompt()}, {"role": "user", "content": question}]
while True:
    sent = off.offload(messages).messages
    # Its newest models take tools here only if they do not reason; in the Responses API, they do both.
    reply = client.chat.completions.create(
        model="gpt-6.1-terra", reasoning_effort="none", messages=sent, tools=tools
    )
    off.report_usage(reply)
    answer = reply.choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    if not answer.tool_calls:
        break
    for call in answer.tool_calls:
        if call.type != "function":
            continue
        name, arguments = call.function.name, call.function.arguments
        text = off.tools.call(name, arguments) if name in off.tools.names else list_files()
        messages.append({"role": "tool", "tool_call_id": call.id, "content": text})

print(answer.content)
print(f"offloaded: {sum(record.chars for record in off.records()):,} characters")
