"""The context file system as its authors describe it, through the preset `context_fs`; each row is a test.

| statement | test |
|---|---|
| 1 By default, items of more than 2,000 tokens are offloaded | test_01 |
| 1 `offload_enabled=False`: nothing is offloaded or written | test_02 |
| 1 `offload_token_threshold`: only items with more tokens are offloaded | test_03 |
| 1 `offload_root_path`: folder of the tree, by default `~/.agent/context/{session_id}` | test_04 |
| 1 `AgentConfig` has these settings and `ephemeral_keep_recent` | test_40 |
| 1 `ephemeral_keep_recent` replaces every tool's own number | test_05 |
| 2 `ephemeral=3` keeps the last three outputs of each such tool | test_06 |
| 3 `tool_result/{tool}/call_{id}.json`, `user_message/msg_{id}.json`, `index.json` | test_07 |
| 3 The index lists the documents | test_08 |
| 4 A document of schema 1.0 with `item_id`, `item_type`, `offloaded_at`, `metadata`, `content` | test_09_10 |
| 5 The placeholder, byte for byte | test_09_10 |
| 6 Before each call, older outputs of ephemeral tools are offloaded at any size | test_11 |
| 6 `destroyed`, `offloaded` and `offload_path` agree with the messages | test_12 |
| 6 Destroyed items are stored first; an item that cannot be stored is kept | test_13 |
| 7 Offloaded items are skipped | test_14 |
| 7 A compaction stores each result above the threshold as a document | test_39 |
| 8 The table of types; `type_enabled` is a setting | test_15 |
| 9.1 Age, not size, decides which ephemeral outputs are destroyed | test_11 |
| 9.2 Summaries are kept | test_15 |
| 9.3 The path is absolute, and a Read tool opens the document | test_09_10, test_37, test_38 |
| 9.3 The messages keep their structure | test_17 |
| 9.4 `session_{YYYYMMDD_HHMMSS}_{6 random}` | test_18 |
| 10 The workflow of the example: the third read destroys the first, the fourth the second | test_19 |
| 10 `item.offloaded`, `item.offload_path` of the items of an agent | test_12, test_41 |
| 11 Expired documents are deleted automatically | test_20, test_21 |
| 11 Compression | test_22 |
| 11 A summary in the placeholder | test_23 |
| 11 The history of offloaded items | test_24 |
| 11 Restoring them | test_25 |

Tests 26 to 36 and 42 go beyond the description: several processes and kills, hostile names, folders of
other users, hooks and failures. The description does not say when a large item is offloaded. Here it is
after the model's next reply; otherwise a Read tool could never show a large document.
"""

from __future__ import annotations

import copy
import json
import os
import re
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import prepared
import pytest
import zstandard
from kit.conversation import chat_result, from_model, from_user, tool_result, tool_use

from offload import (
    AgentConfig,
    ConfigError,
    ContextManager,
    ExpiredError,
    OffloadPolicy,
    Rule,
    StoreError,
    StorePermissionError,
)
from offload.agent.compaction import RoundCompactor, RoundConfig, SelectiveCompaction
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_fs._tree import TreeStore
from offload.engine.policy.policy import MAX_VIEW_TOKENS
from offload.messages.context import ContextIR, EventBus, ItemType

PLACEHOLDER = "[Content offloaded]\nPath: {}\nUse Read tool to view details."


def words(number: int, of: str = "word") -> str:
    return " ".join([of] * number)


def count_words(text: str) -> int:
    return len(text.split())


def turn(call: str, content: str, tool: str = "Read") -> list[dict[str, Any]]:
    """Return a call of a tool and its result."""
    made = {"id": call, "type": "function", "function": {"name": tool, "arguments": "{}"}}
    return [{"role": "assistant", "content": None, "tool_calls": [made]}, chat_result(call, content)]


ANSWER = {"role": "assistant", "content": "seen"}


def results(messages: list[Any]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


def outputs(fs: ContextFileSystem, messages: list[Any] | None = None) -> list[Any]:
    """Return the tool results among the items of a tree."""
    items = fs.items() if messages is None else fs.items(messages)
    return [item for item in items if item.item_type == "tool_result"]


def files_in(root: Path) -> list[str]:
    """Return the files of a tree as a person sees them: without what is hidden."""
    paths = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return sorted(str(path) for path in paths if not any(part.startswith(".") for part in path.parts))


def index_of(root: Path) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads((root / "index.json").read_text())["items"]
    return items


def path_in(placeholder: str) -> Path:
    match = re.fullmatch(r"\[Content offloaded\]\nPath: (.+)\nUse Read tool to view details\.", placeholder)
    assert match is not None, placeholder
    return Path(match[1])


def grow_old(fs: ContextFileSystem) -> None:
    """Make everything that is stored an hour older."""
    for path in (fs.root / ".offload" / "r").rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - 3600,) * 2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "context"


@pytest.fixture
def make(root):
    def make(**options: Any) -> ContextFileSystem:
        given = {"root": root, "session": "s", "token_counter": count_words, **options}
        return ContextFileSystem(**given)

    return make


def test_01_items_of_more_than_2000_tokens_are_offloaded_by_default(make):
    messages = [*turn("a", words(2000)), *turn("b", words(2001)), ANSWER]

    done = make().offload(messages)

    assert results(done.messages)[0] == words(2000)
    assert path_in(results(done.messages)[1]).is_file()
    assert len(done.records) == 1


def test_02_nothing_is_offloaded_if_offloading_is_off(make, root):
    fs = make(offload_enabled=False, ephemeral={"Read": 1})
    messages = [*turn("a", words(9000)), *turn("b", words(9000)), ANSWER]

    done = fs.offload(messages)

    assert [id(m) for m in done.messages] == [id(m) for m in messages]
    assert not any(item.destroyed or item.offloaded for item in fs.items())
    assert not root.exists()


@pytest.mark.parametrize("threshold", [0, 999])
def test_03_only_items_above_the_threshold_are_offloaded(make, threshold):
    long = "a" * 300
    messages = [*turn("a", words(threshold, long)), *turn("b", words(threshold + 20, long)), ANSWER]

    done = make(offload_token_threshold=threshold).offload(messages)

    assert results(done.messages)[0] == words(threshold, long)
    assert path_in(results(done.messages)[1]).is_file()


