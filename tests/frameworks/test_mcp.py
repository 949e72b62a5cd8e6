"""The server of stored context, asked by the SDK's own client."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="its tests run in an environment of their own: make test-integration-mcp")

import httpx2
import uvicorn
from frameworks import scenario
from frameworks.mcp_talk import GREETING, offload, status_of, text_of
from mcp import Client, MCPError, types
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from offload import ConfigError, Offloader
from offload.cli.mcp import TOKEN_VARIABLE
from offload.engine.policy.tool_names import TOOL_NAMES
from offload.integrations.mcp import context_server, http_app, serve_http
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

BIG = "\n".join(f"line {n} of the log" for n in range(10_000))
MODES = pytest.mark.parametrize("mode", ["legacy", "auto"])


def stored(store: Any, session: str = "s", text: str = BIG) -> str:
    """Store a text and return its ref."""
    offloader = Offloader(store, session=session)
    offloader.offload_text(text, tool_name="Bash")
    [info] = offloader.records()
    return info.ref


def asked(offloader: Offloader, talk: Any, **client: Any) -> Any:
    async def run() -> Any:
        async with Client(context_server(offloader), **client) as connected:
            return await talk(connected)

    return asyncio.run(run())


@MODES
def test_the_four_tools_are_listed_as_harmless(mode: str) -> None:
    async def talk(client: Client) -> Any:
        assert "[Offloaded:" in str(client.instructions)
        return (await client.list_tools()).tools

    tools = asked(Offloader(MemoryStore(), session="s"), talk, mode=mode)
    assert [tool.name for tool in tools] == [*TOOL_NAMES]
    for tool in tools:
        hints = tool.annotations
        assert (hints.read_only_hint, hints.idempotent_hint) == (True, True)
        assert (hints.destructive_hint, hints.open_world_hint) == (False, False)
        # Else Claude Code sends a model their names only.
        assert tool.meta["anthropic/alwaysLoad"] is True


@MODES
def test_no_answer_names_the_folder_of_a_store_that_fails(mode: str, tmp_path: Path) -> None:
    root = tmp_path / "host-folder"
    root.write_text("no folder")

    async def talk(client: Client) -> list[str]:
        said = [text_of(await client.call_tool("context_list"))]
        for asking in (client.list_resources(), client.read_resource("ctx://aaaaaaaaaa")):
            with pytest.raises(MCPError) as refused:
                await asking
            said.append(str(refused.value))
        return said

    said = asked(Offloader(root, session="s"), talk, mode=mode)
    assert all("the store failed" in each and "host-folder" not in each for each in said)


@MODES
def test_a_record_is_listed_read_searched_and_given_whole(mode: str) -> None:
    store = MemoryStore()
    ref = stored(store)

    async def talk(client: Client) -> None:
        assert ref in text_of(await client.call_tool("context_list"))
        page = await client.call_tool("context_read", {"id": ref, "part": "5000-5001"})
        assert "\nline 4999 of the log\nline 5000 of the log\n" in text_of(page)
        assert [b.uri for b in page.content if b.type == "resource_link"] == [f"ctx://{ref}"]
        found = await client.call_tool("context_grep", {"pattern": "line 7777 of"})
        assert "line 7777 of the log" in text_of(found)
        assert not found.is_error
        last = await client.call_tool("context_tail", {"id": ref})
        pages = (page, last, found)
        assert [any(b.type == "resource_link" for b in each.content) for each in pages] == [True, True, False]
        [whole] = (await client.read_resource(f"ctx://{ref}")).contents
        assert whole.text == BIG

    asked(Offloader(store, session="s"), talk, mode=mode)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("context_read", {"id": "aaaaaaaaaa"}, "Call context_list to see valid ids."),
        ("context_read", {"id": "../../etc/passwd"}, "Call context_list to see valid ids."),
        ("context_read", {}, "context_read: missing argument id"),
        ("context_grep", {"pattern": "(", "mode": "regex"}, "missing )"),
        ("context_wipe", {}, "use context_list"),
    ],
)
def test_a_wrong_call_is_a_tool_error_with_the_fix(name: str, arguments: dict[str, Any], said: str) -> None:
    result = asked(
        Offloader(MemoryStore(), session="s"), lambda client: client.session.call_tool(name, arguments)
    )
    assert result.is_error
    assert said in text_of(result)


@pytest.mark.parametrize(
    "uri", ["ctx://aaaaaaaaaa", "ctx://a%2F..%2Fbcdefghij", "ctx://../x", "ctx:///etc/passwd", "file:///x"]
)
def test_a_resource_of_another_name_is_refused(uri: str) -> None:
    async def talk(client: Client) -> None:
        with pytest.raises(MCPError) as caught:
            await client.read_resource(uri)
        assert caught.value.code == types.INVALID_PARAMS

    asked(Offloader(MemoryStore(), session="s"), talk)


def test_a_record_of_another_session_is_not_there() -> None:
    store = MemoryStore()
    ref = stored(store, "other")

    async def talk(client: Client) -> None:
        assert (await client.call_tool("context_read", {"id": ref})).is_error
        assert (await client.list_resources()).resources == []
        with pytest.raises(MCPError, match="no record"):
            await client.read_resource(f"ctx://{ref}")

    asked(Offloader(store, session="s"), talk)


def test_resources_are_listed_newest_first_in_pages() -> None:
    store = MemoryStore()
    offloader = Offloader(store, session="s")
    for n in range(120):
        offloader.offload_text(f"{n} {BIG}")
    refs = [info.ref for info in offloader.records()]

    async def talk(client: Client) -> list[str]:
        first = await client.list_resources()
        second = await client.list_resources(cursor=first.next_cursor)
        assert second.next_cursor is None
        with pytest.raises(MCPError, match="list again from the start"):
            await client.list_resources(cursor="nothing")
        return [r.name for r in [*first.resources, *second.resources]]

    assert asked(offloader, talk) == refs[::-1]


def test_a_resource_that_is_too_large_says_how_to_read_it() -> None:
    store = MemoryStore()
    ref = stored(store, text="many words\n" * 900_000)

    async def talk(client: Client) -> None:
        with pytest.raises(MCPError, match=rf'context_read\(id="{ref}", offset=0\)'):
            await client.read_resource(f"ctx://{ref}")

    asked(Offloader(store, session="s"), talk)


def test_text_that_only_starts_like_a_data_url_is_returned_as_text() -> None:
    store, text = MemoryStore(), "data:image/png;base64,!!! " + BIG
    uri = f"ctx://{stored(store, text=text)}"
    answer = asked(Offloader(store, session="s"), lambda client: client.read_resource(uri))
    assert answer.contents[0].text == text


def test_a_store_that_does_not_answer_is_an_error_of_the_call() -> None:
    inner = MemoryStore()
    ref = stored(inner)
    store = FaultyStore(inner, is_lasting=True)

    async def talk(client: Client) -> None:
        assert (await client.call_tool("context_read", {"id": ref})).is_error
        with pytest.raises(MCPError) as caught:
            await client.read_resource(f"ctx://{ref}")
        assert caught.value.code == types.INTERNAL_ERROR

    asked(Offloader(store, session="s"), talk)


# As a program


def test_over_stdio_a_new_process_serves_items_of_another(tmp_path: Path) -> None:
    ref = stored(str(tmp_path))
    command = ["-m", "offload", "mcp", str(tmp_path), "--session", "s"]

    async def talk() -> str:
        async with Client(StdioServerParameters(command=sys.executable, args=command)) as client:
            return text_of(await client.call_tool("context_tail", {"id": ref, "lines": 1}))

    assert "\nline 9999 of the log\n" in asyncio.run(talk())


@pytest.mark.parametrize("http", [(), ("--http", "127.0.0.1:0")])
def test_a_store_or_a_session_that_is_not_there_is_not_served(tmp_path: Path, http: tuple[str, ...]) -> None:
    stored(str(tmp_path / "store"))

    for store, session, said in (
        ("nosuch", "s", f"no store at {tmp_path}/nosuch"),
        ("store", "nosuch", f"no session 'nosuch' in {tmp_path}/store, which has 's'"),
    ):
        done = offload("mcp", tmp_path / store, "--session", session, *http)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"offload: {said}")
        assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_on_stdout_is_nothing_but_the_protocol(tmp_path: Path) -> None:
    stored(str(tmp_path))
    done = offload("mcp", tmp_path, "--session", "s", given=json.dumps(GREETING) + "\nno json\n")
    [answer] = done.stdout.splitlines()
    assert json.loads(answer)["id"] == 1


@contextmanager
def http_server(store: Path, **environment: str) -> Iterator[str]:
    """Give the URL of the server as a program."""
    command = [sys.executable, "-m", "offload", "mcp", str(store), "--session", "s", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().split()[-1]
        finally:
            process.terminate()


def test_over_http_a_record_is_read_and_searched(tmp_path: Path) -> None:
    ref = stored(str(tmp_path))

    async def talk(url: str, mode: str) -> None:
        async with Client(url, mode=mode) as client:
            page = await client.call_tool("context_read", {"id": ref, "offset": 50_000, "limit": 300})
            assert BIG[50_000:50_300] in text_of(page)
            found = await client.call_tool("context_grep", {"id": ref, "pattern": "line 42 "})
            assert "line 42 of the log" in text_of(found)

    with http_server(tmp_path) as url:
        asyncio.run(talk(url, "legacy"))
        asyncio.run(talk(url, "auto"))


def test_over_http_another_host_or_origin_gets_nothing(tmp_path: Path) -> None:
    stored(str(tmp_path))
    with http_server(tmp_path) as url:
        assert status_of(url) == 200
        assert status_of(url, {"Host": "evil.example"}) == 421
        assert status_of(url, {"Origin": "http://evil.example"}) == 403
        assert status_of(url, {"Origin": url.removesuffix("/mcp")}) == 200
        assert status_of(url, {"Sec-Fetch-Site": "cross-site"}) == 403


def test_a_token_is_asked_of_every_request(tmp_path: Path) -> None:
    ref = stored(str(tmp_path))

    async def talk(url: str) -> str:
        headers = {"Authorization": "Bearer s3cret"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            return text_of(await client.call_tool("context_list"))

    with http_server(tmp_path, **{TOKEN_VARIABLE: "s3cret"}) as url:
        assert status_of(url) == 401
        assert status_of(url, {"Authorization": "Bearer wrong"}) == 401
        assert ref in asyncio.run(talk(url))


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an app on a free port; yield the URL of its endpoint."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


USERS = {"Bearer a": "anna", "Bearer b": "ben"}


def test_each_request_reads_the_session_of_its_user_alone_on_any_of_two_servers(tmp_path: Path) -> None:
    refs = {}
    for name in USERS.values():
        off = Offloader(tmp_path, session=name)
        off.offload_text(f"{name} has this line\n" * 3000, tool_name="Bash")
        refs[name] = off.records()[0].ref

    def session_of(request: Any) -> str | None:
        return USERS.get(request.headers.get("authorization", ""))

    async def talk(url: str, header: str, mode: str) -> str:
        headers = {"Authorization": header, "Host": "ctx.example.com"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            read = [text_of(await client.call_tool("context_read", {"id": ref})) for ref in refs.values()]
            listed = await client.list_resources()
            return "\n".join([*read, *(resource.name for resource in listed.resources)])

    def app() -> Any:
        off = Offloader(tmp_path, session="shared")
        return http_app(off, "127.0.0.1", 1, names=["ctx.example.com"], session_of=session_of)

    with served(app()) as one, served(app()) as two:
        assert (status_of(one), status_of(one, {"Host": "ctx.example.com"})) == (421, 403)
        assert status_of(one, {"Host": "ctx.example.com", "Authorization": "Bearer a"}) == 200
        for header, name in USERS.items():
            for mode in ("legacy", "auto"):
                seen = [asyncio.run(talk(url, header, mode)) for url in (one, two)]
                [other] = {*refs} - {name}
                assert seen[0] == seen[1]
                assert f"{name} has this line" in seen[0]
                assert f"{other} has this line" not in seen[0]
                assert seen[0].endswith(refs[name])
                assert refs[other] not in seen[0].rpartition("\n")[2]


def test_one_client_is_answered_by_two_servers_in_turn(tmp_path: Path) -> None:
    ref = stored(str(tmp_path))
    app = http_app(Offloader(tmp_path, session="s"), "127.0.0.1", 1, names=["pair"])
    other = http_app(Offloader(tmp_path, session="s"), "127.0.0.1", 1, names=["pair"])

    async def talk(ports: Iterator[int]) -> list[str]:
        async def send_on(request: Any) -> None:
            request.url = request.url.copy_with(port=next(ports))

        http = httpx2.AsyncClient(headers={"Host": "pair"}, event_hooks={"request": [send_on]})
        async with http, Client(streamable_http_client(one, http_client=http), mode="legacy") as client:
            return [text_of(await client.call_tool("context_read", {"id": ref})) for _ in range(4)]

    with served(app) as one, served(other) as two:
        ports = itertools.cycle(int(url.rpartition(":")[2].partition("/")[0]) for url in (one, two))
        answers = asyncio.run(talk(ports))
    assert all(BIG[:200] in answer for answer in answers)


@pytest.mark.parametrize(
    ("host", "token", "said"),
    [
        ("192.0.2.1", None, "set a token"),
        ("0.0.0.0", "t", "host must be the one address"),  # noqa: S104 # what is refused
        ("::", "t", "host must be the one address"),
        ("127.0.0.1", "", "token must not be empty"),
        ("192.0.2.1", "t", "cannot listen on"),
    ],
)
def test_an_address_that_others_reach_is_not_served_carelessly(
    host: str, token: str | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        serve_http(Offloader(MemoryStore(), session="s"), host, 0, token)
    if token is None:
        with pytest.raises(ConfigError, match=said):
            http_app(Offloader(MemoryStore(), session="s"), host, 80)


@pytest.mark.parametrize("address", ["8765", "localhost:", "localhost:http"])
def test_an_address_is_a_host_and_a_port(tmp_path: Path, address: str) -> None:
    done = offload("mcp", tmp_path, "--session", "s", "--http", address)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--http must be HOST:PORT" in done.stderr


def test_without_the_sdk_the_extra_is_named() -> None:
    assert "pip install 'offload[mcp]'" in scenario.import_error("mcp", without="mcp")


def test_the_command_line_is_no_slower_for_it() -> None:
    program = "import sys, offload.cli.app; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
