"""Runs the blocks of a page, which stdin gives as JSON; the last line of stdout is what each printed."""
# ruff: noqa: T201, S102 # a program that prints and runs the code of the pages

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_PROMPT = "$ "


def main() -> None:
    """Run every block in order, in one namespace."""
    asked = json.load(sys.stdin)
    names: dict[str, Any] = {"__name__": "__main__"}
    if asked["given"]:
        exec(compile(Path(asked["given"]).read_bytes(), asked["given"], "exec"), names)
    printed = {}
    for block in asked["blocks"]:
        if block["language"] != "console":
            printed[block["line"]] = run_python(block, asked["page"], names)
        else:
            printed[block["line"]] = run_console(block)
    print("\n" + json.dumps(printed))


def run_python(block: Any, page: str, names: dict[str, Any]) -> str:
    """Return what a block of Python prints; it may await."""
    # Its lines are counted as in the page, for the traceback.
    source = "\n" * (block["line"] - 1) + block["code"]
    code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))  # noqa: S307 # code from the pages
        else:
            exec(code, names)
    return out.getvalue()


def run_console(block: Any) -> str:
    """Return the commands of a block, each with what it prints, as a terminal shows them."""
    shown = []
    for line in block["code"].splitlines():
        if line.startswith(_PROMPT):
            done = subprocess.run(
                ["/bin/sh", "-c", line.removeprefix(_PROMPT)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                sys.exit(f"{line}\nexits with {done.returncode}\n{done.stdout}{done.stderr}")
            shown.append(f"{line}\n{done.stdout}")
    return "".join(shown)


if __name__ == "__main__":
    main()
