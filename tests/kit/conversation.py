"""Messages of a conversation in the format of Anthropic's Messages API, and calls in that of OpenAI."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def from_user(content: Any) -> Message:
    return {"role": "user", "content": content}


def from_model(content: Any) -> Message:
    return {"role": "assistant", "content": content}


def tool_use(call: str, name: str = "Bash", arguments: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": name, "input": {} if arguments is None else arguments}


def tool_result(call: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content, **fields}


def tool_turn(
    call: str, content: Any, name: str = "Bash", arguments: Any = None, **fields: Any
) -> list[Message]:
    """Return the message of a call and that of its result, which has more `fields`."""
    return [from_model([tool_use(call, name, arguments)]), from_user([tool_result(call, content, **fields)])]


def chat_call(call: str, name: str = "Bash", arguments: str = "{}") -> Message:
    """Return a call in the format of OpenAI's Chat Completions."""
    made = {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def chat_result(call: str, content: Any) -> Message:
    return {"role": "tool", "tool_call_id": call, "content": content}


def results(*texts: Any) -> list[Message]:
    """Return results of calls that are not there, a message each."""
    return [from_user([tool_result(f"call_{n}", text)]) for n, text in enumerate(texts)]


def builds(count: int) -> list[Message]:
    """Return a request and so many calls with large results."""
    messages = [from_user("Build it.")]
    for n in range(count):
        text = f"target {n}\n" + "".join(f"line {line} of {n}\n" for line in range(400))
        messages += tool_turn(f"t{n}", text, "Bash", {"command": f"make {n}"})
    return messages
