"""`offload exec` runs real programs: their output is printed or stored, all else is as without it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import PIPE

import prepared
import pytest
from command import Run
from strength import thinned

from offload import Offloader
from offload.cli.exec import _ShellRenderer

LARGE = "import sys\nfor n in range(6000): print('line', n, flush=n % 1000 == 0)\n"


@pytest.fixture
def place(home: Path) -> Path:
    """A project's folder, and a home of its own for the default store."""
    folder = home.parent / "project"
    folder.mkdir()
    return folder


def call(place: Path, *arguments: object, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return prepared.offload(*arguments, folder=place, given=given)


def python(place: Path, code: str, *options: object) -> subprocess.CompletedProcess[bytes]:
    return call(place, "exec", *options, "--", sys.executable, "-c", code)


def stored(place: Path, answer: bytes) -> bytes:
    """Return the bytes of a stored output."""
    [ref] = re.findall(rb", id ([a-z]+)\]", answer)
    return call(place, "cat", ref.decode()).stdout


def test_a_short_output_is_printed_byte_for_byte_and_nothing_is_stored(place: Path) -> None:
    code = r"import os; os.write(1, b'\x1b[31mred\xff\r\n'); os.write(2, b'and an error'); os._exit(7)"
    done = python(place, code)
    assert done.stdout == b"\x1b[31mred\xff\r\nand an error"
    assert (done.returncode, done.stderr) == (7, b"")
    assert not (place.parent / "home" / "offload").exists()


def test_streams_that_the_caller_closed_change_neither_code_nor_store(place: Path) -> None:
    command = shlex.join([sys.executable, "-m", "offload", "exec", "--", sys.executable, "-c", LARGE])
    script = ["sh", "-c", f"{command} <&- >&- 2>&-"]
    assert subprocess.run(script, cwd=place, check=False).returncode == 0
    assert call(place, "cat", "last").stdout == b"".join(b"line %d\n" % n for n in range(6000))


def test_a_large_output_becomes_a_preview_and_commands_that_read_the_rest(place: Path) -> None:
    done = python(place, LARGE)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout) < 3000
    assert stored(place, done.stdout) == b"".join(b"line %d\n" % n for n in range(6000))
    # The commands that the text names, as they stand there.
    [ref] = re.findall(r"offload grep PATTERN ([a-z]+) or", done.stdout.decode())
    [lines] = re.findall(r"--lines [0-9]+:[0-9]+", done.stdout.decode())
    assert b"line 4711\n" in call(place, "grep", "line 4711", ref).stdout
    shown = call(place, "show", ref, *lines.split())
    assert (shown.returncode, shown.stderr) == (0, b"")
    [first] = re.findall(rb"--lines ([0-9]+):", done.stdout)
    assert b"line %d\n" % int(first) in shown.stdout


def test_the_commands_name_the_store_and_the_session_of_the_command_line(place: Path) -> None:
    done = python(place, LARGE, "--store", "my store", "--session", "build")
    assert b"--store 'my store' --session build or offload show" in done.stdout
    [info] = Offloader(str(place / "my store"), session="build").records()
    assert info.tool_name == "Bash"


def test_both_streams_above_the_memory_of_a_sink_are_stored_in_their_order(place: Path) -> None:
    code = "import os\nfor n in range(90): os.write(1 + n % 2, b'\\xff' + b'%d ' % n * 50_000 + b'\\n')"
    expected = b"".join(b"\xff" + b"%d " % n * 50_000 + b"\n" for n in range(90))
    assert len(expected) > 8 * 1024 * 1024
    assert stored(place, python(place, code).stdout) == expected


def test_a_pipe_is_read_and_stdin_and_options_reach_the_command(place: Path) -> None:
    text = b"".join(b"%d lines of a pipe\n" % n for n in range(4000))
    assert call(place, "exec", "-", given=b"short").stdout == b"short"
    assert stored(place, call(place, "exec", "-", given=text).stdout) == text
    assert call(place, "exec", "cat", "-", "--", given=b"in").stdout == b"in"
    assert call(place, "exec", "echo", "--store", "x", "-h").stdout == b"--store x -h\n"


@pytest.mark.parametrize(
    ("called", "is_found", "named"),
    [
        ("./my env/bin/offload", False, "'./my env/bin/offload'"),
        ("./my env/bin/offload", True, "offload"),
        ("/x/offload/__main__.py", False, "offload"),
    ],
)
def test_the_commands_for_the_rest_call_the_program_as_it_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str, is_found: bool, named: str
) -> None:
    program = tmp_path / "offload"
    program.touch(0o755 if is_found else 0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [called])
    shown = Offloader("memory://", placeholder=_ShellRenderer("")).offload_text("a line\n" * 9000)
    assert f"commands: {named} grep PATTERN " in shown
    assert f" or {named} show " in shown


