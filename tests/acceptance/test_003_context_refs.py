"""The context files of DeepChat as their testing guide describes them, with Python names; each row is a test.

| statement | test |
|---|---|
| Scenario 1 Shell output above 5 KB: its first 800 characters, its line, its exit code | test_01 |
| Scenario 2 Shell output below 5 KB is shown in full, with its exit code | test_02 |
| Scenario 3 Terminal output above 1 KB | test_03 |
| Scenario 4 A server tool result above 1 KB | test_04 |
| Scenario 5 File-system results are kept, and nothing is logged | test_05_06 |
| Scenario 6 Browser results are kept | test_05_06 |
| Scenario 7 A model takes the id from the line and reads the last lines | test_07 |
| Scenario 8 A model searches for a word | test_08 |
| Scenario 9 A model reads the full output in pages of 8 KB | test_09 |
| Format: an id has five or six characters of 0-9, A-Z, a-z | test_10 |
| Format: sizes in KB and MB | test_11 |
| Format: one form of line for all categories of output | test_12 |
| Function: the tool and its server decide the category | test_13 |
| Function: exactly 5 KB and 1 KB are kept, one byte more leaves | test_14_15 |
| Function: an exit code does not count | test_14 |
| Function: shell output between 1 and 5 KB is not treated as a tool's | test_14_15 |
| Function: answers of retrieval tools are kept | test_16 |
| Files: `artifacts/<id>.txt` is the output, byte for byte | test_17 |
| Files: `manifest.json` lists the files | test_18 |
| Logs of successes | test_19 |
| Logs of failures | test_20 |
| Prompt: at most 15 lines, the categories, an example | test_21 |
| Errors: `[Output truncated due to offload error]` for an output that is too long to keep | test_22 |
| Errors: the same in a list of messages | test_23 |
| Errors: whichever operation fails, nothing that fits is lost, and nothing is raised | test_24 |
| Question 1 Two outputs draw one id: the second draws another, and both are read | test_25 |
| Question 4 Longer ids are drawn again too, and a file of another item is kept | test_26 |
| Performance: 10 KB in 50 ms, 100 KB in 200 ms: benchmarks/bench_local.py; here the writes | test_27 |
| Later: output is written as it comes | test_28 |
| Later: clean-up of the least recently used | test_29 |
| Later: cited and pinned files are kept, also those cited in a file | test_30 |
| Later: a deletion is reported, frees bytes after the grace period, and allows storing again | test_31 |
| Later: compressed files | test_32 |
| Later: offload of chosen earlier messages | test_33 |
| Later: the number of context files, and a page to browse them | test_53 |
| Debugging: list, read, search and check the files in a shell | test_17, test_54 |

Tests 34 and later go beyond the guide: restoring, determinism, several processes, damage, hostile names, the
options and the agent loop of the library.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import logging
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import prepared
import pytest
import zstandard
from command import runner
from pages import Html, path_of, visitor

from offload import (
    AgentConfig,
    ContextManager,
    ExpiredError,
    NotFoundError,
    Offloader,
    OffloadPolicy,
    Rule,
    open_store,
)
from offload.agent.compaction import RoundCompactor, RoundConfig
from offload.agent.presets.context_refs import TRUNCATED, ContextRefs, size_of
from offload.base.events import ContextEvent, EventBus, EventType
from offload.engine.policy.tool_names import RETRIEVAL_TOOLS, TOOL_NAMES
from offload.errors import ConfigError, MessageError, StoreError
from offload.records.index import sessions
from offload.records.record.header import draw_ref
from offload.testing.faults import FaultyStore
from offload_backends.memory import MemoryStore

LINE = re.compile(r"\[(Bash|Terminal|Tool) output in context: ([0-9A-Za-z]{5,6})\] \((\d+\.\d)(KB|MB)\)")
FILES = "".join(f"/usr/share/doc/package-{i}/copyright\n" for i in range(600))
LISTING = "".join(f"drwxr-xr-x 2 root root 4096 /usr/lib/{i}\n" for i in range(50))


@pytest.fixture
def refs(tmp_path: Path) -> ContextRefs:
    return ContextRefs(tmp_path / "root", "chat-1")


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "offload.context_refs")
    return caplog


def artifact(tmp_path: Path, ref: str, conversation: str = "chat-1") -> Path:
    return tmp_path / "root" / conversation / "artifacts" / f"{ref}.txt"


def age(file: Path, seconds: int) -> None:
    """Have a file be older: several may be written within one tick of the clock."""
    os.utime(file, times=(time.time() - seconds, time.time() - seconds))


def manifest(tmp_path: Path, conversation: str = "chat-1") -> list[dict[str, Any]]:
    document = json.loads((tmp_path / "root" / conversation / "manifest.json").read_bytes())
    items: list[dict[str, Any]] = document["items"]
    return items


def line_in(shown: str, start: int = 0) -> re.Match[str]:
    found = LINE.search(shown, start)
    assert found is not None, shown[-200:]
    return found


def ref_in(shown: str) -> str:
    return line_in(shown)[2]


def call(name: str, call_id: str = "c1") -> dict[str, Any]:
    block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return {"role": "assistant", "content": [block]}


def answer(text: str, call_id: str = "c1") -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}


def shown_in(message: Any) -> str:
    text: str = message["content"][0]["content"]
    return text


def colliding() -> list[str]:
    """Return two texts that draw one and the same first ref in `chat-1`."""
    by_ref: dict[str, list[str]] = {}
    for number in range(200_000):
        text = f"{number:06d} " * 300
        found = by_ref.setdefault(first_draw(text), [])
        found.append(text)
        if len(found) == 2:
            return found
    raise AssertionError("no collision among 200,000 texts")


def first_draw(text: str, draw: int = 0) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return draw_ref("chat-1", "tool_result", None, digest, style="short", draw=draw)


def test_01_shell_output_above_5_kb_is_its_first_800_characters_its_line_and_its_exit_code(refs, tmp_path):
    shown = refs.tool_output(FILES, tool_name="bash", exit_code=0)

    ref = ref_in(shown)
    size = size_of(artifact(tmp_path, ref).stat().st_size)
    assert shown == f"{FILES[:800]}\n\n[Bash output in context: {ref}] ({size})\n\nExit Code: 0"
    assert size == "21.6KB"


def test_02_shell_output_below_5_kb_is_shown_in_full_with_its_exit_code(refs, tmp_path):
    assert refs.tool_output("hello world\n", tool_name="bash", exit_code=0) == "hello world\n\nExit Code: 0"
    assert not list(tmp_path.rglob("*.txt"))


def test_03_terminal_output_above_1_kb_is_offloaded_by_the_general_rule(refs, told):
    shown = refs.tool_output(LISTING, tool_name="terminal_output")

    assert shown == f"{LISTING[:800]}\n\n[Terminal output in context: {ref_in(shown)}] (1.9KB)"
    assert "[ToolCallProcessor] Offloaded tool output: terminal_output (1990 chars)" in told.messages


SERVER_TOOLS = [
    ("your_mcp", "your_mcp_tool_large_output"),
    ("github", "get_pull_request_files"),
    ("gdrive", "get_file"),
    ("rss", "read"),
    ("imdb", "search_directors"),
    ("browserstack", "search"),
]


@pytest.mark.parametrize(("server", "tool"), SERVER_TOOLS)
def test_04_a_server_tool_result_above_1_kb_is_offloaded(refs, server, tool):
    shown = refs.tool_output(LISTING, tool_name=tool, server_name=server)
    out = refs.offload([call(f"mcp__{server}__{tool}"), answer(LISTING)])

    assert line_in(shown_in(out.messages[1]))[1] == "Tool"
    assert shown == f"{LISTING[:800]}\n\n[Tool output in context: {ref_in(shown)}] (1.9KB)"


FILE_TOOLS = [
    *((tool, None) for tool in ("read", "Read", "read_file", "ReadFile", "get_file_info", "MultiEdit")),
    *((tool, None) for tool in ("NotebookRead", "str_replace_based_edit_tool", "LS", "list_directory")),
    *((tool, "filesystem") for tool in ("read", "list", "search_files")),
    *(("info", server) for server in ("agent-filesystem", "MyFileSystem", "fs")),
    ("mcp__filesystem__info", None),
]
BROWSER_TOOLS = [
    ("scrape", "browser"),
    ("scrape", "yo-browser"),
    ("browser_navigate", None),
    ("mcp__playwright__click", None),
]


@pytest.mark.parametrize(("tool", "server"), [*FILE_TOOLS, *BROWSER_TOOLS])
def test_05_06_file_system_and_browser_results_are_kept_and_nothing_is_logged(
    refs, told, tmp_path, tool, server
):
    assert refs.tool_output(FILES, tool_name=tool, server_name=server) == FILES
    messages = [call(f"{server}.{tool}" if server else tool), answer(FILES)]
    assert refs.offload(messages).messages == messages
    assert not told.messages
    assert not list(tmp_path.rglob("*.txt"))


def test_07_a_model_takes_the_id_from_the_line_and_reads_the_last_lines(refs, told):
    ref = ref_in(refs.tool_output(FILES, tool_name="bash", exit_code=3))

    tail = refs.call("context_tail", {"id": ref, "lines": 20})

    assert tail.splitlines()[1:-1] == [*FILES.splitlines()[-18:], "", "Exit Code: 3"]
    assert f"[AgentLoop] Tool call: context_tail with params: {{'id': '{ref}', 'lines': 20}}" in told.messages
    assert ref in refs.call("context_list")


def test_08_a_model_searches_for_a_word(refs):
    output = FILES.replace("package-432/", "error-432/")
    ref = ref_in(refs.tool_output(output, tool_name="bash", exit_code=1))

    for arguments in ({"id": ref, "pattern": "error"}, {"pattern": "error"}):
        found = refs.call("context_grep", arguments)
        assert "/usr/share/doc/error-432/copyright" in found
        assert "433" in found  # its line, from 1
        assert found.startswith("[1 match shown")


def test_09_a_model_reads_the_full_output_in_pages_of_8_kb(refs, tmp_path):
    ref = ref_in(refs.tool_output(FILES, tool_name="bash"))

    pages = [
        refs.call("context_read", {"id": ref, "offset": at, "limit": 8192}) for at in range(0, 23_490, 8192)
    ]

    texts = [page.partition("\n")[2].rpartition("\n")[0] for page in pages]
    assert "".join(texts) == FILES
    assert [len(text) for text in texts[:-1]] == [8192, 8192]
    assert pages[0].endswith(f'[more: context_read(id="{ref}", offset=8192)]')


def test_10_an_id_has_five_or_six_characters_of_the_alphabet_of_letters_and_digits(refs):
    found = {ref_in(refs.tool_output(f"{i} {LISTING}", tool_name="x")) for i in range(40)}

    assert len(found) == 40
    assert all(re.fullmatch("[0-9a-z]{5}", ref) for ref in found)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (1023, "1023B"),
        (1024, "1.0KB"),
        (1843, "1.8KB"),
        (14_438, "14.1KB"),
        (1_048_524, "1023.9KB"),
        (1_048_575, "1.0MB"),
        (5 * 1024**2 + 524_288, "5.5MB"),
        (3 * 1024**3, "3072.0MB"),
    ],
)
def test_11_sizes_are_in_kb_and_mb_with_one_decimal(count, shown):
    assert size_of(count) == shown


def test_12_all_categories_have_one_form_of_line_and_an_output_keeps_its_id_in_each(refs, tmp_path):
    names = ("bash", "shell", "terminal", "terminal_run", "a", "b")
    shown = [refs.tool_output(FILES, tool_name=name) for name in names]

    lines = [text.removeprefix(FILES[:800].rstrip("\n") + "\n\n") for text in shown]
    assert lines == [line_in(line)[0] for line in lines]
    assert [line_in(line)[1] for line in lines] == ["Bash", "Bash", "Terminal", "Terminal", "Tool", "Tool"]
    assert len({ref_in(line) for line in lines}) == 3
    assert shown[::2] == shown[1::2]
    again = ContextRefs(tmp_path / "root", "chat-1")
    assert [again.tool_output(FILES, tool_name=name) for name in reversed(names)] == shown[::-1]
    assert len(manifest(tmp_path)) == 3


SORTS: dict[str, list[tuple[str, str | None]]] = {
    "Bash": [("bash", None), ("Bash", None), ("mcp__host__bash", None), ("execute_command", None)],
    "Terminal": [
        *(("terminal_run", None), ("waitForTerminalExit", "terminal"), ("mcp__terminal__wait", None)),
        *(("terminal_read_output", None), ("read", "terminal")),
    ],
    "Tool": [
        *(("bash_history_search", None), ("query", "database"), ("", None)),
        *(("get_pull_request_files", "github"), ("mcp__gdrive__get_file", None), ("read", "rss")),
    ],
}


@pytest.mark.parametrize(("sort", "names"), [(s, n) for s, names in SORTS.items() for n in names])
def test_13_the_tool_and_its_server_decide_the_category(refs, sort, names):
    shown = refs.tool_output(FILES, tool_name=names[0], server_name=names[1])

    assert line_in(shown)[1] == sort


@pytest.mark.parametrize(("tool", "limit"), [("bash", 5 * 1024), ("terminal", 1024), ("query", 1024)])
def test_14_15_an_output_of_its_own_limit_is_kept_and_one_more_byte_is_offloaded(refs, tool, limit):
    kept = "a" * limit

    assert refs.tool_output(kept, tool_name=tool) == kept
    assert shown_in(refs.offload([call(tool), answer(kept)]).messages[1]) == kept
    assert LINE.search(refs.tool_output("a" * (limit + 1), tool_name=tool))


@pytest.mark.parametrize("size", [5107, 5120])
def test_14_an_exit_code_does_not_count_towards_the_limit(refs, size):
    kept = f"{'a' * size}\n\nExit Code: 0"

    assert refs.tool_output("a" * size, tool_name="bash", exit_code=0) == kept
    assert shown_in(refs.offload([call("bash"), answer(kept)]).messages[1]) == kept
    shown = refs.tool_output("a" * 5121, tool_name="bash", exit_code=0)
    assert LINE.search(shown)
    assert shown.endswith("\n\nExit Code: 0")


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_16_answers_of_retrieval_tools_are_kept(refs, name):
    assert refs.tool_output(FILES, tool_name=name) == FILES
    assert shown_in(refs.offload([call(name), answer(FILES)]).messages[1]) == FILES


def test_17_a_file_is_the_output_byte_for_byte_and_contains_it_once(refs, tmp_path):
    output = "π\r\n\x00\ttail without newline" * 200
    ref = ref_in(refs.tool_output(output, tool_name="x"))

    assert artifact(tmp_path, ref).read_bytes() == output.encode()
    holding = [p for p in tmp_path.rglob("*") if p.is_file() and output[:2000].encode() in p.read_bytes()]
    assert holding == [artifact(tmp_path, ref)]
    assert [p.name for p in artifact(tmp_path, ref).parent.iterdir()] == [f"{ref}.txt"]


def test_18_the_manifest_lists_the_files_in_the_order_they_came(refs, tmp_path):
    first = ref_in(refs.tool_output(FILES, tool_name="bash", exit_code=0))
    age(artifact(tmp_path, first), 1)
    second = ref_in(refs.tool_output(LISTING, tool_name="query", server_name="db"))

    items = manifest(tmp_path)
    assert [item["id"] for item in items] == [first, second]
    assert [item["category"] for item in items] == ["Bash", "Tool"]
    assert [item["tool"] for item in items] == ["bash", "db.query"]
    for item in items:
        path = tmp_path / "root" / "chat-1" / item["path"]
        assert path == artifact(tmp_path, item["id"])
        assert item["size"] == path.stat().st_size


def test_19_a_success_is_logged_once(refs, told, tmp_path):
    ref = ref_in(refs.tool_output(FILES, tool_name="bash"))
    messages = [call("query"), answer(LISTING)]
    tool_ref = ref_in(shown_in(refs.offload(messages).messages[1]))
    refs.offload(messages)

    path = artifact(tmp_path, ref).as_uri()
    assert told.messages == [
        f"[ContextStore] Created ref: {ref}",
        f"[ContextStore] Wrote content: {path} ({len(FILES)} bytes)",
        f"[AgentBashHandler] Offloaded output: {ref}",
        f"[ContextStore] Created ref: {tool_ref}",
        f"[ContextStore] Wrote content: {artifact(tmp_path, tool_ref).as_uri()} (1990 bytes)",
        "[ToolCallProcessor] Offloaded tool output: query (1990 chars)",
    ]


def test_20_a_failure_is_a_warning(told):
    refs = ContextRefs(FaultyStore(MemoryStore(), verb="put", is_lasting=True), "chat-1")

    refs.tool_output(FILES, tool_name="bash")
    refs.tool_output(LISTING, tool_name="query")
    refs.offload([call("query"), answer(LISTING)])

    warned = [r.getMessage() for r in told.records if r.name == "offload.context_refs"]
    assert all(r.levelno == logging.WARNING for r in told.records)
    assert [line.partition(": ")[0] for line in warned] == [
        "[AgentBashHandler] Failed to offload output",
        "[ToolCallProcessor] Failed to offload tool output for query",
        "[ToolCallProcessor] Failed to offload tool output for query",
    ]


def test_21_the_prompt_has_at_most_15_lines_the_categories_and_an_example(refs):
    prompt = refs.prompt()

    assert len(prompt.splitlines()) <= 15
    for sort in ("Bash", "Terminal", "Tool"):
        assert line_in(prompt, prompt.index(f"[{sort} output in context"))[1] == sort
    named = {tool["name"] for tool in refs.tools.definitions()}
    assert named == set(re.findall(r"context_[a-z]+", prompt))
    example = prompt[prompt.index("Example:") :]
    assert re.findall(r"context_[a-z]+\(id=\"7b8k1\"", example)
    assert "Exit Code: 1" in example


def failing(**options: Any) -> ContextRefs:
    """Return a conversation whose store fails."""
    return ContextRefs(FaultyStore(MemoryStore(), is_lasting=True), "chat-1", **options)


def test_22_an_output_that_is_lost_says_so_with_its_exit_code():
    refs, output = failing(), FILES * 3

    shown = refs.tool_output(output, tool_name="bash", exit_code=2)

    assert len(output) > 65_536
    assert shown == f"{FILES[:800]}\n\n[Output truncated due to offload error]\n\nExit Code: 2"
    assert refs.tool_output("a" * 65_536, tool_name="query") == "a" * 65_536


def test_22_every_output_that_is_lost_says_so_with_on_error_truncate():
    refs = failing(on_error="truncate")
    cut = f"{LISTING[:800]}\n\n{TRUNCATED}"

    assert refs.tool_output(LISTING, tool_name="query") == cut
    assert shown_in(refs.offload([call("query"), answer(LISTING)]).messages[1]) == cut


def test_23_messages_that_could_not_be_stored_are_cut_only_if_they_do_not_fit():
    store = FaultyStore(MemoryStore(), is_lasting=True)
    refs = ContextRefs(store, "chat-1", max_inline_chars=10_000)
    messages = [call("bash"), answer(FILES), call("query", "c2"), answer(LISTING, "c2")]
    before = copy.deepcopy(messages)

    out = refs.offload(messages)

    assert shown_in(out.messages[1]) == f"{FILES[:800]}\n\n{TRUNCATED}"
    assert out.messages[3] is messages[3]
    assert messages == before
    store.heal()
    assert refs.restore(refs.offload(messages).messages) == before


@pytest.mark.parametrize("moment", ["before", "after"])
def test_24_whichever_operation_fails_nothing_is_lost_and_nothing_is_raised(moment):
    outcomes = set()
    for nth in range(1, 40):
        inner = MemoryStore()
        store = FaultyStore(inner, nth=nth, moment=moment)
        shown = ContextRefs(store, "chat-1").tool_output(FILES, tool_name="bash", tool_use_id="c1")
        outcomes.add(shown == FILES)
        restored = ContextRefs(inner, "chat-1").restore([call("bash"), answer(shown)])
        assert shown_in(restored[1]) == FILES
        if not store.failures:
            break
    assert not store.failures
    assert outcomes == {True, False}


def test_25_two_outputs_that_draw_one_id_get_two_and_both_are_read(refs, tmp_path):
    first, second = colliding()

    drawn = [ref_in(refs.tool_output(text, tool_name="x")) for text in (first, second)]

    assert [len(ref) for ref in drawn] == [5, 6]
    assert drawn[1].startswith(drawn[0])
    assert [artifact(tmp_path, ref).read_text() for ref in drawn] == [first, second]
    assert [b"".join(refs.offloader.content(ref)).decode() for ref in drawn] == [first, second]
    assert refs.offloader.verify() == []
    again = ContextRefs(tmp_path / "root", "chat-1")
    assert [ref_in(again.tool_output(text, tool_name="x")) for text in (second, first)] == drawn[::-1]


def test_26_an_id_is_drawn_repeatedly_and_a_file_of_another_item_is_kept(refs, tmp_path):
    text = LISTING
    taken = [first_draw(text, draw) for draw in range(3)]
    artifact(tmp_path, "x").parent.mkdir(parents=True, mode=0o700)
    for ref in taken:
        artifact(tmp_path, ref).write_text("another's")

    ref = ref_in(refs.tool_output(text, tool_name="x"))

    assert ref == first_draw(text, 3)
    assert len(ref) == 6
    assert artifact(tmp_path, ref).read_text() == text
    assert [artifact(tmp_path, ref).read_text() for ref in taken] == ["another's"] * 3


def test_27_the_writes_of_an_output_do_not_grow_with_its_size_or_the_conversation():
    store = FaultyStore(MemoryStore(), nth=10**6, verb="put")
    refs = ContextRefs(store, "chat-1")
    writes = []
    for chars in (10_000, 100_000, 1_000_000):
        for letter in "abcde":
            before = store.operations
            refs.tool_output(letter * chars, tool_name="bash")
            writes.append(store.operations - before)

    assert set(writes) == {3}  # the content, its header, the manifest


def test_28_output_is_written_as_it_comes(refs, tmp_path):
    chunk = "x" * 65_535 + "\n"
    with refs.open_sink(tool_name="terminal_run") as sink:
        for _ in range(160):
            sink.write(chunk)
        assert not list(tmp_path.rglob("*.txt"))

    ref = ref_in(sink.placeholder)
    assert sink.placeholder.endswith(f"[Terminal output in context: {ref}] (10.0MB)")
    assert sink.placeholder.startswith("x" * 800 + "\n\n")
    assert artifact(tmp_path, ref).read_bytes() == chunk.encode() * 160
    assert [item["id"] for item in manifest(tmp_path)] == [ref]


def stored(refs: ContextRefs, tmp_path: Path, count: int) -> list[str]:
    """Store outputs of 2,000 bytes, and return their ids, the oldest first."""
    ids = [ref_in(refs.tool_output(f"{number:04d}" * 500, tool_name="x")) for number in range(count)]
    for seconds, ref in enumerate(reversed(ids)):
        age(artifact(tmp_path, ref), seconds)
    return ids


def left(refs: ContextRefs) -> set[str]:
    return {info.ref for info in refs.offloader.records()}


def test_29_the_least_recently_used_files_are_deleted_first(refs, tmp_path):
    a, b, c, d = stored(refs, tmp_path, 4)
    ContextRefs(tmp_path / "root", "chat-1").call("context_read", {"id": a})

    removed = refs.clean_up(4_500, [], grace=0)

    assert [info.ref for info in removed] == [b, c]
    assert left(refs) == {a, d}
    assert [item["id"] for item in manifest(tmp_path)] == [a, d]
    sizes = {ref: artifact(tmp_path, ref).stat().st_size for ref in (a, b, c, d)}
    assert sizes == {a: 2000, b: 0, c: 0, d: 2000}


def test_30_cited_and_pinned_files_are_kept_and_others_are_deleted(refs, tmp_path):
    a, b, c, d, e = stored(refs, tmp_path, 5)
    refs.offloader.pin(b)
    live = [
        {"role": "assistant", "content": f"I shall look at {a} again."},
        answer(f"preview\n\n[Tool output in context: {c}] (2.0KB)"),
    ]

    assert [info.ref for info in refs.clean_up(8_000, live, grace=0)] == [d]
    assert [info.ref for info in refs.clean_up(0, live, grace=0)] == [e]
    assert left(refs) == {a, b, c}


def test_30_a_file_is_kept_that_is_cited_only_in_an_offloaded_message_or_result(refs, tmp_path):
    inner = ref_in(refs.tool_output(FILES, tool_name="bash"))
    said = f"The list is in\n{inner}\nand I shall read it again. " + "Then I shall go on. " * 60
    middle = refs.offload_history([{"role": "assistant", "content": said}])
    outer = refs.offload_history([{"role": "user", "content": f"{'go on ' * 300}{middle.records[0].ref}"}])
    files = [inner, middle.records[0].ref, outer.records[0].ref]
    unrelated = ref_in(refs.tool_output(LISTING, tool_name="query"))
    cited = f"{LISTING}[Bash output in context: {inner}] (21.6KB)\n{LISTING}"
    result = refs.tool_output(cited, tool_name="subagent")

    live = ContextRefs(tmp_path / "root", "chat-1")
    assert [info.ref for info in live.clean_up(0, [*outer.messages, answer(result)], grace=0)] == [unrelated]
    assert [info.ref for info in live.clean_up(0, outer.messages, grace=0)] == [ref_in(result)]
    assert left(live) == set(files)
    assert not list((tmp_path / "root" / "~state" / "g").rglob("read~*"))  # reading it is no use of it
    assert {info.ref for info in live.clean_up(0, [], grace=0)} == set(files)


def test_30_the_least_recently_used_files_are_deleted_by_themselves(tmp_path):
    refs = ContextRefs(tmp_path / "root", "chat-1", max_bytes=4_500)
    shown = [refs.tool_output(letter * 2000, tool_name="x") for letter in "ab"]
    a, _ = map(ref_in, shown)
    first, second = map(answer, shown)

    refs.offload([first, second])
    refs.offload([first])
    c = ref_in(refs.tool_output("c" * 2000, tool_name="x"))
    assert left(refs) == {a, c}
    d = ref_in(refs.tool_output("d" * 2000, tool_name="x"))
    assert left(refs) == {a, c, d}  # no list has shown c and d yet
    refs.offload([{"role": "user", "content": f"Go on with {d}"}])
    assert left(refs) == {c, d}
    assert [item["id"] for item in manifest(tmp_path)] == [c, d]
    assert "was deleted" in refs.call("context_read", {"id": a})


def test_30_threads_and_processes_clean_up_one_conversation_together(tmp_path):
    both = [ContextRefs(tmp_path / "root", "chat-1", max_bytes=10_000) for _ in range(2)]

    with ThreadPoolExecutor(6) as pool:
        outputs = pool.map(lambda n: both[n % 2].tool_output(f"{n} " * 900, tool_name="x"), range(30))
        assert all(LINE.search(shown) for shown in outputs)

    assert sum(info.stored_bytes for info in both[0].offloader.records()) <= 10_000
    assert {item["id"] for item in manifest(tmp_path)} == left(both[1])


def test_30_a_failed_clean_up_is_a_warning(told):
    store = FaultyStore(MemoryStore(), verb="delete", is_lasting=True)
    refs = ContextRefs(store, "chat-1", max_bytes=4_500)

    shown = [refs.tool_output(letter * 2000, tool_name="x") for letter in "abcd"]

    assert all(LINE.search(text) for text in shown)
    assert any("[ContextStore] Failed to clean up" in line for line in told.messages)


def test_31_a_deletion_is_reported_frees_bytes_after_the_grace_and_allows_storing_again(refs, tmp_path):
    [ref] = stored(refs, tmp_path, 1)
    text = artifact(tmp_path, ref).read_text()

    refs.clean_up(0, [])
    assert artifact(tmp_path, ref).read_text() == text
    with pytest.raises(ExpiredError):
        refs.tools.read(ref)
    assert "was deleted" in refs.call("context_read", {"id": ref})

    refs.clean_up(0, [], grace=0)
    assert artifact(tmp_path, ref).read_text() == ""
    assert ref_in(refs.tool_output(text, tool_name="x")) == ref
    assert b"".join(refs.offloader.content(ref)).decode() == text
    assert artifact(tmp_path, f"{ref}.2").read_text() == text

    for path in tmp_path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    ContextRefs(tmp_path / "root", "chat-1").offloader.gc()
    assert artifact(tmp_path, ref).read_text() == ""
    assert artifact(tmp_path, f"{ref}.2").read_text() == text


def test_32_compressed_files_are_zstd_and_are_read_like_others(tmp_path):
    refs = ContextRefs(tmp_path / "root", "chat-1", compress=True)
    ref = ref_in(refs.tool_output(FILES, tool_name="bash", exit_code=0))

    path = artifact(tmp_path, ref).with_suffix(".txt.zst")
    assert path.stat().st_size < len(FILES) / 5
    with path.open("rb") as file:
        plain = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    assert plain.decode() == FILES + "\nExit Code: 0"
    assert [item["path"] for item in manifest(tmp_path)] == [f"artifacts/{ref}.txt.zst"]
    plain_refs = ContextRefs(tmp_path / "root", "chat-1")
    assert "package-599" in plain_refs.call("context_tail", {"id": ref, "lines": 5})
    assert ref in plain_refs.tools.list()


def test_33_chosen_earlier_messages_of_any_type_are_offloaded(refs, tmp_path):
    said = "The plan is to migrate every table by name. " * 30
    messages = [
        {"role": "system", "content": "You are careful. " * 200},
        {"role": "user", "content": said},
        {"role": "assistant", "content": said + "Done."},
        call("bash"),
        answer(LISTING),
        {"role": "user", "content": said + "And now?"},
    ]

    out = refs.offload_history(messages, [0, 1, 2, 4])

    assert [n for n in range(6) if out.messages[n] is not messages[n]] == [1, 2, 4]
    shown, ref = out.messages[1]["content"], out.records[0].ref
    assert shown == f"{said[:200]}\n\n[Message in context: {ref}] (1.3KB)"
    assert artifact(tmp_path, ref).read_text() == said
    assert len(manifest(tmp_path)) == 3
    assert refs.offload(out.messages).messages == out.messages
    assert refs.restore(out.messages) == messages
    everything = refs.offload_history(messages)
    assert everything.messages[5] != messages[5]


def test_33_a_message_that_was_not_chosen_is_kept_in_full_while_the_store_fails():
    refs = ContextRefs(FaultyStore(MemoryStore(), verb="put", is_lasting=True), max_inline_chars=1000)
    messages = [{"role": "user", "content": text} for text in (FILES, LISTING)]

    out = refs.offload_history(messages, [1])

    assert out.messages[0] == messages[0]
    assert TRUNCATED in out.messages[1]["content"]


def test_33_a_line_in_the_history_is_no_text_and_its_file_is_kept(refs, tmp_path):
    shown = refs.tool_output(FILES, tool_name="bash", exit_code=1)
    line = line_in(shown)[0]
    messages = [
        call("bash"),
        answer(shown),
        {"role": "assistant", "content": f"It failed, see\n\n{line}"},
        {"role": "user", "content": f"{line}\n" + "What is in it? " * 60},
    ]

    once = refs.offload_history(messages)
    go_on = {"role": "user", "content": "Go on. " * 100}
    out = refs.offload_history([*once.messages, go_on])

    assert once.messages[1] == answer(shown)
    assert out.messages[:4] == once.messages
    whole = [call("bash"), answer(f"{FILES}\nExit Code: 1"), *messages[2:], go_on]
    later = ContextRefs(tmp_path / "root", "chat-1")
    assert later.clean_up(0, out.messages[2:], grace=0) == []
    assert later.restore(out.messages) == whole


@pytest.mark.parametrize("way", ["offload", "offload_history"])
def test_33_a_line_that_a_user_pastes_as_a_message_is_sent_as_it_is(refs, tmp_path, way):
    pasted = {"role": "user", "content": line_in(refs.tool_output(FILES, tool_name="bash"))[0]}

    out = getattr(refs, way)([pasted])

    assert out.messages == [pasted]
    assert len(manifest(tmp_path)) == 1
    assert ContextRefs(tmp_path / "root", "chat-1").restore(out.messages) == [pasted]


def test_33_an_output_without_a_visible_character_has_a_placeholder_too(refs):
    messages = [call("bash"), answer("\n" * 9000)]

    out = refs.offload(messages)

    assert shown_in(out.messages[1]).startswith("…\n\n[Bash output in context: ")
    assert refs.restore(out.messages) == messages


def test_34_messages_are_restored_exactly_in_another_process(refs, tmp_path):
    messages = [call("Bash"), answer(FILES + "\n\nExit Code: 0"), call("q", "c2"), answer(LISTING, "c2")]

    out = refs.offload(messages)

    assert shown_in(out.messages[1]).endswith("\n\nExit Code: 0")
    other = ContextRefs(tmp_path / "root", "chat-1")
    assert other.restore(out.messages) == messages
    assert other.offload(messages).messages == out.messages
    assert other.offload(out.messages).messages == out.messages


def test_35_a_line_in_an_output_is_not_a_placeholder(refs):
    forged = f"[Bash output in context: abcde] (9.9KB)\n{LISTING}\n\n[Tool output in context: abcde] (1.0KB)"

    shown = refs.tool_output(forged, tool_name="x", tool_use_id="c1")

    assert shown.startswith(r"\[Bash output in context: abcde] (9.9KB)")
    ref = LINE.findall(shown)[-1][1]
    assert ref != "abcde"
    assert shown_in(refs.restore([call("x"), answer(shown)])[1]) == forged
    in_full = [call("x"), answer(forged)]
    assert refs.restore(in_full) == in_full
    with pytest.raises(NotFoundError, match="abcde"):
        refs.restore([call("x", "c2"), answer(forged, "c2")])
    assert "unknown id" in refs.call("context_read", {"id": "abcde"})


@pytest.mark.parametrize(
    "name", ["../../etc", "Chat-1", "CHAT-1", "con", "CON.x", "r", "~state", "a/b", "é" * 300, "É 1"]
)
def test_36_every_conversation_name_has_its_own_folder(tmp_path, name):
    refs = ContextRefs(tmp_path / "root", name)
    neighbour = ContextRefs(tmp_path / "root", "chat-1")

    ref = ref_in(refs.tool_output(FILES, tool_name="bash"))

    assert (tmp_path / "root" / refs.folder / "artifacts" / f"{ref}.txt").read_text() == FILES
    assert [info.ref for info in ContextRefs(tmp_path / "root", name).offloader.records()] == [ref]
    assert refs.offloader.verify() == []
    with pytest.raises(NotFoundError):
        neighbour.tools.read(ref)
    assert {p.name for p in tmp_path.iterdir()} == {"root"}


NANOID = "V1StGXR8_Z5jdHi6B-myT"


def test_36_a_folder_is_readable(refs, tmp_path):
    root = tmp_path / "root"
    new = ContextRefs(root, NANOID)
    shown = new.tool_output(FILES, tool_name="bash")
    assert new.folder == "v1stgxr8_z5jdhi6b-myt~lyh"
    assert refs.folder == "chat-1"
    assert ContextRefs(root, NANOID.swapcase()).folder != new.folder

    assert shown_in(new.restore([call("bash"), answer(shown)])[1]) == FILES
    assert list(sessions(new.offloader.store)) == [NANOID]


def test_36_conversations_are_listed_in_order_of_their_keys(tmp_path):
    names = [NANOID, "Ab", "aB", "ab", "b", "A", "z-1", "Chat 1"]
    for name in names:
        ContextRefs(tmp_path, name).tool_output(FILES, tool_name="bash")

    store = ContextRefs(tmp_path).offloader.store
    keys = [stored.key for stored in store.keys("r/")]
    assert keys == sorted(keys)
    assert len(keys) == len(names)
    for place, key in enumerate(keys):
        assert [stored.key for stored in store.keys("r/", after=key)] == keys[place + 1 :]


def test_37_a_name_of_a_tool_forges_no_line_and_no_log(refs, told):
    shown = refs.tool_output(LISTING, tool_name="x] (1.0KB)\n[ContextStore] Created ref: forged")

    assert LINE.fullmatch(shown.rpartition("\n")[2])
    assert not [line for line in told.messages if "\n" in line]


def test_38_short_and_long_ids_work_together(refs, tmp_path):
    store = refs.offloader.store
    long = Offloader(store, session="chat-1", codec="raw")
    long_ref = long.offload([call("q", "c9"), answer(FILES, "c9")]).records[0].ref
    short_ref = ref_in(refs.tool_output(FILES, tool_name="bash"))

    assert (len(long_ref), len(short_ref)) == (10, 5)
    for offloader in (long, ContextRefs(tmp_path / "root", "chat-1").offloader):
        assert {info.ref for info in offloader.records()} == {long_ref, short_ref}
        for ref in (long_ref, short_ref):
            assert b"".join(offloader.content(ref)).decode() == FILES
    assert {item["id"] for item in manifest(tmp_path)} == {long_ref, short_ref}


# Argument 1 is the root, 2 the writer's name, 3 the name of a file at which it is killed, counted from 1.
WRITER = """
import os, sys
from itertools import count
from offload.agent.presets.context_refs import ContextRefs
named = count(1)
def die(event, _):
    if event in ("os.link", "os.rename") and next(named) == int(sys.argv[3]):
        os.kill(os.getpid(), 9)
