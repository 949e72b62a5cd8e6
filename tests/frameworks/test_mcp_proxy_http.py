"""The proxy in front of a server at a URL, and behind HTTP clients: both sides are the SDK's own."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="its tests run in an environment of their own: make test-integration-mcp")

import anyio
import httpx2
from frameworks.mcp_http import HttpServer
from frameworks.mcp_talk import GREETING, offload, records_of, ref_in, status_of, text_of
from frameworks.mcp_wrapped import big_text
from mcp import Client, MCPError, types
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_client_server_memory_streams

from offload import ConfigError
from offload.cli.mcp import TOKEN_VARIABLE
from offload.integrations.mcp import Proxy, ResultOffloader, url_upstream
from offload_backends.memory import MemoryStore

WRAPPED = Path(__file__).with_name("mcp_wrapped.py")
KEY = "Bearer do-not-tell-4711"
FORMS = pytest.mark.parametrize(
    ("options", "mode"),
    [({}, "legacy"), ({}, "auto"), ({"stateless_http": True, "json_response": True}, "legacy")],
    ids=["sessions", "2026", "json"],
)


@pytest.fixture
def server() -> HttpServer:
    return HttpServer()


@asynccontextmanager
async def proxied(url: str, results: ResultOffloader | None = None) -> AsyncIterator[Any]:
    """Give the streams of a client whose messages pass the proxy on their way to a URL."""
    async with (
        create_client_server_memory_streams() as (client, outer),
        url_upstream(url, {"Authorization": KEY})() as inner,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(Proxy(results or ResultOffloader(MemoryStore(), "s")).run, outer, inner)
        yield client
        tasks.cancel_scope.cancel()


async def placeholder_of_big(client: Client) -> None:
    ref_in(text_of(await client.call_tool("big")))


# A server at a URL


@FORMS
def test_results_of_a_url_are_offloaded_and_read(options: dict[str, Any], mode: str) -> None:
    server, store = HttpServer(**options), MemoryStore()

    async def talk() -> None:
        transport = proxied(server.url, ResultOffloader(store, "s"))
        async with Client(transport, mode=mode) as client:
            await placeholder_of_big(client)
            found = await client.call_tool("context_grep", {"pattern": "the needle"})
            assert "02000 the needle of 0" in text_of(found)
            assert [p.name for p in (await client.list_prompts()).prompts] == ["greet"]

    with server.running():
        asyncio.run(talk())
    assert [*records_of(store).values()] == [big_text()]
    assert {headers["authorization"] for _, headers, _ in server.requests} == {KEY}


def test_a_result_of_megabytes_is_offloaded(server: HttpServer) -> None:
    """The SDK's own client refuses it: its events have at most 1 MiB."""
    store = MemoryStore()

    async def talk() -> None:
        async with Client(proxied(server.url, ResultOffloader(store, "s")), mode="legacy") as client:
            await client.call_tool("huge")

    with server.running():
        asyncio.run(talk())
    assert [*records_of(store).values()] == [big_text() * 10]


def test_progress_and_questions_of_the_server_arrive_in_the_agreed_session_and_revision(
    server: HttpServer,
) -> None:
    heard = []

    async def hear(*report: Any) -> None:
        heard.append(report)

    async def decline(_context: Any, _params: Any) -> Any:
        return types.ElicitResult(action="decline")

    async def talk() -> None:
        async with Client(proxied(server.url), mode="legacy", elicitation_callback=decline) as client:
            assert text_of(await client.call_tool("busy", progress_callback=hear)) == "done"
            assert text_of(await client.call_tool("ask")) == "decline"

    with server.running():
        asyncio.run(talk())
    assert heard == [(1, 2, "half")]
    [ended] = [headers for method, headers, _ in server.requests if method == "DELETE"]
    sessions = {headers.get("mcp-session-id") for method, headers, _ in server.requests if method == "POST"}
    assert sessions == {None, ended["mcp-session-id"]}
    named = {h.get("mcp-protocol-version") for _, h, body in server.requests if b'"initialize"' not in body}
    assert named == {"2025-11-25"}


