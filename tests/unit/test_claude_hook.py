"""Claude Code's tool results: which leave, and what the hook of its SDK answers."""

from __future__ import annotations

import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kit.store import ActingStore, waiting

from offload import Offloader, OffloadPolicy
from offload.integrations import _claude_hook
from offload.integrations._claude_hook import Hook
from offload.integrations._claude_results import chunks_of, result_of
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

LOG = "\n".join(f"line {n} of the log" for n in range(2000))
BASH = {"stderr": "", "interrupted": False, "isImage": False, "noOutputExpected": False}
FILE = {"filePath": "/a.txt", "numLines": 2000, "startLine": 1, "totalLines": 2000}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
WEB = {"bytes": 9, "code": 200, "codeText": "OK", "durationMs": 7, "url": "https://example.org"}
# By tool: a result with the text, and the same with a placeholder in its place.
LEAVE: list[tuple[str, Any, Any]] = [
    ("Bash", BASH | {"stdout": LOG}, BASH | {"stdout": "new"}),
    ("mcp__files__find", LOG, "new"),
    ("mcp__files__find", [{"type": "text", "text": LOG}], [{"type": "text", "text": "new"}]),
    ("mcp__files__find", [{"type": "text", "text": LOG}, IMAGE], [{"type": "text", "text": "new"}, IMAGE]),
    ("mcp__files__find", [{"type": "text", "text": LOG[:17]}, IMAGE, {"type": "text", "text": LOG[18:]}],
     [{"type": "text", "text": "new"}, IMAGE]),
    ("Agent", {"status": "completed", "agentId": "a", "content": [{"type": "text", "text": LOG}]},
     {"status": "completed", "agentId": "a", "content": [{"type": "text", "text": "new"}]}),
    ("WebFetch", WEB | {"result": LOG}, WEB | {"result": "new"}),
    ("WebSearch", {"query": "q", "results": [LOG]}, {"query": "q", "results": ["new"]}),
    ("Read", {"type": "text", "file": FILE | {"content": LOG}},
     {"type": "text", "file": FILE | {"content": "new"}}),
]  # fmt: skip
STAY: list[tuple[str, Any]] = [
    ("Bash", BASH | {"stdout": LOG, "isImage": True}),
    ("Bash", BASH | {"stdout": LOG, "backgroundTaskId": "b1"}),
    ("Bash", BASH | {"stdout": LOG, "structuredContent": [IMAGE]}),
    ("Bash", LOG),
    ("Bash", None),
    ("Read", {"type": "image", "file": {"base64": LOG, "type": "image/png", "originalSize": 9}}),
    ("Read", {"type": "pdf", "file": {"filePath": "/a.pdf", "base64": LOG, "originalSize": 9}}),
    ("Edit", {"filePath": "/a", "oldString": LOG, "newString": LOG, "originalFile": LOG}),
    ("Write", {"type": "create", "filePath": "/a", "content": LOG}),
    ("Agent", {"isAsync": True, "status": "async_launched", "agentId": "a", "outputFile": "/o"}),
    ("ToolSearch", {"matches": [LOG], "query": "q"}),
    ("TaskList", {"tasks": [LOG]}),
    ("mcp__plugin_offload_store__context_read", [{"type": "text", "text": LOG}]),
    ("mcp__other__context_grep", LOG),
    ("mcp__shots__take", [IMAGE]),
    ("mcp__shots__take", {"unknown": LOG}),
]


@pytest.mark.parametrize(("tool", "response", "replaced"), LEAVE)
def test_a_result_that_leaves_keeps_all_its_other_fields(tool: str, response: Any, replaced: Any) -> None:
    before = json.dumps(response)

    result = result_of(tool, response)

    assert result is not None
    assert (result.text, result.path) == (LOG, None)
    assert result.replaced("new") == replaced
    assert json.dumps(response) == before


@pytest.mark.parametrize(("tool", "response"), STAY)
def test_every_other_result_stays(tool: str, response: Any) -> None:
    assert result_of(tool, response) is None


def test_a_notebook_is_answered_as_a_text() -> None:
    cells = [{"cellType": "code", "source": "1 + 1"}, {"cellType": "markdown", "source": "ü"}]

    result = result_of("Read", {"type": "notebook", "file": {"filePath": "/n.ipynb", "cells": cells}})

    assert result is not None
    assert [json.loads(line) for line in result.text.splitlines()] == cells
    assert result.replaced("new\nline") == {
        "type": "text",
        "file": {
            "filePath": "/n.ipynb",
            "content": "new\nline",
            "numLines": 2,
            "startLine": 1,
            "totalLines": 2,
        },
    }


