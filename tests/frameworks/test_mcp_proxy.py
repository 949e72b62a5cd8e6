"""The proxy of the Model Context Protocol, with the SDK's own client before it and its own server behind."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="its tests run in an environment of their own: make test-integration-mcp")

import anyio
from frameworks import mcp_wrapped
from frameworks.mcp_talk import GREETING, offload, records_of, ref_in, text_of
from frameworks.mcp_wrapped import ROWS, ROWS_SCHEMA, SCHEMAS, big_text, picture, wrapped_server
from jsonschema import Draft202012Validator
from mcp import Client, MCPError, types
from mcp.client.stdio import StdioServerParameters
from mcp.server.lowlevel import Server
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp.types.jsonrpc import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from offload import Offloader, OffloadPolicy, Rule
from offload.engine.policy.tool_names import TOOL_NAMES
from offload.integrations.mcp import Proxy, ResultOffloader
from offload.integrations.mcp._results import ToolCall
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

WRAPPED = Path(__file__).with_name("mcp_wrapped.py")
CONTEXT_TOOLS = [*TOOL_NAMES]
MODES = pytest.mark.parametrize("mode", ["legacy", "auto"])


@asynccontextmanager
async def proxied(results: ResultOffloader, server: Any = None) -> AsyncIterator[Any]:
    """Give the streams of a client whose messages pass the proxy on their way to a server."""
    server = wrapped_server() if server is None else server
    async with (
        create_client_server_memory_streams() as (client, outer),
        create_client_server_memory_streams() as (inner, served),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(server.run, *served, server.create_initialization_options())
        tasks.start_soon(Proxy(results).run, outer, inner)
        yield client
        tasks.cancel_scope.cancel()


def opened(store: Any = None, session: str = "s", **options: Any) -> ResultOffloader:
    return ResultOffloader(MemoryStore() if store is None else store, session, **options)


def through_proxy(talk: Any, results: ResultOffloader | None = None, **client: Any) -> Any:
    """Run `talk` with a client of the proxy and return what it returns."""
    server = client.pop("server", None)

    async def run() -> Any:
        transport = proxied(opened() if results is None else results, server)
        async with Client(transport, **client) as connected:
            return await talk(connected)

    return asyncio.run(run())


async def listed(client: Client) -> dict[str, Any]:
    tools, cursor = {}, None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools.update({tool.name: tool for tool in page.tools})
        cursor = page.next_cursor
        if cursor is None:
            return tools


def called(name: str, results: ResultOffloader, *, lists: bool = True, **client: Any) -> Any:
    async def talk(client: Client) -> Any:
        if lists:
            await listed(client)
        return await client.call_tool(name)

    return through_proxy(talk, results, **client)


def policy_of(**rules: Any) -> OffloadPolicy:
    return OffloadPolicy(max_view_tokens=None, **rules)


# Large results


@MODES
def test_a_large_result_is_offloaded_and_read_by_range_pattern_and_in_full(mode: str) -> None:
    store = MemoryStore()

    async def talk(client: Client) -> None:
        shown = text_of(await client.call_tool("big"))
        assert len(shown) < 2000
        ref = ref_in(shown)
        assert records_of(store) == {ref: big_text()}
        page = text_of(await client.call_tool("context_read", {"id": ref, "offset": 100_000, "limit": 500}))
        assert page.split("\n", 1)[1].rsplit("\n", 1)[0] == big_text()[100_000:100_500]
        found = text_of(await client.call_tool("context_grep", {"pattern": "the needle"}))
        assert "02000 the needle of 0" in found
        [whole] = (await client.read_resource(f"ctx://{ref}")).contents
        assert whole.text == big_text()

    through_proxy(talk, opened(store), mode=mode)


@pytest.mark.parametrize(
    ("tool", "options"),
    [
        ("small", {}),
        ("failing", {"policy": OffloadPolicy(max_view_tokens=10**6)}),
        ("big", {"exclude": ["b*"]}),
        ("big", {"min_tokens": 10**6}),
        ("big", {"policy": OffloadPolicy(exclude_tools=["big"])}),
        ("big", {"policy": policy_of(types={"tool_result": Rule(min_tokens=10**6)})}),
        ("big", {"policy": policy_of(tools={"b*": Rule(min_tokens=10**6)})}),
        # The proxy sees a result once, so a rule for later turns keeps it.
        ("big", {"policy": policy_of(tools={"big": Rule(min_tokens=10, after_replies=1)})}),
    ],
)
def test_results_that_are_small_errors_or_kept_by_a_rule_pass_as_they_came(
    tool: str, options: dict[str, Any]
) -> None:
    store = MemoryStore()
    result = called(tool, opened(store, **options))
    assert text_of(result) == ("little" if tool == "small" else big_text())
    assert result.is_error == (tool == "failing")
    assert records_of(store) == {}


@pytest.mark.parametrize(
    "policy", [OffloadPolicy(tools={"small": Rule(enabled=False)}), OffloadPolicy.preset("economy")]
)
def test_a_policy_without_a_rule_for_a_tool_offloads_its_large_results(policy: OffloadPolicy) -> None:
    ref_in(text_of(called("big", opened(policy=policy))))


def test_a_tool_error_above_the_ceiling_stays_an_error_and_is_read_back() -> None:
    store = MemoryStore()
    result = called("crashing", opened(store))
    assert result.is_error
    assert sum(len(str(block)) for block in result.content) < 4000
    assert records_of(store) == {ref_in(text_of(result)): big_text() * 10}
    assert "after it" in str(result.content)


def test_an_error_of_the_protocol_above_the_ceiling_is_read_back_too() -> None:
    store = MemoryStore()

    async def talk(client: Client) -> MCPError:
        with pytest.raises(MCPError) as failed:
            await client.call_tool("refuse")
        return failed.value

    error = through_proxy(talk, opened(store)).error
    assert error.code == -32000
    assert records_of(store) == {ref_in(error.message): big_text() * 10}


def test_structured_content_follows_the_rule_of_its_tool() -> None:
    policy = policy_of(tools={"rows": Rule(min_tokens=10**6)})
    assert called("rows", opened(policy=policy)).structured_content == {"rows": ROWS}


def test_the_callers_threshold_and_globs_change_a_policy_and_keep_the_rest() -> None:
    policy = OffloadPolicy(
        types={"tool_result": Rule(enabled=False, preview_chars=50)},
        tools={"quiet": Rule(enabled=False)},
        exclude_tools=["report"],
    )
    results = opened(policy=policy, min_tokens=1000, exclude=["rows"])
    assert len(text_of(called("big", results))) < 700
    for tool in ("quiet", "report", "rows"):
        assert "offloaded" not in called(tool, results).structured_content


def test_a_placeholder_has_a_link_for_the_user_where_the_client_knows_links() -> None:
    result = called("big", opened())
    ref = ref_in(text_of(result))
    [link] = [block for block in result.content if block.type == "resource_link"]
    assert link.uri == f"ctx://{ref}"
    assert link.annotations.audience == ["user"]


def test_many_texts_that_are_large_together_are_offloaded_as_one() -> None:
    store = MemoryStore()
    result = called("many", opened(store))
    assert [block.type for block in result.content] == ["text", "resource_link"]
    [stored] = records_of(store).values()
    assert stored.split("\n") == [f"part {n} " + "a b c " * 40 for n in range(100)]


def test_a_link_with_its_address_replaces_an_embedded_text() -> None:
    store = MemoryStore()
    result = called("embedded", opened(store))
    first, placeholder, link = result.content
    assert first.text == "two files"
    assert records_of(store) == {ref_in(placeholder.text): big_text()}
    assert (link.title, link.mime_type) == ("file:///big.txt", "text/x-log")


@pytest.mark.parametrize(("tool", "has_images"), [("binary", False), ("image", True)])
def test_binary_content_is_offloaded_and_returned_as_a_blob(tool: str, has_images: bool) -> None:
    async def talk(client: Client) -> None:
        result = await client.call_tool(tool)
        assert len(text_of(result)) < 300
        [link] = [block for block in result.content if block.type == "resource_link"]
        [whole] = (await client.read_resource(link.uri)).contents
        assert (whole.blob, whole.mime_type) == (picture(), "image/png")

    through_proxy(talk, opened(has_images=has_images))


def test_an_image_is_kept_for_the_model() -> None:
    [block] = called("image", opened()).content
    assert block.data == picture()


def test_the_models_id_of_the_call_is_kept_for_restore() -> None:
    store, meta = MemoryStore(), {"claudecode/toolUseId": "toolu_7"}
    shown = text_of(through_proxy(lambda client: client.call_tool("big", meta=meta), opened(store)))
    block = {"type": "tool_result", "tool_use_id": "toolu_7", "content": shown}
    restored = Offloader(store, session="s").restore([{"role": "user", "content": [block]}])
    assert restored[0]["content"][0]["content"] == big_text()


# Structured content


def test_large_strings_are_offloaded_from_structured_content_that_still_conforms() -> None:
    store = MemoryStore()
    result = called("report", opened(store))
    assert result.structured_content == {"result": text_of(result)}
    assert records_of(store) == {ref_in(text_of(result)): big_text()}


def replacement_of(result: Any) -> str:
    """Return the placeholder of structured content, which the SDK's client has validated."""
    [(name, placeholder)] = result.structured_content.items()
    assert name == "offloaded"
    return str(placeholder)


