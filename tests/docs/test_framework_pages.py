"""The pages of frameworks do what they say, each in the environment of its framework."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from docs.pages import DOCS, lacking, need_of, run

PAGES = [(page, need) for page in sorted(DOCS.rglob("*.md")) if (need := need_of(page))]


@pytest.mark.parametrize(("page", "need"), PAGES, ids=lambda value: Path(value).stem)
def test_the_code_of_a_page_runs_with_its_framework(
    page: Path, need: str, tmp_path: Path, environ_of: Callable[[Path], dict[str, str]]
) -> None:
    of_framework = f"test-integration-{page.stem.replace('_', '-')}"
    target = "test-clouds" if page.parent.name == "stores" else of_framework
    if missing := lacking(f"offload[{need}]"):
        pytest.skip(f"make {target} runs it; needs {', '.join(missing)}")

    run(page, tmp_path, environ_of(page))
