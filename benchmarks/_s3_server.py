"""An S3 server on the loopback interface, in a separate process, that counts its requests.

`with S3Server() as server:` starts it. Run as a program it is the server: it prints its port and
serves until its input ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

_HOST = "127.0.0.1"
_COUNTS_PATH = "/counted-requests"
_DELAY_PATH = "/delay-requests/"

_Respond = Callable[..., Any]


class S3Server:
    """A running server.

    Attributes:
        url: its endpoint.
    """

    def __enter__(self) -> Self:
        command = [sys.executable, str(Path(__file__).resolve())]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started = self._process.stdout
        if started is None:
            raise RuntimeError("a pipe was asked for")
        self._port = int(started.readline())
        self.url = f"http://{_HOST}:{self._port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def take_counts(self) -> Counter[str]:
        """Return the counts since the last call and reset them.

        Returns:
            Requests by operation ("PUT", "GET", "HEAD", "LIST", …), under "all" their sum, under
            "bytes" the bytes of the bodies that were moved either way, under "expect" the requests that
            waited for a "100 Continue".
        """
        return Counter(json.loads(self._ask(_COUNTS_PATH)))

    def delay(self, seconds: float) -> None:
        """Let every request from now on wait so long before it is served, as on a way that takes as long."""
        self._ask(f"{_DELAY_PATH}{seconds}")

    def _ask(self, path: str) -> bytes:
        connection = HTTPConnection(_HOST, self._port)
        connection.request("GET", path)
        answer = connection.getresponse().read()
        connection.close()
        return answer


class _Counting:
    """A WSGI application around another one that counts the requests to it."""

    def __init__(self, served: Callable[..., Iterable[bytes]]) -> None:
        self._served = served
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._delay = 0.0

    def __call__(self, environ: dict[str, Any], respond: _Respond) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _COUNTS_PATH:
            return self._answer(respond)
        if environ["PATH_INFO"].startswith(_DELAY_PATH):
            self._delay = float(environ["PATH_INFO"].removeprefix(_DELAY_PATH))
            return self._answer(respond)
        time.sleep(self._delay)
        operation = _operation(environ)
        self._count({"all": 1, operation: 1, "bytes": int(environ.get("CONTENT_LENGTH") or 0)})
        if "HTTP_EXPECT" in environ:
            self._count({"expect": 1})

        def counted(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            length = next((int(v) for k, v in headers if k.lower() == "content-length"), 0)
            self._count({"bytes": length if operation != "HEAD" else 0})
            return respond(status, headers, *rest)

        return self._served(environ, counted)

    def _count(self, counts: dict[str, int]) -> None:
        with self._lock:
            self._counts.update(counts)

    def _answer(self, respond: _Respond) -> Iterable[bytes]:
        with self._lock:
            body = json.dumps(self._counts).encode()
            self._counts.clear()
        respond("200 OK", [("Content-Length", str(len(body)))])
        return [body]


def _operation(environ: dict[str, Any]) -> str:
    is_list = environ["REQUEST_METHOD"] == "GET" and "list-type" in environ["QUERY_STRING"]
    return "LIST" if is_list else str(environ["REQUEST_METHOD"])


def _serve() -> None:
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 # only the server's process needs it
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import WSGIRequestHandler, make_server  # noqa: PLC0415 # only the server process needs it

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_: object) -> None:
            pass

    served = _Counting(DomainDispatcherApplication(create_backend_app))
    server = make_server(_HOST, 0, served, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.port, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve()