def test_a_placeholder_replaces_structured_content_with_a_strict_schema() -> None:
    store = MemoryStore()
    result = called("picky", opened(store))
    assert result.content[0].text == "see code"
    stored = records_of(store)
    assert json.loads(stored[ref_in(replacement_of(result))]) == {"code": "x" * 50_000}
    assert [block.uri for block in result.content[1:]] == [f"ctx://{ref}" for ref in stored]


def test_a_long_list_of_objects_is_offloaded_with_its_texts() -> None:
    store = MemoryStore()
    result = called("table", opened(store))
    assert len(result.model_dump_json()) < 6000
    stored = records_of(store)
    assert json.loads(stored[ref_in(replacement_of(result))]) == {"result": ROWS}
    assert [json.loads(line) for line in stored[ref_in(text_of(result))].split("\n")] == ROWS


def test_small_structured_content_passes_and_is_valid_by_the_schema_that_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_wrapped, "ROWS", [{"name": "a row"}])
    assert called("table", opened()).structured_content == {"result": [{"name": "a row"}]}


def test_shown_schemas_allow_the_replacement_or_their_own_values_and_nothing_else() -> None:
    shown = through_proxy(listed)["table"].output_schema
    assert shown["properties"]["result"] == ROWS_SCHEMA["properties"]["result"]
    assert shown["x-wraps"] is True
    checked = Draft202012Validator(shown)
    assert checked.is_valid({"result": ROWS})
    assert checked.is_valid({"offloaded": "a placeholder"})
    assert not checked.is_valid({})
    assert not checked.is_valid({"result": "a placeholder"})


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "array"},
        {"type": "object", "anyOf": [{"required": ["a"]}]},
        {"type": "object", "$ref": "#/$defs/a", "$defs": {"a": {}}},
        {"type": "object", "patternProperties": {"^(a|aa)+$": {}}},
        {"type": "object", "properties": {"offloaded": {"type": "integer"}}},
        {"type": "object", "properties": 3},
        {"type": "object", "required": True},
    ],
)
def test_a_schema_to_which_the_replacement_cannot_be_added_is_not_shown(schema: Any) -> None:
    results = opened()
    assert results.note({"name": "odd", "outputSchema": schema}) == {"name": "odd"}
    result = {"content": [], "structuredContent": {"rows": ROWS}}
    [text] = results.offload(result, ToolCall(tool="odd", id=None, has_links=False))["content"]
    ref_in(text["text"])


