"""A framework's tests say with which release they run."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib

import pytest
from frameworks.releases import PACKAGES, ROOT, header, told

MAKE = shutil.which("make") or ""


def test_an_older_release_than_the_newest_is_told_with_the_reason() -> None:
    refusal = "error: No solution found\n  cause: only certifi<=1 is available"
    text = told("1.4.7", "1.5.0", refusal)
    assert "1.4.7" in text
    assert "NOT the newest 1.5.0" in text
    assert "only certifi<=1 is available" in text
    assert told("1.5.0", "1.5.0", "") == "1.5.0 (the newest)"
    assert "cannot be asked" in told("1.5.0", None, "")


def test_a_run_without_the_comparison_says_so() -> None:
    assert header().startswith("frameworks: ")
    assert re.search(r"not compared with the index|the newest|NOT the newest", header())


@pytest.mark.skipif(not MAKE, reason="needs make")
def test_every_framework_of_the_makefile_has_its_packages_named() -> None:
    database = subprocess.run(
        [MAKE, "-C", ROOT, "--print-data-base", "--question", "lint"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout
    [names] = re.findall(r"^FRAMEWORKS := (.+)$", database, re.MULTILINE)
    assert sorted(PACKAGES) == sorted(names.split())


def test_a_bound_on_a_package_of_certificates_does_not_hide_a_release() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["uv"]["override-dependencies"] == ["certifi"]


def test_the_bound_that_llama_index_needs_is_in_its_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extra = project["project"]["optional-dependencies"]["llama-index"]
    assert [one for one in extra if one.startswith("pydantic<")]
