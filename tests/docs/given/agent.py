"""Definitions for the code of docs/systems/agent.md: tools, and a model that follows a script."""

from typing import Any

my_tools = [
    {"name": "Bash", "description": "Run a command.", "input_schema": {"type": "object", "properties": {}}}
]
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


def ask_model(**_request: Any) -> dict[str, Any]:
    return {"content": next(_script), "usage": {"input_tokens": 1000, "output_tokens": 10}}