def test_a_record_has_the_main_argument_of_the_call_as_title() -> None:
    results = opened()
    call = ToolCall("read_file", "c1", has_links=False, arguments={"path": "src/app.py", "head": 9})
    results.offload({"content": [{"type": "text", "text": big_text()}]}, call)
    assert [info.title for info in results.offloader.records()] == ["src/app.py"]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "maxLength": 10**6}, "a b " * 4000),
        ({"type": "string", "enum": ["a b " * 4000]}, "a b " * 4000),
        ({"type": "string", "format": "uri"}, "a b " * 4000),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "a b " * 4000),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, ["a b " * 4000]),
        ({}, "a b " * 4000),
    ],
)
def test_a_string_with_a_stricter_schema_is_offloaded_with_the_whole(schema: Any, value: Any) -> None:
    results = opened()
    results.note({"name": "odd", "outputSchema": {"type": "object", "properties": {"value": schema}}})
    result = {"content": [], "structuredContent": {"value": value}}
    changed = results.offload(result, ToolCall(tool="odd", id=None, has_links=False))
    assert list(changed["structuredContent"]) == ["offloaded"]


@pytest.mark.timeout(60)
def test_a_schema_with_hostile_patterns_is_neither_run_nor_shown() -> None:
    store = MemoryStore()

    async def talk(client: Client) -> Any:
        assert (await listed(client))["hostile"].output_schema is None
        return await client.call_tool("hostile")

    result = through_proxy(talk, opened(store))
    assert result.structured_content is None
    assert json.loads(records_of(store)[ref_in(result.content[1].text)])["code"] == "a" * 9000 + "!"


