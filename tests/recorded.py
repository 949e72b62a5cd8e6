"""Recorded sessions of agents: a folder beside the repository, or the one that OFFLOAD_TRANSCRIPTS names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(
    os.environ.get("OFFLOAD_TRANSCRIPTS", Path(__file__).parents[1].parent / "shared" / "transcripts")
)
FILES = sorted((FOLDER / "trajectories").rglob("*.json"))
# Of a session in `make test`.
_MOST_BYTES = 300_000
needed = pytest.mark.skipif(
    not FILES, reason="needs recorded transcripts: set OFFLOAD_TRANSCRIPTS to their folder"
)


def load(path: Path) -> Any:
    """Return a session; signatures that were blacked out differ again, as those of a provider do."""
    session = json.loads(path.read_text("utf-8"))
    blocks = [block for message in session["messages"] for block in thinking_in(message)]
    for number, block in enumerate(blocks):
        if block["signature"] == "[REDACTED_SIGNATURE]":
            block["signature"] = f"signature-{number}-of-{path.stem}"
    return session


def thinking_in(message: Any) -> list[Any]:
    """Return the signed blocks of thinking in a recorded message, found here by hand."""
    blocks = message["content"] if isinstance(message["content"], list) else ()
    return [block for block in blocks if block["type"] == "thinking" and block.get("signature")]


def signatures_in(message: Any) -> list[str]:
    return [block["signature"] for block in thinking_in(message)]


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def one_of_each_source(paths: Iterable[Path]) -> list[Path]:
    """Return the session of middle size of each agent that was recorded, of those that take little time."""
    short = (path for path in paths if path.stat().st_size <= _MOST_BYTES)
    ordered = sorted(short, key=lambda path: (path.parent, path.stat().st_size))
    of_sources = [list(found) for _, found in groupby(ordered, key=lambda path: path.parent)]
    return [found[len(found) // 2] for found in of_sources]


def each(paths: Sequence[Path] = FILES, every: int = 1) -> list[Any]:
    """Return sessions as parameters: `make test` runs one of each `every`-th source, the long run all."""
    now = one_of_each_source(paths)[::every]
    return [
        pytest.param(path, id=name_of(path), marks=() if path in now else pytest.mark.slow) for path in paths
    ]
