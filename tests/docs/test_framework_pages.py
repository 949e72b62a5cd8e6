"""The pages of frameworks do what they say, each in the environment of its framework.

They stand as a reader pastes them: only the address of their model's API is that of a scripted one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from docs.librarian import serving_for
from docs.pages import DOCS, lacking, needs_of, run

PAGES = [page for page in sorted(DOCS.rglob("*.md")) if needs_of(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda value: Path(value).stem)
def test_the_code_of_a_page_runs_with_its_framework(
    page: Path, tmp_path: Path, environ_of: Callable[[Path], dict[str, str]]
) -> None:
    of_framework = f"test-integration-{page.stem.replace('_', '-')}"
    target = "test-clouds" if page.parent.name == "stores" else of_framework
    if missing := [each for need in needs_of(page) for each in lacking(need)]:
        pytest.skip(f"make {target} runs it; needs {', '.join(missing)}")

    with serving_for(page) as (model, variables):
        run(page, tmp_path, environ_of(page) | variables)

    assert all(len("\n".join(texts)) < 20_000 for texts in model.seen)