def test_blocks_of_any_kind_that_are_large_together_are_offloaded_and_images_kept() -> None:
    store = MemoryStore()
    result = called("links", opened(store))
    assert [block.type for block in result.content] == ["image", "text", "resource_link"]
    lines = [json.loads(line) for line in records_of(store)[ref_in(result.content[1].text)].split("\n")]
    assert [line["uri"] for line in lines[:-1]] == [f"file:///{n}" for n in range(500)]
    assert lines[-1]["text"] == "that is all"


def test_without_a_schema_structured_content_is_offloaded_as_a_whole() -> None:
    store = MemoryStore()
    result = called("quiet", opened(store))
    assert result.structured_content is None
    assert json.loads(records_of(store)[ref_in(text_of(result))]) == {"rows": ROWS}


@pytest.mark.parametrize("has_schema", [False, True])
def test_structured_content_equal_to_a_text_is_stored_once_also_as_a_replacement(
    has_schema: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_schema:
        monkeypatch.setitem(SCHEMAS, "rows", {**ROWS_SCHEMA, "required": ["rows"]})
    store = MemoryStore()
    result = called("rows", opened(store))
    assert result.structured_content == ({"offloaded": text_of(result)} if has_schema else None)
    assert [block.type for block in result.content] == ["text", "resource_link"]
    assert list(records_of(store)) == [ref_in(text_of(result))]


@pytest.mark.parametrize(
    ("tool", "value"),
    [
        ("rows", {"rows": ROWS}),
        ("table", {"result": ROWS}),
        ("picky", {"code": "x" * 50_000}),
        ("report", {"result": big_text()}),
    ],
)
def test_structured_content_of_an_unlisted_tool_is_replaced_as_any_shown_schema_allows(
    tool: str, value: Any
) -> None:
    """The client may have its schema from an earlier connection."""
    store = MemoryStore()

    async def earlier(client: Client) -> Any:
        return (await listed(client))[tool].output_schema

    async def talk(client: Client) -> Any:
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=tool))
        return await client.session.send_request(request, types.CallToolResult)

    schema = through_proxy(earlier)
    result = through_proxy(talk, opened(store))
    assert len(result.model_dump_json()) < 6000
    assert schema is None or Draft202012Validator(schema).is_valid(result.structured_content)
    assert json.loads(records_of(store)[ref_in(replacement_of(result))]) == value


