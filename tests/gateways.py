"""A gateway before a provider, both on the loopback interface; the provider writes down what it gets."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from kit.conversation import tool_turn

from offload import Offloader, OffloadPolicy
from offload.gateway import gateway_app

KEY = "sk-ant-secret-0123456789"
HEADERS = {"X-Api-Key": KEY, "Anthropic-Version": "2023-06-01", "Content-Type": "application/json"}
USAGE = {"input_tokens": 40, "cache_read_input_tokens": 5000, "cache_creation_input_tokens": 700}
REPLY = {"type": "message", "role": "assistant", "content": [], "usage": USAGE}
TOOLS = [{"name": "Bash"}, {"name": "mcp__offload__context_read"}]
LOG = "".join(f"{n} checked unit {n * n} of the build, nothing to do\n" for n in range(400))


def opened(store: Any, **options: Any) -> Offloader:
    """Return an offloader whose large results leave after the model's next reply, whatever that costs."""
    return Offloader(store, policy=OffloadPolicy(cost_plan="none"), **options)


@dataclass
class Seen:
    """A request as the provider got it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[["Provider"], None]


@dataclass
class Upstream:
    """The provider: what it got, and how it answers."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    answer: Answer = lambda provider: provider.say(200, json.dumps(REPLY).encode())


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    upstream: Upstream
    body: bytes

    def take(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self.chunks()
        self.body = body
        self.upstream.seen.append(Seen(self.command, self.path, self.headers.items(), body))
        self.upstream.answer(self)

    do_GET = do_POST = do_DELETE = do_HEAD = take  # noqa: N815 # the server looks for these names

    def chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def say(
        self, status: int, body: bytes, *headers: tuple[str, str], kind: str = "application/json"
    ) -> None:
        self.send_response_only(status)
        for name, value in (("Content-Type", kind), *headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def start_stream(self, *headers: tuple[str, str]) -> None:
        self.send_response_only(200)
        for name, value in (("Content-Type", "text/event-stream"), *headers):
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_part(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def log_message(self, *_: Any) -> None:
        """Keep the server quiet."""


@contextmanager
def providing() -> Iterator[Upstream]:
    upstream = Upstream()
    handler = type("Handler", (Provider,), {"upstream": upstream})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    upstream.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield upstream
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Wire:
    """A provider that reads requests by their framing alone, and answers with given bytes.

    Attributes:
        url: its URL.
        answers: what it sends, the last one again and again; None ends the connection.
        connections: for each connection, the head and the body of its requests.
    """

    answers: list[bytes | None]
    url: str = ""
    connections: list[list[tuple[bytes, bytes]]] = field(default_factory=list)

    @property
    def requests(self) -> list[tuple[bytes, bytes]]:
        return [request for seen in self.connections for request in seen]

    def serve(self, accepted: socket.socket) -> None:
        seen: list[tuple[bytes, bytes]] = []
        self.connections.append(seen)
        with accepted, accepted.makefile("rb") as stream, suppress(OSError):
            while head := b"".join(iter(stream.readline, b"\r\n")) if stream.peek(1) else b"":
                seen.append((head, _body_of(head.lower(), stream)))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    return
                accepted.sendall(answer)


def _body_of(head: bytes, stream: Any) -> bytes:
    if b"transfer-encoding: chunked" in head:
        body = b""
        while size := int(stream.readline() or b"0", 16):
            body += stream.read(size)
            stream.readline()
        stream.readline()
        return body
    sizes = re.findall(rb"\r\ncontent-length: (\d+)\r\n", head)
    return bytes(stream.read(int(sizes[0]))) if sizes else b""


@contextmanager
def wired(*answers: bytes | None) -> Iterator[Wire]:
    """Run a provider on a socket."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        wire = Wire([*answers], f"http://127.0.0.1:{listening.getsockname()[1]}")

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=wire.serve, args=[listening.accept()[0]], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield wire
        # Closing it does not wake a thread that waits for a connection.
        listening.shutdown(socket.SHUT_RDWR)


def written(url: str, data: bytes, *, is_cut: bool = False) -> bytes:
    """Write bytes to a gateway; return all that comes back until it closes the connection."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as sent:
        sent.sendall(data)
        if is_cut:
            sent.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sent.recv(65536), b""))


@contextmanager
def running(upstream: str, offloader: Offloader, **options: Any) -> Iterator[str]:
    """Run a gateway in a thread; yield its URL."""
    app = gateway_app(upstream, offloader, **options)
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="critical",
        server_header=False,
        date_header=False,
        http="h11",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    url: str, body: bytes | None = None, *, method: str = "POST", headers: dict[str, str] | None = None
) -> Reply:
    """Send one request; return the answer as it came."""
    with closing(connection(url)) as sent:
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        sent.request(method, target or "/", body, HEADERS if headers is None else headers)
        reply = sent.getresponse()
        return Reply(reply.status, reply.getheaders(), reply.read())


def status(url: str) -> Any:
    """Return what a gateway says of itself."""
    return ask(f"{url}/offload/status", method="GET").json


def connection(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)


def turns(count: int, text: str = LOG, tail: str = "", start: int = 0) -> list[dict[str, Any]]:
    """Return the messages of an agent after so many tool calls."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "Build it."}]}]
    for n in range(start, start + count):
        messages += tool_turn(f"toolu_{n}", f"make {n}\n{text}{tail}", "Bash", {"command": f"make {n}"})
    return messages


def body_of(messages: Any, **fields: Any) -> bytes:
    """Return a request with unusual spelling: spaces, escapes, a number with an exponent."""
    request = {"model": "claude-opus-5", "max_tokens": 32000, "messages": messages, "tools": TOOLS} | fields
    text = json.dumps(request, indent=3)
    return text.replace("32000", "3.20e4").replace("Build it.", "Build\\u0020it.").encode()


def wait_for(is_so: Callable[[], object]) -> None:
    for _ in range(1000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never became so")
