"""The API of a model's provider on the loopback interface: it answers by a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from relay import POLL_SECONDS


class Api:
    """Answers requests from a script: a status and a body each, the last one again and again."""

    def __init__(self, *script: tuple[int, Any]) -> None:
        self.script = list(script)
        self.requests: list[tuple[str, Any]] = []

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.requests.append((path, body))
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


@contextmanager
def serving(api: Api) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status, answer = api.answer(self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.send_header("retry-after-ms", "1")  # what both SDKs wait before they try again
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def said(kind: str, *texts: str) -> dict[str, Any]:
    """Return a reply of the API with `texts`."""
    if kind == "anthropic":
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "small",
            "content": [{"type": "text", "text": text} for text in texts],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 5},
        }
    message = {"role": "assistant", "content": texts[0] if texts else None, "refusal": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "small",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
