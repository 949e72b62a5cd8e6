"""Runs the blocks of a page, given as JSON; the last line of stdout is what each printed."""
# ruff: noqa: T201, S102 # a program that prints and runs the code of the pages

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_PROMPT = "$ "
_FOR_A_SHELL = re.compile(r"[|<>&;$*~`]")


def main(asked: Any) -> None:
    """Run every block in order, in one namespace."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = {}
    for block in asked["blocks"]:
        if block["language"] != "console":
            printed[block["line"]] = run_python(block, asked["page"], names)
        else:
            printed[block["line"]] = run_console(block)
    print("\n" + json.dumps(printed))


def run_python(block: Any, page: str, names: dict[str, Any]) -> str:
    """Return what a block of Python prints."""
    # Its lines are counted as in the page, for the traceback.
    source = "\n" * (block["line"] - 1) + block["code"]
    code = compile(source, page, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def run_console(block: Any) -> str:
    """Return the commands of a block, each with what it prints, as a terminal shows them."""
    shown = []
    for line in block["code"].splitlines():
        if line.startswith(_PROMPT):
            done = run_command(line.removeprefix(_PROMPT))
            if done.returncode != 0:
                sys.exit(f"{line}\nexits with {done.returncode}\n{done.stdout}{done.stderr}")
            shown.append(f"{line}\n{done.stdout}")
    return "".join(shown)


def run_command(line: str) -> subprocess.CompletedProcess[str]:
    """Return what a command printed, which a shell runs all but plain `offload`."""
    program, *arguments = shlex.split(line)
    if program == "offload" and not _FOR_A_SHELL.search(line):
        return run_offload(arguments)
    command = ["/bin/sh", "-c", line]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def run_offload(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run `offload` in a fork: its modules take longer to load than it runs."""
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "out"), Path(folder, "err")
        process = multiprocessing.get_context("fork").Process(target=be_offload, args=(arguments, *files))
        process.start()
        process.join()
        return subprocess.CompletedProcess(arguments, process.exitcode or 0, *map(Path.read_text, files))


def be_offload(arguments: list[str], out: Path, err: Path) -> None:
    """Be the program `offload` in this process; both streams go to files."""
    for stream, file in ((1, out), (2, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
    sys.argv = ["offload", *arguments]
    from offload.__main__ import main as program  # noqa: PLC0415 # pages of Python alone do not need it

    program()
