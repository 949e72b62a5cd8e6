"""Recorded conversations: which files are read, and what is made of them."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import recorded
import zstandard
from kit.conversation import from_model, from_user

from offload.errors import MessageError
from offload.messages import Usage
from offload.replay import Answer, Transcript, find, load, replay


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def row(role: str, content: object, uuid: object, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content, **more.pop("message", {})}
    return {"type": role, "uuid": uuid, "isSidechain": False, "message": message, **more}


def write_session(folder: Path, *rows: object) -> Path:
    path = folder / "session.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in rows) + "\n")
    return path


def write_json(folder: Path, value: object, name: str = "chat.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(value))
    return path


def the_one(path: Path) -> Transcript:
    [transcript] = load(path)
    return transcript


# Chat requests


RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "r"}
OPENAI = [{"role": "system", "content": "s"}, {"role": "tool", "content": "r", "tool_call_id": "1"}]


@pytest.mark.parametrize(
    ("chat", "expected"),
    [
        (OPENAI, ("talk", "openai-chat", None)),
        ({"system": "be kind", "messages": [from_user("x")]}, ("talk", "anthropic", "be kind")),
        ({"messages": [from_user([RESULT])]}, ("talk", "anthropic", None)),
        ({"messages": [from_user([text("t")])]}, ("talk", "openai-chat", None)),
        (
            {"id": "a/b", "format": "openai-chat-text", "messages": [from_user("x")]},
            ("a/b", "openai-chat-text", None),
        ),
    ],
    ids=["bare list", "anthropic", "tool blocks", "texts", "named"],
)
def test_a_chat_request_is_a_transcript_with_its_name_format_and_system_prompt(
    tmp_path: Path, chat: Any, expected: tuple[str, str, str | None]
) -> None:
    transcript = the_one(write_json(tmp_path, chat, "talk.json"))
    assert (transcript.name, transcript.format, transcript.system) == expected
    assert transcript.messages == (chat if isinstance(chat, list) else chat["messages"])


def test_a_chat_has_the_usage_and_the_model_in_its_file(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    row = [1, 3, 500, 40, 7, "2026-11-01T10:00:00Z"]
    envelope = {"messages": messages, "model": ["m-1", "m-2"], "recorded_usage": [row]}
    transcript = the_one(write_json(tmp_path, envelope))
    assert transcript.usage == {1: Answer(1793527200.0, Usage(543, 40, 500))}
    assert transcript.model == "m-1"
    assert the_one(write_json(tmp_path, {"messages": messages, "model": "m"})).model == "m"


@pytest.mark.parametrize(
    "rows",
    [
        None,
        "none",
        [7],
        [[1, 2, 3]],
        [["1", 3, 500, 40, 7, "2026-11-01T10:00:00Z"]],
        [[1, "3", 500, 40, 7, "2026-11-01T10:00:00Z"]],
        [[1, 3, 500, 40, 7, "yesterday"]],
        [[1, 3, 500, 40, 7, None]],
        [[1, 0, 0, 0, 0, "2026-11-01T10:00:00Z"]],
    ],
)
def test_usage_of_another_form_is_no_usage(tmp_path: Path, rows: object) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "recorded_usage": rows, "model": 7}
    transcript = the_one(write_json(tmp_path, chat))
    assert (dict(transcript.usage), transcript.model) == ({}, None)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not JSON"),
        (b"[1, 2]", "no list of messages"),
        (b"[]", "no list of messages"),
        (b'{"messages": "none"}', "no list of messages"),
        (b'"text"', "no list of messages"),
        (b'[{"content": "no role"}]', "no list of messages"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 5000, "not JSON"),
        (b"\xff\xd8\xff", "not JSON"),
        (None, "No such file"),
    ],
)
def test_a_file_without_messages_is_refused_with_the_reason(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MessageError, match=said):
        list(load(path))


# Claude Code sessions


def test_the_rows_of_one_answer_become_one_message_even_with_a_result_between(tmp_path: Path) -> None:
    path = write_session(
        tmp_path,
        row("user", "go", "1"),
        row("assistant", [{"type": "tool_use", "id": "a"}], "2", message={"id": "m"}),
        row("user", [{"type": "tool_result", "tool_use_id": "a"}], "3"),
        row("assistant", [{"type": "tool_use", "id": "b"}], "4", message={"id": "m"}),
        row("user", [{"type": "tool_result", "tool_use_id": "b"}], "5"),
    )
    assert the_one(path).messages == [
        from_user([text("go")]),
        from_model([{"type": "tool_use", "id": "a"}, {"type": "tool_use", "id": "b"}]),
        from_user([{"type": "tool_result", "tool_use_id": "a"}, {"type": "tool_result", "tool_use_id": "b"}]),
    ]


@pytest.mark.parametrize(
    "unseen",
    [
        {"type": "summary", "summary": "x"},
        {"type": "progress", "uuid": "2"},
        row("user", "meta", "2", isMeta=True),
        row("assistant", [text("API Error")], "2", isApiErrorMessage=True),
        row("assistant", [text("No response")], "2", message={"model": "<synthetic>"}),
        row("user", "said twice", "1"),
        row("user", None, "2"),
        row("assistant", "odd", ["2"]),
        {"type": ["user"], "uuid": "2"},
        ["no", "row"],
    ],
)
def test_rows_that_no_model_saw_are_left_out(tmp_path: Path, unseen: object) -> None:
    path = write_session(tmp_path, row("user", "go", "1"), unseen)
    assert the_one(path).messages == [{"role": "user", "content": [text("go")]}]


def test_each_subagent_is_a_separate_transcript(tmp_path: Path) -> None:
    path = write_session(
        tmp_path,
        row("user", "main", "1"),
        row("user", "of the main thread", "aaaaaaaa", isSidechain=True, parentUuid="1"),
        {"type": "progress", "uuid": "p", "isSidechain": True, "parentUuid": "aaaaaaaa"},
        row("user", "on its own", "bbbbbbbb", isSidechain=True, parentUuid=None),
        row("assistant", [text("a")], "4", isSidechain=True, parentUuid="p"),
        row("assistant", [text("b")], "5", isSidechain=True, parentUuid="bbbbbbbb"),
    )
    found = {t.name: [m["content"][0]["text"] for m in t.messages] for t in load(path)}
    assert found == {
        "session": ["main"],
        "session-side-aaaaaa": ["of the main thread", "a"],
        "session-side-bbbbbb": ["on its own", "b"],
    }


def test_each_compaction_starts_a_new_transcript(tmp_path: Path) -> None:
    path = write_session(
        tmp_path,
        row("user", "before", "1"),
        row("user", "what happened so far", "2", isCompactSummary=True),
        row("assistant", [text("after")], "3"),
    )
    found = {t.name: [m["content"][0]["text"] for m in t.messages] for t in load(path)}
    assert found == {"session": ["before"], "session-part-2": ["what happened so far", "after"]}


def test_a_row_that_is_being_written_is_left_out_and_a_log_of_foreign_rows_is_refused(tmp_path: Path) -> None:
    path = write_session(tmp_path, row("user", "go", "1"))
    with path.open("ab") as file:
        file.write('{"type": "user", "message": "é'.encode()[:-1])
    assert the_one(path).messages == [{"role": "user", "content": [text("go")]}]
    assert the_one(path).left_out == []
    path.write_text("{oops\n")
    with pytest.raises(MessageError, match=r"not a transcript: .*; line 1 is not JSON"):
        list(load(path))
    with pytest.raises(MessageError, match="Claude Code"):
        list(load(write_session(tmp_path, {"type": "session"}, {"type": "message", "id": "1"})))


BAD = {"role": "user", "content": [7]}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
LEFT_OUT: list[tuple[str, list[Any], list[int], list[str]]] = [
    (
        "chat.json",
        [{"role": "user", "content": "a"}, BAD, 7, {"content": "b"}, {"role": "assistant", "content": "c"}],
        [0, 4],
        ["messages[1].content[0]", "messages[2]: ", "messages[3]: "],
    ),
    (
        "claude.jsonl",
        [
            row("user", "a", "1"),
            "{oops",
            row("user", [7], "2"),
            row("user", None, "3"),
            row("user", "b", "4"),
        ],
        [0, 4],
        ["line 2 is not JSON", "line 3.content[0]", "line 4: "],
    ),
    (
        "codex.jsonl",
        [
            {"type": "response_item", "payload": CALL},
            {"type": "response_item", "payload": {**CALL, "type": "function_call_output", "output": 7}},
            {"type": "response_item", "payload": 7},
            "[" * 100_000,
            {"type": "response_item", "payload": {**CALL, "type": "function_call_output", "output": "b"}},
        ],
        [0, 4],
        ["line 2.output: ", "line 3: ", "line 4 is not JSON"],
    ),
]


@pytest.mark.parametrize(("name", "parts", "kept", "reasons"), LEFT_OUT, ids=[name for name, *_ in LEFT_OUT])
def test_a_malformed_message_costs_itself_and_is_named_with_its_place(
    tmp_path: Path, name: str, parts: list[Any], kept: list[int], reasons: list[str]
) -> None:
    def written(parts: list[Any], name: str) -> Path:
        if name.endswith(".json"):
            usage = [
                [at, 3, 500, 40, 7, "2026-11-01T10:00:00Z"]
                for at, part in enumerate(parts)
                if part == parts[-1]
            ]
            return write_json(tmp_path, {"messages": parts, "recorded_usage": usage}, name)
        path = tmp_path / name
        path.write_text("".join(f"{p if isinstance(p, str) else json.dumps(p)}\n" for p in parts))
        return path

    found = the_one(written(parts, name))
    whole = the_one(written([parts[at] for at in kept], f"whole-{name}"))

    assert (found.messages, found.usage) == (whole.messages, whole.usage)
    assert [reason.startswith(start) for reason, start in zip(found.left_out, reasons, strict=True)] == [
        True
    ] * 3
    assert replay(found).requests == replay(whole).requests
    assert whole.left_out == []


def answer_row(uuid: str, second: int, message: str, block: dict[str, Any], **usage: Any) -> dict[str, Any]:
    """Return a row of an answer of Claude Code."""
    counts = {"input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, **usage}
    facts = {"id": message, "model": "claude-opus-4-5", "usage": {**counts, "output_tokens": 1}}
    time = f"2026-11-01T10:00:{second:02}.500Z"
    return row("assistant", [block], uuid, message=facts, timestamp=time)


def test_an_answer_of_claude_code_has_the_usage_and_the_time_of_its_first_row(tmp_path: Path) -> None:
    call, more = ({"type": "tool_use", "id": name, "name": "Bash", "input": {}} for name in "ab")
    written = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 900}
    path = write_session(
        tmp_path,
        row("user", "go", "1"),
        answer_row("2", 1, "m1", call, cache_creation_input_tokens=900, cache_creation=written),
        answer_row("3", 2, "m1", more, cache_creation_input_tokens=900, cache_creation=written),
        row("user", [{"type": "tool_result", "tool_use_id": "a"}], "4"),
        answer_row("5", 9, "m2", text("done"), cache_read_input_tokens=900),
    )
    transcript = the_one(path)
    assert transcript.usage == {
        1: Answer(1793527201.5, Usage(903, 0, 900, 3600)),
        3: Answer(1793527209.5, Usage(903, 900, 0)),
    }
    assert transcript.model == "claude-opus-4-5"


def test_rows_of_claude_code_without_usage_or_with_another_form_of_it_are_read(tmp_path: Path) -> None:
    odd = {"usage": {"input_tokens": "3"}, "model": None}
    path = write_session(
        tmp_path,
        row("user", "go", "1"),
        row("assistant", [text("a")], "2", timestamp="2026-11-01T10:00:00Z"),
        row("user", "on", "3"),
        row("assistant", [text("b")], "4", message=odd, timestamp="2026-11-01T10:00:00Z"),
        row("user", "on", "5"),
        row("assistant", [text("c")], "6", message={"usage": {"input_tokens": 3}}, timestamp=7),
    )
    transcript = the_one(path)
    assert (len(transcript.messages), dict(transcript.usage), transcript.model) == (6, {}, None)


def test_reading_a_session_needs_little_more_memory_than_its_messages(tmp_path: Path) -> None:
    size, rows = 200_000, 50
    path = tmp_path / "session.jsonl"
    with path.open("w") as file:
        for n in range(rows):
            # Claude Code logs each result a second time, outside the message.
            one = row("user" if n % 2 else "assistant", "x" * size, str(n), toolUseResult="y" * size)
            file.write(json.dumps(one) + "\n")
    tracemalloc.start()
    transcript = the_one(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(transcript.messages) == rows
    assert peak < 1.25 * size * rows


# Folders


def test_a_folder_is_walked_in_sorted_order_and_no_file_comes_twice(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("c.jsonl", "b/a.json", "a.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "z.json").symlink_to(tmp_path / "a.json")
    found = list(find([tmp_path, tmp_path / "a.json"]))
    assert found == [tmp_path / "a.json", tmp_path / "b" / "a.json", tmp_path / "c.jsonl"]


# Recordings, and the same conversations as another program read them


def twins() -> Iterator[tuple[Path, Path]]:
    for path in sorted(recorded.FOLDER.glob("originals/*/*.jsonl")):
        for twin in sorted((recorded.FOLDER / "trajectories" / path.parent.name).glob("*.json")):
            if json.loads(twin.read_text())["origin_format"] == "claude-code-jsonl":
                yield path, twin


@recorded.needed
def test_claude_code_sessions_equal_their_independent_readings() -> None:
    compared = 0
    for path, twin in twins():
        expected = json.loads(twin.read_text())
        transcripts = load(path)
        found = {t.name: t.messages for t in transcripts}
        usage = {t.name: t.usage for t in transcripts}
        side = f"{path.stem}-side-{expected['source'].get('sidechain_root', '')[:6]}"
        name = side if side in found else twin.stem
        if name in found:
            assert found[name] == expected["messages"], twin
            compared += 1
            ours, theirs = usage[name], the_one(twin).usage
            assert {i: a._replace(usage=a.usage._replace(kept_for=None)) for i, a in ours.items()} == theirs
    assert compared >= 5


@recorded.needed
def test_every_recorded_trajectory_loads_as_it_is() -> None:
    paths = list(find([recorded.FOLDER / "trajectories"]))
    assert len(paths) >= 40
    for path in paths:
        expected = json.loads(path.read_text())
        transcript = the_one(path)
        assert transcript.messages == expected["messages"]
        assert (transcript.name, transcript.format) == (expected["id"], expected["format"])
        assert transcript.system == expected["system"]


# Codex


def codex_row(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-09-01T00:00:00Z", "type": kind, "payload": payload}


def codex_text(role: str, words: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": words}]}


CALL = {"type": "function_call", "name": "shell", "call_id": "c1", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "listing " * 2000}
CODEX_ROWS = (
    codex_row("session_meta", id="u", base_instructions={"text": "be brief"}),
    codex_row("event_msg", type="user_message", message="list it"),
    codex_row("response_item", **codex_text("user", "list it")),
    codex_row("response_item", type="ghost_snapshot", ghost_commit={}),
    codex_row("turn_context", cwd="/x"),
    codex_row("response_item", type="reasoning", summary=[], encrypted_content="x"),
    codex_row("response_item", **CALL),
    codex_row("response_item", **OUTPUT),
)


def test_a_codex_transcript_has_only_items_that_the_model_saw(tmp_path: Path) -> None:
    transcript = the_one(write_session(tmp_path, *CODEX_ROWS))
    assert (transcript.name, transcript.format) == ("session", "openai-responses")
    assert transcript.system == "be brief"
    assert [m["type"] for m in transcript.messages] == [
        *("message", "reasoning", "function_call", "function_call_output"),
    ]
    assert transcript.messages[-1] == OUTPUT


def test_a_codex_session_has_a_new_transcript_after_a_compaction(tmp_path: Path) -> None:
    summary = codex_text("user", "what there was")
    rows = (
        *CODEX_ROWS,
        codex_row("compacted", message="", replacement_history=[summary]),
        codex_row("response_item", **codex_text("assistant", "on we go")),
        codex_row("compacted", message="in short"),
    )
    first, second, third = load(write_session(tmp_path, *rows))
    assert first.messages[-1] == OUTPUT
    assert second.messages == [summary, codex_text("assistant", "on we go")]
    assert third.messages == [codex_text("user", "in short")]
    assert [t.name for t in (first, second, third)] == ["session", "session-part-2", "session-part-3"]
    assert second.system == "be brief"


def token_row(second: int, prompt: int, cached: int, **more: int) -> dict[str, Any]:
    """Return what Codex logs after an answer."""
    last = {"input_tokens": prompt, "cached_input_tokens": cached, "output_tokens": 9, **more}
    info = {"total_token_usage": last, "last_token_usage": last, "model_context_window": 258400}
    counted = codex_row("event_msg", type="token_count", info=info, rate_limits=None)
    return counted | {"timestamp": f"2026-11-01T10:00:{second:02}Z"}


def test_an_answer_of_codex_has_the_tokens_that_were_logged_after_it(tmp_path: Path) -> None:
    path = write_session(
        tmp_path,
        CODEX_ROWS[0],
        token_row(0, 1, 0),
        codex_row("turn_context", cwd="/x", model="gpt-5-codex"),
        codex_row("event_msg", type="token_count", info=None),
        codex_row("response_item", **codex_text("user", "list it")),
        codex_row("response_item", type="reasoning", summary=[], encrypted_content="x"),
        codex_row("response_item", **CALL),
        token_row(1, 1200, 1000, cache_write_input_tokens=150),
        token_row(2, 7, 7),
        codex_row("response_item", **OUTPUT),
        token_row(3, 8, 8),
        codex_row("response_item", **codex_text("assistant", "done")),
        token_row(9, 1500, 1200),
    )
    transcript = the_one(path)
    assert transcript.usage == {
        1: Answer(1793527201.0, Usage(1200, 1000, 150)),
        4: Answer(1793527209.0, Usage(1500, 1200, 0)),
    }
    assert transcript.model == "gpt-5-codex"


@pytest.mark.parametrize(
    "info", [7, {}, {"last_token_usage": 7}, {"last_token_usage": {"input_tokens": "9"}}]
)
def test_tokens_of_codex_in_another_form_are_no_usage(tmp_path: Path, info: object) -> None:
    counted = codex_row("event_msg", type="token_count", info=info)
    assert dict(the_one(write_session(tmp_path, *CODEX_ROWS, counted)).usage) == {}


def test_usage_after_a_compaction_is_that_of_the_new_transcript(tmp_path: Path) -> None:
    summary = codex_text("user", "what there was")
    path = write_session(
        tmp_path,
        *CODEX_ROWS,
        token_row(1, 900, 0),
        codex_row("compacted", message="", replacement_history=[summary, 7]),
        token_row(2, 5, 0),
        codex_row("response_item", **codex_text("assistant", "on we go")),
        token_row(3, 100, 0),
    )
    first, second = load(path)
    assert [a.usage.tokens for a in first.usage.values()] == [900]
    assert {i: a.usage.tokens for i, a in second.usage.items()} == {1: 100}


def test_a_codex_session_that_was_archived_is_read_compressed(tmp_path: Path) -> None:
    plain = write_session(tmp_path, *CODEX_ROWS)
    archived = tmp_path / "archived" / "rollout-1.jsonl.zst"
    archived.parent.mkdir()
    archived.write_bytes(zstandard.compress(plain.read_bytes()))
    assert list(find([archived.parent])) == [archived]
    transcript = the_one(archived)
    assert transcript.name == "rollout-1"
    assert transcript.messages == the_one(plain).messages


def test_an_archive_that_is_none_and_a_session_without_items_say_so(tmp_path: Path) -> None:
    broken = tmp_path / "rollout-1.jsonl.zst"
    broken.write_bytes(b"no zstd at all")
    with pytest.raises(MessageError, match="invalid zstd"):
        list(load(broken))
    with pytest.raises(MessageError, match="no model items"):
        list(load(write_session(tmp_path, CODEX_ROWS[0])))
