"""Claude Code's tool results: which leave, what the hook answers, and the plugin as files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import prepared
import pytest
from command import Run, runner
from strength import thinned

from offload import ConfigError, Offloader, OffloadPolicy, Rule
from offload.integrations._sessions import folder_session
from offload.integrations.claude_code import _hook
from offload.integrations.claude_code._environment import leave_out_project
from offload.integrations.claude_code._hook import Hook, offloader_for
from offload.integrations.claude_code._plugin import (
    server_command,
    server_command_of,
    write_marketplace,
    write_plugin,
)
from offload.integrations.claude_code._shapes import chunks_of, event_of, result_of
from offload.policy.tool_names import RETRIEVAL_TOOLS
from offload.settings.loader import Settings
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


def test_only_the_forms_of_mcp_results_may_be_bare_texts() -> None:
    def response(tool: str, text: str) -> Any:
        return event_of({"tool_name": tool, "tool_response": text})["tool_response"]

    assert response("Bash", '{"stdout": "x"}') == {"stdout": "x"}
    assert response("mcp__a__b", '{"rows": []}') == '{"rows": []}'
    assert response("mcp__a__b", '[{"type": "text", "text": "x"}]') == [{"type": "text", "text": "x"}]
    assert response("mcp__a__b", "[not JSON") == "[not JSON"


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
    assert len(shown["stdout"]) < 3000
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
        "tool_input": json.dumps({"command": "make"}),
        "tool_response": response if isinstance(response, str) else json.dumps(response),
        **fields,
    }
    answer: dict[str, Any] = json.loads(Hook(off).answer(event))
    return answer


def opened(store: Any = None, readers: int | None = None, **settings: Any) -> Offloader:
    return offloader_for(Settings(store=store or Lasting(), **settings), "s", readers)


class Lasting(MemoryStore):
    """A store that says that it lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.url = "test://"


def test_the_answer_has_a_placeholder_and_says_how_to_see_what_it_replaces() -> None:
    off = opened()

    answer = asked(off, "Bash", BASH | {"stdout": LOG}, agent_type="code-reviewer")

    [info] = off.records()
    assert b"".join(off.content(info.ref)).decode() == LOG
    assert (info.title, info.agent) == ("make", "code-reviewer")
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


@pytest.mark.parametrize("is_binary", [False, True])
def test_a_long_preview_of_the_policy_and_one_of_binary_output_stay_under_the_limit(
    *, is_binary: bool
) -> None:
    digests = [hashlib.sha512(b"%d" % n) for n in range(2000)]
    mixed = "\n".join(digest.hexdigest() for digest in digests)
    binary = b"".join(digest.digest() for digest in digests).decode("utf-8", "surrogateescape")
    off = opened(policy=OffloadPolicy(types={"tool_result": Rule(min_tokens=100, preview_chars=20_000)}))

    answer = asked(off, "Bash", BASH | {"stdout": binary if is_binary else mixed})

    shown = answer["hookSpecificOutput"]["updatedToolOutput"]["stdout"]
    assert (0 if is_binary else 1000) < len(shown) < 3000
    assert 'context_read(id="' in shown


@pytest.mark.parametrize(("readers", "leaves"), [(None, False), (1000, True), (100_000, False)])
def test_a_file_read_leaves_only_on_request_and_all_else_at_once(
    readers: int | None, *, leaves: bool
) -> None:
    read = {"type": "text", "file": FILE | {"content": LOG}}
    off = opened(
        readers=readers, policy=OffloadPolicy(types={"tool_result": Rule(min_tokens=100, after_turns=2)})
    )

    assert ("hookSpecificOutput" in asked(off, "Read", read)) is leaves
    assert "hookSpecificOutput" in asked(off, "Bash", BASH | {"stdout": LOG})


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
    assert Hook(opened()).answer(fields) == "{}"


def of_log(number: int) -> dict[str, Any]:
    """Return an event with a large result."""
    shown = json.dumps(BASH | {"stdout": f"{LOG}{number}"})
    return {
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_use_id": f"toolu_{number}",
        "tool_response": shown,
    }


