"""The Messages API on the loopback interface, of a model that binds its thinking.

It refuses a request as the API does, by `Binding`, whose rules are written without the library. Its model
calls the tools of a run one after another, with thinking before most calls, and ends each run with a text.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import patch

from binding import Binding, BoundError
from frameworks.anthropic_server import events

# Tools of a run: one that reads files, which other policies show first, and one that does not.
TOOLS = ("read_report", "query_sales")
# Some results are small, some large.
LINES = (5, 120, 30, 700)
# The replies of a run.
CALLS = 6


def result(n: int) -> str:
    """Return the result of call `n` of a tool; some are small, and none is equal to another."""
    return "\n".join(f"{line}: value_{n}_{line} = {line * 7 % 1000}" for line in range(LINES[n % len(LINES)]))


class Server(ThreadingHTTPServer):
    """Answers and checks; `requests` holds the bodies, `refused` the reasons of refusals.

    `redacts`: whether some thinking is not shown.
    """

    daemon_threads = True

    def __init__(self, *, model: str, redacts: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.binding = Binding()
        self.requests: list[Any] = []
        self.refused: list[str] = []
        self.model = model
        self.redacts = redacts

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def thinking_sent(self) -> int:
        """Return the blocks of thinking in the last request."""
        messages = self.requests[-1]["messages"]
        blocks = [b for m in messages if isinstance(m["content"], list) for b in m["content"]]
        return sum(block["type"] in ("thinking", "redacted_thinking") for block in blocks)

    def answer(self, request: Any) -> tuple[int, Any]:
        self.requests.append(request)
        given = {"system": request.get("system", ""), "tools": request.get("tools", ())}
        try:
            self.binding.check(request["messages"], **given)
        except BoundError as error:
            self.refused.append(str(error))
            return 400, _failed(str(error))
        except KeyError as error:
            self.refused.append(f"unknown signature {error}")
            return 400, _failed(str(error))
        reply = sum(message["role"] == "assistant" for message in request["messages"])
        signatures = self.binding.sign(request["messages"], **given) if reply % 5 != 2 else []
        content = [self._thinking(signature, reply) for signature in signatures]
        if reply % CALLS == CALLS - 1 or not given["tools"]:
            content.append({"type": "text", "text": f"The answer {reply}."})
        else:
            use = {"type": "tool_use", "id": f"toolu_{reply}", "name": TOOLS[reply % len(TOOLS)]}
            content.append({**use, "input": {"n": reply}})
        stop = "end_turn" if content[-1]["type"] == "text" else "tool_use"
        return 200, {
            "id": f"msg_{len(self.requests)}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {"input_tokens": 10, "output_tokens": 10},
        }

    def _thinking(self, signature: str, reply: int) -> dict[str, Any]:
        if self.redacts and reply % 4 == 3:
            return {"type": "redacted_thinking", "data": signature}
        return {"type": "thinking", "thinking": f"I call number {reply}.", "signature": signature}


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, message = self.server.answer(request)
        is_stream = bool(request.get("stream")) and status == 200
        body = (events(message) if is_stream else json.dumps(message)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving(*, model: str = "claude-opus-5-5", redacts: bool = True) -> Iterator[Server]:
    """Run a server for as long as the block takes; Anthropic's clients that are made meanwhile ask it."""
    given = {"ANTHROPIC_API_KEY": "k"}
    with Server(model=model, redacts=redacts) as server, patch.dict(os.environ, given):
        os.environ["ANTHROPIC_BASE_URL"] = server.url
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def check(server: Server, *, requests: int, thinking: int) -> None:
    """Check that nothing was refused, that thinking was sent back, and that large results had left."""
    assert server.refused == []
    assert server.binding.checked == len(server.requests) >= requests
    assert server.thinking_sent() >= thinking
    assert "[Offloaded:" in json.dumps(server.requests[-1])


def _failed(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
