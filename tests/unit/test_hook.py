"""`python -m offload.integrations.claude_code`: the hook of Claude Code as a command."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from offload import Offloader
from offload.integrations.claude_code import __main__ as hook
from offload.policy.defaults import DEFAULT_MIN_TOKENS

# Results just under and over the threshold, in tokens.
SMALL, LARGE = "word " * 1000, "\n".join(map(str, range(6000)))
TOO_LARGE = (
    "Error: result (110,000 characters across 8,547 lines) exceeds maximum allowed tokens. "
    "Output has been saved to {}.\nFormat: Plain text\n- You MUST read all of it.\n"
)
HOOK = "from offload.integrations.claude_code import __main__ as hook"
HEAVY = {"pydantic", "msgspec", "fsspec", "zstandard", "offload.offloader", "offload.settings.loader"}


def event(response: Any, tool: str = "Bash", **more: Any) -> dict[str, Any]:
    return {
        "session_id": "s",
        "transcript_path": "/nowhere/s.jsonl",
        "cwd": "/nowhere",
        "hook_event_name": "PostToolUse",
        "tool_name": tool,
        "tool_input": {"command": "seq 6000"},
        "tool_response": response,
        "tool_use_id": "toolu_1",
        **more,
    }


def bash(stdout: str, **more: Any) -> dict[str, Any]:
    flags = {"interrupted": False, "isImage": False, "noOutputExpected": False}
    return {"stdout": stdout, "stderr": "", **flags, **more}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "project").mkdir()
    places = {"CLAUDE_PROJECT_DIR": str(tmp_path / "project"), "OFFLOAD_STORE": str(tmp_path / "store")}
    return {**os.environ, **places, "HOME": str(tmp_path)}


def run(environ: dict[str, str], stdin: str, program: str = "-m offload.integrations.claude_code") -> Any:
    """Run the command in the project's folder."""
    return subprocess.run(
        [sys.executable, "-P", *program.split(" ", 1)],
        input=stdin,
        capture_output=True,
        text=True,
        env=environ,
        cwd=environ["CLAUDE_PROJECT_DIR"],
        check=False,
    )


def answered(environ: dict[str, str], given: Any) -> str:
    done = run(environ, json.dumps(given))
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout)


def stored(environ: dict[str, str]) -> dict[str, str]:
    """Return the stored texts of all sessions by id."""
    folders = Path(environ["OFFLOAD_STORE"]).glob("r/*")
    sessions = [Offloader(environ["OFFLOAD_STORE"], session=folder.name) for folder in folders]
    return {i.ref: b"".join(off.content(i.ref)).decode() for off in sessions for i in off.records()}


def test_a_large_result_is_stored_and_replaced_in_the_form_of_its_tool(environ: dict[str, str]) -> None:
    answer = json.loads(answered(environ, event(bash(LARGE))))

    [(ref, text)] = stored(environ).items()
    output = answer["hookSpecificOutput"]
    assert text == LARGE
    assert output["hookEventName"] == "PostToolUse"
    assert output["updatedToolOutput"] == bash(output["updatedToolOutput"]["stdout"])
    assert f"id {ref}" in output["updatedToolOutput"]["stdout"]
    assert f"offload show {ref}" in answer["systemMessage"]


def test_the_whole_of_a_result_that_was_cut_is_read_from_its_file(
    environ: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "s" / "tool-results"
    folder.mkdir(parents=True)
    (folder / "x.txt").write_text(LARGE * 9)
    given = event(TOO_LARGE.format(folder / "x.txt"), "mcp__t__text", transcript_path=f"{tmp_path}/s.jsonl")

    output = json.loads(answered(environ, given))["hookSpecificOutput"]["updatedToolOutput"]

    [(ref, text)] = stored(environ).items()
    assert text == LARGE * 9
    assert f"id {ref}" in output


@pytest.mark.parametrize(
    "given",
    [
        event(bash(SMALL)),
        event(bash(LARGE, backgroundTaskId="b1")),
        event({"type": "text", "file": {"content": LARGE}}, "Read"),
        event({"filePath": "a", "oldString": LARGE}, "Edit"),
        event(LARGE, "mcp__plugin_offload_store__context_read"),
        event(None, hook_event_name="PostToolUseFailure", error=LARGE),
        event(None, hook_event_name="PreToolUse"),
        event(None, hook_event_name="Stop"),
    ],
)
def test_an_event_that_changes_nothing_has_no_answer(given: Any) -> None:
    assert not hook._concerns(given)


@pytest.mark.parametrize("given", [event(bash(SMALL)), event(None, hook_event_name="Stop")])
def test_a_result_under_the_threshold_loads_no_library(environ: dict[str, str], given: Any) -> None:
    program = f"-c import sys; {HOOK}; hook.main(); print(*sys.modules)"
    done = run(environ, json.dumps(given), program)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("sys ")
    assert set(done.stdout.split()) & HEAVY == set()


def test_tools_of_the_plugin_are_allowed_and_a_compaction_keeps_the_ids(environ: dict[str, str]) -> None:
    own = event(None, "mcp__plugin_offload_store__context_read", hook_event_name="PreToolUse")
    allowed = json.loads(answered(environ, own))

    assert allowed["hookSpecificOutput"]["permissionDecision"] == "allow"
    assert "every id" in answered(environ, event(None, hook_event_name="PreCompact"))


@pytest.mark.parametrize("stdin", ["", "no JSON", "[]", "{}", '{"hook_event_name": "PostToolUse"}'])
def test_an_event_of_another_form_has_no_answer(environ: dict[str, str], stdin: str) -> None:
    done = run(environ, stdin)

    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "broken",
    [
        {"OFFLOAD_STORE": "memory://"},
        {"OFFLOAD_STORE": "nothing://x"},
        {"OFFLOAD_STORE": "/dev/null/store"},
        {"OFFLOAD_POLICY": "nonsense"},
    ],
)
def test_a_result_that_cannot_be_stored_is_kept_and_the_log_says_why(
    environ: dict[str, str], broken: dict[str, str]
) -> None:
    done = run({**environ, **broken}, json.dumps(event(bash(LARGE))))

    assert done.returncode == 0
    assert not done.stdout or json.loads(done.stdout).keys() == {"systemMessage"}
    assert re.search(r"^offload: .*kept in (full|the message): \S", done.stderr, re.MULTILINE)


def test_a_store_that_does_not_answer_in_time_keeps_the_result(environ: dict[str, str]) -> None:
    program = f"-c {HOOK}; hook.SECONDS = 0.5; hook.main()"
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        broken = {"OFFLOAD_STORE": "s3://b/p", "OFFLOAD_STORAGE_OPTIONS__ENDPOINT_URL": url}
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        done = run({**environ, **broken, **keys}, json.dumps(event(bash(LARGE))), program)

    assert (done.returncode, done.stdout) == (0, "")


def test_a_folder_of_the_project_is_not_imported(environ: dict[str, str]) -> None:
    (Path(environ["CLAUDE_PROJECT_DIR"]) / "json.py").write_text("raise SystemExit('imported')")

    assert answered(environ, event(bash(SMALL))) == ""


def test_the_size_that_is_looked_at_first_is_that_of_the_default_policy() -> None:
    assert hook.MIN_TOKENS == DEFAULT_MIN_TOKENS
