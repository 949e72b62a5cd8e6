"""Speed and memory of the gateway: latency added to a request, long bodies, 64 streams beside a rewrite.

The gateway is the command, in a process of its own, before a server that answers at once. Requests go to
that server directly and through the gateway in turn, so that what the machine does meanwhile falls on both.
The CPU time is that of the gateway's process and does not depend on the load of the machine.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from _content import output, wide_output
from _measure import Figure, require, run, size

_MS = 1000.0
_REPLY = json.dumps(
    {"usage": {"input_tokens": 1, "cache_read_input_tokens": 90_000, "cache_creation_input_tokens": 100}}
).encode()
_EVENTS, _EVENT_SECONDS = 10, 0.05
_STREAMS = 64
_LONG = 64 * 1024 * 1024
# Large results of a conversation, and how many small ones come with each.
_LARGE, _SMALL, _SMALL_PER_LARGE = 12_000, 1_000, 7
# So many turns of a conversation are timed, after so many requests that warm it.
_TURNS, _WARMING = 10, 2
_BUDGET_BYTES, _BUDGET_MS, _REPLICA_BUDGET = 200_000, 10.0, 2


class _Upstream(BaseHTTPRequestHandler):
    """Answers at once, or with a stream of events if the path ends in `/stream`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        left = int(self.headers["content-length"])
        while left:
            left -= len(self.rfile.read(min(left, 1 << 20)))
        if self.path.endswith("/stream"):
            self._stream()
            return
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(_REPLY)))
        self.end_headers()
        self.wfile.write(_REPLY)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for _ in range(_EVENTS):
            event = b"data: %f\n\n" % time.time()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            time.sleep(_EVENT_SECONDS)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None:
        """Keep the server quiet."""


