"""A real sample conversation, generated on this machine in a second.

Each tool result is the actual output of reading, running or indexing the running Python. None contains an
environment variable, a user name or a path outside the standard library.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_TASK = (
    "We build a help formatter on top of argparse. Survey this Python first: the size of the standard "
    "library, whether its modules pass their own tests, and where argparse breaks long lines."
)
_CONCLUSION = (
    "argparse breaks long help in HelpFormatter._split_lines: that is the method to override. My script on "
    "nesting never ended, because it visits each leaf again and again."
)
_TESTED = ("difflib", "statistics", "heapq", "fractions", "enum", "inspect", "random", "datetime")
_TOKENIZED = (
    "_pydecimal", "argparse", "difflib", "doctest", "inspect", "subprocess", "tarfile", "typing",
)  # fmt: skip
_NOT_LISTED = {"__pycache__", "site-packages", "dist-packages", "test", "lib-dynload"}
# A leaf has no children, so `or [node]` visits it forever.
_FAULTY_SCRIPT = """\
import ast, sys
sys.setrecursionlimit(400)

def depth(node):
    return 1 + deepest(list(ast.iter_child_nodes(node)) or [node])

def deepest(nodes):
    return max(depth(node) for node in nodes)

print(depth(ast.parse("import textwrap")))
"""


@dataclass(frozen=True, slots=True)
class _SampleCall:
    """One tool call and what it returned."""

    tool: str
    arguments: dict[str, Any]
    output: str
    is_error: bool = False


def conversation() -> list[dict[str, Any]]:
    """Return a finished conversation in Anthropic Messages format, oldest message first.

    It has seven tool results: five large ones (a listing, a test log, an index in pretty JSON, a source file,
    megabytes of JSON on one line), a small one (a version) and a failure.
    """
    library = Path(sysconfig.get_path("stdlib"))
    source = (library / "argparse.py").read_text(encoding="utf-8")
    version = _SampleCall("Bash", {"command": "python --version"}, _run("--version"))
    return [
        {"role": "user", "content": _TASK},
        *_turn(1, "I begin with the version and what is installed.", version, _list_files(library)),
        *_turn(3, "Now the tests that some modules carry in their docstrings.", _run_tests(library)),
        *_turn(4, "Mail headers are folded too; an index shows where.", _index(library / "email")),
        *_turn(5, "Now the parser itself.", _SampleCall("Read", {"file_path": "argparse.py"}, source)),
        *_turn(6, "How often is each name used? Count the tokens.", _tokens(library)),
        *_turn(7, "And how deeply is such code nested?", _failing_script()),
        {"role": "assistant", "content": [{"type": "text", "text": _CONCLUSION}]},
    ]


def _turn(first_id: int, text: str, *calls: _SampleCall) -> Iterator[dict[str, Any]]:
    uses: list[dict[str, Any]] = [{"type": "text", "text": text}]
    results: list[dict[str, Any]] = []
    for number, call in enumerate(calls, first_id):
        name = f"toolu_demo_{number:02}"
        uses.append({"type": "tool_use", "id": name, "name": call.tool, "input": call.arguments})
        result = {"type": "tool_result", "tool_use_id": name, "content": call.output}
        results.append(result | {"is_error": True} if call.is_error else result)
    yield {"role": "assistant", "content": uses}
    yield {"role": "user", "content": results}


# The tools


def _run(*arguments: str, folder: str | None = None, script: str = "") -> str:
    process = subprocess.run(  # noqa: S603 - this interpreter, with arguments written in this file
        [sys.executable, "-I", "-B", "-X", "utf8", *arguments],
        cwd=folder,
        env=os.environ | {"NO_COLOR": "1"},
        input=script,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    return process.stdout


def _list_files(library: Path) -> _SampleCall:
    lines = []
    for folder, folders, files in os.walk(library):
        folders[:] = sorted(set(folders) - _NOT_LISTED)
        paths = (Path(folder, name) for name in sorted(files))
        lines += [f"{p.lstat().st_size:>9} {p.relative_to(library).as_posix()}\n" for p in paths]
    return _SampleCall("list_files", {"path": "python", "recursive": True}, "".join(lines))


def _run_tests(library: Path) -> _SampleCall:
    names = [f"{name}.py" for name in _TESTED]
    with TemporaryDirectory() as folder:
        for name in names:
            shutil.copy(library / name, folder)
        # The report of a failed example names the folder, whose name is random.
        log = _run("-m", "doctest", "-v", *names, folder=folder).replace(str(folder), ".")
    return _SampleCall("Bash", {"command": f"python -m doctest -v {' '.join(names)}"}, log)


def _index(package: Path) -> _SampleCall:
    index = {path.name: _definitions(path) for path in sorted(package.glob("*.py"))}
    return _SampleCall("index_symbols", {"package": package.name}, json.dumps(index, indent=2))


def _definitions(path: Path) -> list[dict[str, Any]]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        {
            "name": node.name,
            "kind": type(node).__name__,
            "lines": [node.lineno, node.end_lineno],
            "doc": (ast.get_docstring(node) or "").partition("\n")[0],
        }
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, kinds)
    ]


def _tokens(library: Path) -> _SampleCall:
    paths = [library / f"{name}.py" for name in _TOKENIZED]
    tokens = {p.name: list(_tokens_of(p)) for p in paths if p.is_file()}
    arguments = {"files": list(tokens), "format": "json"}
    return _SampleCall("tokenize", arguments, json.dumps(tokens, separators=(",", ":")))


def _tokens_of(path: Path) -> Iterable[tuple[str, str, int, int]]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            yield tokenize.tok_name[token.type], token.string, *token.start


def _failing_script() -> _SampleCall:
    command = f"python - <<'END'\n{_FAULTY_SCRIPT}END"
    return _SampleCall("Bash", {"command": command}, _run("-", script=_FAULTY_SCRIPT), is_error=True)