class Folder:
    """The files of one conversation, as Claude Code lays them out."""

    def __init__(self, root: Path) -> None:
        self.transcript = str(root / "projects" / "-p" / "0001.jsonl")
        self.results = root / "projects" / "-p" / "0001" / "tool-results"
        self.results.mkdir(parents=True)

    def bash(self, path: object) -> dict[str, Any]:
        cut = {"stdout": LOG[:100], "persistedOutputPath": str(path), "persistedOutputSize": 9}
        return BASH | cut | {"stdoutHoldsOutputEnd": True}

    def read(self, path: object) -> bytes | None:
        result = result_of("Bash", self.bash(path))
        assert result is not None
        with chunks_of(result, self.transcript) as chunks:
            return (
                None
                if chunks is None
                else b"".join(c if isinstance(c, bytes) else c.encode() for c in chunks)
            )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_cut_result_is_read_from_the_file_that_has_all_of_it_and_stored_whole(folder: Folder) -> None:
    file = folder.results / "b1.txt"
    whole = "".join(f"{n}\n" for n in range(400_000))
    file.write_text(whole)
    off = opened()

    answer = asked(off, "Bash", folder.bash(file), transcript_path=folder.transcript)

    [info] = off.records()
    assert b"".join(off.content(info.ref)).decode() == whole
    shown = answer["hookSpecificOutput"]["updatedToolOutput"]
    assert len(shown["stdout"]) < 5000
    # Else Claude Code shows its own notice, with the placeholder as its preview.
    assert shown == BASH | {"stdout": shown["stdout"]}
    file.write_bytes(b"\xff" + LOG.encode())
    assert folder.read(file) == b"\xff" + LOG.encode()


def test_a_file_that_is_not_of_the_conversation_is_not_read(folder: Folder, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    other = folder.results.parent.parent / "0002" / "tool-results"
    other.mkdir(parents=True)
    (other / "b1.txt").write_text("secret")
    (folder.results / "link.txt").symlink_to(secret)
    (folder.results / "links").symlink_to(tmp_path)
    os.mkfifo(folder.results / "pipe")

    for path in (
        secret,
        other / "b1.txt",
        folder.results / "link.txt",
        folder.results / "links" / "secret.txt",
        folder.results / ".." / ".." / ".." / ".." / "secret.txt",
        folder.results / "pipe",
        folder.results,
        folder.results / "absent.txt",
        "b1.txt",
        "a\0b",
        "",
    ):
        assert folder.read(path) is None
    moved = folder.results.rename(tmp_path / "moved")
    folder.results.symlink_to(moved)
    assert folder.read(folder.results / "absent.txt") is None
    (moved / "b1.txt").write_text("of another place")
    assert folder.read(folder.results / "b1.txt") is None
    assert folder.read(moved / "b1.txt") is None


def test_the_file_of_a_too_large_mcp_result_is_named_by_its_first_line_only(folder: Folder) -> None:
    path = folder.results / "mcp a.txt"
    notice = (
        "Error: result (187,889 characters across 9,000 lines) exceeds maximum allowed tokens. "
        f"Output has been saved to {path}.\nFormat: Plain text\n"
    )

    for text, expected in (
        (notice, str(path)),
        (f"x\n{notice}", None),
        (notice.replace("Error", "Note"), None),
    ):
        result = result_of("mcp__a__b", text)
        assert result is not None
        assert result.path == expected


def asked(off: Offloader, tool: str, response: Any, **fields: Any) -> dict[str, Any]:
    event = {
        "hook_event_name": "PostToolUse",
        "tool_name": tool,
        "tool_use_id": "toolu_1",
        "tool_input": {"command": "make"},
        "tool_response": response,
        **fields,
    }
    return Hook(off).answer(event)


def opened(store: Any = None, **options: Any) -> Offloader:
    return Offloader(store or MemoryStore(), session="s", **options)


def test_the_answer_has_a_placeholder_and_says_how_to_see_what_it_replaces() -> None:
    off = opened()

    answer = asked(off, "Bash", BASH | {"stdout": LOG}, agent_type="code-reviewer")

    [info] = off.records()
    assert b"".join(off.content(info.ref)).decode() == LOG
    assert (info.title, info.agent_name) == ("make", "code-reviewer")
    output = answer["hookSpecificOutput"]
    assert output["hookEventName"] == "PostToolUse"
    assert output["updatedToolOutput"].keys() == BASH.keys() | {"stdout"}
    shown = output["updatedToolOutput"]["stdout"]
    assert f", id {info.ref}]\n" in shown
    assert f'id="{info.ref}"' in shown
    assert len(shown) < 3000
    assert (
        answer["systemMessage"] == f"offload stored {len(LOG):,} characters of Bash: offload show {info.ref}"
    )


def test_a_small_result_an_excluded_one_and_a_file_that_must_not_be_read_are_kept(folder: Folder) -> None:
    (folder.results / "b1.txt").write_text("x\n" * 5_000_000)
    excluding = OffloadPolicy(exclude_tools=("bash",))

    for off, response in [
        (opened(), BASH | {"stdout": "ok"}),
        (opened(), folder.bash("/etc/passwd")),
        (opened(policy=excluding), folder.bash(folder.results / "b1.txt")),
    ]:
        assert asked(off, "Bash", response, transcript_path=folder.transcript) == {}
        assert off.records() == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"hook_event_name": "PostToolUse"},
        {"hook_event_name": "PostToolUse", "tool_name": "Bash", "tool_response": "{"},
        {"hook_event_name": "PostToolUse", "tool_name": "Bash", "tool_response": "[" * 100_000},
        {"hook_event_name": "PostToolUse", "tool_name": 7, "tool_response": 7},
        {"hook_event_name": ["x"], "tool_name": {}, "tool_response": None},
        {"hook_event_name": "SessionStart"},
    ],
)
def test_an_event_of_another_form_is_answered_by_nothing(fields: dict[str, Any]) -> None:
    assert Hook(opened()).answer(fields) == {}


