"""Offloading in the tool runner of the Anthropic SDK, against a Messages API on the loopback interface."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any, ClassVar

import pytest
from binding import Binding
from frameworks import scenario
from frameworks.scenario import QUERY, QUESTION, Call, Script, needle, report
from frameworks.story import Story, Told

pytest.importorskip("anthropic.lib.tools", reason="in the environment of the group integration-anthropic")

from anthropic import Anthropic, AsyncAnthropic, beta_async_tool, beta_tool
from anthropic.lib.tools import ToolError
from anthropic.tools.memory import BetaLocalFilesystemMemoryTool
from frameworks.anthropic_server import CLEARED, serving

from offload import ConfigError, Offloader
from offload.integrations.anthropic import (
    AsyncOffloadMemory,
    ClearedResults,
    OffloadMemory,
    aoffloaded,
    async_tools,
    offloaded,
    tools,
)
from offload.testing import FaultyStore

ASKED: list[Any] = [{"role": "user", "content": QUESTION}]
# Its reader returns a text that a preview would show in part only.
EDIT: dict[str, Any] = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "tool_uses", "value": 1},
    "keep": {"type": "tool_uses", "value": 1},
}


def made(kind, name, returns):
    schema = {"type": "object", "properties": {"note": {"type": "string"}}}
    return kind(returns, name=name, description="Sales.", input_schema=schema)


def run(script, off, *, name=QUERY, returns=report, messages=None, stream=False, system=""):
    """Run a tool runner to its end; return the requests, and the last message."""

    def call(note=""):
        return returns()

    with serving(script) as server, Anthropic(base_url=server.url, api_key="x", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            model="scripted",
            max_tokens=99,
            system=system + off.prompt(),
            messages=ASKED if messages is None else messages,
            tools=[made(beta_tool, name, call), *tools(off)],
            stream=stream,
        )
        items = list(offloaded(runner, off))
        last = items[-1].get_final_message() if stream else items[-1]
        return server.requests, last


def stream_run(script, off, **options):
    return run(script, off, stream=True, **options)


def arun(script, off, *, name=QUERY, returns=report, messages=None, stream=False, system=""):
    async def call(note=""):
        return returns()

    async def talk():
        async with AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0) as client:
            runner = client.beta.messages.tool_runner(
                model="scripted",
                max_tokens=99,
                system=system + off.prompt(),
                messages=ASKED if messages is None else messages,
                tools=[made(beta_async_tool, name, call), *async_tools(off)],
                stream=stream,
            )
            items = [item async for item in aoffloaded(runner, off)]
            return await items[-1].get_final_message() if stream else items[-1]

    with serving(script) as server:
        return server.requests, asyncio.run(talk())


def astream_run(script, off, **options):
    return arun(script, off, stream=True, **options)


RUNS = pytest.mark.parametrize("run", [run, stream_run, arun, astream_run])


class TestStory(Story):
    extra, without, keeps_late = "anthropic", "anthropic.lib.tools", False
    errors: ClassVar = (ToolError(report()),)
    instructs = "system"
    own_arguments: ClassVar = {"self": 1, "input": {}}
    ways = (run, stream_run, arun, astream_run)
    left_out: ClassVar = (
        # It is made for each run: tested with the offloader.
        "test_an_item_that_could_not_be_stored_is_offloaded_as_soon_as_it_can",
        # An offloader is one session.
        "test_runs_that_name_no_session_do_not_share_one",
        "test_a_session_that_is_named_is_that_of_every_run",
        # Tools return texts.
        "test_a_value_is_offloaded_as_the_text_that_the_framework_makes_of_it",
        "test_an_agent_that_is_a_tool_and_its_caller_read_each_other_s_items",
    )

    @staticmethod
    def tool(name=QUERY, *, returns=report):
        return {"name": name, "returns": returns}

    def plugin(self, store, **options):
        return partial(Offloader, store, **options)

    def play(self, script, plugin, *tools, way=run, owner="alice", asked=QUESTION, saved=(), **options):
        off = plugin(session=owner)
        question = {"role": "user", "content": asked}
        options |= tools[0] if tools else {}
        requests, last = way(script, off, messages=[*(saved or ()), question], **options)
        sent = requests[-1]["messages"]
        restored = off.restore(sent)
        answer = last.content[0].text
        saved = [*sent, {"role": "assistant", "content": answer}]
        return Told(answer, off, results(sent), lambda: results(restored), saved, restored[0]["content"])


def results(messages):
    blocks = [
        block for message in messages if isinstance(message["content"], list) for block in message["content"]
    ]
    return [block["content"] for block in blocks if block["type"] == "tool_result"]


@RUNS
def test_a_tool_runs_once_for_each_call(store, run):
    texts = iter([report()])

    run(scenario.whole_run(), Offloader(store), returns=lambda: next(texts))

    assert list(texts) == []


@pytest.mark.parametrize("run", [run, arun])
def test_an_answer_that_could_not_be_read_back_is_an_error(store, run):
    script = Script([lambda _: Call("context_read", {"id": "abcdefghij"}, "c"), scenario.end])

    requests, _ = run(script, off := Offloader(store))

    [result] = requests[1]["messages"][-1]["content"]
    assert result["is_error"] is True
    assert requests[0]["tools"][1:] == off.tools.definitions()


def test_calls_of_a_message_that_was_cut_off_are_not_run(store, monkeypatch):
    ran = []
    script = Script([scenario.ask()])

    with serving(script) as server:
        answer = server.answer
        monkeypatch.setattr(server, "answer", lambda r: {**answer(r), "stop_reason": "max_tokens"})
        with Anthropic(base_url=server.url, api_key="x", max_retries=0) as client:
            runner = client.beta.messages.tool_runner(
                model="scripted",
                max_tokens=9,
                messages=ASKED,
                tools=[made(beta_tool, QUERY, lambda: ran.append(1))],
            )
            list(offloaded(runner, Offloader(store)))

    assert ran == []


# What the server clears


def conversation(*results, name=QUERY):
    """Return a conversation that asked for `results`, one call each."""
    messages = list(ASKED)
    for number, result in enumerate(results):
        use = {"type": "tool_use", "id": f"call_{number}", "name": name, "input": {"year": 2000 + number}}
        answer = {"type": "tool_result", "tool_use_id": f"call_{number}", "content": result}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}]
    return messages


def converse(script, cleared, messages, off):
    """Answer the calls of the read-back tools until the model is done."""
    with serving(script) as server, Anthropic(base_url=server.url, api_key="x", max_retries=0) as client:
        while True:
            response = client.beta.messages.create(
                **cleared.request(messages),
                model="scripted",
                max_tokens=99,
                betas=["context-management-2025-06-27"],
            )
            cleared.note(response)
            messages.append({"role": "assistant", "content": response.to_dict()["content"]})
            if response.stop_reason != "tool_use":
                return server.requests
            content = [
                {
                    "type": "tool_result",
                    "tool_use_id": block.id,
                    "content": off.tools.call(block.name, block.input),
                }
                for block in response.content
            ]
            messages.append({"role": "user", "content": content})


def noted(texts):
    """Return the ref that the note at the end of a request names for the call of the year 2000."""
    [row] = [row for row in texts[-1].splitlines() if '{"year": 2000}' in row]
    return row.split('context_read(id="')[1].rstrip('")')


def test_a_model_reads_results_that_the_server_cleared(store):
    off = Offloader(store, session="alice")
    script = Script(
        [
            lambda _: Call("context_list", {}, "c"),
            lambda texts: Call("context_grep", {"pattern": "needle of", "id": noted(texts)}, "d"),
            scenario.end,
        ]
    )
    messages = conversation(report("alice"), report("bob"))

    converse(script, ClearedResults(off, {"edits": [EDIT]}), messages, off)

    assert script.seen[0][2] == CLEARED
    assert script.seen[0][4] == report("bob")
    assert needle("alice") in script.shown(3)
    assert messages[2]["content"][0]["content"] == report("alice")


def stored(off):
    return sorted(b"".join(off.content(record.ref)).decode() for record in off.records())


def requested(cleared, messages, count=0):
    """Return the second request, after the server reported `count` cleared results."""
    cleared.request(messages)
    cleared._cleared = count
    return cleared.request(messages)


def note_of(request):
    return request["messages"][-1]["content"][-1]["text"]


@pytest.mark.parametrize(
    ("edit", "owners"),
    [
        (EDIT, "abc"),
        # The API keeps three if the edit does not say how many.
        ({"type": EDIT["type"]}, "a"),
        ({**EDIT, "exclude_tools": [QUERY]}, ""),
    ],
)
def test_the_results_that_may_be_cleared_are_stored_before_the_request_and_no_others(store, edit, owners):
    off = Offloader(store, session="alice")

    ClearedResults(off, {"edits": [edit]}).request(conversation(*map(report, "abcd")))

    assert stored(off) == [*map(report, owners)]


@pytest.mark.parametrize(
    ("clears", "types"), [(False, {"tool_result"}), (True, {"tool_result", "tool_call"})]
)
def test_inputs_are_stored_where_they_are_cleared_too(store, clears, types):
    off = Offloader(store, session="alice")
    messages = conversation(report(), report())
    messages[1]["content"][0]["input"] = {"query": "select " * 500}

    ClearedResults(off, {"edits": [{**EDIT, "clear_tool_inputs": clears}]}).request(messages)

    assert {record.item_type for record in off.records()} == types


def test_messages_are_sent_unchanged_until_the_api_cleared_something(store):
    messages = conversation(report(), report())

    sent = requested(ClearedResults(Offloader(store), {"edits": [EDIT]}), messages)

    assert sent == {"messages": messages, "context_management": {"edits": [EDIT]}}


def test_where_thinking_is_bound_the_api_clears_and_nothing_that_is_sent_changes(store):
    off = Offloader(store, session="alice")
    cleared, provider = ClearedResults(off, {"edits": [EDIT]}), Binding()
    messages = list(ASKED)
    for number in range(6):
        sent = requested(cleared, messages, max(0, number - 1))
        provider.check(sent["messages"])
        assert sent == {"messages": messages, "context_management": {"edits": [EDIT]}}
        [signature] = provider.sign(sent["messages"])
        reply, result = conversation(report(str(number)))[len(ASKED) :]
        thinking = {"type": "thinking", "thinking": "", "signature": signature}
        messages += [{**reply, "content": [thinking, {**reply["content"][0], "id": f"call_{number}"}]}]
        result["content"][0]["tool_use_id"] = f"call_{number}"
        messages += [result]

    assert len(off.records()) == 4
    assert needle("0") in off.tools.call("context_grep", {"pattern": "needle of 0"})


def test_the_note_is_at_the_end_and_changes_nothing_before_it(store):
    messages = conversation(report("a"), report("b"), report("c"))
    before = json.dumps(messages)

    request = requested(ClearedResults(Offloader(store), {"edits": [EDIT]}), messages, 2)

    sent = request["messages"]
    assert sent[:-1] == messages[:-1]
    assert sent[-1]["content"][:-1] == messages[-1]["content"]
    assert note_of(request).count("context_read(id=") == 2
    assert json.dumps(messages) == before


def test_a_result_shorter_than_a_placeholder_is_quoted_in_the_note(store):
    off = Offloader(store)

    sent = requested(ClearedResults(off, {"edits": [EDIT]}), conversation("42 rows", report()), 1)

    assert note_of(sent).endswith('({"year": 2000}): 42 rows')
    assert off.records() == []


def test_a_result_that_had_left_before_is_named_by_its_record(store):
    off = Offloader(store, session="alice")
    messages = off.offload(conversation(report("a"), report("b"))).messages
    [first, _] = scenario.refs([message["content"][0]["content"] for message in messages[2::2]])

    sent = requested(ClearedResults(off, {"edits": [EDIT]}), messages, 1)

    assert f'context_read(id="{first}")' in note_of(sent)
    assert len(off.records()) == 2


def test_many_cleared_results_make_a_short_note(store):
    texts = [f"{n} " + "many words " * 100 for n in range(120)]

    note = note_of(requested(ClearedResults(Offloader(store), {"edits": [EDIT]}), conversation(*texts), 119))

    assert len(note) < 6000
    assert '{"year": 2118}' in note
    assert "context_list" in note


def test_where_a_result_cannot_be_stored_nothing_is_cleared(store):
    faulty = FaultyStore(store, verb="put", is_lasting=True)
    thinking = {"type": "clear_thinking_20251015"}
    cleared = ClearedResults(Offloader(faulty), {"edits": [thinking, EDIT]})

    failed = cleared.request(conversation(report(), report()))
    faulty.heal()
    later = cleared.request(conversation(report(), report()))

    assert failed["context_management"] == {"edits": [thinking]}
    assert later["context_management"] == {"edits": [thinking, EDIT]}


def test_a_request_without_the_edit_is_refused(store):
    with pytest.raises(ConfigError, match="clear_tool_uses"):
        ClearedResults(Offloader(store), {"edits": []})


# The memory tool


def memory(store, session="alice"):
    return OffloadMemory(store, session=session)


def told(memory, command, **arguments):
    return memory.call({"command": command, **arguments})


def wrote(memory, path, text="one\ntwo\nthree"):
    return told(memory, "create", path=path, file_text=text)


def shown(memory, path="/memories", **arguments):
    return told(memory, "view", path=path, **arguments)


def remember(server, url, options):
    with Anthropic(base_url=server.url, api_key="x", max_retries=0) as client:
        files = OffloadMemory(url, session="alice", storage_options=options)
        client.beta.messages.tool_runner(model="m", max_tokens=9, messages=ASKED, tools=[files]).until_done()


def aremember(server, url, options):
    async def talk():
        async with AsyncAnthropic(base_url=server.url, api_key="x", max_retries=0) as client:
            files = AsyncOffloadMemory(url, session="alice", storage_options=options)
            runner = client.beta.messages.tool_runner(model="m", max_tokens=9, messages=ASKED, tools=[files])
            await runner.until_done()

    asyncio.run(talk())


@pytest.mark.parametrize("remember", [remember, aremember])
def test_a_model_keeps_a_note_and_another_run_reads_it(s3_bucket, remember):
    note = {"command": "create", "path": "/memories/notes.md", "file_text": "likes coffee"}
    look = {"command": "view", "path": "/memories/notes.md"}
    for arguments in (note, look):
        call = Call("memory", arguments, "c")
        script = Script([lambda _, call=call: call, scenario.end])  # type: ignore[misc] # bound here and now
        with serving(script) as server:
            remember(server, s3_bucket.url, s3_bucket.storage_options)

    assert server.requests[0]["tools"] == [{"type": "memory_20250818", "name": "memory"}]
    assert "likes coffee" in script.seen[1][-1]


def test_a_folder_is_shown_two_levels_deep(store):
    files = memory(store)
    for path in ("/memories/a", "/memories/b/c", "/memories/b/d/e", "/memories/bb", "/memories/.hidden/e"):
        wrote(files, path, "1" * 512)

    rows = shown(files).splitlines()[1:]

    assert rows == [
        "2.5K\t/memories",
        "512B\t/memories/a",
        "1K\t/memories/b/",
        "512B\t/memories/b/c",
        "512B\t/memories/b/d/",
        "512B\t/memories/bb",
    ]
    assert shown(memory(store, "new")).splitlines()[1:] == ["0B\t/memories"]


def answer_of(files, command, arguments):
    """Return what the model reads: the answer, or the error with its kind."""
    try:
        return told(files, command, **arguments)
    except ToolError as error:
        return f"ToolError: {error}"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("create", {"path": "/memories/b/new.txt", "file_text": "x"}),
        ("create", {"path": "/memories/a", "file_text": "x"}),
        ("create", {"path": "/memories/b", "file_text": "x"}),
        ("create", {"path": "/etc/passwd", "file_text": "x"}),
        ("create", {"path": "/memories/../x", "file_text": "x"}),
        ("view", {"path": "/memories/a"}),
        ("view", {"path": "/memories//b/../a"}),
        ("view", {"path": "/memories/a", "view_range": [2, 3]}),
        ("view", {"path": "/memories/a", "view_range": [2, 2]}),
        ("view", {"path": "/memories/a", "view_range": [2, -1]}),
        ("view", {"path": "/memories/a", "view_range": [0, -1]}),
        ("view", {"path": "/memories/a", "view_range": [3, 99]}),
        ("view", {"path": "/memories/a", "view_range": [2]}),
        ("view", {"path": "/memories/a", "view_range": [2, 3, 4]}),
        ("view", {"path": "/memories/crlf"}),
        ("view", {"path": "/memories/none"}),
        ("str_replace", {"path": "/memories/a", "old_str": "three", "new_str": "3\n3b"}),
        ("str_replace", {"path": "/memories/crlf", "old_str": "two", "new_str": "2"}),
        ("str_replace", {"path": "/memories/a", "old_str": "e", "new_str": "x"}),
        ("str_replace", {"path": "/memories/repeated", "old_str": "aa", "new_str": "x"}),
        ("str_replace", {"path": "/memories/a", "old_str": "nine", "new_str": "x"}),
        ("str_replace", {"path": "/memories/none", "old_str": "a", "new_str": "x"}),
        ("str_replace", {"path": "/memories/b", "old_str": "a", "new_str": "x"}),
        ("insert", {"path": "/memories/a", "insert_line": 0, "insert_text": "zero"}),
        ("insert", {"path": "/memories/a", "insert_line": 5, "insert_text": "six\n\n"}),
        ("insert", {"path": "/memories/crlf", "insert_line": 1, "insert_text": "x"}),
        ("insert", {"path": "/memories/empty", "insert_line": 0, "insert_text": "x"}),
        ("insert", {"path": "/memories/a", "insert_line": 5, "insert_text": ""}),
        ("insert", {"path": "/memories/a", "insert_line": 2, "insert_text": ""}),
        ("insert", {"path": "/memories/blank", "insert_line": 0, "insert_text": "x"}),
        ("insert", {"path": "/memories/a", "insert_line": 9, "insert_text": "x"}),
        ("insert", {"path": "/memories/a", "insert_line": -1, "insert_text": "x"}),
        ("insert", {"path": "/memories/none", "insert_line": 0, "insert_text": "x"}),
        ("delete", {"path": "/memories/b"}),
        ("delete", {"path": "/memories/b/.."}),
        ("delete", {"path": "/memories/none"}),
        ("rename", {"old_path": "/memories/a", "new_path": "/memories/c/d"}),
        ("rename", {"old_path": "/memories/b", "new_path": "/memories/c"}),
        ("rename", {"old_path": "/memories/a", "new_path": "/memories/b/x"}),
        ("rename", {"old_path": "/memories/.", "new_path": "/memories/c"}),
        ("rename", {"old_path": "/memories/none", "new_path": "/memories/c"}),
        ("rename", {"old_path": "/memories/none", "new_path": "/memories/b"}),
        ("rename", {"old_path": "/memories/b", "new_path": "/memories/a"}),
        ("rename", {"old_path": "/memories/a", "new_path": "/memories/a"}),
        ("rename", {"old_path": "/memories/a", "new_path": "/memories/b"}),
        ("str_replace", {"path": "/memories/a", "old_str": "", "new_str": "E"}),
        ("delete", {"path": "/memories"}),
    ],
)
def test_every_answer_is_that_of_the_sdks_own_memory(store, tmp_path, command, arguments):
    both = [memory(store), BetaLocalFilesystemMemoryTool(str(tmp_path))]
    paths = {
        "/memories/a": "one\ntwo\nthree\nfour\nfive\n",
        "/memories/b/x": "in a folder",
        "/memories/crlf": "one\r\ntwo\r\n",
        "/memories/repeated": "aaa\naa",
        "/memories/empty": "",
        "/memories/blank": "one\n\n",
    }
    for files in both:
        for path, text in paths.items():
            wrote(files, path, text)
    before = contents(store)

    ours, theirs = (answer_of(files, command, arguments) for files in both)

    assert ours == theirs
    assert not ours.startswith("ToolError") or contents(store) == before
    for path in (*paths, "/memories/c/d", "/memories/c/x"):
        shown, expected = (answer_of(files, "view", {"path": path}) for files in both)
        assert shown == expected


def contents(store):
    return {found.key: store.get(found.key) for found in store.keys()}


def test_a_file_of_a_million_lines_is_shown_by_range_only(store):
    files = memory(store)
    wrote(files, "/memories/a", "\n" * 999_999)

    with pytest.raises(ToolError, match="File /memories/a exceeds maximum line limit of 999,999 lines"):
        shown(files, "/memories/a")
    assert shown(files, "/memories/a", view_range=[1_000_000, -1]).splitlines()[1:] == ["1000000\t"]


def test_the_lines_of_a_frequent_text_are_named_in_bounds(store):
    files = memory(store)
    wrote(files, "/memories/a", "e\n" * 100_000)

    assert len(answer_of(files, "str_replace", {"path": "/memories/a", "old_str": "e", "new_str": "x"})) < 500


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("create", {"path": "/memories/a/b/c", "file_text": "a file is there"}),
        ("rename", {"old_path": "/memories/f", "new_path": "/memories/a/b"}),
        ("rename", {"old_path": "/memories/f", "new_path": "/memories/f/g"}),
    ],
)
def test_an_impossible_command_is_reported_and_changes_nothing(store, command, arguments):
    files = memory(store)
    wrote(files, "/memories/a")
    wrote(files, "/memories/f/b")
    before = contents(store)

    with pytest.raises(ToolError):
        told(files, command, **arguments)

    assert contents(store) == before


@pytest.mark.parametrize(
    "path", ["", "/", "/etc/passwd", "memories/a", "/memoriesx/a", "/memories/../a", "/memories/a/../../b"]
)
def test_a_path_that_leads_out_is_refused_by_every_command(store, path):
    files = memory(store)
    wrote(files, "/memories/a")
    others = {"old_path": path, "new_path": "/memories/z", "file_text": "", "old_str": "a", "new_str": "b"}

    for command in ("view", "create", "str_replace", "insert", "delete", "rename"):
        with pytest.raises(ToolError, match=r"must start with /memories|would escape /memories"):
            told(files, command, path=path, insert_line=0, insert_text="", **others)
    with pytest.raises(ToolError, match=r"must start with /memories|would escape /memories"):
        told(files, "rename", old_path="/memories/a", new_path=path)


@pytest.mark.parametrize("name", ["a b", "ä", "A", "a%2e", "x" * 300, "..a", "a\\..\\b", "\x00"])
def test_any_other_name_is_a_file_of_its_own(store, name):
    files = memory(store)

    wrote(files, f"/memories/{name}", "content")

    assert "content" in shown(files, f"/memories/{name}")
    assert (f"/memories/{name}" in shown(files)) == (not name.startswith("."))


@pytest.mark.parametrize(
    ("verb", "use"),
    [
        ("put", lambda files: wrote(files, "/memories/a")),
        ("get", lambda files: shown(files, "/memories/a")),
        ("keys", shown),
    ],
)
def test_a_failing_store_is_reported_to_the_model(store, verb, use):
    files = memory(FaultyStore(store, verb=verb, is_lasting=True))

    with pytest.raises(ToolError, match="could not be used"):
        use(files)


def test_one_does_not_see_anothers_memory_and_all_of_it_is_cleared_on_demand(store):
    files = memory(store, "alice")
    wrote(files, "/memories/a")

    assert shown(memory(store, "bob")).splitlines()[1:] == ["0B\t/memories"]
    files.clear_all_memory()
    assert list(store.keys()) == []