@pytest.mark.parametrize("on_error", ["keep", "raise", "truncate"])
def test_a_store_that_failed_changes_nothing_and_is_not_asked_again_for_a_minute(on_error: Any) -> None:
    store = FaultyStore(Lasting(), verb="put")
    hook = Hook(opened(store, on_error=on_error))

    answer = json.loads(hook.answer(of_log(1)))
    assert answer.keys() == {"systemMessage"}
    said = answer["systemMessage"]
    assert said.startswith("offload kept a large result in the context, since the store failed: ")
    assert hook.answer(of_log(2)) == "{}"
    assert store.operations == 1
    assert 50 < hook._rests_until - time.monotonic() <= 60
    hook._rests_until = 0
    assert "Offloaded" in hook.answer(of_log(3))


def test_a_store_that_is_too_slow_is_not_asked_again_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hook, "SECONDS", 0.01)
    answered = threading.Event()

    class Slow(Lasting):
        puts = 0

        def put(self, *arguments: Any, **options: Any) -> Any:
            self.puts += 1
            answered.wait(30)
            return super().put(*arguments, **options)

    store = Slow()
    hook = Hook(opened(store))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(hook.answer, of_log(1))
        while not hook._rests_until:
            time.sleep(0.001)
        assert hook.answer(of_log(2)) == "{}"
        answered.set()
        first.result()

    assert store.puts == 1
    monkeypatch.setattr(_hook, "SECONDS", -1)
    with pytest.raises(TimeoutError):
        list(_hook._in_time(iter(["a part that came late"])))


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


def test_the_tools_of_the_plugin_that_read_need_no_permission_and_no_other_tool_gets_one() -> None:
    def decided(tool: str) -> Any:
        answer = json.loads(Hook(opened()).answer({"hook_event_name": "PreToolUse", "tool_name": tool}))
        return answer.get("hookSpecificOutput", {}).get("permissionDecision")

    assert {decided(f"mcp__plugin_offload_store__{name}") for name in RETRIEVAL_TOOLS} == {"allow"}
    for tool in (
        "Bash",
        "mcp__plugin_offload_store__hook",
        "mcp__plugin_offload_store__context_wipe",
        "mcp__evil__context_read",
        "mcp__plugin_offload_store__x__context_read_all",
    ):
        assert decided(tool) is None


def test_a_compaction_is_asked_to_keep_ids() -> None:
    assert "Keep in the summary every id" in Hook(opened()).answer({"hook_event_name": "PreCompact"})


def test_a_store_in_memory_is_refused_and_the_session_of_the_settings_wins() -> None:
    with pytest.raises(ConfigError, match="memory://x is lost when its process ends; set OFFLOAD_STORE"):
        opened("memory://x")
    assert opened(session="mine").session == "mine"
    assert opened().session == "s"


CHOOSING = [
    "OFFLOAD_STORE",
    "OFFLOAD_CONFIG",
    "AWS_ENDPOINT_URL_S3",
    "AWS_CONFIG_FILE",
    "FSSPEC_S3_ENDPOINT_URL",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "HOME",
    "CLAUDE_PROJECT_DIR",
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that writes a project's settings and works in its folder."""
    folder = tmp_path / "project"
    (folder / ".claude").mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("CLAUDE_PROJECT_DIR", raising=False)

    def made(content: Any, file: str = "settings.json") -> Path:
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / ".claude" / file).write_text(text)
        return folder

    return made


@pytest.mark.parametrize("file", ["settings.json", "settings.local.json"])
def test_a_file_of_the_project_does_not_choose_the_store(
    project: Callable[..., Path], tmp_path: Path, file: str
) -> None:
    there = str(tmp_path / "elsewhere")
    for variable in CHOOSING:
        project({"env": {variable: there}}, file)

        # Claude Code adds what it finds there to the environment of the server.
        with pytest.raises(
            ConfigError, match=f"{file} sets {variable}: a file of the project may not choose"
        ):
            leave_out_project({variable: there})


