"""The pages do what they say: their code runs, their output is right, their links hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from docs.pages import DOCS, PYTHON, ROOT, blocks_of, needs_of, run

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
RUN = [page for page in PAGES if not needs_of(page) and blocks_of(page)]
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", RUN, ids=name)
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(
    page: Path, tmp_path: Path, environ_of: Callable[[Path], dict[str, str]]
) -> None:
    run(page, tmp_path, environ_of(page))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_python_of_a_page_runs_as_one_program_in_an_empty_folder(page: Path, tmp_path: Path) -> None:
    code = "\n\n".join(block.code for block in blocks_of(page) if block.language == "python")
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


# What needs more than `pip install offload`, and how a page may say so.
NEEDED = {
    r"^(\$ )?([A-Z_]+=\S+ )*offload ": r"\bcli\.md|'offload\[[^]]*\b(cli|gateway|mcp|web)\b",
    r"offload\.testing": r"'offload\[[^]]*\btesting\b",
}


def test_a_page_says_what_to_install_for_its_code() -> None:
    for page in PAGES:
        text, code = page.read_text(encoding="utf-8"), "\n".join(block.code for block in blocks_of(page))

        for use, hint in NEEDED.items():
            assert re.search(hint, text) or not re.search(use, code, re.MULTILINE), (name(page), use)


def test_python_that_a_reader_cannot_run_is_in_blocks_of_py() -> None:
    cannot = [
        f"{name(page)}:{block.line}"
        for page in PAGES
        for block in blocks_of(page)
        if block.language == "python" and (block.why_not_run or needs_of(page) or '("s3://' in block.code)
    ]

    assert cannot == []


def test_a_command_on_a_page_is_run_or_says_why_not() -> None:
    silent = [
        f"{name(page)}:{block.line}"
        for page in PAGES
        for block in blocks_of(page)
        if block.language not in (*PYTHON, "console", "text")
        and re.search(r"^(\$ )?offload ", block.code, re.MULTILINE)
        and block.why_not_run is None
    ]

    assert silent == []


def test_every_link_of_a_page_leads_to_a_file() -> None:
    lost = [
        f"{name(page)}: {target}"
        for page in PAGES
        for target in LINK.findall(
            re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        )
        if not (page.parent / target).exists()
    ]

    assert lost == []


def test_every_framework_is_named_where_a_reader_looks_for_it() -> None:
    for page in (ROOT / "README.md", DOCS / "index.md"):
        named = set(re.findall(r"frameworks/(\w+)\.md", page.read_text(encoding="utf-8")))
        assert named == {each.stem for each in (DOCS / "frameworks").glob("*.md")}


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))

    assert listed == {str(page.relative_to(DOCS)) for page in PAGES[1:]}


def test_a_page_is_read_block_by_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\n"
        "<!-- not run: it waits -->\n```sh\noffload mcp x\n```\n\n"
        "1. In a list\n\n   ```python\n   a = 1\n   ```\n"
    )

    first, told, waits, listed = blocks_of(page)

    assert (first.language, first.code, first.line, first.follows) == ("python", "print(1)", 4, False)
    assert (told.language, told.follows) == ("text", True)
    assert waits.why_not_run == "it waits"
    assert not waits.follows
    assert (listed.code, listed.line) == ("a = 1", 19)


@pytest.mark.parametrize(
    ("told", "is_right"), [("a\nb", True), ("a", False), ("a\n…", True), ("…b", True), ("a\nc", False)]
)
def test_what_a_block_prints_is_what_stands_behind_it(tmp_path: Path, told: str, *, is_right: bool) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```python\nprint('a  ')\nprint('b')\n```\n\n```text\n{told}\n```\n")

    with nullcontext() if is_right else pytest.raises(AssertionError, match="and shows"):
        run(page, tmp_path, {})


def test_a_block_that_fails_names_its_page_and_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n\n```python\nx = 1\nraise ValueError(x)\n```\n")

    with pytest.raises(AssertionError, match=r"page\.md\", line 5"):
        run(page, tmp_path, {})
