"""deepagents with its files on our store, and with `OffloadMiddleware`."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from frameworks import scenario
from frameworks.scenario import ANSWER, NEEDLE_LINE, QUESTION, Call, Script, needle, report

pytest.importorskip("deepagents", reason="in the environment of the group integration-deepagents")

from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, FilesystemBackend, StateBackend, StoreBackend
from frameworks.scripted import scripted, tool
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from offload.integrations.deepagents import OffloadBackend, with_offloading
from offload.integrations.langchain import OffloadMiddleware
from offload.testing import FaultyBulkStore, FaultyStore
from offload_backends.memory import MemoryStore

ASKED = {"messages": [HumanMessage(QUESTION)]}
EVICTED = "/large_tool_results/call_0"
FILES = {
    "/top.py": "import os\n# TODO: a\n",
    "/src/main.py": "# TODO: b\nprint()\n\n# TODO: c",
    "/src/app/deep.py": "x = 1\n",
    "/src/app/notes.md": "TODO\r\nlater\r\n",
    "/src2/other.py": "# TODO: d\n",
    "/.hidden/ci.yml": "TODO: e\n",
    "/empty.txt": "",
}

RESUMED = """
import json, sys
from offload.integrations.deepagents import OffloadBackend
given = json.load(sys.stdin)
files = OffloadBackend(given["url"], session="alice", storage_options=given["options"])
print(json.dumps(files.read(given["path"], given["offset"], 1).file_data["content"]))
"""


def thread(name="alice"):
    return {"configurable": {"thread_id": name}}


def run(agent, config):
    return agent.invoke(ASKED, config)


def arun(agent, config):
    return asyncio.run(agent.ainvoke(ASKED, config))


def agent(script, *tools, files=None, **options):
    """Return a deep agent with a checkpointer; the results that it evicts are in `files`."""
    if files is not None:
        options["backend"] = CompositeBackend(default=StateBackend(), routes={"/large_tool_results/": files})
    options = {"checkpointer": InMemorySaver(), **options}
    return create_deep_agent(scripted(script), list(tools) or [tool()], **options)


NO_SAVER = {"checkpointer": None}


def read_file(_):
    return Call("read_file", {"file_path": EVICTED, "offset": NEEDLE_LINE - 1, "limit": 1}, "call_read")


def grep(_):
    return Call(
        "grep", {"pattern": "needle of", "path": "/large_tool_results", "output_mode": "content"}, "g"
    )


def result(state):
    return next(message for message in state["messages"] if isinstance(message, ToolMessage))


@pytest.fixture(params=["memory", "local", "s3"])
def files(request, tmp_path):
    if request.param == "s3":
        bucket = request.getfixturevalue("s3_bucket")
        bucket.empty()
        return OffloadBackend(bucket.url, session="s", storage_options=bucket.storage_options)
    return OffloadBackend(MemoryStore() if request.param == "memory" else tmp_path / "ours", session="s")


@pytest.fixture
def both(store):
    """Files of `OffloadBackend`, and the framework's own files for comparison."""
    theirs = StoreBackend(store=InMemoryStore(), namespace=lambda _: ("files",))
    ours = OffloadBackend(store, session="s")
    for path, text in FILES.items():
        assert ours.write(path, text) == theirs.write(path, text)
    return ours, theirs


@pytest.mark.parametrize("run", [run, arun])
def test_results_evicted_by_the_framework_are_in_the_bucket_and_can_be_read(s3_bucket, run):
    s3_bucket.empty()
    files = OffloadBackend(s3_bucket.url, storage_options=s3_bucket.storage_options)
    script = Script([scenario.ask(), grep, read_file, scenario.end])

    state = run(agent(script, files=files), thread())

    assert needle("alice") not in script.shown(2)
    assert len(result(state).content) < 10_000
    assert needle("alice") in script.seen[2][-1]
    assert needle("alice") in script.seen[3][-1]
    assert f"entry {NEEDLE_LINE + 1:05}" not in script.seen[3][-1]
    assert state["messages"][-1].text == ANSWER
    [key] = [key["Key"] for key in s3_bucket.client.list_objects_v2(Bucket=s3_bucket.name)["Contents"]]
    stored = s3_bucket.client.get_object(Bucket=s3_bucket.name, Key=key)["Body"].read()
    assert stored.endswith(report().encode())