def test_hidden_schemas_are_not_listed_and_hold_nothing_back() -> None:
    async def talk(client: Client) -> Any:
        tools = await listed(client)
        assert all(tool.output_schema is None for tool in tools.values())
        return await client.call_tool("picky")

    result = through_proxy(talk, opened(hides_schemas=True))
    assert result.structured_content is None
    assert result.content[0].text == "see code"
    ref_in(result.content[1].text)


# What passes


@MODES
def test_tools_of_both_are_listed_and_a_name_that_both_have_reaches_both(mode: str) -> None:
    async def talk(client: Client) -> None:
        tools = await listed(client)
        assert list(tools)[-len(CONTEXT_TOOLS) :] == CONTEXT_TOOLS
        assert {"big", "inner_context_read", "inner_inner_context_read"} < tools.keys()
        assert text_of(await client.call_tool("inner_context_read")) == "the wrapped server's own"
        assert text_of(await client.call_tool("inner_inner_context_read")) == "the other one"
        ours = await client.call_tool("context_read", {"id": "aaaaaaaaaa"})
        assert ours.is_error
        assert "Call context_list to see valid ids." in text_of(ours)

    through_proxy(talk, mode=mode)


@MODES
def test_the_greeting_has_the_instructions_of_both(mode: str) -> None:
    async def talk(client: Client) -> None:
        told = str(client.instructions)
        assert told.startswith("Instructions of the wrapped server.\n\n")
        assert "context_grep" in told

    through_proxy(talk, mode=mode)


@MODES
def test_resources_of_both_are_listed_page_by_page_and_read(mode: str) -> None:
    store = MemoryStore()
    filled = Offloader(store, session="s")
    texts = [f"{n} " + "many words " * 2000 for n in range(150)]
    for text in texts:
        filled.offload_text(text)

    async def talk(client: Client) -> None:
        first = await client.list_resources()
        rest = await client.list_resources(cursor=first.next_cursor)
        assert first.resources[0].uri == "file:///notes"
        uris = [r.uri for r in [*first.resources[1:], *rest.resources]]
        assert rest.next_cursor is None
        assert sorted(uris) == sorted(f"ctx://{ref}" for ref in records_of(store))
        templates = (await client.list_resource_templates()).resource_templates
        assert [t.uri_template for t in templates] == ["ctx://{id}"]
        [notes] = (await client.read_resource("file:///notes")).contents
        assert notes.text == "notes of the wrapped server"

    through_proxy(talk, opened(store), mode=mode)


def test_a_resource_that_is_not_of_this_session_is_an_error() -> None:
    async def talk(client: Client) -> None:
        for uri in ("ctx://aaaaaaaaaa", "ctx://../../etc", "ctx://a%2F..%2Fbcdefghij", "ctx://"):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(uri)
            assert caught.value.code == types.INVALID_PARAMS

    through_proxy(talk)


def test_a_server_without_tools_and_resources_gets_ours() -> None:
    async def talk(client: Client) -> None:
        assert client.server_capabilities.tools is not None
        assert [tool.name for tool in (await client.list_tools()).tools] == CONTEXT_TOOLS
        assert (await client.list_resources()).resources == []

    through_proxy(talk, mode="legacy", server=Server("bare"))


def test_prompts_progress_and_questions_pass() -> None:
    heard = []

    async def hear(*report: Any) -> None:
        heard.append(report)

    async def decline(_context: Any, params: Any) -> Any:
        assert params.message == "which?"
        return types.ElicitResult(action="decline")

    async def talk(client: Client) -> None:
        assert [p.name for p in (await client.list_prompts()).prompts] == ["greet"]
        assert text_of(await client.call_tool("busy", progress_callback=hear)) == "done"
        assert text_of(await client.call_tool("ask")) == "decline"

    through_proxy(talk, mode="legacy", elicitation_callback=decline)
    assert heard == [(1, 2, "half")]


