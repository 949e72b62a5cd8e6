"""The plugin in the real Claude Code: what the model is sent, what the store has, what can be read back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from frameworks import claude_code_tools
from frameworks.claude_code import Answer, Api, ClaudeCode, Request, Run, Script, binary, serving, text, tool
from frameworks.claude_code_tools import lines

from offload import Offloader
from offload.tools._definitions import system_prompt

READ, GREP = (f"mcp__plugin_offload_store__context_{name}" for name in ("read", "grep"))
# Allowed are the agent's own tools; those of the plugin allow themselves.
ALLOWED = ("--allowedTools", "Bash Read Edit Write Agent ToolSearch mcp__t")
SERVER = {"mcpServers": {"t": {"command": sys.executable, "args": [claude_code_tools.__file__]}}}
SMALL = "seq 1 20"
LARGE, NUMBERS = "seq 1 6000", "\n".join(map(str, range(1, 6001)))
TASK = {"description": "count", "prompt": "count", "subagent_type": "general-purpose"}
COMPACTING = "TEXT ONLY"
_REF = re.compile(r'\bid[ =]"?([a-z]{10})\b')


@dataclass
class Project:
    """A project's folder, with Claude Code and the plugin in it.

    Attributes:
        program: Claude Code.
        store: the folder of the store.
        plugin: the folder of the plugin.
    """

    program: ClaudeCode
    store: Path
    plugin: Path

    def run(self, prompt: str = "go", *options: str, **more: Any) -> Run:
        ran = self.program.run(prompt, "--plugin-dir", str(self.plugin), *ALLOWED, *options, **more)
        assert ran.returncode == 0, ran.stderr
        return ran

    def stored(self) -> dict[str, str]:
        """Return the stored texts by id; the sessions are those that the files of the store name."""
        return {
            info.ref: b"".join(offloader.content(info.ref)).decode()
            for offloader in self.sessions()
            for info in offloader.records()
        }

    def sessions(self) -> list[Offloader]:
        names = [folder.name for folder in self.store.glob("r/*")]
        return [Offloader(self.store, session=name) for name in names]


def plugin_in(home: Path, *options: str) -> Path:
    """Let the command write the plugin for the user with this home folder, and return where."""
    command = [sys.executable, "-P", "-m", "offload", "claude-code", "path", *options]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environ_of(home), cwd=home)
    return Path(done.stdout.splitlines()[-1])


def environ_of(home: Path, **more: str) -> dict[str, str]:
    """Return an environment in which nothing finds this interpreter, or the user's own settings."""
    own = str(Path(sys.executable).parent)
    path = os.pathsep.join(part for part in os.environ["PATH"].split(os.pathsep) if part != own)
    return {"HOME": str(home), "PATH": path, **more}


def project(root: Path, api: Api, *options: str, **environ: str) -> Project:
    store = root / "the store"
    program = ClaudeCode(root, api.url)
    program.environ = environ_of(program.home, OFFLOAD_STORE=str(store), **environ)
    return Project(program, store, plugin_in(program.home, *options))


def ran(root: Path, *scripts: Any, options: tuple[str, ...] = (), **environ: Any) -> tuple[Project, Api]:
    """Run Claude Code with the plugin to the end of its scripts, those of sub-agents last."""
    with serving(*scripts) as api:
        made = project(root, api)
        made.program.environ |= environ
        made.run("go", *options)
    return made, api


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder, é 数"
    folder.mkdir()
    return folder


def ref_in(said: str) -> str:
    """Return the id that a text cites."""
    found = _REF.search(said)
    assert found is not None, said[:500]
    return found[1]


def asking(*steps: Answer | Callable[[Request], Answer]) -> Script:
    """Return a script with steps that depend on the request."""

    def script(request: Request) -> Answer:
        step = steps[request.step] if request.step < len(steps) else text("done")
        return step(request) if callable(step) else step

    return script