def test_a_new_process_reads_evicted_results(s3_bucket):
    files = OffloadBackend(s3_bucket.url, storage_options=s3_bucket.storage_options)
    run(agent(Script([scenario.ask(), scenario.end]), files=files), thread())
    given = {"url": s3_bucket.url, "options": s3_bucket.storage_options}

    said = scenario.in_new_process(RESUMED, {**given, "path": "/call_0", "offset": NEEDLE_LINE - 1})

    assert said == needle("alice") + "\n"


def test_two_threads_with_one_call_id_read_their_own(store):
    files = OffloadBackend(store)
    scripts = {owner: Script([scenario.ask(), read_file, scenario.end]) for owner in ("alice", "bob")}
    memory = InMemorySaver()

    for owner, script in scripts.items():
        mine = tool(returns=lambda owner=owner: report(owner))
        run(agent(script, mine, files=files, checkpointer=memory), thread(owner))
    again = Script([read_file, scenario.end])
    run(agent(again, files=files), thread("alice"))

    assert needle("alice") in scripts["alice"].seen[2][-1]
    assert needle("bob") in scripts["bob"].seen[2][-1]
    assert needle("alice") in again.seen[1][-1]


@pytest.mark.parametrize("run", [run, arun])
def test_a_store_that_fails_costs_no_result_and_ends_no_run(store, run):
    faulty = FaultyStore(store, is_lasting=True)
    script = Script([scenario.ask(), read_file, grep, scenario.end])

    state = run(agent(script, files=OffloadBackend(faulty)), thread())

    assert result(state).content == report()
    assert "the store did not respond" in script.seen[2][-1]
    assert "the store did not respond" in script.seen[3][-1]
    assert state["messages"][-1].text == ANSWER


@pytest.mark.parametrize("run", [run, arun])
def test_the_middleware_offloads_in_a_deep_agent_before_the_framework_evicts(store, run):
    script = scenario.whole_run()
    middleware = OffloadMiddleware(store)

    state = run(agent(script, middleware=[middleware]), thread())

    scenario.check_whole_run(script)
    assert not state.get("files")
    assert middleware.offloader("alice").restore([result(state)])[0].content == report()


@pytest.mark.parametrize("run", [run, arun])
def test_a_late_placeholder_replaces_the_result_in_the_state_of_a_deep_agent(store, run):
    script = Script([scenario.ask(scenario.READER), scenario.ask("lookup", "call_1"), scenario.end])
    small = "\n".join(report().splitlines()[:800])
    tools = tool(scenario.READER, returns=lambda: small), tool("lookup", returns=lambda: "42")

    state = run(
        agent(script, *tools, middleware=[OffloadMiddleware(store, policy=scenario.SHOWN_ONCE)]), thread()
    )

    assert script.seen[1][-1] == small
    assert scenario.refs(script.seen[2])
    assert result(state).content == script.seen[2][2]
    assert [m.type for m in state["messages"]] == ["human", "ai", "tool", "ai", "tool", "ai"]


@pytest.mark.parametrize("path", ["/", "/src", "/src/", "/src/app", "/nothing"])
def test_a_folder_lists_as_the_framework_has_it(both, path):
    def listed(found):
        return sorted(
            (each["path"], each["is_dir"], 0 if each["is_dir"] else each["size"]) for each in found.entries
        )

    ours, theirs = (files.ls(path) for files in both)

    assert listed(ours) == listed(theirs)


@pytest.mark.parametrize("path", [None, "/", "/src", "/src/main.py", "/nothing"])
@pytest.mark.parametrize(
    "pattern",
    ["*.py", "**/*.py", "/*.py", "app/*", "src/**/*.md", "*.{md,py}", "*", ".*", "**/*.yml", "*.yml"],
)
def test_a_pattern_finds_the_files_that_it_finds_in_the_framework_s_own(both, pattern, path):
    ours, theirs = (files.glob(pattern, path) for files in both)

    assert {each["path"] for each in ours.matches} == {each["path"] for each in theirs.matches}
    assert ours.error == theirs.error