@pytest.mark.parametrize("kind", ["a file in the way", "a read-only folder"])
def test_a_store_that_fails_costs_nothing_of_the_output(place: Path, kind: str) -> None:
    store = place / "store"
    if kind == "a file in the way":
        store.write_text("no folder")
    else:
        if os.geteuid() == 0:
            pytest.skip("the superuser may write to any folder")
        store.mkdir(mode=0o500)
    done = python(place, LARGE + "sys.exit(4)", "--store", store)
    assert done.stdout == b"".join(b"line %d\n" % n for n in range(6000))
    assert done.returncode == 4
    assert done.stderr.startswith(b"offload: the whole output follows, since it could not be stored: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["no-such-program"], 127, "no program 'no-such-program'\n"),
        (["ls | wc"], 127, "no program 'ls | wc'; for a pipe or a list of commands, use sh -c\n"),
        ([os.sep], 126, f"cannot run {os.sep!r}: Permission denied\n"),
        (["sh", "-c", "kill -9 $$"], 137, None),
    ],
)
def test_a_command_that_does_not_run_or_is_killed_has_the_exit_code_of_a_shell(
    place: Path, command: list[str], code: int, said: str | None
) -> None:
    done = call(place, "exec", "--", *command)
    assert (done.returncode, done.stdout) == (code, b"")
    assert done.stderr.decode() == ("" if said is None else f"offload: {said}")


def test_a_wrong_setting_is_refused_before_the_command_runs(place: Path) -> None:
    done = call(place, "exec", "--store", "memory://", "--", "touch", "ran")
    assert done.returncode == 2
    assert b"memory:// is lost when its process ends" in done.stderr
    assert not (place / "ran").exists()


@pytest.mark.parametrize(
    "number", thinned([signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT], 2)
)
def test_a_signal_ends_the_command_and_its_output_is_still_printed(
    place: Path, number: signal.Signals
) -> None:
    code = "import time; print('ready', flush=True); open('up', 'w').close(); time.sleep(60)"
    command = [sys.executable, "-m", "offload", "exec", "--", sys.executable, "-c", code]
    # A shell starts programs in the background that ignore SIGINT and SIGQUIT.
    before = signal.signal(number, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=place, stdin=subprocess.DEVNULL, stdout=PIPE, stderr=PIPE) as process:
        signal.signal(number, before)
        while not (place / "up").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        out, _ = process.communicate()
    assert out.startswith(b"ready\n")
    assert process.returncode in (128 + number, 1)  # Python ends with 1 or by the signal, as it is built


def test_a_process_that_is_left_behind_does_not_hold_the_end_up(place: Path) -> None:
    code = "(sleep 30; touch late) & echo started"
    command = [sys.executable, "-m", "offload", "exec", "--", "sh", "-c", code]
    done = subprocess.run(command, cwd=place, capture_output=True, check=False, timeout=20)
    assert done.stdout == b"started\n"


@pytest.fixture
def run(place: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(place)
    return run


@pytest.mark.parametrize("lines", ["", ":", "0", "9:3", "a:b", "1:2:3", "-1"])
def test_lines_that_are_no_range_are_refused(run: Run, lines: str) -> None:
    done = run("show", "last", f"--lines={lines}")
    assert done.returncode == 2
    assert "--lines must be FIRST:LAST, such as 120:160, got " in done.stderr


def test_lines_are_shown_by_their_numbers(place: Path, run: Run) -> None:
    python(place, LARGE)
    for lines, first, last in [("3:5", 3, 5), ("3", 3, 3), ("5998:", 5998, 6000), (":2", 1, 2)]:
        expected = "".join(f"line {n - 1}\n" for n in range(first, last + 1))
        shown = run("show", "last", "--lines", lines).stdout
        assert shown == expected
        found = run("show", "last", "--lines", lines, "--json").stdout
        assert f'"text": {expected!r}'.replace("'", '"') in found
    past = run("show", "last", "--lines", "7000")
    assert (past.returncode, "past the end" in past.stderr) == (2, True)
    done = run("show", "last", "--lines", "3", "--limit", "5")
    assert done.returncode == 2
    assert "use --lines, or --tail, or --offset and --limit" in done.stderr