@pytest.mark.parametrize(("status", "reason"), [(401, "401 Unauthorized"), (503, "503 Service Unavailable")])
def test_a_refusal_is_passed_plainly_and_ends_nothing(
    server: HttpServer, status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk() -> None:
        async with Client(proxied(server.url), mode="legacy") as client:
            server.refusal = status
            with pytest.raises(MCPError, match=f"the wrapped MCP server answered {reason}$"):
                await client.call_tool("big")
            server.refusal = None
            await placeholder_of_big(client)

    with caplog.at_level(logging.INFO), server.running():
        asyncio.run(talk())
    assert "do-not-tell" not in caplog.text


def test_a_greeting_that_is_refused_is_passed_plainly(server: HttpServer) -> None:
    server.refusal = 401

    async def talk() -> None:
        async with Client(proxied(server.url), mode="legacy"):
            pass

    with server.running(), pytest.raises(BaseException) as caught:  # noqa: PT011 # a group of one
        asyncio.run(talk())
    assert "answered 401 Unauthorized" in repr(caught.value)


def test_a_server_that_restarts_is_used_again_in_a_new_session(server: HttpServer) -> None:
    announced = anyio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            announced.set()

    async def talk() -> None:
        async with Client(proxied(server.url), mode="legacy", message_handler=hear) as client:
            await placeholder_of_big(client)
            server.stop()
            with pytest.raises(MCPError, match="the wrapped MCP server cannot be reached: ConnectError"):
                await client.call_tool("small")
            server.start()
            assert text_of(await client.call_tool("small")) == "little"
            # Its notifications come over another connection, which waits before it tries again.
            while not announced.is_set():
                assert text_of(await client.call_tool("announce")) == "announced"
                await anyio.sleep(0.2)

    with server.running():
        asyncio.run(talk())
    greetings = [body for _, _, body in server.requests if b'"initialize"' in body]
    assert len(greetings) == 2
    assert greetings[0] == greetings[1]


def test_a_url_that_is_none_is_named_without_its_secrets() -> None:
    with pytest.raises(ConfigError, match=r"url must start with https:// or http://, got 'ftp://host/"):
        url_upstream("ftp://user:secret@host/mcp")


# HTTP clients


@contextmanager
def program(*arguments: str, **variables: str) -> Iterator[str]:
    """Give the URL of a proxy that runs as a program."""
    command = [sys.executable, "-m", "offload", "mcp-proxy", "--http", "127.0.0.1:0", *arguments]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}
    ) as running:
        assert running.stderr is not None
        try:
            yield running.stderr.readline().split()[-1]
        finally:
            running.send_signal(signal.SIGINT)
            errors = running.stderr.read()
        assert "Traceback" not in errors


def in_store(folder: Path) -> list[str]:
    return ["--store", str(folder / "store"), "--session", "s"]


def test_each_http_client_has_a_server_of_its_own_which_ends_with_it(tmp_path: Path) -> None:
    child = f'echo $$ >> {tmp_path}/pids; exec "$0" "$@"'

    async def talk(url: str) -> None:
        async with Client(url, mode="legacy") as first, Client(url, mode="legacy") as second:
            assert "the wrapped MCP server exited" in text_of(await first.call_tool("die"))
            assert text_of(await second.call_tool("small")) == "little"
            await placeholder_of_big(second)

    with program(*in_store(tmp_path), "--", "sh", "-c", child, sys.executable, str(WRAPPED)) as url:
        asyncio.run(talk(url))
        pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
        assert len(pids) == 2
        wait_for_the_end_of(pids)
    assert [*records_of(str(tmp_path / "store")).values()] == [big_text()]


def wait_for_the_end_of(pids: list[int]) -> None:
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.05)


