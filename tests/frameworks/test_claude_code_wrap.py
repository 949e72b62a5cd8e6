"""Claude Code started by `offload wrap`: one command, the tools to read back included."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from frameworks.claude_code import Answer, ClaudeCode, Request, serving, text, tool

from offload import Offloader
from offload.placeholder.forms import known_refs
from offload.timeline import Timeline

BASH = "seq 1 4000"
PLACEHOLDER = "[Offloaded: "


def wrapped(tmp_path: Path, url: str) -> ClaudeCode:
    """Return Claude Code behind the command; the URL that it had is that of the provider."""
    program = ClaudeCode(tmp_path, url)
    program.before = [sys.executable, "-m", "offload", "wrap", "--store", str(tmp_path / "store")]
    return program


def replaced(request: Request) -> list[str]:
    return [result for result in request.results if result.startswith(PLACEHOLDER)]


def timelines(tmp_path: Path) -> list[Timeline]:
    store = Offloader(tmp_path / "store").store
    return [Timeline(store, name) for name in sorted({key.key.split("/")[1] for key in store.keys("j/")})]


def test_a_result_leaves_and_the_model_reads_it_back_without_any_setting(tmp_path: Path) -> None:
    def script(request: Request) -> Answer:
        if request.step == 0:
            return tool("Bash", command=BASH)
        if request.step == 1:
            return tool("Bash", command="echo short")
        if request.step == 2:
            [said] = replaced(request)
            return tool("context_grep", id=next(known_refs(said)), pattern="3999")
        return text("done")

    with serving(script) as api:
        ran = wrapped(tmp_path, api.url).run("go", "--allowedTools", "Bash", seconds=300)

    assert ran.result == "done"
    assert "3999" in api.last.results[-1]
    assert "tokens kept out" in ran.stderr.splitlines()[-1]
    assert ran.returncode == 0
    sent: list[Any] = [timeline.at(len(timeline)) for timeline in timelines(tmp_path)]
    assert any(PLACEHOLDER in str(messages) for messages in sent)


def test_a_resumed_session_keeps_its_placeholders_and_its_timeline(tmp_path: Path) -> None:
    def script(request: Request) -> Answer:
        return tool("Bash", command=BASH) if request.step < 3 else text("done")

    with serving(script) as api:
        program = wrapped(tmp_path, api.url)
        first = program.run("go", "--allowedTools", "Bash", seconds=300)
        before = replaced(api.last)
        program.run("and now?", "--allowedTools", "Bash", resume=first.session, seconds=300)
        after = replaced(api.last)

    assert before
    assert after[: len(before)] == before
    assert len(max(timelines(tmp_path), key=len)) >= 5


def test_the_exit_code_and_the_answer_of_a_provider_that_fails_pass(tmp_path: Path) -> None:
    program = wrapped(tmp_path, "http://127.0.0.1:9")
    program.environ["CLAUDE_CODE_MAX_RETRIES"] = "0"
    ran = program.run("go", seconds=300)
    assert ran.returncode == 1
    assert "502" in ran.result