@pytest.mark.parametrize("glob", [None, "*.py", "**/*.py", "/*.py", "*.yml"])
@pytest.mark.parametrize("path", [None, "/", "/src", "/src/main.py"])
def test_a_search_finds_the_lines_that_it_finds_in_the_framework_s_own(both, path, glob):
    ours, theirs = (
        sorted((each["path"], each["line"], each["text"]) for each in files.grep("TODO", path, glob).matches)
        for files in both
    )

    assert ours == theirs
    assert ours or path == "/src/main.py" or glob == "*.yml"


@pytest.mark.parametrize("count", [1, 2, 4, 5, 6])
def test_a_search_that_is_cut_short_says_so(both, count):
    whole = both[0].grep("TODO")

    cut = both[0].grep("TODO", max_count=count)

    assert len(whole.matches) == 6
    assert cut.matches == whole.matches[:count]
    assert cut.truncated == (count < 6)


def test_a_pattern_that_leads_out_is_an_error_and_not_an_exception(files):
    for found in (files.glob("../*.py"), files.grep("x", glob="../*.py")):
        assert "traversal" in found.error
        assert found.matches is None


@pytest.mark.parametrize(("offset", "limit"), [(0, 2000), (1, 1), (3, 10), (-1, 2), (0, 0), (9, 1)])
@pytest.mark.parametrize("path", ["/src/main.py", "/src/app/notes.md", "/empty.txt", "/nothing"])
def test_a_range_of_lines_reads_as_the_framework_has_it(both, path, offset, limit):
    ours, theirs = (files.read(path, offset, limit) for files in both)

    assert bool(ours.error) == bool(theirs.error)
    if not theirs.error:
        assert ours.file_data["content"] == theirs.file_data["content"]
        for name in ("start_line", "end_line", "next_offset", "total_lines"):
            assert getattr(ours, name) == getattr(theirs, name)


@pytest.mark.parametrize(
    ("path", "old", "replace_all"),
    [
        *(("/src/main.py", old, False) for old in ("print", "TODO", "absent", "")),
        ("/src/main.py", "TODO", True),
        ("/nothing", "a", False),
    ],
)
def test_an_edit_works_as_in_the_frameworks_own_backend(both, path, old, replace_all):
    def edited(files):
        done = files.edit(path, old, "x", replace_all)
        return bool(done.error), done.path, done.occurrences, files.download_files([path])[0].content

    ours, theirs = map(edited, both)

    assert ours == theirs


def test_deleting_a_folder_deletes_its_files_and_nothing_else(files):
    for path, text in FILES.items():
        files.write(path, text)

    assert files.delete("/src").error is None

    left = {each["path"] for each in files.glob("*").matches}
    assert left == {path for path in FILES if not path.startswith("/src/")}
    assert "not found" in files.delete("/src").error


def test_files_of_any_content_are_read_unchanged(files):
    contents = {"/a.png": bytes(range(256)), "/b.txt": "naïve\r\n".encode(), "/c": b""}

    told = files.upload_files(list(contents.items()))

    assert [each.error for each in told] == [None] * 3
    found = files.download_files([*contents, "/nothing"])
    assert [each.content for each in found] == [*contents.values(), None]
    assert found[-1].error == "file_not_found"
    assert files.read("/a.png").file_data["encoding"] == "base64"
    assert "not a text" in files.edit("/a.png", "a", "b").error


def test_any_text_is_a_name_and_leads_nowhere_else(tmp_path):
    files = OffloadBackend(tmp_path / "ours", session="../up")
    names = [
        *("/../../etc/passwd", "/a/../b", "/A", "/a", "/ü\n", "/~"),
        *("/" + "long/" * 200 + "x", "/" + "n" * 500),
    ]

    for name in names:
        assert files.write(name, name).error is None

    assert [each.content.decode() for each in files.download_files(names)] == names
    assert sorted(each["path"] for each in files.glob("/**").matches) == sorted(
        name for name in names if ".." not in name
    )
    assert [each for each in tmp_path.iterdir() if each.name != "ours"] == []


