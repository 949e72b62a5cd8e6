"""`python -m offload.integrations.claude_code`: the hook of Claude Code as a command."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import prepared
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
MAIN = f"{HOOK}; hook.main()"
OWN_TOOL = "mcp__plugin_offload_store__context_read"
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


def run(environ: dict[str, str], stdin: str, program: str = MAIN) -> Any:
    """Run the command, or another program, in a fork and in the project's folder."""
    folder = Path(environ["CLAUDE_PROJECT_DIR"])
    return prepared.run(program, folder=folder, environ=environ, given=stdin)


def run_anew(environ: dict[str, str], stdin: str, *program: str) -> Any:
    """Run the command, or another program, in a process of its own and in the project's folder."""
    return subprocess.run(
        [sys.executable, "-P", *(program or ("-m", "offload.integrations.claude_code"))],
        input=stdin,
        capture_output=True,
        text=True,
        env=environ,
        cwd=environ["CLAUDE_PROJECT_DIR"],
        check=False,
    )


def answered(done: Any) -> str:
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout)


def stored(environ: dict[str, str]) -> dict[str, str]:
    """Return the stored texts of all sessions by id."""
    folders = Path(environ["OFFLOAD_STORE"]).glob("r/*")
    sessions = [Offloader(environ["OFFLOAD_STORE"], session=folder.name) for folder in folders]
    return {i.ref: b"".join(off.content(i.ref)).decode() for off in sessions for i in off.records()}


def test_a_large_result_is_stored_and_replaced_in_the_form_of_its_tool(environ: dict[str, str]) -> None:
    answer = json.loads(answered(run_anew(environ, json.dumps(event(bash(LARGE))))))

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

    output = json.loads(answered(run(environ, json.dumps(given))))["hookSpecificOutput"]["updatedToolOutput"]

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
        event(LARGE, OWN_TOOL),
        event(None, hook_event_name="PostToolUseFailure", error=LARGE),
        event(None, hook_event_name="PreToolUse"),
        event(None, hook_event_name="Stop"),
    ],
)
def test_an_event_that_changes_nothing_has_no_answer(given: Any) -> None:
    assert not hook._concerns(given)


def test_a_tool_of_the_plugin_and_a_compaction_are_answered() -> None:
    assert hook._concerns(event(None, OWN_TOOL, hook_event_name="PreToolUse"))
    assert hook._concerns(event(None, hook_event_name="PreCompact"))


def test_a_result_under_the_threshold_loads_nothing_but_the_standard_library(environ: dict[str, str]) -> None:
    program = f"import sys; {MAIN}; print(*sys.modules)"
    loaded = answered(run_anew(environ, json.dumps(event(bash(SMALL))), "-c", program)).split()

    assert set(loaded) & HEAVY == set()
    others = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    assert {name for name in others if not name.startswith("_")} == {"offload"}


@pytest.mark.parametrize("stdin", ["", "no JSON", "[]", "{}", '{"hook_event_name": "PostToolUse"}'])
def test_an_event_of_another_form_has_no_answer(
    stdin: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    hook.main()

    answer, said = capsys.readouterr()
    assert (answer, said.count("\n")) == ("", 1)


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
    assert re.search(r"^offload: .*(kept in full|originals are kept): \S", done.stderr, re.MULTILINE)


def test_a_store_that_does_not_answer_in_time_keeps_the_result(environ: dict[str, str]) -> None:
    program = f"{HOOK}; hook.SECONDS = 0.5; hook.main()"
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        broken = {"OFFLOAD_STORE": "s3://b/p", "OFFLOAD_STORAGE_OPTIONS__ENDPOINT_URL": url}
        keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        done = run({**environ, **broken, **keys}, json.dumps(event(bash(LARGE))), program)

    assert (done.returncode, done.stdout) == (0, "")


def test_a_folder_of_the_project_is_not_imported(environ: dict[str, str]) -> None:
    (Path(environ["CLAUDE_PROJECT_DIR"]) / "json.py").write_text("raise SystemExit('imported')")

    assert answered(run_anew(environ, json.dumps(event(bash(SMALL))))) == ""


def test_the_size_that_is_looked_at_first_is_that_of_the_default_policy() -> None:
    assert hook.MIN_TOKENS == DEFAULT_MIN_TOKENS
