"""Thinking that was removed: another process leaves it out and restores it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from offload import Offloader

GOLDEN = Path(__file__).parent / "thinking"
CONVERSATION: dict[str, Any] = json.loads((GOLDEN / "messages.json").read_text())


@pytest.fixture
def off(tmp_path: Path) -> Offloader:
    shutil.copytree(GOLDEN / "r", tmp_path / "r")
    return Offloader(tmp_path, session="s")


def test_thinking_that_was_removed_is_restored(off: Offloader) -> None:
    assert "signature" not in json.dumps(CONVERSATION["sent"])
    assert off.restore(CONVERSATION["sent"]) == CONVERSATION["whole"]


def test_thinking_that_was_removed_is_left_out_by_a_new_process(off: Offloader) -> None:
    assert off.offload(CONVERSATION["whole"]).messages == CONVERSATION["sent"]
