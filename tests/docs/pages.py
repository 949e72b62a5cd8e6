"""Pages of documentation as programs: their blocks run in order, in an empty folder and a separate process.

Blocks of `python` run anywhere, joined, as a reader would paste them. Blocks of `py` are Python that needs
something else: a framework, a server or a store of the reader's. Both are run here; in blocks of `console`
the lines that begin with `$ ` are run. The lines below them, or a following block of `text`, are the expected
output; `…` matches any text. A comment before a block that is not run gives the reason: `<!-- not run: it
waits for clients -->`. A page whose code needs more than the core says so before its `pip install`: `<!--
needed -->`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import textwrap
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import prepared
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(
    r"(?P<before>[^\n]*)\n(?:[ ]*\n)*"
    r"(?P<indent>[ ]*)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)\n(?P=indent)```(?=\n|\Z)",
    re.DOTALL,
)
_NOT_RUN = re.compile(r"\s*<!-- not run: (\S.*) -->")
_NEEDED = re.compile(r"<!-- needed -->\n```sh\npip install (.+)\n")
_COLUMNS = re.compile(" {2,}")
_END_OF_BLOCK = "```"
PYTHON = ("python", "py")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        language: the word behind the fence.
        code: its lines.
        line: the number of its first line in the page.
        why_not_run: the reason that the page gives for not running it; None if it is run.
        follows: whether it directly follows the previous block.
    """

    language: str
    code: str
    line: int
    why_not_run: str | None
    follows: bool


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = "\n" + page.read_text(encoding="utf-8")
    found = []
    position = 0
    while match := _BLOCK.search(text, position):
        reason = _NOT_RUN.fullmatch(match["before"])
        found.append(
            Block(
                language=match["language"],
                code=textwrap.dedent(match["code"]),
                line=text.count("\n", 0, match.start("code")),
                why_not_run=reason[1] if reason else None,
                follows=match["before"].strip() == _END_OF_BLOCK,
            )
        )
        # The fence that ends this block precedes the next one.
        position = match.end() - len(_END_OF_BLOCK)
    return found


def needs_of(page: Path) -> list[str]:
    """Return the packages that a page cannot be run without, as it says to install them."""
    found = _NEEDED.search(page.read_text(encoding="utf-8"))
    return shlex.split(found[1]) if found else []


def lacking(text: str, extra: str = "") -> list[str]:
    """Return what this environment lacks of a requirement, such as `offload[anthropic]`, and of its extras.

    `text` may be a requirement of a package under its extra `extra`. A framework may bring another one in an
    older release than the extra of that one asks for.
    """
    need = Requirement(text)
    if need.marker and not need.marker.evaluate({"extra": extra}):
        return []
    try:
        found = distribution(need.name)
    except PackageNotFoundError:
        return [f"{need.name}{need.specifier}"]
    if not need.specifier.contains(found.version, prereleases=True):
        return [f"{need.name}{need.specifier}, not {found.version}"]
    return [each for name in need.extras for text in found.requires or () for each in lacking(text, name)]


def run(page: Path, folder: Path, environ: dict[str, str]) -> None:
    """Run the blocks of a page in `folder`, and compare what they print with what the page says.

    Args:
        page: the page.
        folder: an empty folder.
        environ: additional variables.

    Raises:
        AssertionError: a block failed, or printed something else.
    """
    blocks = blocks_of(page)
    runs = [block for block in blocks if block.language in (*PYTHON, "console") and not block.why_not_run]
    asked = {"page": str(page), "blocks": [asdict(block) for block in runs]}
    printed = _printed(asked, folder, environ)
    for block in runs:
        after = next((b for b in blocks if b.line > block.line), None)
        if block.language == "console":
            expected: str | None = block.code
        else:
            expected = after.code if after and after.follows and after.language == "text" else None
        if expected is not None:
            output = printed[str(block.line)]
            assert is_as_expected(output, expected), (
                f"{page}:{block.line} prints\n{output}\nand shows\n{expected}"
            )


def is_as_expected(printed: str, expected: str) -> bool:
    """Return whether a block printed the output on its page, where `…` matches any text."""
    pattern = re.escape(_tidy(expected)).replace("…", ".*?")
    return re.fullmatch(pattern, _tidy(printed), re.DOTALL) is not None


def _tidy(text: str) -> str:
    """Return `text` without what is for the eye alone: how wide a column is, blanks at the ends."""
    return "\n".join(_COLUMNS.sub("  ", line.rstrip()) for line in text.strip().splitlines())


def _printed(asked: Any, folder: Path, environ: dict[str, str]) -> dict[str, str]:
    """Return what each block printed, by its line."""
    program = f"from docs import run_blocks; run_blocks.main({asked!r})"
    done = prepared.run(program, folder=folder, environ=_environment(folder) | environ)
    assert done.returncode == 0, done.stderr
    printed: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return printed


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment in which nothing of this machine's user is found."""
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
    home = folder / ".home"
    home.mkdir()
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(home),
        "COLUMNS": "100",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
