"""Chat Completions and Responses of OpenAI on the loopback interface, answering as a script says."""

from __future__ import annotations

from typing import Any

from frameworks.scenario import Call, Script, chat_calls
from provider import Api


class OpenAI(Api):
    """Answers as `script` says, never as a stream; for `provider.serving`."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.requests.append((path, body))
        is_chat = path.endswith("/chat/completions")
        said = self._script.reply(texts_of(body["messages" if is_chat else "input"]))
        reply = _completion(said) if is_chat else _response(said)
        return 200, {"id": f"reply_{len(self.requests)}", "created": 1, "model": body["model"], **reply}


def texts_of(value: Any) -> list[str]:
    """Return all strings of JSON, in order."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [text for part in parts for text in texts_of(part)]
    return [value] if isinstance(value, str) else []


def _completion(said: list[Call] | str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
    calls = chat_calls(said)
    reason = "tool_calls" if calls else "stop"
    message |= {"tool_calls": calls} if calls else {}
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def _response(said: list[Call] | str) -> dict[str, Any]:
    text = {"type": "output_text", "text": said, "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [text]}
    calls = [
        {"type": "function_call", "id": f"fc_{call['id']}", "call_id": call["id"], **call["function"]}
        for call in chat_calls(said)
    ]
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "output": calls or [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **details},
    }