def test_04_the_tree_is_at_the_root_argument_or_under_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    roots = [ContextFileSystem(given, "S1").root for given in (None, "~/a", "b/../c", "d/{session_id}")]

    assert roots == [tmp_path / name for name in (".agent/context/S1", "a", "c", "d/S1")]
    assert list(tmp_path.iterdir()) == []


def test_05_one_number_replaces_every_tools_own(make):
    fs = make(ephemeral={"Read": 3, "Bash": 2}, ephemeral_keep_recent=1)
    messages = [m for n in range(4) for m in turn(f"r{n}", words(100), "Read")]
    messages += [m for n in range(4) for m in turn(f"b{n}", words(100), "Bash")]
    messages += [m for n in range(4) for m in turn(f"g{n}", words(100), "Grep")]

    fs.offload([*messages, ANSWER])

    kept = [item.tool_use_id for item in outputs(fs) if not item.destroyed]
    assert kept == ["r3", "b3", "g0", "g1", "g2", "g3"]


def test_06_each_ephemeral_tool_keeps_its_last_outputs(make):
    fs = make(ephemeral={"read_large_file": 3, "mcp__*": 1})
    tools = ["read_large_file", "mcp__web", "Other"] * 5
    messages = [m for n, tool in enumerate(tools) for m in turn(f"c{n}", words(100), tool)]

    fs.offload([*messages, ANSWER])

    kept = [item for item in outputs(fs) if not item.destroyed]
    assert [item.tool_use_id for item in kept if item.tool_name == "read_large_file"] == ["c6", "c9", "c12"]
    assert [item.tool_use_id for item in kept if item.tool_name == "mcp__web"] == ["c13"]
    assert len([item for item in kept if item.tool_name == "Other"]) == 5


def test_07_the_tree_is_laid_out_by_type_and_tool(make, root):
    user = {"role": "user", "content": words(3000)}

    done = make().offload([user, *turn("a", words(3000)), *turn("b", words(3000), "Bash"), ANSWER])

    first, read, bash = (record.ref for record in done.records)
    assert files_in(root) == [
        "index.json",
        f"tool_result/Bash/call_{bash}.json",
        f"tool_result/Read/call_{read}.json",
        f"user_message/msg_{first}.json",
    ]


def test_07_everything_but_documents_and_index_is_below_one_hidden_folder(make, root):
    manager = ContextManager(make().offloader, AgentConfig())
    for message in [*turn("a", words(3000)), ANSWER]:
        manager.add(message)
    manager.before_model_call()

    assert sorted(path.name for path in root.iterdir()) == [".offload", "index.json", "tool_result"]
    assert len(files_in(root)) == 2
    assert list((root / ".offload").rglob("*begun*")) != []


def test_07_a_document_is_edited_without_harm_to_its_record(make, root):
    fs = make()
    sent = fs.offload([*turn("a", words(3000, "alpha")), ANSWER]).messages
    path = path_in(results(sent)[0])
    written = path.read_text()

    subprocess.run(["/usr/bin/env", "sed", "-i", "s/alpha/beta/g", path], check=True)
    with path.open("r+") as file:
        file.write("{{{")

    assert results(fs.restore(sent)) == [words(3000, "alpha")]
    assert fs.offloader.verify() == []
    fs.reindex()
    assert path.read_text() == written


def test_08_the_index_lists_the_documents(make, root):
    before = int(time.time()) - 1

    done = make().offload([*turn("a", words(3000)), *turn("b", words(4000), "Bash"), ANSWER])

    items = {item["path"]: item for item in index_of(root)}
    assert sorted([*items, "index.json"]) == files_in(root)
    [bash] = [item for item in items.values() if item["tool_name"] == "Bash"]
    assert before <= bash.pop("offloaded_at") <= time.time() + 1
    assert bash == {
        "item_id": done.records[1].ref,
        "session_id": "s",
        "item_type": "tool_result",
        "tool_name": "Bash",
        "path": f"tool_result/Bash/call_{done.records[1].ref}.json",
        "chars": len(words(4000)),
        "tokens": 4000,
    }


def test_09_10_the_placeholder_names_a_document_of_schema_1_0_byte_for_byte(make, root, monkeypatch):
    text = words(3000) + ' \u00e9 \U0001f600 "quoted" \\ \t\x00'
    messages = [*turn("a", text), ANSWER]
    before = int(time.time()) - 1

    done = make().offload(messages)

    ref = done.records[0].ref
    path = root / "tool_result" / "Read" / f"call_{ref}.json"
    assert results(done.messages) == [PLACEHOLDER.format(path)]
    assert [set(m) for m in done.messages] == [set(m) for m in messages]
    monkeypatch.chdir("/")
    document = json.loads(path_in(results(done.messages)[0]).read_bytes())
    assert "".join(document.pop("content_lines")) == text
    assert before <= document["offloaded_at"] <= time.time()
    assert list(document.items()) == [
        ("schema_version", "1.0"),
        ("item_id", ref),
        ("item_type", "tool_result"),
        ("offloaded_at", document["offloaded_at"]),
        ("metadata", {"tool_name": "Read"}),
        ("content", text),
    ]


def test_11_before_each_call_older_outputs_of_any_size_are_offloaded(make):
    fs = make(ephemeral={"Read": 2})
    sizes = [40, 5000, 60, 9000, 100]
    messages: list[Any] = []
    gone = []

    for n, size in enumerate(sizes):
        messages += turn(f"c{n}", words(size, "x" * 9))
        fs.offload(messages)
        gone.append([item.tool_use_id for item in fs.items() if item.destroyed])

    assert gone == [[], [], ["c0"], ["c0", "c1"], ["c0", "c1", "c2"]]


def test_11_an_output_shorter_than_a_placeholder_is_kept(make):
    fs = make(ephemeral={"Bash": 1})
    messages = [*turn("a", "exit 0", "Bash"), *turn("b", words(99), "Bash"), *turn("c", "x", "Bash"), ANSWER]

    done = fs.offload(messages)

    assert results(done.messages)[0] == "exit 0"
    assert [item.destroyed for item in outputs(fs)] == [False, True, False]


def test_11_outputs_of_one_turn_are_seen_before_they_are_offloaded(make):
    fs = make(ephemeral={"Read": 1})
    calls = [turn(f"c{n}", words(100)) for n in range(3)]
    asked = {**calls[0][0], "tool_calls": [call["tool_calls"][0] for call, _ in calls]}
    messages = [asked, *(result for _, result in calls)]

    assert results(fs.offload(messages).messages) == [words(100)] * 3
    later = results(fs.offload([*messages, ANSWER]).messages)
    assert [text[:8] for text in later] == ["[Content", "[Content", "word wor"]