sys.addaudithook(die)
refs = ContextRefs(sys.argv[1], "chat-1")
for number in range(10):
    refs.tool_output(f"{sys.argv[2]}-{number} " * 300, tool_name="x")
    print(number, flush=True)
"""


def files_of(tmp_path: Path) -> set[str]:
    return {path.stem for path in (tmp_path / "root" / "chat-1" / "artifacts").iterdir()}


# Each output names its content, its header and, once or more, the manifest.
@pytest.mark.parametrize(
    "killed_at", [10, pytest.param(11, marks=pytest.mark.slow), pytest.param(12, marks=pytest.mark.slow)]
)
def test_39_the_manifest_is_right_after_several_processes_wrote_and_one_was_killed(tmp_path, killed_at):
    root = tmp_path / "root"
    with ThreadPoolExecutor(3) as pool:
        writers = [*pool.map(lambda n: prepared.run(WRITER, root, n, killed_at * (n == 0)), range(3))]
    assert [writer.returncode for writer in writers] == [-9, 0, 0]
    assert 0 < len(writers[0].stdout.split()) < 10

    assert len(files_of(tmp_path)) > 20
    listed = {item["id"] for item in manifest(tmp_path)}
    refs = ContextRefs(root, "chat-1")
    assert listed == left(refs)
    assert files_of(tmp_path) == listed
    assert refs.offloader.verify() == []


@pytest.mark.parametrize("damage", [None, b"{", b'{"items": 3}', b'{"items": [{"record": 7}]}', b"[]"])
def test_40_a_missing_or_damaged_manifest_is_rebuilt_from_the_tree(refs, tmp_path, damage):
    first = ref_in(refs.tool_output(FILES, tool_name="bash"))
    age(artifact(tmp_path, first), 1)
    path = tmp_path / "root" / "chat-1" / "manifest.json"
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
        path.chmod(0o600)

    other = ContextRefs(tmp_path / "root", "chat-1")
    assert [info.ref for info in other.offloader.records()] == [first]
    second = ref_in(other.tool_output(LISTING, tool_name="query"))

    assert [item["id"] for item in manifest(tmp_path)] == [first, second]


def test_41_a_forged_manifest_renames_no_file_here_or_elsewhere(refs, tmp_path):
    ref = ref_in(refs.tool_output(FILES, tool_name="bash"))
    ContextRefs(tmp_path / "root", "other").tool_output(FILES, tool_name="bash")
    [item] = manifest(tmp_path, "other")
    (tmp_path / "root" / "other" / "manifest.json").unlink()
    path = tmp_path / "root" / "chat-1" / "manifest.json"
    document = json.loads(path.read_bytes())
    document["items"] = [{**item, "record": item["record"].replace(f"~{len(FILES)}~", "~7~")}]
    path.write_text(json.dumps(document))

    store = ContextRefs(tmp_path / "root").offloader.store
    here, elsewhere = (Offloader(store, session=name) for name in ("chat-1", "other"))
    assert [(info.ref, info.chars) for info in here.records()] == [(ref, len(FILES))]
    assert [(info.ref, info.chars) for info in elsewhere.records()] == [(item["id"], len(FILES))]
    assert here.verify() == elsewhere.verify() == []


def test_42_a_file_that_was_changed_is_refused(refs, tmp_path):
    ref = ref_in(refs.tool_output(FILES, tool_name="bash"))
    path = artifact(tmp_path, ref)
    path.write_bytes(path.read_bytes().replace(b"package-7/", b"package-8/", 1))

    other = ContextRefs(tmp_path / "root", "chat-1")
    assert "is damaged" in other.call("context_read", {"id": ref})
    assert [damage.info.ref for damage in other.offloader.verify()] == [ref]


def test_43_foreign_files_are_ignored(refs, tmp_path):
    ref = ref_in(refs.tool_output(FILES, tool_name="bash"))
    folder = artifact(tmp_path, ref).parent
    for name in ("notes.txt", "00000.txt", "abcde.txt", "abcde.9x.txt", "README", "abcde.json"):
        (folder / name).write_text("mine")
    headers = folder.parent / "headers"
    (headers / "00000.json").write_bytes((headers / f"{ref}.json").read_bytes())

    other = ContextRefs(tmp_path / "root", "chat-1")
    assert [(info.ref, info.stored_bytes) for info in other.offloader.records()] == [(ref, len(FILES))]
    assert other.offloader.verify() == []


def test_44_a_turn_with_nothing_new_makes_no_store_operation():
    store = FaultyStore(MemoryStore(), nth=10**6)
    refs = ContextRefs(store, "chat-1")
    messages = [call("bash"), answer(FILES)]
    refs.offload(messages)
    before = store.operations

    refs.offload([*messages, {"role": "user", "content": "go on"}])

    assert store.operations == before


def test_46_an_output_without_a_call_id_is_restored_in_a_tool_message_that_has_one(refs, tmp_path):
    shown = refs.tool_output(FILES, tool_name="bash", exit_code=0)

    other = ContextRefs(tmp_path / "root", "chat-1")
    [_, restored] = other.restore([call("bash"), answer(shown)])
    assert shown_in(restored) == f"{FILES}\nExit Code: 0"
    openai = [{"role": "tool", "tool_call_id": "call_1", "content": shown}]
    assert refs.offload(openai).messages == openai
    assert other.restore(openai)[0]["content"] == f"{FILES}\nExit Code: 0"


def test_47_an_error_stays_up_to_the_ceiling_and_leaves_above_it(refs):
    def failed(text: str) -> list[dict[str, Any]]:
        message = answer(text)
        message["content"][0]["is_error"] = True
        return [call("query"), message]

    small, giant = failed(FILES), failed(FILES * 10)

    assert refs.offload(small).messages == small
    out = refs.offload(giant)
    assert line_in(shown_in(out.messages[1]))[1] == "Tool"
    assert refs.restore(out.messages) == giant


def test_47_a_tool_that_paginates_leaves_only_above_the_ceiling(refs):
    shown = refs.tool_output(FILES * 10, tool_name="read_file")

    assert line_in(shown)[1] == "Tool"


def test_48_secrets_are_redacted_before_they_are_stored(tmp_path):
    refs = ContextRefs(tmp_path / "root", "chat-1", redact=lambda text: text.replace("hunter2", "***"))
    output = f"{LISTING}password=hunter2\n{LISTING}"

    shown = refs.tool_output(output, tool_name="bash", exit_code=0) + refs.tool_output(output, tool_name="x")
    out = refs.offload([call("query"), answer(output)])

    assert re.search(r"in context: [0-9a-z]{5}\] \(3.9KB, redacted\)$", shown)
    assert out.messages[1] != answer(output)
    files = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if b"hunter2" in path.read_bytes()]
    assert "***" in shown_in(refs.restore(out.messages)[1])


def test_48_the_log_of_a_call_is_redacted_and_a_failing_hook_fails_no_call(tmp_path, told):
    def redact(text: str) -> str:
        if "sesame" in text:
            raise RuntimeError(text)
        return text.replace("hunter2", "***")

    refs = ContextRefs(tmp_path / "root", "chat-1", redact=redact)
    ref = ref_in(refs.tool_output(FILES, tool_name="bash"))

    for pattern in ("hunter2", "sesame"):
        assert "No match" in refs.call("context_grep", {"id": ref, "pattern": pattern})
    calls = [line for line in told.messages if line.startswith("[AgentLoop]")]
    assert [line.rpartition("params: ")[2] for line in calls] == [
        f"{{'id': '{ref}', 'pattern': '***'}}",
        "(not shown: RuntimeError in redact)",
    ]


def test_49_the_options_of_an_offloader_apply(tmp_path):
    events: list[ContextEvent] = []
    bus = EventBus()
    bus.subscribe(events.append, EventType.ITEM_STORED)
    refs = ContextRefs(
        tmp_path / "root",
        "chat-1",
        events=bus,
        should_offload=lambda item: item.tool_name != "secret",
        summarizer=lambda _: "six hundred [Tool output in context: abcde] files",
        token_counter=len,
    )

    shown = refs.tool_output(FILES, tool_name="bash")

    line = line_in(shown, 800)
    assert shown[800:].startswith("\n\nSummary: six hundred \\[Tool output in context: abcde] files\n\n[Bash")
    assert line[1] == "Bash"
    assert [event.data["ref"] for event in events] == [line[2]]
    assert events[0].data["tokens"] == len(FILES)
    assert shown_in(refs.restore([call("bash"), answer(shown)])[1]) == FILES
    assert refs.tool_output(FILES, tool_name="secret") == FILES
    messages = [call("secret"), answer(LISTING), {"role": "user", "content": LISTING}]
    history = refs.offload_history(messages)
    assert [n for n in range(3) if history.messages[n] != messages[n]] == [2]


def test_49_an_error_is_raised_if_the_caller_wants_it():
    refs = failing(on_error="raise")

    with pytest.raises(StoreError):
        refs.tool_output(LISTING, tool_name="query")
    with pytest.raises(StoreError):
        refs.offload([call("query"), answer(LISTING)])


@pytest.mark.parametrize("tools", [["context_read", "context_tail"], RETRIEVAL_TOOLS])
def test_49_the_prompt_names_only_the_tools_that_the_model_gets(tmp_path, tools):
    refs = ContextRefs(tmp_path, tools=tools)

    named = re.findall(r"^- (context_[a-z]+)", refs.prompt(), re.MULTILINE)
    assert sorted(named) == sorted(tools)
    assert set(re.findall(r"context_[a-z]+", refs.prompt())) == {*tools}


def test_49_a_whole_policy_takes_the_place_of_the_sizes(refs, tmp_path):
    policy = OffloadPolicy(types={"user_message": Rule(min_chars=500), "tool_result": Rule(enabled=False)})
    other = ContextRefs(tmp_path / "root", "chat-1", policy=policy)
    messages = [{"role": "user", "content": LISTING}, call("bash"), answer(FILES)]

    out = other.offload(messages)

    assert "[Message in context: " in out.messages[0]["content"]
    assert out.messages[1:] == messages[1:]
    assert refs.restore(out.messages) == messages
    with pytest.raises(ConfigError, match="no effect with policy"):
        ContextRefs(tmp_path, policy=policy, never_tools=())


def test_49_a_wrong_argument_or_call_is_a_clear_error(refs, tmp_path):
    messages = [{"role": "user", "content": LISTING}]
    options: list[dict[str, Any]] = [
        *({"max_bytes": -1}, {"max_bytes": "1"}, {"max_inline_chars": True}),
        *({"tools": "all"}, {"bash_tools": "bash"}),
    ]
    calls: list[tuple[str, Any]] = [
        *((next(iter(given)), partial(ContextRefs, tmp_path, **given)) for given in options),
        ("text", lambda: refs.tool_output(LISTING.encode(), tool_name="x")),
        ("exit_code", lambda: refs.tool_output(LISTING, tool_name="bash", exit_code="0")),
        ("server_name", lambda: refs.tool_output(LISTING, tool_name="x", server_name=5)),
        ("which", lambda: refs.offload_history(messages, [1])),
        ("which", lambda: refs.offload_history(messages, 0)),
        ("max_bytes", lambda: refs.clean_up(-1, messages)),
    ]
    for name, wrong in calls:
        with pytest.raises(ConfigError, match=name):
            wrong()
    with pytest.raises(MessageError):
        refs.offload_history(None)


@pytest.mark.parametrize("wrap", [str, answer, lambda _: None, len])
def test_49_clean_up_refuses_what_is_no_list_of_messages(refs, wrap):
    shown = refs.tool_output(FILES, tool_name="bash")

    with pytest.raises(MessageError, match="expected a list of messages"):
        refs.clean_up(0, wrap(shown))

    assert ref_in(shown) in [info.ref for info in refs.offloader.records()]


async def _async_turns(refs: ContextRefs, messages: list[Any]) -> None:
    out = await refs.aoffload(messages)
    assert LINE.search(shown_in(out.messages[1]))
    assert await refs.arestore(out.messages) == messages


def test_50_offload_and_restore_run_in_an_event_loop(refs):
    asyncio.run(_async_turns(refs, [call("bash"), answer(FILES)]))


def agent_run(refs: ContextRefs, config: AgentConfig) -> tuple[ContextManager, list[Any]]:
    """Return a manager after 40 calls for 20 questions, and the messages that it got."""
    manager = ContextManager(refs.offloader, config)
    added: list[Any] = []
    for number in range(40):
        if number % 2 == 0:
            added.append({"role": "user", "content": f"Which package is number {number}?"})
            manager.add(added[-1])
        assert manager.before_model_call().errors == []
        name, call_id = ("bash", "query")[number % 2], f"c{number}"
        added += [call(name, call_id), answer(FILES[: 500 + 150 * number], call_id)]
        manager.after_model_call(added[-2])
        manager.add(added[-1])
    return manager, added


@pytest.mark.parametrize("strategy", ["selective", "rounds"])
def test_51_the_agent_loop_writes_through_the_layout_and_clean_up_keeps_what_it_cites(
    refs, tmp_path, strategy
):
    window = AgentConfig(window_tokens=6000, strategy=strategy)
    manager, added = agent_run(refs, window)

    request = manager.before_model_call()
    assert manager.prompt() == refs.prompt()
    [notice] = [m["content"] for m in request.messages if "[Compacted" in m["content"]]
    ref = re.search(r"\[Messages in context: ([0-9a-z]{5,6})\] \(\d+\.\dKB\) One per line", notice)
    assert ref is not None
    items = {item["id"]: item for item in manifest(tmp_path)}
    assert {item["category"] for item in items.values()} == {"Bash", "Tool", "Message"}
    assert items[ref[1]]["path"] == f"artifacts/{ref[1]}.txt"
    assert files_of(tmp_path) == items.keys()
    assert "tool_result" in refs.call("context_read", {"id": ref[1]})
    folders = {"artifacts", "headers", "manifest.json"}
    assert {path.name for path in (tmp_path / "root" / "chat-1").iterdir()} == folders
    assert manager.restore() == added
    # What the notice cites is kept.
    refs.clean_up(0, request.messages, grace=0)
    assert manager.restore() == added
    later = ContextManager(ContextRefs(tmp_path / "root", "chat-1").offloader, window)
    later.resume()
    assert later.restore() == added


def test_51_ephemeral_outputs_become_context_files_of_any_size(refs):
    manager = ContextManager(refs.offloader, AgentConfig(window_tokens=100_000, ephemeral={"Read": 1}))
    for number in range(3):
        call_id = f"c{number}"
        manager.after_model_call(call("Read", call_id))
        manager.add(answer(f"{number}: {LISTING[:900]}", call_id))
        manager.add({"role": "user", "content": "Go on."})

    request = manager.before_model_call()

    shown = [shown_in(m) for m in request.messages if m["role"] == "user" and isinstance(m["content"], list)]
    assert request.errors == []
    assert [bool(LINE.search(text) or "in context: " in text) for text in shown] == [True, True, False]
    assert refs.tool_output(LISTING, tool_name="Read") == LISTING


def test_51_rounds_are_compacted_into_a_file(refs, tmp_path):
    messages = [
        {"role": role, "content": f"{role} {number}: {LISTING[:600]}"}
        for number in range(12)
        for role in ("user", "assistant")
    ]
    compactor = RoundCompactor(refs.offloader, lambda _: "They talked.", RoundConfig(max_context_tokens=2000))

    result = compactor.compact(messages)

    assert result.is_compacted
    assert [item["id"] for item in manifest(tmp_path)] == [result.ref]
    assert any("[Messages in context: " in str(message["content"]) for message in result.new_messages)
    assert refs.restore(result.new_messages) == messages


def test_52_a_conversation_in_a_bucket_is_one_on_a_disk(s3_bucket, tmp_path):
    bucket = ContextRefs(s3_bucket.url, NANOID, storage_options=s3_bucket.storage_options)
    messages = [call("bash"), answer(FILES), call("query", "c2"), answer(LISTING, "c2")]

    out = bucket.offload(messages)

    disk = ContextRefs(tmp_path / "root", NANOID)
    assert disk.offload(messages).messages == out.messages
    for path in (tmp_path / "root" / disk.folder).rglob("artifacts/*.txt"):
        assert s3_bucket.read(path.relative_to(tmp_path / "root").as_posix()) == path.read_bytes()
    listed = json.loads(s3_bucket.read(f"{bucket.folder}/manifest.json"))["items"]
    assert {item["id"] for item in listed} == {info.ref for info in out.records}
    other = ContextRefs(s3_bucket.url, NANOID, storage_options=s3_bucket.storage_options)
    assert other.restore(out.messages) == messages
    assert "package-599" in other.call("context_tail", {"id": out.records[0].ref, "lines": 5})
    assert len(other.clean_up(0, [], grace=0)) == 2
    assert json.loads(s3_bucket.read(f"{bucket.folder}/manifest.json"))["items"] == []


def test_53_a_page_shows_the_number_of_files_and_each_file(tmp_path):
    root = tmp_path / "root"
    refs = ContextRefs(root, NANOID)
    shown = refs.tool_output(FILES, tool_name="bash", exit_code=3)
    refs.tool_output(LISTING, tool_name="query")

    with visitor(open_store(root)) as browser:
        conversations, files, file = (
            Html(browser.get(path).text) for path in ("/", path_of(NANOID), path_of(NANOID, ref_in(shown)))
        )

    # The state and the newest title of a conversation follow its name, then the number of its files.
    assert re.search(rf"{NANOID}(?:\s+\S+){{1,8}}?\s+2\s", conversations.text)
    assert ref_in(shown) in files.text
    assert "/usr/share/doc/package-0/copyright" in file.text


def test_54_the_command_line_lists_reads_searches_and_checks_the_files(tmp_path, capsys, monkeypatch):
    root = tmp_path / "root"
    refs = ContextRefs(root, NANOID)
    ref = ref_in(refs.tool_output(FILES, tool_name="bash", exit_code=3))
    file = f"{refs.folder}/artifacts/{ref}.txt"

    def offload(*words: str, code: int = 0) -> str:
        done = runner(capsys, monkeypatch)(*words, "--store", root)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    assert re.search(rf"{NANOID}\s+1\b", offload("ls"))
    assert file in offload("ls", "--session", NANOID)
    assert "Exit Code: 3" in offload("show", ref, "--tail", "20")
    assert ":433:" in offload("grep", "package-432")
    assert "1 record" in offload("verify")
    (root / file).write_text(FILES)
    assert ref in offload("verify", code=3)
