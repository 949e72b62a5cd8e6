"""Programs in forks of a process that has the library, which takes longer to load than most of them run."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["offload.offloader", "offload.tools", "offload_backends.local"])


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program as `python -c` does, and return what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "out"), Path(folder, "err")
        process = _PROCESSES.Process(target=_be, args=(program, [*map(str, arguments)], *files))
        process.start()
        process.join()
        return subprocess.CompletedProcess(program, process.exitcode or 0, *map(Path.read_text, files))


def _be(program: str, arguments: list[str], out: Path, err: Path) -> None:
    for stream, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    sys.argv = ["-c", *arguments]
    exec(program, {"__name__": "__main__"})  # noqa: S102 # a program of the tests
