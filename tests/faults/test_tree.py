"""The writer of a tree of documents dies before each step that names, opens or removes a file."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from strength import thinned

from offload.agent.presets.context_fs import ContextFileSystem

STEPS = ("open", "os.mkdir", "os.link", "os.rename", "os.remove")
TEXTS = [f"item {n} of the conversation\n" * 700 for n in range(3)]


def messages_up_to(count: int) -> list[dict[str, Any]]:
    """Return messages with the first `count` items, each with the model's reply."""
    return [m for n in range(count) for m in ({"role": "user", "content": TEXTS[n]}, answer(n))]


def answer(n: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"seen {n}"}


def write(root: Path, killed_at: int, report: int) -> None:
    """Offload turn by turn and report each list of messages; die before step `killed_at`."""
    steps = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal steps
        # Files of the interpreter are opened too; those of the store have a relative name or are in the root.
        is_step = event in STEPS and (event != "open" or isinstance(arguments[0], str))
        steps += is_step
        if is_step and steps == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    fs = ContextFileSystem(root, "s")
    sys.addaudithook(count)
    for turn in range(1, len(TEXTS) + 1):
        sent = fs.offload(messages_up_to(turn)).messages
        os.writev(report, [json.dumps(sent).encode() + b"\n"])


def survivors(root: Path, killed_at: int) -> tuple[bool, list[Any]]:
    """Return whether a writer was killed, and the messages that it reported last."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write(root, killed_at, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:  # noqa: PTH123 # of a file descriptor
        reports = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), json.loads(reports[-1]) if reports else []


def paths_in(messages: list[Any]) -> list[Path]:
    return [Path(path) for path in re.findall(r"Path: ([^\\]+)\\n", json.dumps(messages))]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
@pytest.mark.parametrize("first", thinned(range(1, 7), 6))
def test_a_writer_killed_at_any_step_leaves_all_that_it_acknowledged(tmp_path: Path, first: int) -> None:
    # All modules are loaded before a writer starts, so that its steps are those of the tree.
    ContextFileSystem(tmp_path / "whole", "s").offload(messages_up_to(3))
    for killed_at in itertools.count(first, 6):
        root = tmp_path / str(killed_at)
        was_killed, sent = survivors(root, killed_at)
        if not was_killed:
            break
        fs = ContextFileSystem(root, "s")
        for path in paths_in(sent):
            assert json.loads(path.read_text())["content"] in TEXTS, killed_at
        assert fs.restore(sent) == messages_up_to(len(sent) // 2), killed_at
        whole = fs.offload(messages_up_to(3))
        assert whole.errors == []
        assert fs.restore(whole.messages) == messages_up_to(3)
        listed = json.loads((root / "index.json").read_text())["items"]
        assert sorted(root / item["path"] for item in listed) == sorted(paths_in(whole.messages))
        assert all(json.loads(path.read_text())["content"] in TEXTS for path in paths_in(whole.messages))
        assert fs.offloader.verify() == []

    assert killed_at > 40
    assert len(paths_in(sent)) == 3
