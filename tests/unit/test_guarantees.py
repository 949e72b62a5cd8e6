"""A guarantee of the docs holds as long as the tests that it names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "tested.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:tests|offload)/[\w/]+\.py)(?:::(\w+))?`", PAGE)))
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])


def functions_of(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_bytes()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_every_test_that_a_guarantee_names_is_there(path: str, test: str) -> None:
    assert (ROOT / path).is_file()
    assert not test or test in functions_of(ROOT / path)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_guarantee_names_its_tests_in_full(name: str) -> None:
    tests = SECTIONS[name].split()

    assert all(re.fullmatch(r"-|`(tests|offload)/[\w/]+\.py::test_\w+`", test) for test in tests)


def test_every_guarantee_has_its_tests() -> None:
    names = re.findall(r"^- \*\*([^*]+?)\.?\*\*", GUARANTEES, re.MULTILINE)

    assert sorted(SECTIONS) == sorted(names)
