"""Programs in forks of a process that has the library, which takes longer to load than most of them run."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        "offload.offloader",
        "offload.agent",
        "offload.search",
        "offload.tables",
        "offload.tools",
        "offload_backends.local",
        *(f"offload.cli.{name}" for name in ("app", "exec", "listing", "stores", "terminal")),
        "offload.integrations.claude_code._hook",
        "offload.settings.loader",
        "offload.tables",
        "offload.tools._tools",
    ]
)


def run(
    program: str,
    *arguments: object,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a program as `python -c` does, and return what it printed.

    Args:
        program: the source.
        arguments: those of the program.
        folder: where it runs; None for the current folder.
        environ: all of its variables; None for those of this process.
        given: its input.
    """
    done = _run(program, arguments, folder or Path.cwd(), environ, given.encode())
    return subprocess.CompletedProcess(program, done.returncode, done.stdout.decode(), done.stderr.decode())


def offload(*arguments: object, folder: Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command `offload` in `folder` with `given` as its input."""
    return _run("from offload.__main__ import main; main()", arguments, folder, given=given)


# A console looks for its terminal when it is made, which here is before the fork.
_IN_A_TERMINAL = """
from offload.__main__ import main
from offload.cli import terminal
for console in (terminal.out, terminal.err):
    console.__init__(markup=False, emoji=False, highlight=False, stderr=console.stderr)
main()
"""


def offload_in_a_terminal(*arguments: object, typed: bytes = b"", **environ: str) -> tuple[int, str]:
    """Run the command `offload` in a terminal; return its code and every character that was shown."""
    pty = pytest.importorskip("pty", reason="a terminal is played by a pty, which this system has not")
    master, slave = pty.openpty()
    seen = bytearray()
    reader = threading.Thread(target=_read, args=(master, seen))
    reader.start()
    os.write(master, typed)
    streams = [Path(os.ttyname(slave))] * 3
    code = _be_in_a_fork(_IN_A_TERMINAL, arguments, Path.cwd(), {**os.environ, **environ}, streams)
    os.close(slave)
    reader.join()
    os.close(master)
    return code, seen.decode()


def _read(master: int, seen: bytearray) -> None:
    try:
        while data := os.read(master, 65536):
            seen += data
    except OSError:  # how Linux says that the other side is closed
        pass


def _run(
    program: str,
    arguments: Iterable[object],
    folder: Path,
    environ: Mapping[str, str] | None = None,
    given: bytes = b"",
) -> subprocess.CompletedProcess[bytes]:
    with tempfile.TemporaryDirectory() as place:
        streams = [Path(place, name) for name in ("in", "out", "err")]
        streams[0].write_bytes(given)
        code = _be_in_a_fork(program, arguments, folder, environ, streams)
        return subprocess.CompletedProcess(program, code, *(path.read_bytes() for path in streams[1:]))


def _be_in_a_fork(
    program: str,
    arguments: Iterable[object],
    folder: Path,
    environ: Mapping[str, str] | None,
    streams: list[Path],
) -> int:
    around = folder, dict(os.environ if environ is None else environ)
    process = _PROCESSES.Process(target=_be, args=(program, [*map(str, arguments)], around, streams))
    process.start()
    process.join()
    return process.exitcode or 0


def _be(program: str, arguments: list[str], around: tuple[Path, dict[str, str]], streams: list[Path]) -> None:
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    # Those of the process before the fork are the null device and files.
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, encoding="utf-8") for n, mode in enumerate("rww"))
    os.chdir(around[0])
    os.environ.clear()
    os.environ.update(around[1])
    sys.argv = ["-c", *arguments]
    exec(program, {"__name__": "__main__"})  # noqa: S102 # a program of the tests
