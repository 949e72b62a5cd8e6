"""Definitions for the code of docs/policy.md."""

_CALLS = [
    {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "make"}},
    {"type": "tool_use", "id": "toolu_2", "name": "read_file", "input": {"path": "a.py"}},
]
_RESULTS = [
    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a line of output\n" * 2000},
    {"type": "tool_result", "tool_use_id": "toolu_2", "content": "a line of code\n" * 2000},
]
messages = [
    {"role": "user", "content": "Why does the build fail?"},
    {"role": "assistant", "content": _CALLS},
    {"role": "user", "content": _RESULTS},
]
