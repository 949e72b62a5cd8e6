"""Programs in forks of a process that has the library, which takes longer to load than most of them run."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        "offload.offloader",
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
    with tempfile.TemporaryDirectory() as place:
        files = Path(place, "out"), Path(place, "err")
        around = folder or Path.cwd(), dict(os.environ if environ is None else environ)
        process = _PROCESSES.Process(target=_be, args=(program, [*map(str, arguments)], around, files))
        process.start()
        process.join()
        return subprocess.CompletedProcess(program, process.exitcode or 0, *map(Path.read_text, files))


def _be(
    program: str, arguments: list[str], around: tuple[Path, dict[str, str]], files: tuple[Path, Path]
) -> None:
    for stream, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    os.chdir(around[0])
    os.environ.clear()
    os.environ.update(around[1])
    sys.argv = ["-c", *arguments]
    exec(program, {"__name__": "__main__"})  # noqa: S102 # a program of the tests