def reading(name: str, **arguments: Any) -> Callable[[Request], Answer]:
    """Return a step that reads what the last result cites."""
    return lambda request: tool(name, id=ref_in(request.results[-1]), **arguments)


# Results of Bash


def test_a_large_output_is_stored_whole_and_read_back_through_the_program(root: Path) -> None:
    made, api = ran(root, asking(tool("Bash", command=LARGE), reading(GREP, pattern="5987")))

    placeholder, found = api.last.results
    assert made.stored() == {ref_in(placeholder): NUMBERS}
    assert len(placeholder) < 3000
    assert "5987" not in placeholder
    assert re.search(r"^5987\b", found, re.MULTILINE)


def test_an_output_that_the_program_cuts_is_stored_whole(root: Path) -> None:
    made, api = ran(root, asking(tool("Bash", command="seq 1 400000"), reading(GREP, pattern="399876")))

    placeholder, found = api.last.results
    [stored] = made.stored().values()
    assert stored.rstrip("\n") == "\n".join(map(str, range(1, 400_001)))
    assert len(placeholder) < 3000
    assert "persisted-output" not in placeholder
    assert "399876" in found


def test_a_small_output_is_sent_as_it_is(root: Path) -> None:
    made, api = ran(root, [tool("Bash", command=SMALL)])

    assert api.last.results == ["\n".join(map(str, range(1, 21)))]
    assert made.stored() == {}


def test_the_user_is_told_what_was_stored(root: Path) -> None:
    with serving([tool("Bash", command=LARGE)]) as api:
        made = project(root, api)
        ran = made.run()

    [ref] = made.stored()
    entries = json.dumps(made.program.transcript(ran.session))
    assert f"offload show {ref}" in entries


# Failures


@pytest.mark.parametrize(
    "environ",
    [{"OFFLOAD_STORE": "/dev/null/store"}, {"OFFLOAD_POLICY": "nonsense"}],
    ids=["store", "setting"],
)
def test_with_a_store_that_cannot_be_written_or_a_broken_setting_the_original_is_kept(
    root: Path, environ: dict[str, Any]
) -> None:
    _, api = ran(root, [tool("Bash", command=LARGE)], **environ)

    assert api.last.results == [NUMBERS]


def kill_server(home: Path) -> int:
    """Kill the plugin's server of the program with this home folder; return how many there were."""
    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_server = b"\0mcp\0--hook\0" in (process / "cmdline").read_bytes()
            if is_server and f"HOME={home}\0".encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
    return killed


in_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the server in /proc")


@in_proc
def test_after_its_server_was_killed_no_result_is_lost_and_the_next_ones_are_stored(root: Path) -> None:
    killed = []

    def kill_then_call(_request: Request) -> Answer:
        killed.append(kill_server(made.program.home))
        return tool("Bash", command=LARGE)

    with serving(asking(kill_then_call, kill_then_call, tool("Bash", command=LARGE))) as api:
        made = project(root, api)
        made.run()

    stored = made.stored()
    assert sum(killed) >= 1
    assert all(said == NUMBERS or ref_in(said) in stored for said in api.last.results)
    assert ref_in(api.last.results[-1]) in stored


