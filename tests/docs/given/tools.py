"""Definitions for the code of docs/tools.md: a file is read, edited and read again."""

from __future__ import annotations

from typing import Any

OLD = "".join(f"def step_{n}():\n    return {n}\n\n" for n in range(700))
NEW = OLD.replace("    return 7\n", "    return 70\n")


def _call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}
    return {"role": "assistant", "content": [block]}


def _result(number: int, text: str) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text}
    return {"role": "user", "content": [block]}


messages = [
    {"role": "user", "content": "Step 7 should return 70."},
    _call(1, "read_file", path="steps.py"),
    _result(1, OLD),
    _call(2, "str_replace", path="steps.py", old_str="return 7\n", new_str="return 70\n"),
    _result(2, "OK"),
    _call(3, "read_file", path="steps.py"),
    _result(3, NEW),
    {"role": "assistant", "content": "Done."},
]
