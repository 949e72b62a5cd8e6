"""A loopback proxy before an S3 server: it writes requests down and fails where a test asks for it."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

# What the proxy does instead of passing a request on: answer with a status and a code, or call.
Fault = tuple[int, str] | Callable[["Relay"], None]


@dataclass
class Proxy:
    """Passes requests to the S3 server, writes them down, and fails where a test asks for it."""

    server: str
    url: str = ""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    last_fault_stays: bool = False
    bytes_sent: int = 0

    def next_fault(self) -> Fault | None:
        if self.last_fault_stays and len(self.faults) == 1:
            return self.faults[0]
        return self.faults.pop(0) if self.faults else None

    @property
    def methods(self) -> list[str]:
        return [method for method, _, _ in self.requests]


class Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def relay(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.proxy.requests.append((self.command, self.path, dict(self.headers)))
        fault = self.proxy.next_fault()
        if fault is None:
            self.answer(*self.passed_on())
        elif callable(fault):
            fault(self)
        else:
            status, code = fault
            self.answer(status, [], f"<Error><Code>{code}</Code><Message>said</Message></Error>".encode())

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = relay  # noqa: N815  # the server looks for these names

    def passed_on(self) -> tuple[int, list[tuple[str, str]], bytes]:
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

    def log_message(self, *_: Any) -> None:
        """Keep the server quiet."""