def test_a_call_that_the_client_gives_up_is_given_up_by_the_server() -> None:
    async def talk(client: Client) -> str:
        started = anyio.Event()

        async def note(*_report: Any) -> None:
            started.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.call_tool("wait", progress_callback=note))
            await started.wait()
            tasks.cancel_scope.cancel()
        return text_of(await client.call_tool("was_cancelled"))

    assert through_proxy(talk) == "['wait']"


def test_two_sessions_of_one_store_do_not_see_each_others_results() -> None:
    store = MemoryStore()
    first = ref_in(text_of(called("big", opened(store, "a"), lists=False)))

    async def talk(client: Client) -> None:
        second = ref_in(text_of(await client.call_tool("big")))
        assert second != first
        assert (await client.call_tool("context_read", {"id": first})).is_error
        with pytest.raises(MCPError, match="no record"):
            await client.read_resource(f"ctx://{first}")

    through_proxy(talk, opened(store, "b"))
    assert records_of(store, "a") == {first: big_text()}


# What fails


def test_a_store_that_fails_midway_keeps_results_in_full_and_is_used_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FaultyStore(MemoryStore(), nth=3, verb="put", is_lasting=True)

    async def talk(client: Client) -> None:
        ref_in(text_of(await client.call_tool("big", {"seed": 1})))
        ref_in(text_of(await client.call_tool("big", {"seed": 2})))
        assert text_of(await client.call_tool("big", {"seed": 3})) == big_text(3)
        assert text_of(await client.call_tool("small")) == "little"
        store.heal()
        ref_in(text_of(await client.call_tool("big", {"seed": 4})))

    with caplog.at_level(logging.WARNING, "offload"):
        through_proxy(talk, opened(store))
    assert sorted(records_of(store).values()) == sorted(big_text(seed) for seed in (1, 2, 4))
    assert "needle" not in caplog.text


def test_resources_of_the_server_are_listed_while_the_store_fails() -> None:
    store = FaultyStore(MemoryStore(), verb="keys", is_lasting=True)
    listed = through_proxy(lambda client: client.list_resources(), opened(store))
    assert [resource.uri for resource in listed.resources] == ["file:///notes"]


class Odd:
    """A server by hand: it answers every request with the same result."""

    def __init__(self, result: dict[str, Any]) -> None:
        self._result = result

    def create_initialization_options(self) -> None:
        return None

    async def run(self, read: Any, write: Any, _options: Any) -> None:
        async for item in read:
            if isinstance(item.message, JSONRPCRequest):
                answer = JSONRPCResponse(jsonrpc="2.0", id=item.message.id, result=self._result)
                await write.send(SessionMessage(answer))


def asked_by_hand(server: Any, *asked: tuple[str, dict[str, Any]], store: Any = None) -> list[Any]:
    """Return the results of requests that are sent one after the other, without a client's own checks."""

    async def run() -> list[Any]:
        results = []
        async with proxied(opened(store), server) as (read, write):
            for n, (method, params) in enumerate(asked):
                await write.send(
                    SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=n, method=method, params=params))
                )
                results.append((await read.receive()).message.result)
        return results

    return asyncio.run(run())


ODD = [
    {"protocolVersion": 20250618, "capabilities": {}, "serverInfo": {}},
    {"protocolVersion": ["2025-06-18"], "capabilities": 5, "instructions": {"a": 1}},
    {"tools": "none", "content": "a text", "structuredContent": 3},
    {"tools": [3, {"name": ["x"]}], "content": [3, None, {"type": ["text"]}]},
    {},
]