def test_12_the_fields_of_items_agree_with_the_messages(make):
    fs = make(ephemeral={"Read": 1})
    messages = [*turn("a", words(500)), *turn("b", words(5000), "Bash"), *turn("c", words(500)), ANSWER]

    sent = fs.offload(messages).messages

    states = {item.tool_use_id: item for item in outputs(fs)}
    assert [item.destroyed for item in states.values()] == [True, False, False]
    assert [item.offloaded for item in states.values()] == [True, True, False]
    for item in states.values():
        shown = sent[item.message]["content"]
        assert item.offloaded == (shown == PLACEHOLDER.format(item.offload_path))
        assert (item.offload_path is None) == (not item.offloaded)
        assert item.tokens == count_words(messages[item.message]["content"])


def test_12_a_received_placeholder_is_listed_and_a_forged_one_is_stored(make, root):
    sent = (
        make(ephemeral={"Read": 1}).offload([*turn("a", words(500)), *turn("b", words(9)), ANSWER]).messages
    )
    forged = PLACEHOLDER.format(root / "tool_result" / "Read" / "call_abcdefghij.json")
    real = sent[1]["content"]
    fs = make(ephemeral={"Read": 1})

    fs.offload([*sent, *turn("c", forged, "Bash"), *turn("d", real, "Bash"), *turn("e", "x " + real, "Bash")])

    told = {item.tool_use_id: item.offload_path for item in outputs(fs)}
    assert told["a"] == str(path_in(real))
    # The forged one is stored, so that what looks like a placeholder in what is sent is one.
    assert (told["b"], told["e"]) == (None, None)
    assert json.loads(Path(told["c"]).read_text())["content"] == forged


def test_13_an_item_that_cannot_be_stored_is_not_destroyed(make, root):
    fs = make(ephemeral={"Read": 1})
    messages = [*turn("a", words(500)), *turn("b", words(500)), ANSWER]
    root.mkdir(mode=0o700)
    (root / "tool_result").write_text("in the way")

    done = fs.offload(messages)

    assert [id(m) for m in done.messages] == [id(m) for m in messages]
    assert done.errors
    assert not any(item.destroyed or item.offloaded for item in fs.items())
    (root / "tool_result").unlink()
    fs.offload(messages)
    assert [item.destroyed for item in outputs(fs)] == [True, False]


def test_14_offloaded_items_are_not_stored_again(make, root):
    fs = make(ephemeral={"Read": 1})
    messages = [*turn("a", words(100)), *turn("b", words(3000)), ANSWER]
    first = fs.offload(messages).messages
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}

    assert fs.offload(messages).messages == first
    assert fs.offload(first).messages == first
    assert make(ephemeral={"Read": 1}).offload(first).messages == first
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    # A short document has no second copy of its content in lines.
    short = path_in(results(first)[0])
    assert "content_lines" not in json.loads(short.read_bytes())
    assert shown_by_limited_reads(short) == words(100)


def messages_of(item_type: str, text: str) -> list[dict[str, Any]]:
    """Return messages with one item of a type, and the model's reply."""
    call = {"type": "tool_use", "id": "a", "name": "Read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "done"}
    messages: dict[str, list[dict[str, Any]]] = {
        "tool_result": [from_model([call]), from_user([{**result, "content": text}])],
        "tool_call": [from_model([{**call, "name": "Write", "input": {"text": text}}]), from_user([result])],
        "user_message": [from_user(text)],
        "assistant_message": [from_model(text), from_user("go on")],
        "system_prompt": [{"role": "system", "content": text}],
    }
    return [*messages[item_type], ANSWER]


LEAVING = ("tool_result", "user_message")
TYPES = pytest.mark.parametrize("item_type", [*LEAVING, "tool_call", "assistant_message", "system_prompt"])


@TYPES
def test_15_messages_of_the_types_in_the_table_are_offloaded(make, root, item_type):
    messages = messages_of(item_type, words(2050))

    done = make().offload(messages)

    folders = [path.split("/")[0] for path in files_in(root) if path != "index.json"]
    assert folders == ([item_type] if item_type in LEAVING else [])
    assert (done.messages == messages) == (item_type not in LEAVING)
    kept = messages_of(item_type, words(1900))
    assert make(session="t").offload(kept).messages == kept


def test_15_a_skill_prompt_in_the_messages_is_a_user_message(make):
    manager = ContextManager(make().offloader, AgentConfig())
    manager.add({"role": "user", "content": words(3000, "skill")}, ItemType.SKILL_PROMPT)
    manager.before_model_call()
    manager.after_model_call(ANSWER)

    [shown] = manager.before_model_call().messages[:1]

    assert path_in(shown["content"]).parent.name == "user_message"


@TYPES
def test_15_type_enabled_switches_a_type_on_or_off(make, root, item_type):
    is_on = item_type not in LEAVING
    fs = make(type_enabled={item_type: is_on})
    messages = messages_of(item_type, words(2050))

    done = fs.offload(messages)

    written = [path for path in files_in(root) if path != "index.json"]
    assert [path.split("/")[0] for path in written] == ([item_type] if is_on else [])
    if item_type == "assistant_message":
        assert written == [f"assistant_message/msg_{done.records[0].ref}.json"]
    assert fs.restore(done.messages) == messages


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            ({"offload_token_threshold": n}, "offload_token_threshold: Input")
            for n in (-1, "2000", 1.5, True, None)
        ),
        ({"root": "s3://bucket/prefix"}, "root must be a local folder, .* a Read tool opens local paths"),
        *(({"root": root}, "root must be a local folder") for root in ("", "a\nb", "a\0b", "\ud800", 3)),
        *(
            ({"type_enabled": {name: True}}, "type_enabled")
            for name in ("assistant", "compaction_summary", 1)
        ),
        (
            {"type_enabled": {"tool_result": 1}},
            "^type_enabled.tool_result: Input should be a valid boolean, got 1$",
        ),
        ({"type_enabled": ["tool_result"]}, "type_enabled: Input should be a valid dictionary"),
        ({"offload_enabled": "no"}, "offload_enabled: Input should be a valid boolean, got 'no'"),
        ({"compress": "no"}, "compress must be a bool, got 'no'"),
        ({"ephemeral": ["Read"]}, "ephemeral: Input should be a valid dictionary"),
        ({"ephemeral": {"Read": -1}}, "ephemeral.Read: Input should be"),
        ({"ephemeral_keep_recent": 1}, "ephemeral_keep_recent needs ephemeral"),
        ({"ttl": "soon"}, "a duration must be"),
        ({"session": ""}, "session name must be"),
        ({"policy": {}}, "policy must be an OffloadPolicy"),
        *(
            ({"policy": OffloadPolicy(), **rule}, "policy= replaces the rules")
            for rule in (
                *({"offload_enabled": False}, {"offload_token_threshold": 5}, {"ttl": "7d"}),
                *({"type_enabled": {"tool_call": True}}, {"ephemeral": {"Read": 1}}),
            )
        ),
    ],
)
def test_15_an_invalid_argument_is_refused(make, given, message):
    with pytest.raises(ConfigError, match=message):
        make(**given)