def of_log(number: int) -> dict[str, Any]:
    """Return an event with a large result."""
    return {
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_use_id": f"toolu_{number}",
        "tool_response": BASH | {"stdout": f"{LOG}{number}"},
    }


@pytest.mark.parametrize("on_error", ["keep", "raise", "truncate"])
def test_a_store_that_failed_changes_nothing_and_is_not_asked_again_for_a_minute(on_error: Any) -> None:
    store = FaultyStore(MemoryStore(), verb="put")
    hook = Hook(opened(store, on_error=on_error))

    answer = hook.answer(of_log(1))
    assert answer.keys() == {"systemMessage"}
    said = answer["systemMessage"]
    assert said.startswith("offload kept a large result in the context, since the store failed: ")
    assert hook.answer(of_log(2)) == {}
    assert store.operations == 1
    assert 50 < hook._rests_until - time.monotonic() <= 60
    hook._rests_until = 0
    assert "hookSpecificOutput" in hook.answer(of_log(3))


def test_a_store_that_is_too_slow_is_not_asked_again_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_claude_hook, "SECONDS", 0.01)
    answered = threading.Event()
    store = ActingStore(MemoryStore(), waiting(answered, "put"))
    hook = Hook(opened(store))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(hook.answer, of_log(1))
        while not hook._rests_until:
            time.sleep(0.001)
        assert hook.answer(of_log(2)) == {}
        answered.set()
        first.result()

    assert [verb for verb, _ in store.asked].count("put") == 1
    monkeypatch.setattr(_claude_hook, "SECONDS", -1)
    with pytest.raises(TimeoutError):
        list(_claude_hook._in_time(iter(["a part that came late"])))


@pytest.mark.parametrize(
    "text",
    [
        "\udc80\0\x1b[31m😀" * 3000,
        "[Offloaded: Bash result, 1 line, 5 characters, id kqzmwpxhva]\n" * 500,
    ],
    ids=["surrogates", "placeholders"],
)
def test_odd_characters_and_imitations_of_placeholders_are_stored_as_they_are(text: str) -> None:
    off = opened()

    answer = asked(off, "Bash", BASH | {"stdout": text})

    [info] = off.records()
    assert b"".join(off.content(info.ref)).decode("utf-8", "surrogatepass") == text
    assert json.dumps(answer, ensure_ascii=False).encode()
    shown = answer["hookSpecificOutput"]["updatedToolOutput"]["stdout"]
    assert shown.count("\n[Offloaded: ") == 0
    assert f", id {info.ref}]" in shown.splitlines()[0]
