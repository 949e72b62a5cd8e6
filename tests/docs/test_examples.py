"""The examples find the answer, each in the environment of its framework, with a scripted model."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from docs.librarian import QUESTION, serving_for
from docs.pages import ROOT, lacking

FOLDER = ROOT / "examples"
# It has tests of its own.
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "agent")
# With the commands of this environment, such as `offload`.
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def installed_for(name: str) -> list[str]:
    """Return what the first lines of an example say to install."""
    [command] = re.findall(
        r"^pip install (.+)", (FOLDER / f"{name}.py").read_text(encoding="utf-8"), re.MULTILINE
    )
    return shlex.split(command)


def listed() -> list[Path]:
    return list(Path(sysconfig.get_path("stdlib")).glob("*/*.py"))


def largest() -> tuple[int, Path]:
    return max((path.stat().st_size, path) for path in listed())


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_model_of_an_example_finds_the_answer_in_what_was_offloaded(name: str, tmp_path: Path) -> None:
    needs = [each for need in installed_for(name) for each in lacking(need)]
    if needs:
        pytest.skip(f"needs {', '.join(needs)}")
    size, path = largest()

    with serving_for(FOLDER / f"{name}.py") as (model, variables):
        done = subprocess.run(
            [sys.executable, str(FOLDER / f"{name}.py"), QUESTION],
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": PATH, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    *_, said, saved = filter(None, done.stdout.splitlines())
    assert said == f"{path} has {size} bytes."
    assert QUESTION in model.shown(1)
    assert f"{size},{path}" not in model.shown(2)
    assert len(model.shown(2)) < 20_000
    chars = int(saved.removeprefix("offloaded: ").removesuffix(" characters").replace(",", ""))
    assert chars > sum(len(f"{path}") + 1 for path in listed()) > 15_000


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_read_in_a_minute(name: str) -> None:
    assert 20 <= len((FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 50


def test_every_example_is_in_the_list_with_its_command() -> None:
    listed = re.findall(r"`python examples/(\w+)\.py", (FOLDER / "README.md").read_text(encoding="utf-8"))

    assert sorted(listed) == sorted([*EXAMPLES, "agent"])
