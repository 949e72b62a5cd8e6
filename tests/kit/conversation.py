"""Messages of a conversation in the format of Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def from_user(content: Any) -> Message:
    return {"role": "user", "content": content}


def from_model(content: Any) -> Message:
    return {"role": "assistant", "content": content}


def user_of(*blocks: Any) -> Message:
    return from_user([*blocks])


def model_of(*blocks: Any) -> Message:
    return from_model([*blocks])


def tool_use(call: str, name: str = "Bash", arguments: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": name, "input": {} if arguments is None else arguments}


def tool_result(call: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content, **fields}


def tool_turn(
    call: str, content: Any, name: str = "Bash", arguments: Any = None, **fields: Any
) -> list[Message]:
    """Return the message of a call and that of its result, which has more `fields`."""
    return [from_model([tool_use(call, name, arguments)]), from_user([tool_result(call, content, **fields)])]


def chat_result(call: str, content: Any) -> Message:
    return {"role": "tool", "tool_call_id": call, "content": content}


def results(*texts: Any) -> list[Message]:
    """Return results of calls that are not there, a message each."""
    return [from_user([tool_result(f"call_{n}", text)]) for n, text in enumerate(texts)]


def answer_to(content: Any, call: str = "c1") -> Message:
    """Return the message of one result."""
    return from_user([tool_result(call, content)])


def one_turn(*texts: str, tool: str = "Bash") -> list[Message]:
    """Return one turn: a call of `tool` for each text, and the results, all in one message."""
    calls = [tool_use(f"call_{n}", tool) for n in range(len(texts))]
    return [from_model(calls), from_user([tool_result(f"call_{n}", text) for n, text in enumerate(texts)])]


def last_results(messages: list[Any]) -> list[str]:
    """Return the texts of the results in the last message."""
    return [block["content"] for block in messages[-1]["content"]]


def has_left(text: str) -> bool:
    return text.startswith("[Offloaded:")


def ids_of(messages: list[Any]) -> tuple[set[str], set[str]]:
    """Return the ids of the calls and of the results among `messages`, found here by hand."""
    calls, results = set(), set()
    for message in messages:
        calls |= {call["id"] for call in message.get("tool_calls") or ()}
        results |= {message["tool_call_id"]} if message.get("tool_call_id") else set()
        for block in message["content"] if isinstance(message["content"], list) else ():
            calls |= {block["id"]} if block["type"] == "tool_use" else set()
            results |= {block["tool_use_id"]} if block["type"] == "tool_result" else set()
    return calls, results


def builds(count: int) -> list[Message]:
    """Return a request and so many calls with large results."""
    messages = [from_user("Build it.")]
    for n in range(count):
        text = f"target {n}\n" + "".join(f"line {line} of {n}\n" for line in range(400))
        messages += tool_turn(f"t{n}", text, "Bash", {"command": f"make {n}"})
    return messages
