"""Definitions for the code of docs/systems/context_fs.md: messages, and a model that follows a script."""

from typing import Any

log = "a line of output\n" * 2000
messages = [
    {"role": "user", "content": "Why does the build fail?"},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "make"}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": log}]},
    {"role": "assistant", "content": "A header is missing."},
]

_schema = {"type": "object", "properties": {"path": {"type": "string"}}}
my_tools = [{"name": "read_file", "description": "Read a file.", "input_schema": _schema}]
_script = iter(
    [
        *(
            [{"type": "tool_use", "id": f"r{n}", "name": "read_file", "input": {"path": f"file{n}.txt"}}]
            for n in (1, 2, 3, 4)
        ),
        [{"type": "text", "text": "A header is missing."}],
    ]
)


def run_tool(call: Any) -> str:
    return f"a line of {call['input']['path']}\n" * 3571


def ask_model(**_request: Any) -> dict[str, Any]:
    return {"content": next(_script), "usage": {"input_tokens": 1000, "output_tokens": 10}}
