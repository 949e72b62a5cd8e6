"""Claude Code with the paragraph of docs/shell.md in its CLAUDE.md: commands run through `offload exec`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from frameworks.claude_code import Answer, ClaudeCode, Request, Run, serving, text, tool

PAGE = Path(__file__).resolve().parents[2] / "docs" / "shell.md"
REF = re.compile(r", id ([a-z]+)\]")


@pytest.fixture
def program(tmp_path: Path) -> ClaudeCode:
    """Return Claude Code in a folder whose instructions are those of the page."""
    program = ClaudeCode(tmp_path, "")
    program.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    [pasted] = re.findall(r"Paste this into .*?```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (program.folder / "CLAUDE.md").write_text(pasted)
    return program


def ran(program: ClaudeCode, *commands: str) -> tuple[Run, list[str], Request]:
    """Let the model run commands, with the id of the first result for ID; return the results too."""

    def script(request: Request) -> Answer:
        if request.step >= len(commands):
            return text("done")
        found = REF.search(request.results[0]) if request.results else None
        return tool("Bash", command=commands[request.step].replace("ID", found[1] if found else ""))

    with serving(script) as api:
        program.url = api.url
        run = program.run("go", "--allowedTools", "Bash", seconds=100)
        return run, api.last.results, api.last


def test_the_model_gets_a_preview_and_reads_the_rest_by_the_commands_that_it_names(
    program: ClaudeCode,
) -> None:
    run, results, last = ran(
        program, "offload exec -- seq 1 6000", "offload grep 4321 ID", "offload show ID --lines 4000:4002"
    )

    preview, found, shown = results
    assert run.result == "done"
    assert "Do not guess what the preview leaves out" in last.texts
    assert preview.startswith("[Offloaded: Bash result, 6000 lines")
    assert "or offload show" in preview
    assert len(preview) < 2000
    assert "4321" in found
    assert "4000\n" in shown
    assert "4003" not in shown


def test_a_command_that_fails_is_a_failed_call_with_its_preview(program: ClaudeCode) -> None:
    _, results, last = ran(program, "offload exec -- sh -c 'seq 1 6000; exit 3'", "offload grep 4321 ID")

    blocks = [block for message in last.messages for block in message["content"] if isinstance(block, dict)]
    assert [block.get("is_error", False) for block in blocks if block["type"] == "tool_result"] == [
        True,
        False,
    ]
    assert results[0].startswith("Exit code 3\n")
    assert "4321" in results[1]


def test_a_short_output_is_what_the_command_alone_would_print(program: ClaudeCode) -> None:
    _, results, _ = ran(
        program, "offload exec -- sh -c 'echo out; echo err >&2'", "sh -c 'echo out; echo err >&2'"
    )

    assert results[0] == results[1]