def test_15_a_policy_replaces_the_rules_and_not_the_layout(make, root):
    fs = make(policy=OffloadPolicy(types={"tool_result": Rule(min_tokens=100)}))

    [placeholder] = results(fs.offload(turn("a", words(200))).messages)

    assert json.loads(path_in(placeholder).read_text())["content"] == words(200)


def test_15_the_summary_of_a_compaction_is_never_offloaded(make):
    fs = make(offload_token_threshold=200)
    said = [m for n in range(6) for m in ({"role": "user", "content": words(900)}, ANSWER)]
    config = RoundConfig(max_context_tokens=5000, summary_max_length=30_000)
    summary = words(2500, "fact")
    result = RoundCompactor(fs.offloader, lambda _: f"<summary>{summary}</summary>", config).compact(said)
    assert count_words(result.new_messages[0]["content"]) > 400
    manager = ContextManager(fs.offloader, AgentConfig(window_tokens=100_000))
    for message in [*result.new_messages[:1], ANSWER]:
        manager.add(message)

    assert fs.offload([*result.new_messages, ANSWER]).messages[0] == result.new_messages[0]
    assert manager.before_model_call().messages == [*result.new_messages[:1], ANSWER]


@pytest.mark.parametrize("tokens", [3_000, 50_000])
def test_15_an_error_is_kept_in_view_up_to_the_ceiling_of_one_request(make, tokens):
    calls = [{"type": "tool_use", "id": "a", "name": "Bash", "input": {}}]
    messages = [from_model(calls), from_user([tool_result("a", words(tokens), is_error=True)]), ANSWER]

    done = make().offload(messages)

    assert len(done.records) == (tokens > MAX_VIEW_TOKENS)


def test_16_a_document_that_was_read_is_seen_before_it_is_offloaded(make):
    fs = make()
    messages = [*turn("a", words(3000)), ANSWER]
    shown = path_in(results(fs.offload(messages).messages)[0]).read_text()
    messages += turn("b", shown)

    assert results(fs.offload(messages).messages)[1] == shown


@pytest.mark.parametrize("tokens", [30_000, 50_000])
def test_16_a_text_that_was_not_seen_is_offloaded_above_the_ceiling_of_one_request(make, tokens):
    done = make().offload(turn("a", words(tokens)))

    assert (results(done.messages) == [words(tokens)]) == (tokens <= MAX_VIEW_TOKENS)
    assert len(done.records) == (tokens > MAX_VIEW_TOKENS)


TEXT = words(3000)
CONVERSATIONS: dict[str, list[Any]] = {
    "anthropic": [
        from_model([tool_use("a", "Read")]),
        from_user([tool_result("a", [{"type": "text", "text": TEXT}] * 2), {"type": "text", "text": TEXT}]),
        from_model("seen"),
    ],
    "responses": [
        {"type": "function_call", "call_id": "a", "name": "Read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": TEXT},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "seen"}]},
    ],
    "bedrock": [
        from_model([{"toolUse": {"toolUseId": "a", "name": "Read", "input": {}}}]),
        from_user([{"toolResult": {"toolUseId": "a", "content": [{"text": TEXT}] * 2}}]),
        from_model([{"text": "seen"}]),
    ],
    "gemini": [
        {"role": "model", "parts": [{"functionCall": {"id": "a", "name": "Read", "args": {}}}]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"id": "a", "name": "Read", "response": {"result": TEXT}}}],
        },
        {"role": "model", "parts": [{"text": "seen"}]},
    ],
}