def test_sessions_see_nothing_of_each_other(store):
    OffloadBackend(store, session="a").write("/x", "1")

    assert OffloadBackend(store, session="ab").ls("/").entries == []
    assert OffloadBackend(store).read("/x").error
    assert OffloadBackend(store, session="a").read("/x").file_data["content"] == "1"


@pytest.mark.parametrize("config", [{}, {"configurable": {"thread_id": ""}}])
def test_a_run_without_a_thread_shares_no_files_and_loses_no_result(store, config):
    mine = {"file_path": "/large_tool_results/mine"}
    calls = Call("write_file", {**mine, "content": "secret"}, "w"), Call("read_file", mine, "r")
    script = Script([scenario.ask(), *(lambda _, call=call: call for call in calls), scenario.end])

    state = run(agent(script, files=OffloadBackend(store), **NO_SAVER), config)

    assert result(state).content == report()
    assert "has no thread for its files" in script.seen[2][-1]
    assert "secret" not in script.seen[3][-1]
    assert list(store.keys()) == []


def test_a_subagent_of_a_run_without_a_thread_changes_nothing_of_that_run(store):
    middleware = OffloadMiddleware(store)
    script = Script([scenario.ask(), delegate(), scenario.end, scenario.search, scenario.end])

    state = run(agent(script, middleware=[middleware], **NO_SAVER), {})

    assert needle("alice") in script.seen[4][-1]
    results = [message for message in state["messages"] if isinstance(message, ToolMessage)]
    assert middleware.offloader(state["offload_session"]).restore(results)[0].content == report()


def delegating(script, offloading, *subagents, **options):
    """A deep agent whose first tool call is to its first subagent."""
    made = with_offloading(offloading, subagents)
    return agent(script, middleware=[offloading], subagents=made, **options)


def delegate(to="general-purpose", message=lambda _: "Look."):
    return lambda texts: Call("task", {"description": message(texts), "subagent_type": to}, "call_t")


RESEARCHER = {"name": "researcher", "description": "Researches.", "system_prompt": "Be brief."}


# With a thread, and without one.
THREADS = pytest.mark.parametrize("config", [thread(), {}])


@THREADS
@pytest.mark.parametrize("run", [run, arun])
@pytest.mark.parametrize("subagents", [[], [RESEARCHER]])
def test_a_subagent_offloads_and_its_ids_resolve_for_the_main_agent(store, run, subagents, config):
    name = subagents[0]["name"] if subagents else "general-purpose"
    inner = scenario.ask(), scenario.search, scenario.tell
    script = Script([delegate(name), *inner, scenario.search_told, scenario.end])
    offloading = OffloadMiddleware(store)

    state = run(delegating(script, offloading, *subagents, **({} if config else NO_SAVER)), config)

    assert scenario.refs(script.seen[2])
    assert needle("alice") in script.seen[3][-1]
    assert needle("alice") in script.seen[5][-1]
    session = "alice" if config else state["offload_session"]
    assert len(offloading.offloader(session).records()) == 1


@THREADS
def test_a_subagent_reads_an_item_whose_id_the_main_agent_passes(store, config):
    hand_over = delegate(message=scenario.tell)
    script = Script([scenario.ask(), hand_over, scenario.search_told, scenario.end, scenario.end])

    run(delegating(script, OffloadMiddleware(store), **({} if config else NO_SAVER)), config)

    assert needle("alice") in script.seen[3][-1]


def test_the_usage_of_a_subagent_is_not_taken_for_that_of_the_main_agent(store, monkeypatch):
    missed = scenario.missed_tokens(monkeypatch)
    usages = [(0, 9000), (0, 3000), (3000, 100), (9000, 200)]
    script = Script([delegate(), scenario.ask(), scenario.end, scenario.end], usages=usages)

    run(delegating(script, OffloadMiddleware(store)), thread())

    assert missed == [0, 0, 0, 0]


