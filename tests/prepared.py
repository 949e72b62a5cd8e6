"""Programs in forks of a process that has the library, which takes longer to load than most of them run."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import pytest

# One of a program: a file, or the end of a pipe.
_Stream = Path | Connection

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        # A fork looks its own function up in this module.
        "prepared",
        "offload.agent",
        "offload.gateway._app",
        "offload.integrations._sessions",
        "offload.reading.search",
        "offload.engine.settings.loader",
        "offload.reading.tables",
        "offload.reading.tools._tools",
        "offload_backends.local",
        "offload_backends.s3",
        *(
            f"offload.cli.{name}"
            for name in ("app", "exec", "gateway", "listing", "stores", "terminal", "wrap")
        ),
    ]
)
# The command `offload`, as a program.
COMMAND = "from offload.__main__ import main; main()"


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
    return _run(COMMAND, arguments, folder, given=given)


class Started:
    """A program that runs in a fork, with what `subprocess.Popen` has; the text on its streams is short."""

    def __init__(self, process: BaseProcess, streams: Sequence[int]) -> None:
        self._process = process
        self.stdin: IO[str] = os.fdopen(streams[0], "w", encoding="utf-8")
        self.stdout: IO[str] = os.fdopen(streams[1], encoding="utf-8")
        self.stderr: IO[str] = os.fdopen(streams[2], encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._process.join()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def tell(self, text: str) -> None:
        """Write a text to its input at once."""
        self.stdin.write(text)
        self.stdin.flush()

    def communicate(self, text: str = "") -> tuple[str, str]:
        """Give it a text and the end of its input; return the rest that it prints."""
        with self.stdin:
            self.stdin.write(text)
        with self.stdout, self.stderr:
            said = self.stdout.read(), self.stderr.read()
        self._process.join()
        return said


def start(
    program: str,
    *arguments: object,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Started:
    """Start a program as `python -c` does, with pipes; the arguments are those of `run`."""
    pipes = [_PROCESSES.Pipe(duplex=False) for _ in range(3)]
    ours = [os.dup(end.fileno()) for end in (pipes[0][1], pipes[1][0], pipes[2][0])]
    theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
    process = _fork(program, arguments, folder or Path.cwd(), environ, theirs)
    for end in itertools.chain(*pipes):
        end.close()
    return Started(process, ours)


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
    streams: Sequence[Path],
) -> int:
    process = _fork(program, arguments, folder, environ, streams)
    process.join()
    return process.exitcode or 0


def _fork(
    program: str,
    arguments: Iterable[object],
    folder: Path,
    environ: Mapping[str, str] | None,
    streams: Sequence[_Stream],
) -> BaseProcess:
    around = folder, dict(os.environ if environ is None else environ)
    process = _PROCESSES.Process(target=_be, args=(program, [*map(str, arguments)], around, streams))
    process.start()
    return process


def _be(
    program: str, arguments: list[str], around: tuple[Path, dict[str, str]], streams: Sequence[_Stream]
) -> None:
    for number, stream in enumerate(streams):
        place = os.open(stream, os.O_RDWR | os.O_CREAT) if isinstance(stream, Path) else stream.fileno()
        os.dup2(place, number)
    for stream in streams:
        if not isinstance(stream, Path):
            stream.close()
    # Those of the process before the fork are the null device and files.
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, encoding="utf-8") for n, mode in enumerate("rww"))
    os.chdir(around[0])
    os.environ.clear()
    os.environ.update(around[1])
    sys.argv = ["-c", *arguments]
    exec(program, {"__name__": "__main__"})  # noqa: S102 # a program of the tests