def test_a_value_of_the_users_own_is_in_effect_and_one_of_the_project_left_out_and_named(
    project: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    theirs = {"HTTPS_PROXY": "http://there", "SSL_CERT_FILE": "/there", "AWS_MAX_ATTEMPTS": 7}
    project({"env": {"OFFLOAD_STORE": "there", **theirs}})
    mine = {"OFFLOAD_STORE": "mine", "HTTPS_PROXY": "http://mine", "PATH": "/bin"}
    own, mixed = dict(mine), {**mine, **{name: str(value) for name, value in theirs.items()}}
    whatever = ("", "[]", "{}", '{"env": []}', '{"env": 7}', '{"env": {"OTHER": null}}')

    leave_out_project(own)
    leave_out_project(mixed)

    assert own == mine
    assert mixed == {"OFFLOAD_STORE": "mine", "PATH": "/bin"}
    assert "settings.json sets AWS_MAX_ATTEMPTS, HTTPS_PROXY, SSL_CERT_FILE: left out" in caplog.text
    for content in whatever:
        project(content)
        leave_out_project(own)
        assert own == mine


def test_in_the_home_folder_the_file_is_the_users_own_and_else_that_of_the_project(
    project: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = project({"env": {"OFFLOAD_STORE": "there"}})
    environ = {"OFFLOAD_STORE": "there"}
    with monkeypatch.context() as patched:
        # The working folder is one of the project too.
        patched.setenv("CLAUDE_PROJECT_DIR", str(tmp_path))
        with pytest.raises(ConfigError, match="sets OFFLOAD_STORE"):
            leave_out_project(dict(environ))
    monkeypatch.setenv("HOME", str(home))

    leave_out_project(environ)
    assert environ == {"OFFLOAD_STORE": "there"}

    project({"env": {"OFFLOAD_STORE": "there", "HOME": str(home)}})
    with pytest.raises(ConfigError, match="sets OFFLOAD_STORE"):
        leave_out_project(environ)


@pytest.mark.parametrize("module", ["offload.integrations.claude_code", "offload"])
def test_each_program_of_the_plugin_leaves_out_the_projects_variables(
    project: Callable[..., Path], tmp_path: Path, module: str
) -> None:
    project({"env": {"OFFLOAD_STORE": str(tmp_path / "there")}})
    arguments = ["mcp", "--hook", "claude-code"] if module == "offload" else []
    event = {"hook_event_name": "PostToolUse", "tool_name": "Bash", "tool_use_id": "1"}

    done = prepared.run(
        f"from {module}.__main__ import main; main()",
        *arguments,
        environ={**os.environ, "OFFLOAD_STORE": str(tmp_path / "there")},
        given=json.dumps(event | {"tool_response": BASH | {"stdout": LOG}}),
    )

    assert done.stdout == ""
    assert "settings.json sets OFFLOAD_STORE: a file of the project may not choose" in done.stderr
    assert not (tmp_path / "there").exists()


def test_the_plugin_names_this_interpreter_and_its_hooks_call_its_own_server(tmp_path: Path) -> None:
    folder = write_plugin(tmp_path / "a plugin")

    server = json.loads((folder / ".mcp.json").read_text())["mcpServers"]["store"]
    assert server["command"] == sys.executable
    assert server["args"][1:] == ["-m", "offload", "mcp", "--hook", "claude-code"]
    assert server_command(folder) == [server["command"], *server["args"]]
    hooks = json.loads((folder / "hooks" / "hooks.json").read_text())["hooks"]
    assert hooks.keys() == {"PostToolUse", "PreToolUse", "PreCompact"}
    for [entry] in hooks.values():
        [hook] = entry["hooks"]
        assert (hook["type"], hook["server"], hook["tool"]) == ("mcp_tool", "plugin:offload:store", "hook")
        assert hook["timeout"] <= 20
    assert json.loads((folder / ".claude-plugin" / "plugin.json").read_text())["name"] == "offload"


def matcher(folder: Path, event: str) -> str:
    [entry] = json.loads((folder / "hooks" / "hooks.json").read_text())["hooks"][event]
    return str(entry["matcher"])


def test_only_tools_whose_results_may_leave_call_the_hook(tmp_path: Path) -> None:
    plain = matcher(write_plugin(tmp_path / "a"), "PostToolUse")
    readers = matcher(write_plugin(tmp_path / "b", 4000), "PostToolUse")

    for tool in ("Bash", "Agent", "WebFetch", "WebSearch", "mcp__files__find"):
        assert re.search(plain, tool)
    for tool in (
        "Read",
        "Edit",
        "Write",
        "TaskCreate",
        "ToolSearch",
        "mcp__plugin_offload_store__context_read",
    ):
        assert not re.search(plain, tool)
    assert re.search(readers, "Read")
    assert "--readers" in (server_command(tmp_path / "b") or [])


def test_writing_again_changes_nothing_and_repairs_what_differs(tmp_path: Path) -> None:
    folder = write_marketplace(tmp_path)
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert len(files) == 4

    write_marketplace(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == files

    old = tmp_path / "offload" / ".claude-plugin" / "plugin.json"
    right = old.read_text()
    old.write_text('{"name": "offload", "version": "0.0.1"}')
    write_marketplace(tmp_path)
    assert old.read_text() == right
    assert {path for path in folder.rglob("*") if path.is_file()} == files.keys()


@pytest.mark.parametrize("variables", [{}, {"PYTHONPATH": str(Path(__file__).parents[2])}])
def test_the_server_imports_nothing_from_the_folder_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    (tmp_path / "offload").mkdir()
    (tmp_path / "offload" / "__init__.py").write_text("raise SystemExit('from the project')")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    [program, isolation, *_] = server_command_of(None)
    # An own variable is needed to find the library only if there was one when the plugin was written.
    environ = {**os.environ, "PYTHONPATH": variables.get("PYTHONPATH", str(tmp_path))}

    done = subprocess.run(
        [program, isolation, "-m", "offload", "--version"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


# What Claude Code does with its settings file.
PROGRAM = """
import json, os, pathlib, sys
file = pathlib.Path(os.environ["HOME"], ".claude", "settings.json")
settings = json.loads(file.read_text()) if file.exists() else {}
plugins = settings.setdefault("enabledPlugins", {})
markets = settings.setdefault("extraKnownMarketplaces", {})
match sys.argv[2:]:
    case ["install", name, "--marketplace", path]:
        plugins["offload@offload-local"] = True
        markets["offload-local"] = {"source": {"source": "directory", "path": path}}
    case ["uninstall", name]:
        del plugins[name]
    case ["marketplace", "remove", name]:
        del markets[name]
    case ["list", "--json"]:
        print(json.dumps([{"id": name} for name in plugins]))
file.write_text(json.dumps(settings))
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    home = tmp_path / "a home"
    home.mkdir()
    for name in ("XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "CLAUDE_PROJECT_DIR", "OFFLOAD_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    # Without a program of this name.
    monkeypatch.setenv("PATH", str(home))
    return runner(capsys, monkeypatch)


def test_without_the_program_path_alone_writes_the_plugin_and_prints_its_folder(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("offload.cli.claude_code.find_spec", lambda _name: True)
        done = run("claude-code", "install")
    assert done.returncode == 2
    assert "--claude PATH" in done.stderr
    assert '--plugin-dir "$(offload claude-code path)"' in done.stderr
    done = run("claude-code", "uninstall")
    assert (done.returncode, done.stdout) == (0, "nothing to remove: the plugin is not installed\n")
    first, second = run("claude-code", "path"), run("claude-code", "path")
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert (Path(first.stdout.splitlines()[-1]) / ".mcp.json").is_file()


@pytest.mark.skipif(find_spec("mcp") is not None, reason="here the server starts")
def test_status_says_where_results_go_and_why_the_server_does_not_start(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    Offloader(str(store), session=folder_session()).offload_text(LOG, tool_name="Bash")
    [info] = Offloader(str(store), session=folder_session()).records()
    monkeypatch.setenv("OFFLOAD_STORE", str(store))

    done = run("claude-code", "status", "--json")

    assert done.returncode == 3
    facts = json.loads(done.stdout)
    assert facts.keys() >= {"installed", "server", "store", "session", "records"}
    assert facts["installed"].startswith("no (")
    assert "pip install 'offload[" in facts["server"]
    assert (facts["store"], facts["session"]) == (str(store), folder_session())
    assert facts["records"] == f"1 record, the last {info.ref} ({len(LOG):,} characters of Bash)"


def test_status_starts_the_server_with_the_variables_of_the_project(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".claude").mkdir()
    settings = {"env": {"OFFLOAD_STORE": "chosen there", "PATH": "/nowhere", "OFFLOAD_SESSION": 7}}
    (tmp_path / ".claude" / "settings.json").write_text(json.dumps(settings))
    monkeypatch.setenv("CLAUDE_PROJECT_DIR", str(tmp_path))
    server = [sys.executable, "-c", "import os, sys; sys.exit(os.environ['OFFLOAD_STORE'])"]
    monkeypatch.setattr("offload.cli.claude_code.plugin.server_command_of", lambda _readers: server)

    done = run("claude-code", "status", "--json")

    assert json.loads(done.stdout)["server"] == "does not start: chosen there"


@pytest.mark.parametrize("name", thinned(["plugin:offload:store", "plugin_offload_store"], 2))
def test_status_names_a_server_of_the_project_that_takes_the_place_of_the_plugins(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    servers = {"store": {"command": "x"}, name: {"command": "x"}}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    monkeypatch.setenv("CLAUDE_PROJECT_DIR", str(tmp_path))

    done = run("claude-code", "status", "--json")

    assert done.returncode == 3
    assert f".mcp.json has a server '{name}'" in json.loads(done.stdout)["server"]


@pytest.mark.parametrize("before", [None, '{ "model": "opus",\n "enabledPlugins": {"x@y": true}}'])
def test_uninstall_leaves_the_settings_as_they_were(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.setattr("offload.cli.claude_code.find_spec", lambda _name: True)
    settings = tmp_path / "a home" / ".claude" / "settings.json"
    settings.parent.mkdir()
    if before is not None:
        settings.write_text(before)
    program = tmp_path / "claude"
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o700)

    done = run("claude-code", "install", "--claude", program, "--readers", "4000")
    assert done.returncode == 0, done.stderr
    assert "offload@offload-local" in settings.read_text()
    folder = Path(done.stdout.partition("installed from ")[2].partition(";")[0])
    assert "--readers" in (server_command(folder) or [])
    done = run("claude-code", "uninstall", "--claude", program)
    assert done.returncode == 0, done.stderr

    assert (settings.read_text() if settings.exists() else None) == before
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        ([], "the URL of the store is missing"),
        (["./store"], "--session NAME is missing"),
        (["./store", "--session", "s", "--readers", "9"], "--readers needs --hook"),
        (["--hook", "claude-code", "--http", "127.0.0.1:0"], "omit --http"),
    ],
)
def test_a_server_without_what_it_needs_says_so(run: Run, arguments: list[str], missing: str) -> None:
    done = run("mcp", *arguments)

    assert done.returncode == 2
    assert missing in done.stderr


def test_last_is_the_newest_record_of_the_folder_or_else_of_the_store(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    refs = {}
    for when, session in enumerate([folder_session(), "a", "b"]):
        off = Offloader(str(store), session=session)
        off.offload_text(f"{session} {LOG}")
        [info] = off.records()
        refs[session] = info.ref
        file = next(store.rglob(f"{info.ref}~*"))
        os.utime(file, (when + 1e9, when + 1e9))

    assert refs[folder_session()] in run("show", "last", "--store", store).stderr
    monkeypatch.chdir(tmp_path)
    assert refs["b"] in run("show", "last", "--store", store).stderr
    assert refs["a"] in run("show", "last", "--store", store, "--session", "a").stderr
    (tmp_path / "empty").mkdir()
    done = run("show", "last", "--store", tmp_path / "empty")
    assert (done.returncode, "no record yet in" in done.stderr) == (1, True)
