"""A loopback proxy before an S3 server: it writes requests down and fails where a test asks for it."""

from __future__ import annotations

import base64
import hashlib
import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

# What the proxy does instead of passing a request on: answer with a status and a code, or call.
Fault = tuple[int, str] | Callable[["Relay"], None]
Answer = tuple[int, list[tuple[str, str]], bytes]
# How often a server looks whether it is to stop: each test waits so long for its own.
POLL_SECONDS = 0.01


@dataclass
class Proxy:
    """Passes requests to the S3 server, writes them down, and fails where a test asks for it.

    Attributes:
        server: the endpoint of the S3 server.
        url: the endpoint of the proxy.
        requests: method, path and headers of every request.
        faults: what happens to the requests that come next.
        last_fault_stays: whether the last of `faults` happens again and again.
        aim: what the path of a request must hold for a fault to happen to it.
        released: once it is set, nothing hangs any more.
        bytes_sent: bytes of bodies that went to clients.
    """

    server: str
    url: str = ""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    last_fault_stays: bool = False
    aim: str = ""
    released: threading.Event = field(default_factory=threading.Event)
    bytes_sent: int = 0

    def next_fault(self, path: str) -> Fault | None:
        if self.aim not in path:
            return None
        if self.last_fault_stays and len(self.faults) == 1:
            return self.faults[0]
        return self.faults.pop(0) if self.faults else None

    @property
    def methods(self) -> list[str]:
        return [method for method, _, _ in self.requests]


class Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are sent apart: without this, each answer waits 40 ms for an acknowledgement.
    disable_nagle_algorithm = True
    proxy: Proxy

    def relay(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.proxy.requests.append((self.command, self.path, dict(self.headers)))
        fault = self.proxy.next_fault(self.path)
        if fault is None:
            self.answer(*self.passed_on())
        elif callable(fault):
            fault(self)
        else:
            self.refuse(*fault)

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = relay  # noqa: N815  # the server looks for these names

    def passed_on(self) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(self.proxy.server).netloc)
        connection.request(self.command, self.path, self.body, dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, answer.getheaders(), data

    def answer(self, status: int, headers: list[tuple[str, str]], data: bytes, cut: int = 0) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in {"content-length", "connection", "transfer-encoding"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.proxy.bytes_sent += len(data)
        self.wfile.write(data[: len(data) - cut])
        self.close_connection = bool(cut)

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, [], f"<Error><Code>{code}</Code><Message>said</Message></Error>".encode())

    def reset(self) -> None:
        """End the connection as a router does that forgot it: by a reset, not by a farewell."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # The server keeps a reference to the connection: only its end sends the reset.
        socket.socket(fileno=self.connection.detach()).close()
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Keep the server quiet."""


class _Server(ThreadingHTTPServer):
    # Many clients at once, whose connections are reset again and again, do not wait to be taken.
    request_queue_size = 128


@contextmanager
def serving(proxy: Proxy, kind: type[Relay] = Relay) -> Iterator[Proxy]:
    """Let `proxy` answer on a port of its own until the block ends."""
    server = _Server(("127.0.0.1", 0), type("BoundRelay", (kind,), {"proxy": proxy}))
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,))
    thread.start()
    try:
        yield proxy
    finally:
        proxy.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


# Faults


def lose_the_request(relay: Relay) -> None:
    relay.close_connection = True


def reset_the_request(relay: Relay) -> None:
    relay.reset()


def lose_the_answer(relay: Relay) -> None:
    relay.passed_on()
    relay.close_connection = True


def break_off(relay: Relay) -> None:
    """End the connection in the middle of the answer's body."""
    status, headers, data = relay.passed_on()
    relay.answer(status, headers, data, cut=(len(data) + 1) // 2)


def reset_in_the_body(relay: Relay) -> None:
    break_off(relay)
    relay.reset()


def shorten(relay: Relay) -> None:
    """Answer half of the body as if it were the whole."""
    status, headers, data = relay.passed_on()
    relay.answer(status, headers, data[: len(data) // 2])


def send_in_crumbs(relay: Relay) -> None:
    """Answer as a slow line does: a packet for every few bytes."""
    status, headers, data = relay.passed_on()
    relay.answer(status, headers, data, cut=len(data))
    for start in range(0, len(data), 64):
        relay.wfile.write(data[start : start + 64])
    relay.close_connection = False


def hang(relay: Relay) -> None:
    relay.proxy.released.wait()
    relay.close_connection = True


def drip(relay: Relay) -> None:
    """Answer so slowly that it never ends, though no pause is long."""
    status, headers, data = relay.passed_on()
    relay.answer(status, headers, data * 1000, cut=len(data) * 1000 - 1)
    with suppress(OSError):
        while not relay.proxy.released.wait(0.05):
            relay.wfile.write(b" ")


def flip_the_upload(relay: Relay) -> None:
    """Damage the request's body on its way to a server that compares checksums, as moto does not."""
    relay.body = flipped(relay.body, 0.5)
    sent = relay.headers["Content-MD5"]
    arrived = base64.b64encode(hashlib.md5(relay.body, usedforsecurity=False).digest()).decode()
    if sent in (None, arrived):
        relay.answer(*relay.passed_on())
    else:
        relay.refuse(400, "BadDigest")


def flip_at(place: float) -> Callable[[Relay], None]:
    """Return the fault that flips a bit of an object's bytes: 0 the first of them, 1 the last."""

    def flip(relay: Relay) -> None:
        status, headers, data = relay.passed_on()
        relay.answer(status, headers, flipped(data, place))

    return flip


def flipped(data: bytes, place: float) -> bytes:
    if not data:
        return data
    damaged = bytearray(data)
    damaged[int(place * (len(data) - 1))] ^= 0x10
    return bytes(damaged)