@pytest.mark.parametrize("result", ODD, ids=range(len(ODD)))
def test_nothing_that_a_server_answers_ends_the_proxy(result: dict[str, Any]) -> None:
    meta = {"_meta": ["no object"]}
    *_, answered = asked_by_hand(
        Odd(result),
        ("initialize", {}),
        ("tools/list", {}),
        ("tools/call", {"name": "any", **meta}),
        ("resources/list", {}),
        ("tools/call", {"name": "context_list", "arguments": {}, **meta}),
    )
    assert answered["content"][0]["text"].startswith("[0 stored")


def test_nothing_that_a_server_says_chooses_where_results_go() -> None:
    store = MemoryStore()
    elsewhere = {"session": "other", "offload/session": "other", "store": "memory://other"}
    text = {"type": "text", "text": big_text(), "_meta": elsewhere}
    server = Odd({"content": [text], "_meta": elsewhere, "protocolVersion": "2025-06-18", **elsewhere})
    answers = asked_by_hand(
        server, ("initialize", {}), ("tools/call", {"name": "../../r/other/x"}), store=store
    )
    ref = ref_in(answers[1]["content"][0]["text"])
    assert records_of(store) == {ref: big_text()}
    assert {key.key.split("/")[1] for key in store.keys("r/")} == {"s"}


@pytest.mark.parametrize("given_up", [["a"], {"a": 1}, None, 7])
def test_a_cancellation_of_nothing_ends_nothing(given_up: Any) -> None:
    async def run() -> Any:
        async with proxied(opened(), Odd({})) as (read, write):
            params = {"requestId": given_up}
            note = JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
            await write.send(SessionMessage(note))
            await write.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method="ping")))
            return (await read.receive()).message.result

    assert asyncio.run(run()) == {}


# As a program


def program(store: Path, session: str = "s", *more: str) -> StdioServerParameters:
    options = ["--store", str(store), "--session", session, *more]
    command = ["-m", "offload", "mcp-proxy", *options, "--", sys.executable, str(WRAPPED)]
    return StdioServerParameters(command=sys.executable, args=command)


async def big_of(proxy: StdioServerParameters) -> str:
    async with Client(proxy) as client:
        return text_of(await client.call_tool("big"))


def test_a_new_process_continues_the_session(tmp_path: Path) -> None:
    shown = asyncio.run(big_of(program(tmp_path / "store")))

    async def talk() -> None:
        async with Client(program(tmp_path / "store"), mode="legacy") as client:
            assert text_of(await client.call_tool("big")) == shown
            [whole] = (await client.read_resource(f"ctx://{ref_in(shown)}")).contents
            assert whole.text == big_text()

    asyncio.run(talk())
    assert records_of(str(tmp_path / "store")) == {ref_in(shown): big_text()}


def test_when_the_wrapped_server_dies_calls_fail_with_the_fix_and_stored_results_remain(
    tmp_path: Path,
) -> None:
    async def talk() -> None:
        async with Client(program(tmp_path / "store")) as client:
            ref = ref_in(text_of(await client.call_tool("big")))
            for _ in range(2):  # the call that it died in, and one after
                failed = await client.call_tool("die")
                assert failed.is_error
                assert "the wrapped MCP server exited" in text_of(failed)
            with pytest.raises(MCPError, match="the wrapped MCP server exited"):
                await client.list_prompts()
            assert list(await listed(client)) == CONTEXT_TOOLS
            found = await client.call_tool("context_grep", {"id": ref, "pattern": "the needle"})
            assert "02000 the needle of 0" in text_of(found)

    asyncio.run(talk())


NEVER_ENDS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"


