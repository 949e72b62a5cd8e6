"""HTTP servers of the protocol on loopback, which keep what they were sent."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from frameworks.mcp_wrapped import wrapped_server


class HttpServer:
    """The wrapped server behind HTTP, at one port over any number of starts.

    `requests` has the method, the headers and the body of every request; a `refusal` is the status of all.
    """

    def __init__(self, **options: Any) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = free.getsockname()
        self._options = options
        self.url = f"http://127.0.0.1:{self._address[1]}/mcp"
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.refusal: int | None = None

    def start(self) -> None:
        """Serve, with no memory of earlier starts."""
        app = self._keeping(wrapped_server().streamable_http_app(**self._options))
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
        listening = socket.create_server(self._address)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]})
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def _keeping(self, app: Any) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            if self.refusal is None:
                await app(scope, receive, send)
            else:
                await send({"type": "http.response.start", "status": self.refusal, "headers": []})
                await send({"type": "http.response.body", "body": b"a page of the server"})

        async def keep(scope: Any, receive: Any, send: Any) -> None:
            body = b""

            async def kept() -> Any:
                nonlocal body
                message = await receive()
                body += message.get("body", b"")
                return message

            if scope["type"] == "lifespan":
                await app(scope, receive, send)
                return
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            try:
                await answer(scope, kept, send)
            finally:
                self.requests.append((scope["method"], headers, body))

        return keep

    def stop(self) -> None:
        """End the server and its connections, and refuse new ones."""
        self._server.should_exit = True
        self._thread.join()

    @contextmanager
    def running(self) -> Iterator[HttpServer]:
        """Serve within a block."""
        self.start()
        try:
            yield self
        finally:
            self.stop()
