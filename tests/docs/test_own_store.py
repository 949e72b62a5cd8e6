"""The store that docs/stores/own.md writes passes the suite, as the page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from docs.pages import DOCS, blocks_of

PAGE = DOCS / "stores" / "own.md"


@pytest.mark.slow
def test_the_store_of_the_page_passes_the_conformance_suite(tmp_path: Path) -> None:
    python = [block.code for block in blocks_of(PAGE) if block.language in ("python", "py")]
    shelf, _, test, _ = python
    (tmp_path / "shelf.py").write_text(shelf)
    (tmp_path / "test_shelf.py").write_text(test)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shelf.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