@pytest.mark.parametrize("messages", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_17_messages_of_every_format_keep_their_structure(make, messages):
    fs, given = make(), copy.deepcopy(messages)

    sent = fs.offload(messages).messages

    assert messages == given
    [path] = {item.offload_path for item in outputs(fs)}
    shown = json.dumps(sent)
    assert json.dumps(PLACEHOLDER.format(path))[1:-1] in shown
    assert json.dumps(TEXT) not in shown
    assert [set(m) for m in sent] == [set(m) for m in messages]
    assert fs.restore(sent) == messages


def test_18_a_session_is_named_after_its_time_and_six_random_characters():
    names = {ContextFileSystem().session for _ in range(50)}

    assert len(names) == 50
    assert all(re.fullmatch(r"session_\d{8}_\d{6}_[a-z0-9]{6}", name) for name in names)
    [stamp] = {name[8:16] for name in names}
    assert abs(time.mktime(time.strptime(stamp, "%Y%m%d")) - time.time()) < 2 * 86_400


def test_19_the_workflow_of_the_example(make):
    fs = make(ephemeral={"read_file": 2}, offload_token_threshold=1000)
    messages: list[Any] = [{"role": "user", "content": "Read file1.txt"}]
    offloaded = []

    for n in (1, 2, 3, 4):
        messages += turn(f"call_{n}", words(1500, f"file{n}"), "read_file")
        fs.offload(messages)
        offloaded.append([i.tool_use_id for i in fs.items() if i.offloaded])
        messages.append({"role": "user", "content": f"Read file{n + 1}.txt"})

    assert offloaded == [[], [], ["call_1"], ["call_1", "call_2"]]
    paths = [item.offload_path for item in fs.items() if item.offloaded]
    contents = [json.loads(Path(path).read_text())["content"] for path in paths if path]
    assert contents == [words(1500, "file1"), words(1500, "file2")]


def test_20_expired_documents_are_deleted_automatically_and_reported(make, root):
    fs = make(ttl="15m")
    messages = [*turn("a", words(3000)), ANSWER]
    sent = fs.offload(messages).messages
    grow_old(fs)
    later = make(ttl="15m")

    later.offload([])

    assert files_in(root) == ["index.json"]
    assert index_of(root) == []
    assert later.history() == []
    with pytest.raises(ExpiredError, match=r"expired; marked for deletion at [-0-9: ]+ UTC$"):
        later.restore(sent)


def test_20_documents_within_their_ttl_or_without_one_are_kept(make, root):
    make(ttl="15m").offload([*turn("a", words(3000)), ANSWER])
    unlimited = make(session="t")
    unlimited.offload([*turn("b", words(3000)), ANSWER])
    files = files_in(root)

    make(ttl="15m").offload([])
    unlimited.gc()

    assert len(files) == 3
    assert files_in(root) == files


def test_21_an_item_that_is_stored_again_has_its_old_path(make, root):
    messages = [*turn("a", words(3000)), ANSWER]
    sent = make(ttl=60).offload(messages).messages
    grow_old(make())
    make(ttl=60).offload([])
    fs = make(ttl=60)

    again = fs.offload(messages).messages

    assert again == sent
    assert json.loads(path_in(results(again)[0]).read_text())["content"] == words(3000)
    assert fs.restore(again) == messages
    assert len(index_of(root)) == 1
    fs.reindex()
    assert path_in(results(again)[0]).is_file()


def test_22_a_compressed_file_is_small_and_read_by_any_zstd_tool_and_the_tool_that_is_named(make, root):
    fs = make(compress=True)
    messages = [*turn("a", words(30_000)), ANSWER]

    sent = fs.offload(messages).messages

    [path] = (root / "tool_result" / "Read").iterdir()
    assert re.fullmatch(r"call_[a-z]{10}\.zst", path.name)
    assert path.stat().st_size < len(words(30_000)) / 20
    with zstandard.open(path, "rb") as stream:
        assert stream.read().decode() == words(30_000)
    assert [item["path"] for item in index_of(root)] == [f"tool_result/Read/{path.name}"]
    assert fs.restore(sent) == messages
    [shown] = results(sent)
    assert f"Path: {path}\n" in shown
    match = re.search(r'\nUse (context_read) with id "([a-z]+)" to view details\.$', shown)
    assert match is not None
    assert fs.offloader.tools.call(match[1], {"id": match[2]}).split("\n")[1].startswith("word word")


def test_23_a_summary_is_one_line_of_the_placeholder(make):
    fs = make(summarizer=lambda text: f"{count_words(text)} words,\n  all alike")
    messages = [*turn("a", words(3000)), ANSWER]

    sent = fs.offload(messages).messages

    lines = results(sent)[0].split("\n")
    assert lines[2:] == ["Summary: 3000 words, all alike", "Use Read tool to view details."]
    assert fs.restore(sent) == messages
    document = json.loads(Path(lines[1].removeprefix("Path: ")).read_text())
    assert document["metadata"] == {"tool_name": "Read", "summary": "3000 words,\n  all alike"}


def test_23_the_placeholder_reports_a_redaction(make):
    fs = make(redact=lambda text: text.replace("secret", "***"))

    sent = fs.offload([*turn("a", words(3000, "secret")), ANSWER]).messages

    assert "\nRedacted: some content was removed before storage.\n" in results(sent)[0]
    assert results(fs.restore(sent)) == [words(3000, "***")]


def test_24_the_history_lists_the_items_of_every_process(make, root):
    program = f"""
from offload.agent.presets.context_fs import ContextFileSystem
message = {{"role": "tool", "tool_call_id": "z", "content": "w " * 9000}}
fs = ContextFileSystem({str(root)!r}, "s")
fs.offload([message, {{"role": "assistant", "content": "seen"}}])
"""
    assert prepared.run(program).returncode == 0
    grow_old(make())
    make(session="another").offload([*turn("a", words(3000)), ANSWER])
    fs = make()
    done = fs.offload([*turn("b", words(3000), "Bash"), ANSWER])

    history = fs.history()

    assert [(d.tool_name, d.chars) for d in history] == [(None, 18_000), ("Bash", len(words(3000)))]
    assert history[0].offloaded_at < history[1].offloaded_at
    assert history[1].item_id == done.records[0].ref
    assert all((root / document.path).is_file() for document in history)


def test_25_everything_is_restored_also_in_another_process(make, root, tmp_path):
    messages = [
        {"role": "user", "content": words(5000)},
        *turn("a", words(3000) + "\ud800"),
        *turn("b", words(60)),
        *turn("c", words(60)),
        ANSWER,
    ]
    sent = make(ephemeral={"Read": 1}).offload(messages).messages
    assert sum("[Content offloaded]" in str(message["content"]) for message in sent) == 3
    (tmp_path / "sent.json").write_text(json.dumps(sent))
    program = f"""
import json, pathlib
from offload.agent.presets.context_fs import ContextFileSystem
sent = json.loads(pathlib.Path({str(tmp_path / "sent.json")!r}).read_text())
print(json.dumps(ContextFileSystem({str(root)!r}, "s").restore(sent)))
"""
    done = prepared.run(program)

    assert json.loads(done.stdout) == messages


WRITER = """
import os, sys
from offload.agent.presets.context_fs import ContextFileSystem
root, number, killed_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
named = 0
def count(event, arguments):
    global named
    if event in ("os.link", "os.rename"):
        named += 1
        if named == killed_at:
            os.kill(os.getpid(), 9)
sys.addaudithook(count)
fs = ContextFileSystem(root, "shared", ephemeral={"Read": 0}, on_error="raise")
messages = []
for n in range(12):
    call = f"{number}-{n}"
    made = {"id": call, "type": "function", "function": {"name": "Read", "arguments": "{}"}}
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": call, "content": f"{call} " * 200},
        {"role": "assistant", "content": "seen"},
    ]
    fs.offload(messages)
    print(call, flush=True)
"""


# Each turn names a record, its document and, once or more, the index: a writer is killed before one of them.
@pytest.mark.parametrize(
    ("killed_at", "count"), [(17, 3), *(pytest.param(n, 8, marks=pytest.mark.slow) for n in (16, 17, 18))]
)
def test_26_the_index_is_right_though_several_processes_write_and_one_is_killed(root, killed_at, count):
    with ThreadPoolExecutor(count) as pool:
        moments = (killed_at, *[0] * (count - 1))
        writers = [*pool.map(lambda n, at: prepared.run(WRITER, root, n, at), range(count), moments)]
    said = [writer.stdout.split() for writer in writers]

    assert [writer.returncode for writer in writers] == [-9, *[0] * (count - 1)]
    assert [len(calls) for calls in said[1:]] == [12] * (count - 1)
    assert 0 < len(said[0]) < 12
    listed = [item["path"] for item in index_of(root)]
    assert sorted([*listed, "index.json"]) == files_in(root)
    told = {call for calls in said for call in calls}
    contents = {json.loads((root / path).read_text())["content"].split()[0] for path in listed}
    assert told <= contents
    assert len(listed) == len(contents)

    fs = ContextFileSystem(root, "shared")
    fs.reindex()
    assert len(index_of(root)) == len(fs.offloader.records()) == len(files_in(root)) - 1
    assert fs.offloader.verify() == []


@pytest.mark.parametrize("damage", ["lost", "torn", "stale"])
def test_27_a_wrong_index_is_rewritten_and_loses_nothing(make, root, damage):
    make().offload([*turn("a", words(3000)), ANSWER])
    right = (root / "index.json").read_bytes()
    if damage == "lost":
        (root / "index.json").unlink()
    else:
        (root / "index.json").write_bytes(right[:50] if damage == "torn" else b'{"items": []}')

    fs = make()
    fs.offload([])

    assert (root / "index.json").read_bytes() == right
    assert len(fs.history()) == 1


def test_28_reindex_rebuilds_the_tree_from_the_records(make, root):
    fs = make()
    sent = fs.offload([*turn("a", words(3000)), *turn("b", words(4000)), ANSWER]).messages
    files = files_in(root)
    path_in(results(sent)[0]).unlink()
    (root / "tool_result" / "Read" / "call_abcdefghij.json").write_text("{}")
    (root / "tool_result" / "Read" / "notes.txt").write_text("mine")

    fs.reindex()

    assert files_in(root) == sorted([*files, "tool_result/Read/notes.txt"])


HOSTILE = [
    *(
        "../../x",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "..",
        ".",
        "",
        "con",
        "CON",
        "a\0b",
        "x" * 5000,
        "\ud800",
        "a\nb",
    ),
    *(
        "ä",
        "a b",
        "a:b",
        "read",
        "Read",
        "READ",
        "=",
        "=2e",
        "trailing.",
        ".hidden",
        "index.json",
        "X" * 5000,
    ),
]


def test_29_hostile_names_stay_in_the_tree_and_never_share_a_file(make, root, tmp_path):
    fs = make(ephemeral=dict.fromkeys(["*"], 0))
    messages = [m for n, tool in enumerate(HOSTILE) for m in turn(tool or str(n), words(100), tool)]

    done = fs.offload([*messages, ANSWER])

    assert not done.errors
    assert [path.name for path in tmp_path.iterdir()] == ["context"]
    files = files_in(root)
    assert len({file.lower() for file in files}) == len(HOSTILE) + 1
    assert all(file.isascii() and file.isprintable() for file in files)
    assert all(len(part) <= 255 and part not in (".", "..") for file in files for part in file.split("/"))
    named = {str(path_in(text).relative_to(root)) for text in results(done.messages)}
    assert named == set(files) - {"index.json"}
    assert fs.restore(done.messages) == [*messages, ANSWER]


@pytest.mark.parametrize("tool", ["Read", "mcp__web-search__get.page", "WebFetch2"])
def test_29_ordinary_names_of_tools_read_as_they_are(make, root, tool):
    done = make().offload([*turn("a", words(3000), tool), ANSWER])

    assert path_in(results(done.messages)[0]).parent == root / "tool_result" / tool


def test_30_files_and_folders_are_their_owners_alone(make, root):
    before = os.umask(0)
    try:
        make().offload([*turn("a", words(3000)), ANSWER])
    finally:
        os.umask(before)

    modes = {stat.filemode(path.stat().st_mode) for path in (root, *root.rglob("*"))}
    assert modes == {"drwx------", "-rw-------"}


def test_31_a_root_that_others_can_change_is_refused_before_anything_is_written(make, root):
    root.mkdir()
    root.chmod(0o777)
    messages = [*turn("a", words(3000)), ANSWER]

    done = make().offload(messages)

    assert done.messages == messages
    assert isinstance(done.errors[0], StorePermissionError)
    assert "chmod go-w" in str(done.errors[0])
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("planted", ["tool_result", "tool_result/Read"])
def test_32_a_planted_link_is_not_followed(make, root, tmp_path, planted):
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / planted).parent.mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    (root / planted).symlink_to(outside)
    messages = [*turn("a", words(3000)), ANSWER]

    done = make().offload(messages)

    assert done.messages == messages
    assert "must be a folder of this user" in str(done.errors[0])
    assert list(outside.rglob("*")) == []


