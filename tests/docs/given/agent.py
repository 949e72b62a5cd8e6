"""Definitions for the code of docs/systems/agent.md: tools, and a scripted model."""

from itertools import count
from typing import Any

my_tools = [
    {"name": "Bash", "description": "Run a command.", "input_schema": {"type": "object", "properties": {}}}
]
_numbers = count(10)
_script = iter(
    [
        [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "make"}}],
        [{"type": "tool_use", "id": "toolu_2", "name": "context_grep", "input": {"pattern": "error:"}}],
        [{"type": "text", "text": "A header is missing."}],
    ]
)


def run_tool(_call: Any) -> str:
    lines = [f"cc -c part{n}.c" for n in range(3000)]
    lines[1234] = "part.c: error: no such header"
    return "\n".join(lines)


def ask_model(*, messages: list[Any], **_request: Any) -> dict[str, Any]:
    usage = {"input_tokens": len(str(messages)) // 4 + 1000, "output_tokens": 10}
    return {"content": next(_script, None) or _next_step(messages), "usage": usage}


def _next_step(messages: list[Any]) -> list[Any]:
    """Return a call after a question, and a text after a result."""
    if isinstance(messages[-1]["content"], str):
        name = f"toolu_{next(_numbers)}"
        return [{"type": "tool_use", "id": name, "name": "Bash", "input": {"command": "report"}}]
    return [{"type": "text", "text": "The report is done."}]
