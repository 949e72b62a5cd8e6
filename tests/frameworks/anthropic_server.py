"""The Messages API on the loopback interface, answering as a script says."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from binding import Binding, BoundError
from frameworks.scenario import Call, Script

CLEARED = "[cleared]"


class Server(ThreadingHTTPServer):
    """Answers as `script` says.

    `requests` holds the bodies that it was sent, each with all messages of its thread. With a `binding`, each
    answer begins with signed thinking, all that comes back is checked, and `refusals` says what failed. Some
    of it is not shown, if it `redacts`.
    """

    daemon_threads = True

    def __init__(self, script: Script, binding: Binding | None = None, *, redacts: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.binding = binding
        self.redacts = redacts
        self.refusals: list[str] = []
        self.requests: list[Any] = []
        self.threads: dict[str, list[Any]] = {}
        self.system: Any = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, request: Any) -> Any:
        self.requests.append(request)
        thinking = self._thinking(request)
        if (request.get("thread") or {}).get("type") == "continue":
            request["messages"][:0] = self.threads[request["thread"]["previous_message_id"]]
        held = [*request["messages"]]
        count = _clear(request)
        # A request that continues a thread has neither.
        self.system = request.get("system", self.system)
        if "tools" in request:
            self.script.offered = {each["name"]: each.get("input_schema") for each in request["tools"]}
        said = self.script.reply(texts_of(request["messages"]), str(self.system))
        read, written = self.script.usage()
        name = f"msg_{len(self.requests)}"
        self.threads[name] = [*held, {"role": "assistant", "content": [*thinking, *_blocks(said)]}]
        edit = {"type": "clear_tool_uses_20250919", "cleared_tool_uses": count, "cleared_input_tokens": 1}
        return {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": request.get("model", "scripted"),
            "content": [*thinking, *_blocks(said)],
            "stop_reason": "end_turn" if isinstance(said, str) else "tool_use",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 1,
                "output_tokens": 1,
                "cache_read_input_tokens": read,
                "cache_creation_input_tokens": written,
            },
            **({"context_management": {"applied_edits": [edit]}} if count else {}),
        }

    def _thinking(self, request: Any) -> list[Any]:
        """Return the thinking of the answer to a request: shown, not shown, or with an empty text."""
        if self.binding is None:
            return []
        sent = {"system": request.get("system", ""), "tools": request.get("tools", ())}
        self.binding.check(request["messages"], **sent)
        number = len(self.requests)
        signatures = self.binding.sign(request["messages"], **sent, blocks=self.blocks(number))
        return [self.thought(number + n, signature) for n, signature in enumerate(signatures)]

    def blocks(self, number: int) -> int:
        """Return how many blocks of thinking the answer to a request has, by its number from 1."""
        return 1 + (number % 3 == 0)

    def thought(self, number: int, signature: str) -> Any:
        if self.redacts and number % 4 == 1:
            return {"type": "redacted_thinking", "data": signature}
        return {"type": "thinking", "thinking": "So." if number % 2 else "", "signature": signature}


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            status, message = 200, self.server.answer(request)
        except BoundError as refusal:
            self.server.refusals.append(str(refusal))
            error = {"type": "invalid_request_error", "message": str(refusal)}
            status, message = 400, {"type": "error", "error": error}
        is_stream = request.get("stream") and status < 400  # the first status of an error
        body = events(message) if is_stream else json.dumps(message)
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving(script: Script, binding: Binding | None = None, *, redacts: bool = True) -> Iterator[Server]:
    """Run a server for as long as the block takes."""
    with Server(script, binding, redacts=redacts) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def texts_of(messages: Any) -> list[str]:
    """Return the texts that a model is sent, in order; a tool call as its name."""
    return [_text(block) for message in messages for block in _content(message)]


def _content(message: Any) -> Any:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(block: Any) -> str:
    if block["type"] == "tool_use":
        return str(block["name"])
    if block["type"] == "tool_result":
        return "".join(_text(part) for part in _content(block))
    return str(block.get("text", ""))


def _blocks(said: list[Call] | str) -> list[Any]:
    if isinstance(said, str):
        return [{"type": "text", "text": said}]
    return [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in said]


def _clear(request: Any) -> int:
    """Clear old tool results as the API does, if the request has such an edit; return how many."""
    edits = request.get("context_management", {}).get("edits", [])
    for edit in edits:
        blocks = [block for message in request["messages"] for block in _content(message)]
        uses = {b["id"]: b["name"] for b in blocks if b["type"] == "tool_use"}
        results = [b for b in blocks if b["type"] == "tool_result"]
        if len(results) <= edit["trigger"]["value"]:
            continue
        kept = edit["keep"]["value"]
        old = results[: max(0, len(results) - kept)]
        cleared = [b for b in old if uses[b["tool_use_id"]] not in edit.get("exclude_tools", ())]
        for block in cleared:
            block["content"] = CLEARED
        return len(cleared)
    return 0


def events(message: Any) -> str:
    """Return a message as the events of a stream."""
    events: list[Any] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    ]
    for index, block in enumerate(message["content"]):
        start, deltas = _parts(block)
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": message["usage"]})
    events.append({"type": "message_stop"})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def _parts(block: Any) -> tuple[Any, list[Any]]:
    """Return a block as a stream begins it, and what follows."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            shown = [{"type": "thinking_delta", "thinking": block["thinking"]}] if block["thinking"] else []
            signed = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*shown, signed]
        case "tool_use":
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            return {**block, "input": {}}, [delta]
    return block, []