def test_33_an_index_that_cannot_be_written_breaks_no_agent(make, root, caplog):
    fs = make()
    root.mkdir(mode=0o700)
    (root / "index.json").mkdir()
    messages = [*turn("a", words(3000)), ANSWER]

    done = fs.offload(messages)

    assert done.messages == messages
    assert done.errors
    assert "session s" in caplog.text


def test_34_an_adopted_record_has_its_document(make, root):
    messages = [*turn("a", words(3000)), ANSWER]
    sent = make().offload(messages).messages
    path = path_in(results(sent)[0])
    path.unlink()  # The state after a writer was killed between the two steps.

    assert make().offload(messages).messages == sent

    assert path.is_file()
    assert len(index_of(root)) == 1


def test_35_a_turn_with_nothing_new_lists_nothing(make, monkeypatch):
    fs, listings, infos = make(), [], TreeStore._infos

    def counted(tree, *part):
        listings.append(tree)
        return infos(tree, *part)

    monkeypatch.setattr(TreeStore, "_infos", counted)
    messages = [*turn("a", words(3000)), ANSWER]
    fs.offload(messages)
    assert listings
    listings.clear()

    fs.offload([*messages, {"role": "user", "content": "go on"}])

    assert listings == []


async def _async_round(fs: ContextFileSystem, messages: list[Any]) -> tuple[list[Any], list[Any]]:
    sent = (await fs.aoffload(messages)).messages
    return sent, await fs.arestore(sent)


def test_36_offload_and_restore_from_async_code(make):
    import asyncio  # noqa: PLC0415

    messages = [*turn("a", words(3000)), ANSWER]

    sent, back = asyncio.run(_async_round(make(), messages))

    assert path_in(results(sent)[0]).is_file()
    assert back == messages


# A Read tool with the limits of common ones, and an agent that has no other tool