@pytest.mark.parametrize("wrapped", [[str(WRAPPED)], ["-c", NEVER_ENDS]], ids=["obedient", "deaf"])
def test_the_proxy_and_the_wrapped_server_end_when_the_client_closes_stdin(
    tmp_path: Path, wrapped: list[str]
) -> None:
    child = f'echo $$ > {tmp_path}/pid; exec "$0" "$@"'
    command = ["-m", "offload", "mcp-proxy", "--store", str(tmp_path / "store"), "--session", "s", "--"]
    with subprocess.Popen(
        [sys.executable, *command, "sh", "-c", child, sys.executable, *wrapped],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        if wrapped[0] != "-c":
            proxy.stdin.write(json.dumps(GREETING) + "\n")
            proxy.stdin.flush()
            assert json.loads(proxy.stdout.readline())["result"]["serverInfo"]["name"] == "wrapped"
        proxy.communicate(timeout=100)
    assert proxy.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_the_server_of_a_session_ends_when_its_client_closes_stdin(tmp_path: Path) -> None:
    Offloader(tmp_path / "store", session="s").offload_text(big_text())
    done = offload("mcp", tmp_path / "store", "--session", "s", given=json.dumps(GREETING) + "\n")
    assert done.returncode == 0
    assert json.loads(done.stdout.splitlines()[0])["result"]["serverInfo"]["name"] == "offload"


ECHO = "import json, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(json.dumps(sys.argv[2:]))"


SERVER = [sys.executable, "-c", ECHO, "heard"]
OWN = ["-y", "two words", "--", "--min-tokens", "5", "--url", "x"]


@pytest.mark.parametrize(
    "words",
    [[*SERVER, *OWN], ["--", *SERVER, *OWN], ["--", "--", *SERVER, *OWN], [shlex.join([*SERVER, *OWN])]],
)
def test_the_arguments_of_the_server_arrive_however_a_client_marks_them(
    tmp_path: Path, words: list[str]
) -> None:
    options = ["--store", tmp_path / "store", "--min-tokens", "1000"]
    assert offload("mcp-proxy", *options, *words, cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "heard").read_text()) == OWN


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["--", "--min-tokens", "5", "npx"],
            "COMMAND must be the program of an MCP server, got --min-tokens",
        ),
        ([" "], "COMMAND must be the program of an MCP server, got none"),
        (["'unfinished"], 'cannot start "\'unfinished"'),
        (["--", "/no/such/server"], "cannot start '/no/such/server'"),
    ],
)
def test_a_command_that_is_none_is_named_in_one_line(tmp_path: Path, words: list[str], error: str) -> None:
    done = offload("mcp-proxy", "--store", tmp_path / "store", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folders_settings_choose_what_is_offloaded_but_neither_store_nor_session(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "offload.toml").write_text(
        f"""store = "{elsewhere}"
        session = "theirs"
        tools = ["context_list", "context_read"]
        [policy]
        exclude_tools = ["report"]
        [policy.types.tool_result]
        min_chars = 10
        preview_chars = 20"""
    )
    proxy = program(tmp_path / "store", "s").model_copy(update={"cwd": folder})

    async def talk() -> None:
        async with Client(proxy) as client:
            assert {*TOOL_NAMES} & set(await listed(client)) == {"context_list", "context_read"}
            assert text_of(await client.call_tool("report")) == big_text()
            shown = text_of(await client.call_tool("big"))
            assert records_of(str(tmp_path / "store")) == {ref_in(shown): big_text()}
            assert len(shown) < 700

    asyncio.run(talk())
    assert not elsewhere.exists()


def test_a_store_that_cannot_be_written_keeps_results_in_full(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert asyncio.run(big_of(program(tmp_path / "file" / "store"))) == big_text()


def test_the_default_session_is_the_same_in_the_same_folder(tmp_path: Path) -> None:
    command = [
        "-m",
        "offload",
        "mcp-proxy",
        "--store",
        str(tmp_path / "store"),
        "--",
        sys.executable,
        str(WRAPPED),
    ]
    shown = []
    for name in ("One folder!", "One folder!", "other"):
        (tmp_path / name).mkdir(exist_ok=True)
        proxy = StdioServerParameters(command=sys.executable, args=command, cwd=tmp_path / name)
        shown.append(asyncio.run(big_of(proxy)))

    here, again, elsewhere = shown
    assert here == again
    assert ref_in(elsewhere) != ref_in(here)
