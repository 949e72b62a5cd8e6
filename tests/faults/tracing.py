"""Runs of the writer under strace, which kills, stops or refuses it at one chosen system call."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import prepared
import pytest

# The call by which a file gets its name, for each road that a writer can take.
NAMING_CALL = {"unnamed": "linkat", "named": "linkat", "renamed": "renameat2"}
# The same on systems without folder handles, where no folder is synced: `systems.FORMS`.
NAMING_CALL_BY_PATH = {"no folder handles": "link", "a refusing rename only": "renameat2"}

TESTS = Path(__file__).parent.parent

# What the way to a record consists of; `?`: not every machine has it.
_BY_HANDLE = "openat,mkdirat,fchmodat,?fchmodat2,fchmod,write,fsync,linkat,renameat2,unlinkat,close,writev"
_BY_PATH = "?mkdir,?chmod,?link,?rename,?unlink"
_TRACED = f"{_BY_HANDLE},{_BY_PATH}"
_CALL = re.compile(r"(\w+)\(")
# What the writer reports with, and nothing else writes with.
_REPORT = "writev"


class Point(NamedTuple):
    """The `nth` call of `syscall`, counted from 1."""

    syscall: str
    nth: int

    def fault(self, effect: str) -> str:
        """Return what strace has to inject for `effect`, such as `signal=KILL`, at this call alone."""
        return f"{self.syscall}:{effect}:when={self.nth}"


@dataclass
class Run:
    """The actions of one writer process: lines of strace and its reports, oldest first."""

    process: int
    trace: list[str] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    @property
    def acknowledged(self) -> dict[int, Any]:
        """The messages that the agent holds placeholders for, by index."""
        replaced = [report["replaced"] for report in self.reports]
        return {int(index): message for messages in replaced for index, message in messages.items()}

    @property
    def errors(self) -> list[str]:
        """The kinds of the errors of all turns."""
        return [kind for report in self.reports for kind in report["errors"]]

    def shows(self, text: str) -> bool:
        """Return whether the output of strace contains `text`."""
        return any(text in line for line in self.trace)

    def until_each_report(self) -> list[list[str]]:
        """Return, for each report, the trace up to it."""
        return [self.trace[:i] for i, line in enumerate(self.trace) if line.startswith(_REPORT)]

    def points(self) -> list[Point]:
        """Return every call that the store made."""
        counts: Counter[str] = Counter()
        points = []
        for line in self.trace:
            if (call := _CALL.match(line)) and call[1] != _REPORT:
                counts[call[1]] += 1
                points.append(Point(call[1], counts[call[1]]))
        return points


class Tracer:
    """Drives one writer process and traces each of its children."""

    def __init__(self, writer: prepared.Started, strace: str) -> None:
        self._strace = strace
        self._writer = writer
        assert self._read() == "ready"

    def run(self, root: Path, fault: str | None = None) -> Run:
        """Offload the conversation to `root` in a new process, with `fault` injected by strace."""
        with self.running(root, fault) as run:
            pass
        return run

    @contextmanager
    def running(self, root: Path, fault: str | None = None) -> Iterator[Run]:
        """Give the run once the process ended or stopped; what stopped is killed at the end.

        The reports are complete only after the block.
        """
        self._writer.tell(f"{root}\n")
        run = Run(process=int(self._read()))
        inject = [] if fault is None else ["-e", f"inject={fault}"]
        command = [self._strace, "-y", "-e", f"trace={_TRACED}", *inject, "-p", str(run.process)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            assert strace.stderr is not None
            lines = strace.stderr
            greeting = lines.readline()
            self._writer.tell("go\n")
            try:
                _follow(lines, run)
                yield run
            finally:
                if run.shows("stopped by SIGSTOP"):
                    os.kill(run.process, signal.SIGKILL)
                run.reports += [json.loads(line) for line in iter(self._read, "ended")]
        if "attached" not in greeting:
            pytest.skip(f"this machine lets nobody trace: {greeting.strip()}")

    def _read(self) -> str:
        line = self._writer.stdout.readline()
        assert line, "the writer is gone"
        return line.strip()


@contextmanager
def tracer(road: str = "unnamed", durability: str = "fsync", codec: str = "zstd") -> Iterator[Tracer]:
    """Give a tracer of writers that take `road` to a file's name; skip where strace is missing."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed; tests/faults/install_tools.sh does it")
    with prepared.start("from faults.writer import main; main()", road, durability, codec) as writer:
        yield Tracer(writer, strace)


def _follow(lines: IO[str], run: Run) -> None:
    """Take in what strace says until the process ends or stops."""
    for line in lines:
        run.trace.append(line)
        if "stopped by SIGSTOP" in line:
            return