class _Stuck(BaseHTTPRequestHandler):
    """S3 with an empty bucket, which never answers a write."""

    server: _StuckServer

    def do_GET(self) -> None:
        is_list = "list-type=2" in self.path
        body = b"<ListBucketResult/>" if is_list else b"<Error><Code>NoSuchKey</Code></Error>"
        self.send_response(200 if is_list else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.server.asked()
        self.server.ended.wait()

    def log_message(self, *_: Any) -> None: ...


class _StuckServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, asked: Callable[[], Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Stuck)
        self.asked, self.ended = asked, threading.Event()


@contextmanager
def stuck_store(asked: Callable[[], Any]) -> Iterator[dict[str, str]]:
    """Give the settings of a store that never answers a write; `asked` is called when one comes."""
    with _StuckServer(asked) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield {
            "OFFLOAD_STORE": "s3://bucket/prefix",
            "OFFLOAD_STORAGE_OPTIONS__ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        server.ended.set()
        server.shutdown()


def test_a_hook_that_takes_longer_than_its_time_keeps_the_original(root: Path) -> None:
    with serving([tool("Bash", command=LARGE)]) as api, stuck_store(lambda: None) as store:
        made = project(root, api)
        made.program.environ |= store
        hooks = made.plugin / "hooks" / "hooks.json"
        hooks.write_text(re.sub(r'"timeout": \d+', '"timeout": 6', hooks.read_text()))
        made.run()

    assert api.last.results == [NUMBERS]


@in_proc
def test_a_server_that_is_killed_while_it_stores_keeps_the_original(root: Path) -> None:
    killed: list[int] = []
    with (
        serving([tool("Bash", command=LARGE)]) as api,
        stuck_store(lambda: killed.append(kill_server(made.program.home))) as store,
    ):
        made = project(root, api)
        made.program.environ |= store
        made.run()

    assert sum(killed) >= 1
    assert api.last.results == [NUMBERS]


# Results that are kept


def test_files_edits_errors_and_background_tasks_are_kept(root: Path) -> None:
    with serving([]) as api:
        made = project(root, api)
        path = made.program.folder / "a.txt"
        path.write_text(f"first\n{NUMBERS}\n")
        api.script = [
            tool("Read", file_path=str(path)),
            tool("Edit", file_path=str(path), old_string="first", new_string="FIRST"),
            tool("Bash", command=f"{LARGE}; exit 3"),
            tool("Bash", command=LARGE, run_in_background=True),
            text("done"),
        ]
        made.run()

    read, edit, failed, background = api.last.results
    assert read.startswith("1\tfirst\n")
    assert "6001\t6000" in read
    assert "has been updated" in edit
    assert path.read_text().startswith("FIRST\n")
    assert failed.startswith("Exit code 3\n1\n2\n")
    assert "running in background with ID: " in background
    assert made.stored() == {}


def test_file_reads_leave_if_the_user_asks_and_can_be_edited(root: Path) -> None:
    with serving([]) as api:
        made = project(root, api, "--readers", "5000")
        large, small = (made.program.folder / name for name in ("large.txt", "small.txt"))
        large.write_text(f"first\n{NUMBERS}\n")
        small.write_text(NUMBERS[:1000])
        api.script = [
            tool("Read", file_path=str(large)),
            tool("Read", file_path=str(small)),
            tool("Edit", file_path=str(large), old_string="first", new_string="FIRST"),
        ]
        made.run()

    first, second, edit = api.last.results
    [(ref, stored)] = made.stored().items()
    assert (ref_in(first), stored.rstrip("\n")) == (ref, f"first\n{NUMBERS}")
    assert second.startswith("1\t1\n2\t2\n")
    assert "has been updated" in edit


# MCP


def test_results_of_servers_are_stored_whatever_their_form_and_size(root: Path) -> None:
    kinds = ("text", 3), ("text", 1500), ("parts", 1500), ("rows", 500), ("text", 2300), ("text", 20_000)
    calls = [tool(f"mcp__t__{name}", count=count) for name, count in (*kinds, ("failing", 1500))]
    made, api = ran(root, calls, options=("--mcp-config", json.dumps(SERVER)))

    small, *results, failed = api.last.results
    stored = made.stored()
    assert small == lines(3)
    assert [len(result) < 3000 for result in results] == [True] * 5
    found = [stored[ref_in(result)] for result in results]
    assert [found[0], found[3], found[4]] == [lines(1500), lines(2300), lines(20_000)]
    assert found[1].startswith(lines(1500))
    assert found[1].endswith("\nthe end")
    assert json.loads(found[2]) == {"rows": [{"name": f"row {n}", "size": n} for n in range(500)]}
    assert "line 0 of the server" in failed
    blocks = [b for m in api.last.messages for b in m["content"] if isinstance(b, dict)]
    images = [b for b in blocks if b["type"] == "tool_result" and '"image"' in json.dumps(b["content"])]
    assert len(images) == 1


# Conversations


def test_what_a_sub_agent_stored_is_read_by_the_main_agent_and_its_report_is_stored(root: Path) -> None:
    report = lines(1500)
    agents = asking(tool("Bash", command=LARGE), lambda r: text(f"see id {ref_in(r.results[-1])}\n{report}"))
    steps = asking(tool("Agent", **TASK, run_in_background=False), reading(READ))
    made, api = ran(root, steps, agents)

    placeholder, page = api.last.results
    stored = made.stored()
    assert len(placeholder) < 4000
    assert stored[ref_in(placeholder)].endswith(report)
    assert NUMBERS in stored.values()
    assert "line 1 of the server" in page


def test_the_report_of_a_background_sub_agent_stays_whole_since_no_hook_can_change_it(root: Path) -> None:
    report = lines(1500)
    made, api = ran(root, [tool("Agent", **TASK), text("waiting")], [text(report)])

    assert f"<result>{report}</result>" in api.last.texts
    assert not made.store.exists() or made.stored() == {}


def test_every_cited_id_answers_after_resume_fork_and_clear(root: Path) -> None:
    with serving(asking(tool("Bash", command=LARGE))) as api:
        made = project(root, api)
        first = made.run()
    [ref] = made.stored()
    read = tool(READ, id=ref)

    pages = []
    for ways in (["--resume", first.session], ["--resume", first.session, "--fork-session"]):
        with serving(lambda request: text("done") if request.step > 2 else read) as api:
            made.program.url = api.url
            made.run("again", *ways)
            pages.append(api.last.results[-1])
    with serving(lambda request: text("done") if request.step else read) as api:
        made.program.url = api.url
        made.program.talk("one", "/clear", "two", options=["--plugin-dir", str(made.plugin)])
        pages += [request.results[-1] for request in api.requests if request.results]

    assert len(pages) == 4
    assert all("\n1\n2\n3\n" in page for page in pages), pages
    assert list(made.stored()) == [ref]


def test_a_compaction_is_asked_to_keep_the_ids(root: Path) -> None:
    full = [Answer(tool("Bash", command=LARGE).blocks, {"input_tokens": 90_000}) for _ in range(2)]

    def script(request: Request) -> Answer:
        if COMPACTING in request.texts:
            return text("<summary>nothing much</summary>")
        return full.pop() if full else text("done")

    with serving(script) as api:
        made = project(root, api)
        made.run("go", "--autocompact", "100000")

    compaction = next(request for request in api.requests if COMPACTING in request.texts)
    assert "Keep in the summary every id" in compaction.texts
    assert system_prompt().splitlines()[0] in api.last.texts
    assert ref_in(compaction.results[-1]) in made.stored()


# Where it is


def test_two_programs_at_once_in_one_folder_share_a_session(root: Path) -> None:
    def script(request: Request) -> Answer:
        number = "7" if "number 7" in request.texts else "8"
        return tool("Bash", command=f"seq {number} 6000") if not request.step else text("done")

    with serving(script) as api:
        made = project(root, api)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(made.run, ["number 7", "number 8"]))

    assert sorted(found[:1] for found in made.stored().values()) == ["7", "8"]
    assert len(made.sessions()) == 1


def test_in_a_new_home_the_plugin_stores_in_the_home_if_no_setting_names_a_store(root: Path) -> None:
    with serving(asking(tool("Bash", command=LARGE), reading(GREP, pattern="5987"))) as api:
        made = project(root, api)
        del made.program.environ["OFFLOAD_STORE"]
        new = root / "new home"
        new.mkdir()
        made.program.environ["HOME"] = str(new)
        made.run()

    assert "5987" in api.last.results[-1]
    assert list(new.rglob(f"{ref_in(api.last.results[0])}~*"))
    assert not list(made.program.folder.iterdir())


def test_calls_at_once_are_stored_each(root: Path) -> None:
    calls = [tool("Bash", command=f"seq {number} 6000") for number in range(1, 9)]
    made, api = ran(root, [sum(calls[1:], calls[0])])

    stored = made.stored()
    found = sorted(stored[ref_in(result)].partition("\n")[0] for result in api.last.results)
    assert found == [str(number) for number in range(1, 9)]


def test_files_of_the_project_choose_no_store_and_no_code(root: Path) -> None:
    with serving([tool("Bash", command=LARGE)]) as api:
        made = project(root, api)
        folder = made.program.folder
        (folder / "offload.toml").write_text(f"store = {str(root / 'other')!r}\nsession = 'other'\n")
        for name in ("json.py", "offload.py", "mcp.py", "typer.py"):
            (folder / name).write_text(f"open({str(root / 'ran')!r}, 'w')")
        made.run()

    assert list(made.stored().values()) == [NUMBERS]
    assert not (root / "other").exists()
    assert not (root / "ran").exists()


# The command of older versions


def test_the_hook_as_a_command_stores_in_the_session_that_the_server_reads(root: Path) -> None:
    with serving(asking(tool("Bash", command=LARGE), reading(GREP, pattern="5987"))) as api:
        made = project(root, api)
        hooks = made.plugin / "hooks" / "hooks.json"
        command = {
            "type": "command",
            "command": f"'{sys.executable}' -P -m offload.integrations.claude_code",
            "timeout": 20,
        }
        hook = [{"hooks": [command]}]
        hooks.write_text(
            json.dumps({"hooks": dict.fromkeys(("PostToolUse", "PreToolUse", "PreCompact"), hook)})
        )
        made.run()

    placeholder, found = api.last.results
    assert made.stored() == {ref_in(placeholder): NUMBERS}
    assert "5987" in found


def test_a_command_that_is_killed_keeps_the_original(root: Path) -> None:
    with serving([tool("Bash", command=LARGE)]) as api:
        made = project(root, api)
        command = f"'{sys.executable}' -P -c 'import os; os.kill(os.getpid(), 9)'"
        hook = [{"hooks": [{"type": "command", "command": command}]}]
        (made.plugin / "hooks" / "hooks.json").write_text(json.dumps({"hooks": {"PostToolUse": hook}}))
        made.run()

    assert api.last.results == [NUMBERS]


# Installed


@pytest.mark.parametrize("before", [None, b'{"model":  "opus", "permissions": {"allow": ["Bash(ls)"]}}\n'])
def test_after_install_run_and_uninstall_the_users_settings_are_as_before(
    root: Path, before: bytes | None
) -> None:
    with serving([tool("Bash", command=LARGE)]) as api:
        program = ClaudeCode(root, api.url)
        program.environ = environ_of(program.home, OFFLOAD_STORE=str(root / "the store"))
        settings = program.home / ".claude" / "settings.json"
        if before is not None:
            settings.parent.mkdir()
            settings.write_bytes(before)
        offload(program, "install", "--claude", binary())
        listed = program.command("plugin", "list").stdout
        status = offload(program, "status")
        program.run("go", *ALLOWED)
        offload(program, "uninstall", "--claude", binary())

    [said] = api.last.results
    assert "offload@" in listed
    assert "starts" in status
    assert ref_in(said) in Project(program, root / "the store", root).stored()
    assert (settings.read_bytes() if settings.exists() else None) == before
    assert "offload" not in program.command("plugin", "list").stdout
    assert "offload" not in program.command("plugin", "marketplace", "list").stdout


def offload(program: ClaudeCode, *arguments: str) -> str:
    """Return the output of `offload claude-code` in the project's folder."""
    command = [sys.executable, "-P", "-m", "offload", "claude-code", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env=program.environ, cwd=program.folder, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