def test_both_sides_speak_http_with_credentials_of_their_own(tmp_path: Path, server: HttpServer) -> None:
    announced = anyio.Event()

    async def hear(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            announced.set()

    async def talk(url: str) -> None:
        async with (
            httpx2.AsyncClient(headers={"Authorization": "Bearer ours"}) as http,
            streamable_http_client(url, http_client=http) as streams,
            connected(streams, hear) as client,
        ):
            await placeholder_of_big(client)
            await client.call_tool("announce")
            await announced.wait()

    options = [*in_store(tmp_path), "--url", server.url, "--header", "Authorization=Bearer ${KEY}"]
    with (
        server.running(),
        program(*options, **{TOKEN_VARIABLE: "ours", "KEY": "theirs"}) as url,
    ):
        assert status_of(url, {}) == 401
        asyncio.run(talk(url))
    assert {headers["authorization"] for _, headers, _ in server.requests} == {"Bearer theirs"}
    assert [*records_of(str(tmp_path / "store")).values()] == [big_text()]
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"theirs" not in stored


@asynccontextmanager
async def connected(streams: Any, hear: Any) -> AsyncIterator[Client]:
    @asynccontextmanager
    async def transport() -> AsyncIterator[Any]:
        yield streams

    async with Client(transport(), mode="legacy", message_handler=hear) as client:
        yield client


def test_only_a_greeting_from_this_machine_starts_a_server(tmp_path: Path) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    started = f'echo 1 >> {tmp_path}/started; exec "$0" "$@"'
    with program(*in_store(tmp_path), "sh", "-c", started, sys.executable, str(WRAPPED)) as url:
        assert status_of(url, {"Host": "evil.example"}) == 421
        assert status_of(url, {"Origin": "http://evil.example"}) == 403
        assert status_of(url, {"Sec-Fetch-Site": "cross-site"}) == 403
        assert status_of(url, {"Mcp-Session-Id": "unknown"}) == 404
        assert status_of(url, {"Mcp-Protocol-Version": "2026-07-28"}) == 400
        assert not (tmp_path / "started").exists()
        assert status_of(url, {}, ping) == 400
        assert status_of(url, {}) == 200


def test_a_client_without_a_connection_for_notifications_gets_progress_and_questions(tmp_path: Path) -> None:
    accepted = {"Accept": "application/json, text/event-stream"}
    greeting = {**GREETING, "params": {**GREETING["params"], "capabilities": {"elicitation": {}}}}

    def called(client: httpx2.Client, url: str, tool: str) -> list[Any]:
        params = {"name": tool, "_meta": {"progressToken": "p1"}}
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        seen = []
        with client.stream("POST", url, json=call) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    seen.append(json.loads(line.removeprefix("data: ")))
                    if seen[-1].get("method") == "elicitation/create":
                        declined = {"jsonrpc": "2.0", "id": seen[-1]["id"], "result": {"action": "decline"}}
                        client.post(url, json=declined)
        return seen

    with (
        program(*in_store(tmp_path), "--", sys.executable, str(WRAPPED)) as url,
        httpx2.Client(headers=accepted, timeout=60) as client,
    ):
        client.headers["Mcp-Session-Id"] = client.post(url, json=greeting).headers["mcp-session-id"]
        client.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        progress, done = called(client, url, "busy")
        question, answer = called(client, url, "ask")
    assert progress["params"]["progressToken"] == "p1"
    assert done["result"]["content"][0]["text"] == "done"
    assert question["params"]["message"] == "which?"
    assert answer["result"]["content"][0]["text"] == "decline"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--url", "http://127.0.0.1:1/mcp", "npx"], "give COMMAND or --url, not both; got COMMAND npx"),
        (["--header", "a=b", "npx"], "--header needs --url"),
        (["--header", "secret", "--url", "http://h"], "--header must be NAME=VALUE"),
        (["--header", "a=${NOPE}", "--url", "http://h"], "--header a: the variable NOPE is not set"),
        (["--header", "a=secret\nb", "--url", "http://h"], "--header a: the value must be one line of ASCII"),
        (["--url", "host/mcp"], "url must start with https:// or http://, got 'host/mcp'"),
        (["--http", "8765", "npx"], "--http must be HOST:PORT"),
        (["--http", "0.0.0.0:1", "npx"], "host must be the one address that clients use"),
        (["--http", "127.0.0.1:0", "no-such-program"], "cannot start 'no-such-program'"),
    ],
)
def test_options_that_cannot_be_meant_are_named(tmp_path: Path, arguments: list[str], error: str) -> None:
    done = offload("mcp-proxy", *in_store(tmp_path), *arguments)
    assert done.returncode == 2
    assert error in done.stderr
    assert "secret" not in done.stderr


def test_over_stdio_a_url_is_wrapped_with_a_header_of_the_environment(
    tmp_path: Path, server: HttpServer
) -> None:
    options = [*in_store(tmp_path), "--url", server.url, "--header", "X-Key: ${KEY}"]
    proxy = StdioServerParameters(
        command=sys.executable, args=["-m", "offload", "mcp-proxy", *options], env={**os.environ, "KEY": "k1"}
    )

    async def talk() -> None:
        async with Client(proxy) as client:
            await placeholder_of_big(client)

    with server.running():
        asyncio.run(talk())
    assert {headers["x-key"] for _, headers, _ in server.requests} == {"k1"}
