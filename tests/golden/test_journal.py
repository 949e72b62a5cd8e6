"""The journal, read by the rules of FORMAT.md alone."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import zstandard

from offload import AgentConfig, ContextManager, Offloader


def messages_of(folder: Path) -> list[Any]:
    """Return the messages in the journal entries of `folder`, by the rules of the page."""
    lines: list[Any] = []
    for path in sorted(folder.iterdir()):
        number, kind, size, letters = path.name.removesuffix(".zst").split("~")[:4]
        data = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        assert (len(number), len(letters), len(data)) == (9, 10, int(size))
        begin, digest, rest = data[:11], data[11:75], data[75:]
        assert begin == b'{"sha256":"'
        assert sha256(path.name.encode() + b"\n" + begin + rest).hexdigest() == digest.decode()
        head, *new = [json.loads(line) for line in data.decode().split("\n")]
        before = [] if kind in ("begun", "whole") else lines
        lines, at = [], 0
        for begin, gone, come in head.get("edits", []):
            lines += [*before[at:begin], *new[:come]]
            new, at = new[come:], begin + gone
        lines += [*before[at:], *new]
    return [message for _, message in lines]


def test_a_journal_keeps_the_rules_of_the_page(tmp_path: Path) -> None:
    m = ContextManager(Offloader(tmp_path, session="s"), AgentConfig(window_tokens=2000))
    for n in range(60):
        m.add({"role": "user", "content": f"question {n} " + "please " * 30})
        m.before_model_call()
        m.after_model_call(
            {"role": "assistant", "content": f"answer {n} " + "well " * 30}, usage=len(str(m.messages)) // 4
        )

    kinds = {path.name.split("~")[1] for path in (tmp_path / "j" / "s").iterdir()}
    assert kinds >= {"begun", "grown"}
    assert len(m.messages) < 120
    assert messages_of(tmp_path / "j" / "s") == m.messages
