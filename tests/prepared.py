"""Programs in forks of a process that has the library, which takes longer to load than most of them run."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        "offload.offloader",
        "offload.agent",
        "offload.search",
        "offload.tables",
        "offload.tools",
        "offload_backends.local",
        *(f"offload.cli.{name}" for name in ("app", "listing", "stores", "terminal")),
    ]
)


def run(
    program: str,
    *arguments: object,
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program as `python -c` does, and return what it printed.

    Args:
        program: the source.
        arguments: those of the program.
        folder: where it runs; None for the current folder.
        environ: all of its variables; None for those of this process.
    """
    done = _run(program, arguments, folder or Path.cwd(), environ)
    return subprocess.CompletedProcess(program, done.returncode, done.stdout.decode(), done.stderr.decode())


def offload(*arguments: object, folder: Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command `offload` in `folder` with `given` as its input."""
    return _run("from offload.__main__ import main; main()", arguments, folder, given=given)


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
        around = folder, dict(os.environ if environ is None else environ)
        process = _PROCESSES.Process(target=_be, args=(program, [*map(str, arguments)], around, streams))
        process.start()
        process.join()
        return subprocess.CompletedProcess(
            program, process.exitcode or 0, *(path.read_bytes() for path in streams[1:])
        )


def _be(program: str, arguments: list[str], around: tuple[Path, dict[str, str]], streams: list[Path]) -> None:
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    # That of a new process is the null device.
    sys.stdin = os.fdopen(0)
    os.chdir(around[0])
    os.environ.clear()
    os.environ.update(around[1])
    sys.argv = ["-c", *arguments]
    exec(program, {"__name__": "__main__"})  # noqa: S102 # a program of the tests
