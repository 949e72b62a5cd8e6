"""Claude Code started by `offload wrap`: one command, the tools to read back included."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _provider import Provider, serving as charging
from frameworks.claude_code import SECONDS, Answer, ClaudeCode, Request, binary, serving, text, tool

from offload import Offloader
from offload.engine.placeholder.forms import known_refs
from offload.reading.timeline import Timeline

BASH = "seq 1 4000"
# Two large results that are replaced, and enough requests after them.
LONG = ("seq 1 5000", "echo a", "seq 5000 9000", "echo b", "echo c", "seq 1 3000", *["echo d"] * 8)
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


def billed(tmp_path: Path, *, is_wrapped: bool) -> tuple[Provider, str]:
    """Return a provider that charges as the real one does, after a run, and the last line on stderr."""
    numbers = itertools.count()

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        step = sum(message["role"] == "assistant" for message in request["messages"])
        if not request.get("tools") or step >= len(LONG):
            return [{"type": "text", "text": "done"}]
        return [
            {"type": "tool_use", "id": f"t{next(numbers)}", "name": "Bash", "input": {"command": LONG[step]}}
        ]

    with charging(Provider(answer=answer, is_strict=True)) as provider:
        program = wrapped(tmp_path, provider.url) if is_wrapped else ClaudeCode(tmp_path, provider.url)
        ran = program.run("go", "--allowedTools", "Bash", "--model", "claude-opus-5")
    assert (ran.result, provider.refused) == ("done", 0)
    return provider, ran.stderr.rpartition("offload: ")[2]


def test_the_line_at_the_end_has_the_figures_that_the_provider_counted(tmp_path: Path) -> None:
    direct, _ = billed(tmp_path / "direct", is_wrapped=False)
    through, line = billed(tmp_path / "through", is_wrapped=True)
    figures = re.match(
        r"(\d+) requests, ([\d,]+) tokens kept out, about \$(\S+) of \$(\S+) input saved", line
    )

    assert figures
    requests, kept_out, saved, plain = (float(figure.replace(",", "")) for figure in figures.groups())
    counted = [sum(charge.tokens for charge in provider.charges) for provider in (direct, through)]
    dollars = [sum(charge.cost for charge in provider.charges) * 5 / 1e6 for provider in (direct, through)]
    assert requests == len(through.charges) == len(direct.charges)
    assert kept_out == pytest.approx(counted[0] - counted[1], rel=0.1)
    assert plain == pytest.approx(dollars[0], rel=0.05)
    assert saved == pytest.approx(dollars[0] - dollars[1], rel=0.2, abs=0.01)


def test_a_continued_session_and_one_after_clear_have_conversations_of_their_own(tmp_path: Path) -> None:
    def script(request: Request) -> Answer:
        return tool("Bash", command=BASH) if request.step < 2 else text("done")

    with serving(script) as api:
        program = wrapped(tmp_path, api.url)
        program.run("first task", "--allowedTools", "Bash")
        before = replaced(api.last)
        program.run("and now?", "--continue", "--allowedTools", "Bash")
        continued = api.last
        program.talk("second task", "/clear", "third task", options=["--allowedTools", "Bash"])

    assert before
    assert replaced(continued)[: len(before)] == before
    assert "first task" in continued.texts
    assert "second task" not in api.last.texts
    assert replaced(api.last)
    assert len(timelines(tmp_path)) == 3


def test_a_sub_agent_reads_back_in_a_conversation_of_its_own(tmp_path: Path) -> None:
    task = tool(
        "Agent", description="count", prompt="count", subagent_type="general-purpose", run_in_background=False
    )

    def agents(request: Request) -> Answer:
        if request.step < 2:
            return tool("Bash", command=(BASH, "echo short")[request.step])
        if request.step == 2:
            return tool("context_grep", id=next(known_refs(replaced(request)[0])), pattern="3999")
        return text(f"the report: {request.results[-1]}")

    with serving([task, text("done")], agents) as api:
        ran = wrapped(tmp_path, api.url).run("go", "--allowedTools", "Bash,Agent")

    assert (ran.result, ran.returncode) == ("done", 0)
    assert "3999" in api.last.results[0]
    assert len(timelines(tmp_path)) == 2


class Terminal:
    """A program on a terminal of its own, and what it printed there."""

    def __init__(self, command: list[str], folder: Path, environ: dict[str, str]) -> None:
        self.shown = b""
        self.pid, self._number = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environ)  # noqa: S606 # the program under test

    def type(self, keys: str) -> None:
        os.write(self._number, keys.encode())

    def read_until(self, is_there: Callable[[], bool], *, again: str = "") -> None:
        """Read what is printed until something is there, or the program has closed the terminal.

        Meanwhile `again` is typed twice a second.
        """
        began, typed = time.monotonic(), 0
        while not is_there():
            passed = time.monotonic() - began
            assert passed < SECONDS, self.shown[-2000:]
            if again and passed * 2 >= typed:
                self.type(again)
                typed += 1
            if select.select([self._number], [], [], 0.05)[0]:
                try:
                    self.shown += os.read(self._number, 1 << 16)
                except OSError:  # the terminal is closed
                    return

    def shows(self, text: str) -> Callable[[], bool]:
        return lambda: text.encode() in self.shown

    def wait(self) -> int:
        """Return the exit code, when all is read."""
        self.read_until(lambda: False)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def slow(seen: list[Request]) -> Callable[[Request], Answer]:
    def script(request: Request) -> Answer:
        if "slow" not in request.texts:
            return text("first-answer")
        seen.append(request)
        time.sleep(5)
        return text("late")

    return script


def on_terminal(program: ClaudeCode, *arguments: str) -> Terminal:
    """Start Claude Code as a person does, without its first questions."""
    trusted = {str(program.folder): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}}
    key = {"approved": [program.place["env"]["ANTHROPIC_API_KEY"]], "rejected": []}
    settings = {"hasCompletedOnboarding": True, "customApiKeyResponses": key, "projects": trusted}
    (program.home / ".claude.json").write_text(json.dumps(settings | {"theme": "dark"}))
    environ = program.place["env"] | {"TERM": "xterm-256color"}
    return Terminal([*program.before, binary(), *arguments], program.folder, environ)


def test_ctrl_c_stops_an_answer_and_then_the_program_and_the_line_follows_it(tmp_path: Path) -> None:
    seen: list[Request] = []
    with serving(slow(seen)) as api:
        terminal = on_terminal(wrapped(tmp_path, api.url))
        terminal.read_until(terminal.shows("auto mode on"))
        terminal.type("first-task")
        terminal.read_until(terminal.shows("first-task"))
        terminal.type("\r")
        terminal.read_until(terminal.shows("first-answer"))
        terminal.type("slow-task")
        terminal.read_until(terminal.shows("slow-task"))
        terminal.type("\r")
        terminal.read_until(partial(bool, seen))
        # It stops the answer, and asks for another one before it ends.
        terminal.read_until(terminal.shows("--resume"), again="\x03")
        code = terminal.wait()

    assert code == 0
    assert b"late" not in terminal.shown
    assert b"offload: 2 requests" in terminal.shown.rpartition(b"--resume")[2]


def test_ctrl_c_in_print_mode_ends_client_and_command_with_the_code_of_the_client(tmp_path: Path) -> None:
    codes = []
    for name in ("direct", "through"):
        seen: list[Request] = []
        with serving(slow(seen)) as api:
            program = (ClaudeCode if name == "direct" else wrapped)(tmp_path / name, api.url)
            terminal = on_terminal(program, "--print", "slow")
            terminal.read_until(partial(bool, seen))
            terminal.type("\x03")
            codes.append(terminal.wait())

    assert codes[0] == codes[1]
    assert b"offload: 1 request, " in terminal.shown


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def started(tmp_path: Path, api: Any) -> tuple[subprocess.Popen[str], int]:
    """Start a wrapped run; return its process, and that of Claude Code, while it waits for an answer."""
    program = wrapped(tmp_path, api.url)
    # After the first failure it says why; by default it tries for minutes.
    environ = program.place["env"] | {"CLAUDE_CODE_MAX_RETRIES": "1"}
    run = subprocess.Popen(
        [*program.before, binary(), "--print", "slow"],
        cwd=program.folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not api.requests and time.monotonic() < deadline:
        time.sleep(0.02)
    [client] = children(run.pid)
    return run, client


def test_a_client_that_is_killed_leaves_the_exit_code_of_a_shell_and_the_line(tmp_path: Path) -> None:
    with serving(slow([])) as api:
        run, client = started(tmp_path, api)
        os.kill(client, signal.SIGKILL)
        _, err = run.communicate(timeout=60)

    assert run.returncode == 128 + signal.SIGKILL
    assert err.startswith("offload: 1 request, ")


def test_a_gateway_that_is_killed_makes_the_client_say_why_and_end(tmp_path: Path) -> None:
    with serving(slow([])) as api:
        run, _ = started(tmp_path, api)
        run.kill()
        out, err = run.communicate(timeout=60)  # Claude Code has these pipes too, until it ends

    assert "API Error" in out + err
    assert "late" not in out
