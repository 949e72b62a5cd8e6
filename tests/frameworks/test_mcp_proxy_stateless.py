"""The proxy behind HTTP clients of the protocol revision 2026-07-28, which has no sessions."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="its tests run in an environment of their own: make test-integration-mcp")

import anyio
import httpx2
from frameworks.mcp_http import HttpServer
from frameworks.mcp_talk import records_of, ref_in, text_of
from frameworks.mcp_wrapped import big_text
from frameworks.test_mcp_proxy_http import WRAPPED, in_store, program
from mcp import Client

from offload.integrations.mcp._results import ResultOffloader
from offload.integrations.mcp._stateless import SharedServer
from offload_backends.memory import MemoryStore

REVISION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": REVISION,
    "io.modelcontextprotocol/clientCapabilities": {},
}
ACCEPTED = {"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": REVISION}


def counted(tmp_path: Path) -> list[str]:
    """Return a command that notes each start of the wrapped server in the file `pids`."""
    return ["sh", "-c", f'echo $$ >> {tmp_path}/pids; exec "$0" "$@"', sys.executable, str(WRAPPED)]


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "pids").read_text().split())


def asked(tool: str, request_id: Any = 7, **meta: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": {}, "_meta": {**META, **meta}}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


def posted(url: str, message: Any, **headers: str) -> httpx2.Response:
    named = {"Mcp-Method": message.get("method", ""), "Mcp-Name": message.get("params", {}).get("name", "")}
    sent = {**ACCEPTED, **named, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return httpx2.post(url, json=message, headers=sent, timeout=60)


def text_in(response: httpx2.Response) -> str:
    return str(response.json()["result"]["content"][0]["text"])


def test_clients_of_both_kinds_offload_into_one_session_and_read_it(tmp_path: Path) -> None:
    async def talk(url: str) -> None:
        async with Client(url, mode=REVISION) as first, Client(url, mode=REVISION) as second:
            ref = ref_in(text_of(await first.call_tool("big")))
            found = await second.call_tool("context_grep", {"id": ref, "pattern": "the needle"})
            assert "02000 the needle of 0" in text_of(found)
            assert [p.name for p in (await second.list_prompts()).prompts] == ["greet"]
        async with Client(url, mode="legacy") as third:
            assert text_of(await third.call_tool("context_read", {"id": ref, "limit": 20}))

    with program(*in_store(tmp_path), "--", *counted(tmp_path)) as url:
        asyncio.run(talk(url))

    assert starts(tmp_path) == 2, "one for the revision, one for the session"
    assert [*records_of(str(tmp_path / "store")).values()] == [big_text()]


def test_a_wrapped_url_is_asked_in_the_revision_too(tmp_path: Path) -> None:
    server = HttpServer()
    with server.running(), program(*in_store(tmp_path), "--url", server.url) as url:
        ref_in(text_in(posted(url, asked("big"))))

    [headers] = [headers for _, headers, body in server.requests if b"tools/call" in body]
    assert headers["mcp-protocol-version"] == REVISION
    assert headers["mcp-name"] == "big"


def test_two_clients_with_one_id_and_one_token_get_what_is_theirs(tmp_path: Path) -> None:
    async def call(client: httpx2.AsyncClient, url: str, tool: str) -> list[Any]:
        seen = []
        message = asked(tool, progressToken="p1")
        headers = {**ACCEPTED, "Mcp-Method": "tools/call", "Mcp-Name": tool}
        async with client.stream("POST", url, json=message, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    seen.append(json.loads(line.removeprefix("data: ")))
                if tool == "wait" and seen:
                    break
        return seen

    async def talk(url: str) -> list[list[Any]]:
        async with httpx2.AsyncClient(timeout=60) as client:
            return await asyncio.gather(*(call(client, url, tool) for tool in ("wait", "busy", "busy")))

    with program(*in_store(tmp_path), "--", *counted(tmp_path)) as url:
        [waiting], *others = asyncio.run(talk(url))
        # The first one went, which cancels its call.
        while text_in(posted(url, asked("was_cancelled"))) != "['wait']":
            pass

    assert waiting["params"] == {"progressToken": "p1", "progress": 1}
    for progress, done in others:
        assert progress["params"]["progressToken"] == "p1"
        assert progress["params"]["message"] == "half"
        assert (done["id"], done["result"]["content"][0]["text"]) == (7, "done")
    assert starts(tmp_path) == 1


def test_a_server_that_ended_is_started_again_by_the_next_request(tmp_path: Path) -> None:
    with program(*in_store(tmp_path), "--", *counted(tmp_path)) as url:
        assert "the wrapped MCP server exited" in text_in(posted(url, asked("die")))
        assert text_in(posted(url, asked("small"))) == "little"

    assert starts(tmp_path) == 2


WRONG: list[tuple[Any, dict[str, str], int, int]] = [
    ({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}, {}, 400, -32602),
    (asked("small"), {"Mcp_Name": "big"}, 400, -32020),
    (asked("small"), {"Mcp_Protocol_Version": "2031-01-01"}, 400, -32020),
    ({"jsonrpc": "2.0", "id": 1, "result": {}}, {}, 400, -32600),
    ({"jsonrpc": "2.0", "id": 1, "method": "no/such", "params": {"_meta": META}}, {}, 404, -32601),
]


def test_what_is_wrong_is_an_error_of_the_protocol(tmp_path: Path) -> None:
    with program(*in_store(tmp_path), "--", sys.executable, str(WRAPPED)) as url:
        refused = [posted(url, message, **headers) for message, headers, _, _ in WRONG]

    found = [(response.status_code, response.json()["error"]["code"]) for response in refused]
    assert found == [(status, code) for _, _, status, code in WRONG]


def test_requests_that_come_before_the_server_started_count_too(tmp_path: Path) -> None:
    late = 'while ! test -e "$0"; do sleep 0.1; done; exec "$@"'
    command = ["sh", "-c", late, str(tmp_path / "go"), sys.executable, str(WRAPPED)]

    async def call(client: httpx2.AsyncClient, url: str) -> bool:
        headers = {**ACCEPTED, "Mcp-Method": "tools/call", "Mcp-Name": "small"}
        response = await client.post(url, json=asked("small"), headers=headers)
        if is_refused := "100 requests wait already" in response.text:
            (tmp_path / "go").touch()
        return is_refused

    async def talk(url: str) -> list[bool]:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(timeout=60, limits=limits) as client:
            return await asyncio.gather(*(call(client, url) for _ in range(101)))

    with program(*in_store(tmp_path), "--", *command) as url:
        assert sum(asyncio.run(talk(url))) == 1


def test_a_connection_that_fails_answers_who_waits_and_the_next_request_opens_another() -> None:
    opened = []

    @asynccontextmanager
    async def failing() -> AsyncIterator[Any]:
        put, to_server = anyio.create_memory_object_stream[Any](0)
        nothing, from_server = anyio.create_memory_object_stream[Any](0)
        opened.append(put)

        async def fail() -> None:
            await to_server.receive()
            raise OSError("the connection broke")

        async with nothing, from_server, put, to_server, anyio.create_task_group() as tasks:
            tasks.start_soon(fail)
            yield from_server, put

    async def talk() -> list[str]:
        server = SharedServer(failing, ResultOffloader(MemoryStore(), "s"))
        headers = {**ACCEPTED, "Mcp-Method": "tools/call", "Mcp-Name": "small"}
        transport = httpx2.ASGITransport(server.handle)
        with anyio.fail_after(20):
            async with (
                server.run(),
                httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
            ):
                return [(await client.post("/", json=asked("small"), headers=headers)).text for _ in range(2)]

    texts = asyncio.run(talk())

    assert ["the connection ended" in text for text in texts] == [True, True]
    assert len(opened) == 2