def limited_read(path: Path | str, offset: int = 0) -> str:
    """Return at most 2,000 lines of a file with their numbers, each cut at 2,000 characters."""
    lines = Path(path).read_text().split("\n")[offset : offset + 2_000]
    return "\n".join(f"{offset + n + 1:6}\t{line[:2_000]}" for n, line in enumerate(lines))


def shown_by_limited_reads(path: Path | str) -> str:
    """Return the content of a document as it is put together from the answers of a limited Read tool."""
    pages: list[str] = []
    while not pages or pages[-1]:
        pages.append(limited_read(path, 2_000 * len(pages)))
    lines = [line.partition("\t")[2] for page in pages for line in page.split("\n")]
    if '  "content_lines": [' not in lines:
        [content] = [line for line in lines if line.startswith('  "content": ')]
        text: str = json.loads(content.removeprefix('  "content": '))
        return text
    first = lines.index('  "content_lines": [') + 1
    return "".join(json.loads(line.removesuffix(",")) for line in lines[first : lines.index("  ],", first)])


LONG: dict[str, str] = {
    "log": "".join(f"line {n} of a build\n" for n in range(9_000)),
    "one line": "x" * 50_000,
    "json": json.dumps([{"key": f'value "{n}"', "path": "C:\\dir"} for n in range(900)]),
    "binary": "".join(map(chr, range(32))) * 400,
    "emoji": "\U0001f600" * 9_000,
    "text": "Zeile mit \u00e4\u00f6\u00fc\u2028und mehr\r\n" * 900 + "no end",
    "lone surrogates": "a\ud800b" * 900,
    "short lines": "\n" * 5_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_37_a_read_tool_that_cuts_lines_at_2000_characters_shows_a_whole_document(make, text):
    fs = make(offload_token_threshold=0, token_counter=None)

    [placeholder] = results(fs.offload([*turn("a", text), ANSWER]).messages)

    path = path_in(placeholder)
    assert shown_by_limited_reads(path) == text
    *lines, content, end, last = path.read_text().split("\n")
    assert content.startswith('  "content": "')
    assert (end, last) == ("}", "")
    assert max(len(line.encode("utf-16-le")) // 2 for line in lines) <= 2_000
    document = json.loads(path.read_bytes())
    assert max(map(len, document["content_lines"])) <= 1_900
    assert document["content"] == text


class Agent:
    """An agent as the page describes it, whose only tools are Read and Bash, which its model uses in turn."""

    rows = 500
    row = "row {} of step {}\n"

    def __init__(self, fs: ContextFileSystem, steps: int) -> None:
        self.context = ContextManager(fs.offloader, AgentConfig(window_tokens=9_000))
        self.resumed = self.context.resume()
        self.steps = steps
        self.sent: list[list[Any]] = []
        self.errors: list[Any] = []

    def run(self, question: str) -> list[Any]:
        """Return all messages of the loop, as they were before the context changed them."""
        said: list[Any] = [{"role": "user", "content": question}]
        self.context.add(said[0])
        for step in range(self.steps + 1):
            request = self.context.before_model_call(system_prompt=self.context.prompt())
            self.sent.append(request.messages)
            self.errors += request.errors
            call = f"{question[:8]}-{step}"
            made, result = turn(call, self.output(step), "Read" if step % 2 else "Bash")
            made["content"] = f"step {step}: {words(120, 'thinking')}"
            said.append(made if step < self.steps else {"role": "assistant", "content": "done"})
            self.errors += self.context.after_model_call(said[-1], usage=request.tokens)
            if step < self.steps:
                said.append(result)
                self.context.add(result)
        return said

    def output(self, step: int) -> str:
        return "".join(self.row.format(n, step) for n in range(self.rows if step % 3 else 30))


def test_38_an_agent_with_a_read_tool_alone_finds_all_it_ever_saw(make, root):
    fs = make(ephemeral={"Read": 2}, token_counter=None)
    agent = Agent(fs, 24)

    said = agent.run("question one")
    again = Agent(make(ephemeral={"Read": 2}, token_counter=None), 12)
    said += again.run("question two")

    assert agent.errors + again.errors == []
    assert again.resumed == len(agent.context.messages) < len(said)
    assert "[Compacted" in str(again.sent[-1])
    assert again.context.restore() == said
    assert not re.search(r"context_(read|grep|list|tail)", str(agent.sent + again.sent))
    assert not re.search(r"context_(read|grep|list|tail)", again.context.prompt())
    # All that left is listed, and all that is listed is a document that a Read tool shows.
    paths = [root / item["path"] for item in index_of(root)]
    assert sorted([*(str(path.relative_to(root)) for path in paths), "index.json"]) == files_in(root)
    assert len(paths) == len(fs.offloader.records())
    shown = "".join(map(shown_by_limited_reads, paths))
    in_view = str(again.context.messages)
    for message in said:
        for line in str(message["content"]).split("\n"):
            assert json.dumps(line)[1:-1] in shown or line in shown or line in in_view
    # What the model sees names only documents that exist.
    assert all(Path(path).is_file() for path in re.findall(r"Path: ([^\\\n]+)", in_view))


@pytest.mark.parametrize("strategy", ["selective", "rounds"])
def test_39_results_that_a_compaction_removes_have_a_document_each(make, root, strategy):
    fs = make()
    said = [{"role": "user", "content": "Fix the build"}]
    for n in range(6):
        said += turn(f"c{n}", words(3000, f"row{n}"), "Bash")
        said += [{"role": "assistant", "content": f"answer {n}"}, {"role": "user", "content": f"go on {n}"}]

    if strategy == "selective":
        context = ContextIR(token_counter=count_words)
        for message in said:
            context.add_message(message)
        compactor = SelectiveCompaction(fs.offloader, threshold_tokens=10_000)
        result: Any = compactor.compact(context)
        sent = context.lower()
    else:
        rounds = RoundCompactor(
            fs.offloader, lambda _: "<summary>s</summary>", RoundConfig(max_context_tokens=9000)
        )
        result = rounds.compact(said)
        sent = result.new_messages

    assert (result.is_compacted, result.error) == (True, None)
    [notice] = [message["content"] for message in sent if "[Compacted" in str(message["content"])]
    [path] = re.findall(r"\nPath: (.+)\nUse Read tool to view details\.$", notice)
    removed = shown_by_limited_reads(path)
    documents = [d for d in fs.history() if d.item_type == "tool_result"]
    assert len(documents) >= 3
    assert all(str(root / document.path) in removed for document in documents)
    contents = [json.loads((root / document.path).read_text())["content"] for document in documents]
    assert set(contents) <= set(results(said))
    assert sorted([*(item["path"] for item in index_of(root)), "index.json"]) == files_in(root)
    assert fs.restore(sent) == said


def test_40_an_agent_configuration_opens_the_tree(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = AgentConfig(
        offload_enabled=True,
        offload_token_threshold=1000,
        offload_root_path=None,
        ephemeral={"Read": 1},
        ephemeral_keep_recent=2,
    )
    context = ContextManager(config=config)
    reads = [message for call in "abc" for message in turn(call, words(900))]
    for message in [*reads, *turn("d", words(3000), "Bash"), ANSWER]:
        context.add(message)

    sent = context.before_model_call().messages

    assert re.fullmatch(r"session_\d{8}_\d{6}_[a-z0-9]{6}", context.session)
    root = tmp_path / ".agent" / "context" / context.session
    assert [text[:8] for text in results(sent)] == ["[Content", "word wor", "word wor", "[Content"]
    assert [path_in(text).parents[2] for text in results(sent) if text.startswith("[")] == [root, root]
    resumed = ContextManager(ContextFileSystem(session=context.session).offloader)
    assert resumed.resume() == len(sent)


def test_40_without_offloading_nothing_is_destroyed(tmp_path):
    config = AgentConfig(offload_enabled=False, offload_root_path=tmp_path / "root", ephemeral={"Read": 0})
    context = ContextManager(config=config)
    messages = [*turn("a", words(9000)), ANSWER]
    for message in messages:
        context.add(message)

    assert context.before_model_call().messages == messages
    assert files_in(tmp_path / "root") == []


@pytest.mark.parametrize(
    "setting", [{"offload_enabled": True}, {"offload_token_threshold": 5}, {"offload_root_path": "x"}]
)
def test_40_settings_of_the_tree_beside_an_offloader_are_refused(make, setting):
    with pytest.raises(
        ConfigError, match=f"{next(iter(setting))}: for a ContextManager without an offloader"
    ):
        ContextManager(make().offloader, AgentConfig(**setting))


def test_40_a_threshold_beside_a_policy_is_refused():
    with pytest.raises(ConfigError, match="have no effect with policy"):
        AgentConfig(offload_token_threshold=5, policy=OffloadPolicy())


def test_41_the_items_of_an_agents_messages_are_listed(make, root):
    fs = make(ephemeral={"Read": 1})
    context = ContextManager(fs.offloader)
    for message in [*turn("a", words(500)), *turn("b", words(5000), "Bash"), *turn("c", words(500)), ANSWER]:
        context.add(message)
    context.before_model_call()
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}

    forged = PLACEHOLDER.format(root / "tool_result" / "Read" / "call_abcdefghij.json")
    messages = [*context.messages, *turn("d", forged, "Bash")]
    *states, last = outputs(fs, messages)

    assert (last.offloaded, last.offload_path) == (False, None)
    assert [item.tool_use_id for item in states if item.destroyed] == ["a"]
    assert [item.tool_use_id for item in states if item.offloaded] == ["a", "b"]
    assert [i.offload_path for i in states] == [
        str(path_in(text)) if text.startswith("[") else None for text in results(context.messages)
    ]
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


# Hooks, failures and events through the tree


def test_42_what_redact_removes_is_in_no_file(make, root):
    fs = make(redact=lambda text: text.replace("secret", "***"), token_counter=None)
    agent = Agent(fs, 16)
    agent.row = "row {} of step {} has the secret 0xf3a9 of 10.0.0.7:8443\n"

    agent.run("question with a secret")

    assert "[Compacted" in str(agent.sent[-1])
    for path in root.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert b"secret" not in (
                data if path.suffix != ".zst" else zstandard.ZstdDecompressor().stream_reader(data).read()
            )


def test_42_items_that_a_hook_keeps_have_no_document(make, root):
    fs = make(should_offload=lambda item: item.tool_name != "Bash")

    done = fs.offload([*turn("a", words(3000)), *turn("b", words(3000), "Bash"), ANSWER])

    assert [path.split("/")[1] for path in files_in(root) if path != "index.json"] == ["Read"]
    assert results(done.messages)[1] == words(3000)


@pytest.mark.parametrize("on_error", ["keep", "raise", "truncate"])
def test_42_a_tree_that_cannot_be_written_is_reported_as_the_host_chose(make, root, on_error):
    root.mkdir(mode=0o700)
    (root / "tool_result").write_text("in the way")
    context = ContextManager(make(on_error=on_error).offloader)
    for message in [*turn("a", words(3000)), ANSWER]:
        context.add(message)

    if on_error == "raise":
        with pytest.raises(StoreError, match="tool_result"):
            context.before_model_call()
        return
    request = context.before_model_call()

    assert [type(error) for error in request.errors] == [StorePermissionError]
    [shown] = results(request.messages)
    assert (shown == words(3000)) == (on_error == "keep")
    (root / "tool_result").unlink()
    assert path_in(results(context.before_model_call().messages)[0]).is_file()


def test_42_events_report_what_is_stored_and_an_index_that_is_not(make, root):
    events = EventBus()
    heard: list[str] = []
    events.subscribe(lambda event: heard.append(event.event_type))
    fs = make(events=events)
    fs.offload([*turn("a", words(3000)), ANSWER])
    (root / "index.json").unlink()
    (root / "index.json").mkdir()

    done = fs.offload(
        [*turn("a", words(3000)), *turn("b", words(3000)), ANSWER, *turn("c", words(3000)), ANSWER]
    )

    assert heard.count("item_stored") == 3
    assert heard.count("index_failed") == 1
    assert len(done.records) == 3
    assert [type(error) for error in done.errors] == [StoreError]
    (root / "index.json").rmdir()
    fs.offload([])
    assert len(index_of(root)) == 3


def test_42_what_a_sink_and_offload_text_store_is_listed_at_once(make, root):
    fs = make(policy=OffloadPolicy(types={"tool_result": Rule(min_tokens=100)}))

    first = fs.offloader.offload_text(words(500), tool_name="Bash")
    assert [item["path"] for item in index_of(root)] == [str(path_in(first).relative_to(root))]
    with fs.offloader.open_sink(tool_name="Bash") as sink:
        for n in range(9):
            sink.write(f"{n} {words(100)}\n")

    assert len(index_of(root)) == 2
    assert path_in(sink.placeholder).is_file()
