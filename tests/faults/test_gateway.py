"""A gateway between a client and a provider that fail: what one sends, the other gets or sees break."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import prepared
import pytest
from gateways import (
    HEADERS,
    LOG,
    REPLY,
    Provider,
    Seen,
    Upstream,
    ask,
    body_of,
    connection,
    providing,
    running,
    turns,
)

from offload import Offloader, StoreError
from offload.testing import FaultyStore
from offload.testing.faults import Verb
from offload_backends.memory import MemoryStore

Answer = Callable[[socket.socket], str | None]

PATH = "/v1/messages"
ANSWER = json.dumps(REPLY).encode()
OPENING = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def raw_provider(*answers: Answer) -> Iterator[tuple[str, list[tuple[bytes, bytes]]]]:
    """Answer the n-th request with the n-th function, which gets its connection; the last one stays."""
    listening = socket.create_server(("127.0.0.1", 0))
    requests = []

    def serve(client: socket.socket) -> None:
        with client, client.makefile("rb") as lines:
            while request := lines.readline():
                length = int(http.client.parse_headers(lines)["content-length"])
                requests.append((request, lines.read(length)))
                if answers[min(len(requests), len(answers)) - 1](client) == "closes":
                    return

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    with closing(listening):
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", requests
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()


def sends(data: bytes, then: str | None = None) -> Answer:
    def answer(client: socket.socket) -> str | None:
        client.sendall(data)
        if then == "resets":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return "closes" if then else None

    return answer


WHOLE = sends(OPENING + b"Content-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER)


@contextmanager
def heads(reply: bytes, count: int) -> Iterator[tuple[str, list[bytes]]]:
    """Answer so many requests of one connection; yield the address, and the heads as they came."""
    got: list[bytes] = []

    def serve() -> None:
        client = listening.accept()[0]
        with client, client.makefile("rb") as lines:
            for _ in range(count):
                got.append(b"".join(iter(lines.readline, b"\r\n")))
                length = re.search(rb"(?i)content-length: (\d+)", got[-1])
                lines.read(int(length[1]) if length else 0)
                client.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve)
        serving.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", got
        serving.join()


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("body", [b"", b"x" * 200_000, body_of(turns(3))])
def test_bytes_of_headers_beyond_ascii_pass_in_both_directions(
    method: str, body: bytes, off: Offloader
) -> None:
    values = [bytes([byte]) + b"-\xc3\xa9 x" for byte in range(0x80, 0x100, 7)]
    values += [b"caf\xe9", "caf\u00e9".encode(), b"plain"]
    lines = b"".join(b"X-Note-%d: %s\r\n" % pair for pair in enumerate(values))
    head = f"{method} {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode() + lines
    head += b"Content-Length: %d\r\n" % len(body) if method == "POST" or body else b""
    replies = []
    answer = b"HTTP/1.1 200 OK\r\n" + lines + b"Content-Length: 0\r\n\r\n"
    with heads(answer, 2) as (upstream, got), running(upstream, off) as url:
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as sent:
                sent.sendall(head + b"\r\n" + body)
                replies.append(b"".join(iter(partial(sent.recv, 65536), b"")))

    noted = [re.findall(rb"(?im)^x-note-\d+: (.*)\r$", each) for each in (*got, *replies)]
    assert noted == [values] * 4


@pytest.fixture
def off() -> Offloader:
    return Offloader("memory://", session="gateway")


# The provider


@pytest.mark.parametrize("then", ["closes", "resets"])
def test_a_stream_that_breaks_in_the_middle_of_an_event_is_not_taken_for_whole(
    off: Offloader, then: str | None
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    part = b'event: message_start\ndata: {"type":"message_start","mess'
    half = sends(head + b"%x\r\n%s\r\n" % (len(part), part), then)

    with raw_provider(half, WHOLE) as (url, _), running(url, off) as gateway:
        with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
            ask(gateway + PATH, body_of(turns(1, "short")))
        assert ask(gateway + PATH, body_of(turns(1, "short"))).body == ANSWER


def test_an_answer_of_http_1_0_ends_with_its_connection(off: Offloader) -> None:
    old = sends(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + ANSWER, "closes")

    with raw_provider(old) as (url, _), running(url, off) as gateway:
        assert ask(gateway + PATH, body_of(turns(1, "short"))).body == ANSWER


def test_a_connection_that_the_provider_closes_between_requests_is_opened_again(off: Offloader) -> None:
    closed = threading.Semaphore(0)

    def closing_one(client: socket.socket) -> str:
        WHOLE(client)
        client.shutdown(socket.SHUT_RDWR)
        closed.release()
        return "closes"

    with raw_provider(closing_one) as (url, requests), running(url, off) as gateway:
        for n in range(1, 21):
            assert ask(gateway + PATH, body_of(turns(n, "short"))).status == 200
            assert closed.acquire(timeout=60)

    assert len(requests) == 20


def test_bytes_behind_an_answer_do_not_reach_the_client(off: Offloader) -> None:
    more = sends(OPENING + b"Content-Length: %d\r\n\r\n" % len(ANSWER) + ANSWER + b"HTTP/1.1 200 stray")

    with raw_provider(more, WHOLE) as (url, _), running(url, off) as gateway:
        bodies = [ask(gateway + PATH, body_of(turns(1, "short"))).body for _ in range(3)]

    assert bodies == [ANSWER] * 3


@pytest.mark.parametrize("status", [429, 529])
def test_a_refusal_passes_with_retry_after_and_the_next_request_has_the_same_bytes(
    off: Offloader, status: int
) -> None:
    error = b'{"type":"error","error":{"type":"rate_limit_error","message":"Slow down"}}'
    refusal = sends(
        b"HTTP/1.1 %d No\r\nRetry-After: 7\r\nx-should-retry: true\r\nContent-Length: %d\r\n\r\n%s"
        % (status, len(error), error)
    )

    with raw_provider(refusal, WHOLE) as (url, requests), running(url, off) as gateway:
        first, second = (ask(gateway + PATH, body_of(turns(3))) for _ in range(2))

    assert (first.status, first.body, second.body) == (status, error, ANSWER)
    assert {"retry-after": "7", "x-should-retry": "true"}.items() <= {
        name.lower(): value for name, value in first.headers
    }.items()
    assert requests[0] == requests[1]
    assert b"[Offloaded: " in requests[0][1]


def test_a_damaged_encoded_answer_passes_and_its_usage_is_not_read(off: Offloader) -> None:
    damaged = gzip.compress(ANSWER)[:-9] + b"damage!!!"
    encoded = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(damaged)

    with raw_provider(sends(OPENING + encoded + damaged)) as (url, _), running(url, off) as gateway:
        reply = ask(gateway + PATH, body_of(turns(3)))

    assert (reply.status, reply.body) == (200, damaged)


# The client


@pytest.mark.parametrize("more", [b"\n", b" {}", b"\x00", b"]"])
def test_bytes_behind_the_json_of_a_request_pass_with_it(off: Offloader, more: bytes) -> None:
    body = body_of(turns(3)) + more

    with raw_provider(WHOLE) as (url, requests), running(url, off) as gateway:
        ask(gateway + PATH, body)

    assert requests[0][1].endswith(more)
    assert (requests[0][1] == body) is (more != b"\n")


def test_two_requests_on_one_connection_are_answered_in_turn(off: Offloader) -> None:
    with providing() as upstream, running(upstream.url, off) as gateway:
        with closing(connection(gateway)) as kept:
            for count in (2, 3):
                kept.request("POST", PATH, body_of(turns(count)), HEADERS)
                assert kept.getresponse().read() == ANSWER
        assert len(upstream.seen) == 2


def test_clients_that_leave_take_no_descriptors_with_them(off: Offloader) -> None:
    def endless(provider: Provider) -> None:
        provider.start_stream()
        with suppress(OSError):
            while True:
                provider.send_part(b"data: more\n\n")
                time.sleep(0.01)

    def leave(gateway: str) -> None:
        with closing(connection(gateway)) as sent:
            sent.request("POST", PATH, body_of(turns(1, "short")), HEADERS)
            sent.getresponse().read1()

    def open_files(least: int) -> int:
        """Wait until all that ends has ended; the server of the test closes its side later."""
        until = time.monotonic() + 20
        while (count := len([*Path("/proc/self/fd").iterdir()])) > least and time.monotonic() < until:
            time.sleep(0.05)
        return count

    with providing() as upstream, running(upstream.url, off) as gateway:
        upstream.answer = endless
        leave(gateway)
        before = len([*Path("/proc/self/fd").iterdir()])
        for _ in range(60):
            leave(gateway)
        after = open_files(before)

    assert after <= before


# The store


@pytest.mark.parametrize("verb", ["put", None], ids=["full", "gone"])
def test_a_store_that_takes_nothing_lets_requests_pass_until_it_does(verb: Verb | None) -> None:
    store = FaultyStore(MemoryStore(), verb=verb, is_lasting=True, error=StoreError)

    with providing() as upstream, running(upstream.url, Offloader(store, session="gateway")) as gateway:
        ask(gateway + PATH, body_of(turns(3)))
        store.heal()
        ask(gateway + PATH, body_of(turns(4)))

    failed, healed = (request.body for request in upstream.seen)
    assert failed == body_of(turns(3))
    assert b"[Offloaded: " in healed


# The gateway


@contextmanager
def command(upstream: str, store: Path) -> Iterator[tuple[prepared.Started, str]]:
    """Run the gateway in a process of its own; yield it and its URL."""
    arguments = ["--upstream", upstream, "--store", store, "--port", "0"]
    with prepared.start(prepared.COMMAND, "gateway", *arguments) as process:
        yield process, process.stdout.readline().split()[2]


def grown(name: str, count: int) -> list[bytes]:
    """Return the requests of a conversation that grows by a large result each."""
    return [body_of(turns(n, f"{name}\n{LOG}")) for n in range(1, count + 1)]


def results_of(seen: Seen) -> dict[str, str]:
    """Return the texts of the results by call, in each request."""
    blocks = (m["content"][0] for m in seen.json["messages"])
    return {b["tool_use_id"]: b["content"] for b in blocks if b["type"] == "tool_result"}


def stream_slowly(provider: Provider) -> None:
    provider.start_stream()
    with suppress(OSError):
        for _ in range(20):
            provider.send_part(b"data: {}\n\n")
            time.sleep(0.01)
        provider.send_part(b"")


def talk(url: str, name: str, broken: list[str]) -> None:
    """Send the requests of a conversation until the gateway is gone."""
    for body in grown(name, 6):
        try:
            ask(url + PATH, body)
        except (OSError, http.client.HTTPException):
            broken.append(name)
            return


def killed_amid(upstream: Upstream, store: Path, names: list[str]) -> tuple[list[Seen], list[str]]:
    """Kill a gateway while conversations go on; return what the provider got, and which broke off."""
    broken: list[str] = []
    upstream.answer = stream_slowly
    with command(upstream.url, store) as (process, url):
        clients = [threading.Thread(target=talk, args=(url, name, broken)) for name in names]
        for client in clients:
            client.start()
        while len(upstream.seen) < 2 * len(names) and any(client.is_alive() for client in clients):
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        for client in clients:
            client.join()
    upstream.answer = lambda provider: provider.say(200, ANSWER)
    return taken(upstream), broken


def ended(upstream: Upstream, store: Path, names: list[str]) -> list[Seen]:
    """Send the last request of each conversation; return what the provider got."""
    with command(upstream.url, store) as (_, url):
        for name in names:
            ask(url + PATH, grown(name, 6)[-1])
    return taken(upstream)


def taken(upstream: Upstream) -> list[Seen]:
    seen, upstream.seen = upstream.seen, []
    return seen


@pytest.mark.timeout(600)
def test_a_kill_amid_requests_and_streams_loses_nothing_and_changes_no_placeholder(tmp_path: Path) -> None:
    names = [f"n{n}" for n in range(8)]
    with providing() as upstream:
        before, broken = killed_amid(upstream, tmp_path / "killed", names)
        resumed = ended(upstream, tmp_path / "killed", names)
        others = ended(upstream, tmp_path / "other", names)

    assert broken
    assert [seen.body for seen in resumed] == [seen.body for seen in others]
    last = {name_in(seen): results_of(seen) for seen in resumed}
    left = [
        (text, last[name_in(seen)][call])
        for seen in before
        for call, text in results_of(seen).items()
        if text.startswith("[Offloaded: ")
    ]
    assert all(text == later for text, later in left)
    kept = Offloader(str(tmp_path / "killed"), session="gateway")
    assert kept.verify() == []
    assert len(kept.records()) >= 5 * len(names)


def name_in(seen: Seen) -> str:
    """Return the name of the conversation of a request, from the result that the model has not seen."""
    return list(results_of(seen).values())[-1].split("\n")[1]


@pytest.mark.slow
def test_five_hundred_requests_leave_descriptors_threads_and_memory_as_they_were(tmp_path: Path) -> None:
    with providing() as upstream, command(upstream.url, tmp_path) as (process, url):
        facts = []
        for number in range(600):
            ask(url + PATH, body_of(turns(2, f"{number % 50}\n{LOG}")))
            if number in (99, 599):
                status = Path(f"/proc/{process.pid}/status").read_text()
                memory = int(status.split("VmRSS:")[1].split()[0])
                threads = int(status.split("Threads:")[1].split()[0])
                facts.append((len([*Path(f"/proc/{process.pid}/fd").iterdir()]), threads, memory))

    (files, threads, memory), (files_later, threads_later, memory_later) = facts
    assert files_later <= files + 2
    assert threads_later <= threads + 1
    assert memory_later < memory * 1.5
