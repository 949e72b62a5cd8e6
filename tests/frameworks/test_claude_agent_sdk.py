"""`offloaded` options of the Claude Agent SDK, with the real Claude Code and a scripted Messages API."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import warnings
from contextlib import contextmanager
from typing import Any

import pytest
from frameworks import scenario
from frameworks.scenario import needle, report

pytest.importorskip("claude_agent_sdk", reason="in the environment of the group integration-claude-agent-sdk")

from claude_agent_sdk import (
    AgentDefinition,
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    ResultMessage,
    create_sdk_mcp_server,
    query,
    tool,
)
from frameworks import claude_code
from frameworks.claude_code import ClaudeCode, serving, text

from offload import ConfigError, Offloader, OffloadPolicy
from offload.engine.policy.tool_names import TOOL_NAMES
from offload.integrations.claude_agent_sdk import offloaded
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

# An image of one pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
LONG = claude_code.tool("Bash", command="seq 1 6000")
LONG_OUTPUT = "\n".join(map(str, range(1, 6001)))
# More than Claude Code leaves whole.
HUGE = claude_code.tool("Bash", command="seq 1 100000")
SALES = claude_code.tool("mcp__sales__query_sales")
DONE = text("done")


def call(name, **arguments):
    """Return a turn that calls a retrieval tool with the last id that the model was shown."""

    def turn(request):
        return claude_code.tool(f"mcp__offload__{name}", id=refs(request)[-1], **arguments)

    return turn


def refs(request):
    # The report of an agent is indented.
    return [ref for result in request.results for ref in scenario.refs([dedent(result)])]


def dedent(text):
    return re.sub(r"^ +", "", text, flags=re.MULTILINE)


def following(*turns):
    return lambda request: turn(request) if callable(turn := turns[request.step]) else turn


@contextmanager
def running(tmp_path, *turns, agents=()):
    """Serve a script; give the API and options that keep Claude Code in `tmp_path`."""
    with serving(following(*turns), agents) as api:
        place = ClaudeCode(tmp_path, api.url).place
        yield (
            api,
            ClaudeAgentOptions(cwd=place["cwd"], env=place["env"], allowed_tools=["Bash", "mcp__sales"]),
        )


def run(options, prompt="go"):
    """Return the result of a run."""

    async def messages():
        return [message async for message in query(prompt=prompt, options=options)]

    [result] = [m for m in asyncio.run(messages()) if isinstance(m, ResultMessage)]
    return result


def ran(tmp_path, off, *turns, agents=(), **more):
    """Run a script with an offloader, and with more options; return the API and the result."""
    with running(tmp_path, *turns, agents=agents) as (api, options):
        return api, run(offloaded(dataclasses.replace(options, **more), off))


async def talk(options, *prompts):
    async with ClaudeSDKClient(options) as client:
        for prompt in prompts:
            await client.query(prompt)
            async for _ in client.receive_response():
                pass


def sales(returns=report):
    @tool("query_sales", "Sales.", {})
    async def query_sales(_arguments: Any) -> Any:
        made = returns()
        return made if isinstance(made, dict) else {"content": [{"type": "text", "text": made}]}

    return {"sales": create_sdk_mcp_server("sales", tools=[query_sales])}


def content(off, ref):
    return b"".join(off.content(ref)).decode()


@pytest.fixture
def off(store):
    return Offloader(store, session="alice")


def test_a_model_searches_and_reads_an_offloaded_result(tmp_path, off):
    turns = [LONG, call("context_grep", pattern="5876"), call("context_read", part="5875-5877")]

    api, result = ran(tmp_path, off, *turns, DONE)

    assert result.result == "done"
    placeholder, found, lines = api.last.results
    assert len(placeholder) < 3000
    assert "5876" not in placeholder
    assert "line 5876" in found
    assert "5875\n5876\n5877" in lines
    [record] = off.records()
    assert (record.tool_name, content(off, record.ref)) == ("Bash", LONG_OUTPUT)
    [transcript] = (tmp_path / "home").rglob(f"{result.session_id}.jsonl")
    assert "3333\\n3334" not in transcript.read_text()


def test_a_client_of_several_prompts_keeps_its_items(tmp_path, off):
    with running(tmp_path, LONG, DONE, call("context_grep", pattern="5876"), DONE) as (api, options):
        asyncio.run(talk(offloaded(options, off), "first", "second"))

    assert "line 5876" in api.last.results[-1]


def test_output_that_claude_code_cuts_is_stored_whole(tmp_path, off):
    api, _ = ran(tmp_path, off, HUGE, call("context_grep", pattern="87654"), DONE)

    [record] = off.records()
    assert content(off, record.ref).split() == [str(n) for n in range(1, 100_001)]
    assert "line 87654" in api.last.results[-1]
    assert "persisted-output" not in api.last.results[0]


@pytest.mark.parametrize("fork", [False, True])
def test_a_resumed_conversation_reads_its_items_in_another_process_of_the_host(tmp_path, fork):
    store = str(tmp_path / "store")
    _, first = ran(tmp_path, Offloader(store, session="alice"), LONG, DONE)
    turns = [DONE, DONE, call("context_grep", pattern="5876"), DONE]

    with running(tmp_path, *turns) as (api, options):
        options.resume, options.fork_session = first.session_id, fork
        second = run(offloaded(options, Offloader(store, session="alice")))

    assert (second.session_id == first.session_id) != fork
    assert "line 5876" in api.last.results[-1]


def test_a_session_cannot_read_items_of_another(tmp_path, store, off):
    ran(tmp_path / "a", off, LONG, DONE)
    [record] = off.records()
    answers = []
    for ref in (record.ref, "abcdefghij"):
        asked = claude_code.tool("mcp__offload__context_read", id=ref)
        api, _ = ran(tmp_path / ref, Offloader(store, session="mallory"), asked, DONE)
        answers.append(api.last.results[0].replace(ref, "REF"))

    assert answers[0] == answers[1]
    assert "Error: " in answers[0]


def test_a_store_that_fails_costs_no_result_and_ends_no_run(tmp_path, store, caplog):
    faulty = FaultyStore(store, verb="put", is_lasting=True)

    api, result = ran(tmp_path, Offloader(faulty, session="alice"), LONG, DONE)

    assert result.result == "done"
    assert api.last.results == [LONG_OUTPUT]
    assert "kept" in caplog.text


ROWS = '{"rows":[' + ",".join(f'{{"n":{n}}}' for n in range(9000)) + "]}"


@pytest.mark.parametrize("returns", [report, lambda: ROWS])
def test_a_result_of_a_server_of_the_program_is_offloaded(tmp_path, off, returns):
    api, _ = ran(tmp_path, off, SALES, call("context_read", part="-1"), DONE, mcp_servers=sales(returns))

    placeholder, tail = api.last.results
    assert len(placeholder) < 3000
    assert returns().strip()[-20:] in tail
    assert content(off, refs(api.last)[0]) == returns()


def test_texts_of_a_result_are_one_item_and_images_are_kept(tmp_path, off):
    image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    given = {"content": [{"type": "text", "text": report()}, image, {"type": "text", "text": "end"}]}

    api, _ = ran(tmp_path, off, SALES, DONE, mcp_servers=sales(lambda: given))

    [result] = [b for m in api.last.messages for b in claude_code.blocks_of(m) if b["type"] == "tool_result"]
    assert [block["type"] for block in result["content"]] == ["text", "image"]
    stored = content(off, refs(api.last)[0])
    assert stored.startswith(report())
    assert stored.endswith("\nend")


def test_a_failed_call_is_kept(tmp_path, off):
    given = {"content": [{"type": "text", "text": report()[:9000]}], "is_error": True}
    fails = claude_code.tool("Bash", command="seq 1 2000; exit 3")

    api, _ = ran(tmp_path, off, SALES + fails, DONE, mcp_servers=sales(lambda: given))

    assert all("[Offloaded:" not in result for result in api.last.results)
    assert off.records() == []


@pytest.mark.parametrize(("readers", "is_kept"), [(None, True), (100_000, True), (1000, False)])
def test_a_file_that_is_read_is_kept_unless_asked(tmp_path, off, readers, is_kept):
    file = tmp_path / "project" / "report.txt"

    with running(tmp_path, claude_code.tool("Read", file_path=str(file)), DONE) as (api, options):
        file.write_text(report()[:40_000])
        options.allowed_tools.append("Read")
        run(offloaded(options, off, file_readers=readers))

    assert ("entry 00300" in api.last.results[0]) == is_kept
    assert len(off.records()) == (not is_kept)


def test_results_of_concurrent_calls_are_all_offloaded(tmp_path, off):
    calls = claude_code.tool("Bash", command="seq 1 6000")
    for n in range(2, 6):
        calls += claude_code.tool("Bash", command=f"seq {n} 6000")

    api, _ = ran(tmp_path, off, calls, DONE)

    found = [content(off, ref).split() for ref in refs(api.last)]
    assert sorted(found, key=len) == [[str(i) for i in range(n, 6001)] for n in range(5, 0, -1)]


def test_a_policy_keeps_results_of_a_tool(tmp_path, store):
    off = Offloader(store, session="alice", policy=OffloadPolicy(exclude_tools=("Bash",)))

    api, _ = ran(tmp_path, off, LONG, DONE)

    assert api.last.results == [LONG_OUTPUT]


@pytest.mark.parametrize("tools", [None, ["Bash"]])
def test_an_agent_of_the_program_reads_stored_items(tmp_path, off, tools):
    task = claude_code.tool(
        "Agent", description="count", prompt="count", subagent_type="counter", run_in_background=False
    )
    inner = following(LONG, call("context_grep", pattern="5876"), text(report()))

    with running(tmp_path, task, call("context_grep", pattern="needle of"), DONE, agents=inner) as (
        api,
        options,
    ):
        options.agents = {"counter": AgentDefinition("Counts.", "Count.", tools=tools)}
        run(offloaded(options, off))

    asked = [request for request in api.requests if request.is_of_agent]
    assert "line 5876" in asked[-1].results[-1]
    assert needle("alice") not in api.last.results[0]
    assert needle("alice") in api.last.results[1]


def test_hooks_servers_and_agents_of_the_program_are_kept_and_its_options_unchanged(tmp_path, off):
    seen = []

    async def note(event, _call, _context):
        seen.append((event["hook_event_name"], event["tool_name"]))
        return {}

    with running(tmp_path, LONG, SALES, DONE) as (_, options):
        options.mcp_servers = sales()
        options.hooks = {
            "PostToolUse": [HookMatcher(hooks=[note])],
            "PreToolUse": [HookMatcher(hooks=[note])],
        }
        options.agents = {
            "free": AgentDefinition("d", "p"),
            "bound": AgentDefinition("d", "p", tools=["Bash"]),
        }
        made = offloaded(options, off)
        run(made)

    events = [("PreToolUse", "Bash"), ("PostToolUse", "Bash")]
    assert seen == [*events, *((event, "mcp__sales__query_sales") for event, _ in events)]
    assert len(off.records()) == 2
    assert set(options.mcp_servers) == {"sales"}
    assert [len(options.hooks[event]) for event, _ in events] == [1, 1]
    assert options.agents["bound"].tools == ["Bash"]
    assert made.agents["free"].tools is None
    assert made.agents["bound"].tools == ["Bash", *(f"mcp__offload__{name}" for name in TOOL_NAMES)]


def test_the_retrieval_tools_are_loaded_from_the_start_and_need_no_permission(tmp_path, off):
    asked = []

    async def refuse(name, _arguments, _context):
        asked.append(name)
        raise AssertionError

    with running(tmp_path, LONG, call("context_read", limit=100), DONE) as (api, options):
        options.can_use_tool = refuse

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the SDK warns that Bash is allowed
            asyncio.run(talk(offloaded(options, off), "go"))

    first = api.requests[0]
    offered = {tool["name"] for tool in first.json["tools"]}
    assert offered >= {f"mcp__offload__{name}" for name in TOOL_NAMES}
    assert not any(name.endswith("hook") for name in offered)
    assert off.prompt() in first.texts
    assert asked == []
    assert "characters 0-100" in api.last.results[-1]


@pytest.mark.parametrize(
    "arguments", [{}, {"id": 7}, {"id": "abcdefghij", "self": 1}, {"id": "../../etc/passwd"}]
)
def test_a_call_that_makes_no_sense_gets_an_answer_and_ends_no_run(tmp_path, off, arguments):
    asked = claude_code.tool("mcp__offload__context_read", **arguments)

    api, result = ran(tmp_path, off, asked, DONE)

    assert result.result == "done"
    assert re.search("error", api.last.results[0], re.IGNORECASE)


def test_the_placeholder_is_the_same_whenever_and_wherever_it_is_made(tmp_path, store):
    shown = []
    for name, into in (("a", store), ("b", MemoryStore())):
        api, _ = ran(tmp_path / name, Offloader(into, session="s"), SALES, DONE, mcp_servers=sales())
        shown += api.last.results

    assert shown[0] == shown[1]
    assert scenario.refs(shown[:1])


def test_servers_in_a_file_and_a_taken_name_are_refused(tmp_path, off):
    with pytest.raises(ConfigError, match="mcp_servers must be a dict, got str"):
        offloaded(ClaudeAgentOptions(mcp_servers="servers.json"), off)
    with pytest.raises(ConfigError, match="'offload' already"):
        offloaded(offloaded(None, off), off)


def test_without_the_framework_the_error_names_the_command():
    error = scenario.import_error("claude_agent_sdk", without="claude_agent_sdk")

    assert "pip install 'offload[claude-agent-sdk]'" in error
