"""Definitions for the code of docs/cli.md."""

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
