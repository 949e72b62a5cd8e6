"""An agent's loop by hand: a question of the user, calls of the model, and their results."""

from __future__ import annotations

from typing import Any

from offload import ContextManager


def said(n: int, words: int = 40) -> dict[str, Any]:
    return {"role": "user", "content": f"question {n} " + "please " * words}


def call(n: int, name: str = "Bash") -> dict[str, Any]:
    use = {"type": "tool_use", "id": f"t{n}", "name": name, "input": {"n": n}}
    return {"role": "assistant", "content": [use]}


def result(n: int, lines: int = 60, **fields: Any) -> dict[str, Any]:
    text = "".join(f"row {n}.{line} of the output\n" for line in range(lines))
    block = {"type": "tool_result", "tool_use_id": f"t{n}", "content": text, **fields}
    return {"role": "user", "content": [block]}


def turn(m: ContextManager, n: int, lines: int = 60) -> list[Any]:
    """Have a model make a call, and take in its result; return what was added."""
    m.before_model_call()
    m.after_model_call(call(n))
    m.add(result(n, lines))
    return [call(n), result(n, lines)]


def talk(m: ContextManager, turns: int, lines: int = 60) -> list[Any]:
    """Add a question and so many turns; return all messages."""
    m.add(said(0))
    return [said(0), *(message for n in range(turns) for message in turn(m, n, lines))]
