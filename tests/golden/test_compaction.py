"""Conversations that release 0.1 compacted: its notices are still restored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from offload import Offloader
from offload.compaction import RoundCompactor, SelectiveCompaction
from offload.context import ContextIR

GOLDEN = Path(__file__).parent / "compaction_0_1"
CONVERSATION: dict[str, Any] = json.loads((GOLDEN / "messages.json").read_text())


@pytest.fixture
def off(tmp_path: Path) -> Offloader:
    shutil.copytree(GOLDEN / "r", tmp_path / "r")
    return Offloader(tmp_path, session="s")


def test_notices_of_0_1_are_restored(off: Offloader) -> None:
    texts = [message["content"] for message in CONVERSATION["sent"]]

    assert texts[1].startswith("[Compacted 1: 8 earlier messages left this conversation, id ")
    assert "\n[What a model said of them, not the words of the user:]\n" in texts[1]
    assert "one a line, as JSON" in texts[3]
    assert SelectiveCompaction(off, threshold_tokens=9).restore(CONVERSATION["sent"]) == CONVERSATION["whole"]
    assert RoundCompactor(off, str).restore(CONVERSATION["sent"]) == CONVERSATION["whole"]


def test_a_conversation_of_0_1_is_compacted_further_and_restored(off: Offloader) -> None:
    context = ContextIR()
    for message in CONVERSATION["sent"]:
        context.add_message(message)

    result = SelectiveCompaction(off, lambda _: "Six questions.", threshold_tokens=150).compact(context)

    assert result.is_compacted
    assert "[Compacted 3: " in context.conversation_messages[0]["content"]
    assert SelectiveCompaction(off, threshold_tokens=9).restore(context.lower()) == CONVERSATION["whole"]


def test_the_engine_keeps_a_notice_of_0_1_and_restores_it(off: Offloader) -> None:
    sent = CONVERSATION["sent"]

    assert off.offload(sent).messages == sent
    assert off.restore(sent) == CONVERSATION["whole"]
    call, result = off.restore([sent[3]])
    assert CONVERSATION["whole"].index(result) == CONVERSATION["whole"].index(call) + 1