class _Client(NamedTuple):
    """A kind of client.

    Attributes:
        name: what it does.
        tools: those of its requests: it has those that read back, or the gateway adds them.
        text: makes the results of its calls.
        is_ascii: whether it escapes all other characters.
    """

    name: str
    tools: Sequence[dict[str, str]]
    text: Callable[[int, int], str]
    is_ascii: bool

    def body(self, messages: list[dict[str, Any]]) -> bytes:
        request = {"model": "m", "max_tokens": 1, "tools": self.tools, "messages": messages}
        return json.dumps(request, ensure_ascii=self.is_ascii).encode()

    def conversation(self, length: int) -> list[dict[str, Any]]:
        """Return the messages of an agent, of about `length` characters."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Begin."}]
        number = taken = 0
        while taken < length:
            number += 1
            chars = _LARGE if number % (_SMALL_PER_LARGE + 1) == 0 else _SMALL
            messages += self.turn(-number, chars)
            taken += chars + 200
        return messages

    def turn(self, number: int, chars: int) -> list[dict[str, Any]]:
        """Return a call and its result of so many characters."""
        command = {"command": f"make {number}"}
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Bash", "input": command}
        text = self.text(chars, abs(number))
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text}
        return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


_OWN, _NONE = [{"name": "Bash"}, {"name": "context_read"}], [{"name": "Bash"}]
_PLAIN = _Client("own tools to read back, ASCII", _OWN, output, is_ascii=True)
_USUAL = _Client("tools of the gateway, raw UTF-8", _NONE, wide_output, is_ascii=False)


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


class Gateway:
    """The gateway's process.

    Args:
        url: where it answers.
        pid: its process.
    """

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self._process = Path("/proc", str(pid))

    def cpu(self) -> float:
        """Return the CPU seconds of all its threads so far."""
        seconds = 0.0
        for thread in (self._process / "task").iterdir():
            with suppress(OSError):
                seconds += int((thread / "schedstat").read_text().split()[0]) / 1e9
        return seconds

    def peak_memory(self) -> int:
        """Return its peak resident memory in bytes."""
        lines = (self._process / "status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    rounds = 20 if is_quick else 100
    for client in (_USUAL, _PLAIN):
        for length in (20_000, 200_000, 2_000_000, 5_000_000):
            with _serving() as (upstream, gateway):
                yield from _latency(upstream, gateway, client, length, rounds)
    yield _replica(4 if is_quick else 10)
    with _serving() as (_, gateway):
        yield _memory(gateway)
    with _serving() as (upstream, gateway):
        yield from _streams(upstream, gateway)


def _latency(upstream: str, gateway: Gateway, client: _Client, length: int, rounds: int) -> Iterator[Figure]:
    """Yield the latency that the gateway adds to the requests of a conversation that grows turn by turn."""
    direct, through, cpu = list[float](), list[float](), list[float]()
    with closing(_connected(upstream)) as straight, closing(_connected(gateway.url)) as detour:
        for number in range(rounds):
            turn = number % _TURNS
            if turn == 0:
                messages = client.conversation(length)
                headers = {"x-claude-code-session-id": str(number)}
                _seconds(detour, client.body(messages[:1]), headers)
                for _ in range(_WARMING):
                    _until_rewritten(detour, client.body(messages), headers)
                    messages += client.turn(-1000 - len(messages), _SMALL)
            messages += client.turn(number, _LARGE if turn == _TURNS // 2 else _SMALL)
            body = client.body(messages)
            before = gateway.cpu()
            pairs = ((direct, straight), (through, detour))
            for times, connection in pairs if number % 2 else reversed(pairs):
                times.append(_seconds(connection, body, headers))
            cpu.append(gateway.cpu() - before)
    added = [late - early for late, early in zip(through, direct, strict=True)]
    name = f"request of {size(length)}, {client.name}"
    p50, p95 = _percentiles(added)
    most = _BUDGET_MS if length == _BUDGET_BYTES else None
    detail = f"directly {_percentiles(direct)[0] * _MS:.1f} ms, least {min(added) * _MS:.1f} ms"
    yield Figure(f"{name}: latency added, p50", p50 * _MS, "ms", detail=detail)
    yield Figure(f"{name}: latency added, p95", p95 * _MS, "ms", at_most=most)
    p50, p95 = _percentiles(cpu)
    yield Figure(f"{name}: CPU time of the gateway, p50", p50 * _MS, "ms", detail=f"p95 {p95 * _MS:.1f} ms")


def _replica(rounds: int) -> Figure:
    """Return the CPU of the first request of a conversation at a second gateway / that at the first."""
    warm, cold = list[float](), list[float]()
    with (
        tempfile.TemporaryDirectory() as store,
        _serving(store) as (_, first),
        _serving(store) as (_, second),
        closing(_connected(first.url)) as one,
        closing(_connected(second.url)) as other,
    ):
        for number in range(rounds + 1):
            messages, headers = _PLAIN.conversation(_BUDGET_BYTES), {"x-claude-code-session-id": str(number)}
            for gateway, connection, times in ((first, one, []), (first, one, warm), (second, other, cold)):
                messages += _PLAIN.turn(-1000 - len(messages), _SMALL)
                before = gateway.cpu()
                _seconds(connection, _PLAIN.body(messages), headers)
                times.append(gateway.cpu() - before)
    # The first round loads modules.
    ours, usual = median(cold[1:]), median(warm[1:])
    return Figure(
        f"request of {size(_BUDGET_BYTES)} at a replica that has not seen the conversation / at one that has",
        ours / usual,
        at_most=_REPLICA_BUDGET,
        detail=f"{ours * _MS:.1f} to {usual * _MS:.1f} ms of CPU",
    )


def _memory(gateway: Gateway) -> Figure:
    """Return how much memory the gateway takes for a body that it does not read."""
    with closing(_connected(gateway.url)) as connection:
        _seconds(connection, _PLAIN.body(_PLAIN.conversation(20_000)), {})
        before = gateway.peak_memory()
        _seconds(connection, b" " * _LONG, {})
    peak = (gateway.peak_memory() - before) / 2**20
    return Figure(f"body of {_LONG >> 20} MiB: memory of the gateway", peak, "MiB", at_most=48)


def _streams(upstream: str, gateway: Gateway) -> Iterator[Figure]:
    """Yield how late the events of many streams come while long requests are rewritten."""
    body = _PLAIN.body(_PLAIN.conversation(2_000_000))
    for name, url in (("directly", upstream), ("through the gateway", gateway.url)):
        done = threading.Event()
        beside = threading.Thread(target=_repeat, args=(gateway.url, body, done))
        beside.start()
        with ThreadPoolExecutor(_STREAMS) as pool:
            late = [each for delays in pool.map(_delays, [url] * _STREAMS) for each in delays]
        done.set()
        beside.join()
        require(len(late) == _STREAMS * _EVENTS, "an event of a stream is missing")
        p50, p95 = _percentiles(late)
        detail = f"p50 {p50 * _MS:.1f} ms, longest {max(late) * _MS:.0f} ms, requests of 2 MB beside them"
        yield Figure(f"{_STREAMS} streams {name}: delay of an event, p95", p95 * _MS, "ms", detail=detail)


def _delays(url: str) -> list[float]:
    """Return how long after it was sent each event of a stream came."""
    with closing(_connected(url)) as connection:
        connection.request("POST", "/v1/messages/stream", b"{}")
        answer = connection.getresponse()
        delays = []
        while line := answer.readline():
            if line.startswith(b"data: "):
                delays.append(time.time() - float(line[6:]))
    return delays


def _repeat(url: str, body: bytes, done: threading.Event) -> None:
    with closing(_connected(url)) as connection:
        while not done.is_set():
            _seconds(connection, body, {})


def _seconds(connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> float:
    start = time.perf_counter()
    connection.request("POST", "/v1/messages", body, headers)
    answer = connection.getresponse()
    answer.read()
    require(answer.status == http.HTTPStatus.OK, f"status {answer.status}")
    return time.perf_counter() - start


def _until_rewritten(connection: http.client.HTTPConnection, body: bytes, headers: dict[str, str]) -> None:
    """Repeat a request until the store has what is replaced in it."""
    before = _rewritten(connection)
    while _rewritten(connection) == before:
        _seconds(connection, body, headers)


def _rewritten(connection: http.client.HTTPConnection) -> int:
    """Return how many requests the gateway has rewritten."""
    connection.request("GET", "/offload/status")
    return int(json.loads(connection.getresponse().read())["rewritten"])


def _percentiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile."""
    cuts = quantiles(values, n=20)
    return cuts[9], cuts[18]


def _connected(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)


@contextmanager
def _serving(folder: str | None = None) -> Iterator[tuple[str, Gateway]]:
    """Run the server and a gateway before it, with its store in `folder` or in one of its own."""
    server = _Server(("127.0.0.1", 0), _Upstream)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    upstream = f"http://127.0.0.1:{server.server_port}"
    with tempfile.TemporaryDirectory() as store:
        command = [sys.executable, "-m", "offload", "gateway", "--upstream", upstream, "--port", "0"]
        with subprocess.Popen(
            [*command, "--store", folder or store],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                line = process.stdout.readline() if process.stdout else ""
                require(line.startswith("Gateway at "), "the gateway did not start")
                yield upstream, Gateway(line.split()[2], process.pid)
            finally:
                process.kill()
                server.shutdown()
                server.server_close()


if __name__ == "__main__":
    run(__doc__, figures)