def test_specs_that_offload_already_or_run_elsewhere_are_unchanged(store):
    offloading = OffloadMiddleware(store)
    general: Any = {"name": "general-purpose", "system_prompt": "x", "middleware": [offloading]}
    elsewhere: list[Any] = [{"runnable": object()}, {"graph_id": "g"}, {"mode": "fork"}]
    given: list[Any] = [{"name": "x", "description": "x", **spec} for spec in (*elsewhere, general)]

    assert with_offloading(offloading, given) == given
    [own] = with_offloading(offloading, [{**given[-1], "middleware": []}])
    assert own["middleware"] == [offloading]


# ASCII, so that only the extension shows that it is no text.
MEDIA = {"/chart.png": b"not a text\n" * 3000, "/paper.PDF": b"%PDF-1.4\n" * 3000, "/clip.mkv": b"\x1aE"}


@pytest.mark.parametrize("path", MEDIA)
@pytest.mark.parametrize("is_offloading", [True, False])
def test_a_file_that_is_media_by_its_extension_reaches_the_model_whole(store, path, is_offloading):
    files = OffloadBackend(store)
    script = Script([lambda _: Call("read_file", {"file_path": path}, "r"), scenario.end])
    middleware = [OffloadMiddleware(store)] if is_offloading else []
    made = agent(script, backend=files, middleware=middleware)
    OffloadBackend(store, session="alice").upload_files([(path, MEDIA[path])])

    state = run(made, thread())

    [block] = result(state).content_blocks
    assert base64.b64decode(block["base64"]) == MEDIA[path]


def test_media_are_encoded_as_by_the_frameworks_own_files(tmp_path, files):
    theirs = FilesystemBackend(tmp_path / "theirs", virtual_mode=True)
    for each in (files, theirs):
        each.upload_files(list(MEDIA.items()))

    for path in MEDIA:
        assert files.read(path, 1, 1) == theirs.read(path, 1, 1)
    assert files.write("/notes.md", "x\ny").error is None
    assert files.read("/notes.md", 1, 1).file_data["content"] == "y"


def test_a_file_and_a_folder_of_one_name_are_both_listed(store):
    files = OffloadBackend(store, session="s")
    files.upload_files([("/a", b"1"), ("/a/b", b"2")])

    assert [each["path"] for each in files.ls("/").entries] == ["/a", "/a/"]
    assert files.read("/a").file_data["content"] == "1"


@pytest.mark.parametrize("faulty", [FaultyStore, FaultyBulkStore])
def test_every_verb_reports_a_failing_store(store, faulty):
    OffloadBackend(store, session="s").write("/x", "1")
    files = OffloadBackend(faulty(store, is_lasting=True), session="s")

    told = [
        files.ls("/"),
        files.read("/x"),
        files.write("/x", "2"),
        files.edit("/x", "1", "2"),
        files.delete("/x"),
        files.glob("*"),
        files.grep("1"),
        *files.upload_files([("/x", b"2")]),
        *files.download_files(["/x"]),
    ]

    assert all("the store did not respond" in each.error for each in told)
    # A search that could not read a file is no search without matches.
    unread = OffloadBackend(faulty(store, verb="get"), session="s").grep("1")
    assert "the store did not respond" in unread.error
    assert unread.matches is None
    assert OffloadBackend(store, session="s").read("/x").file_data["content"] == "1"


def test_no_verb_names_the_folder_of_a_store_that_fails(tmp_path):
    root = tmp_path / "host-folder"
    root.write_text("no folder")
    files = OffloadBackend(root, session="s")

    told = [files.ls("/"), files.read("/x"), files.write("/x", "2"), files.delete("/x"), files.grep("1")]

    assert all(each.error and "host-folder" not in each.error for each in told)


def test_without_the_framework_the_error_names_the_command():
    assert "pip install 'offload[deepagents]'" in scenario.import_error("deepagents", without="deepagents")
