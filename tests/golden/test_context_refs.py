"""Context files that release 0.1 wrote: they are still found and restored, and keep their ids."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from offload.layout import encode_part
from offload.presets.context_refs import ContextRefs

GOLDEN = Path(__file__).parent / "context_refs_0_1"
MESSAGES: dict[str, Any] = json.loads((GOLDEN / "messages.json").read_text())
CONVERSATION = "V1StGXR8"
LINES = "".join(f"/usr/share/doc/package-{number}/copyright\n" for number in range(160))


@pytest.fixture
def refs(tmp_path: Path) -> ContextRefs:
    shutil.copytree(GOLDEN / "tree", tmp_path / "tree")
    return ContextRefs(tmp_path / "tree", CONVERSATION)


def test_files_of_0_1_are_restored_in_their_folder(refs: ContextRefs) -> None:
    assert refs.restore(MESSAGES["offloaded"]) == MESSAGES["given"]
    assert refs.folder == encode_part(CONVERSATION)
    assert refs.offloader.verify() == []


def test_outputs_of_0_1_keep_their_placeholders(refs: ContextRefs) -> None:
    assert refs.tool_output(LINES, tool_name="bash", exit_code=0) == MESSAGES["shown"]
    assert refs.offload(MESSAGES["offloaded"]).messages == MESSAGES["offloaded"]
    assert refs.offload(MESSAGES["given"]).messages[:4] == MESSAGES["offloaded"][:4]
    assert len(refs.offloader.records()) == 4


def test_an_output_of_another_category_gets_an_id_of_its_own(refs: ContextRefs, tmp_path: Path) -> None:
    shown = refs.tool_output(LINES, tool_name="terminal", exit_code=0)

    assert "[Terminal output in context: zfk40" in shown
    assert shown != MESSAGES["shown"]
    [manifest] = (tmp_path / "tree").glob("*/manifest.json")
    items = json.loads(manifest.read_text())["items"]
    assert [item["category"] for item in items].count("Bash") == 2
    assert [item["category"] for item in items].count("Terminal") == 1
