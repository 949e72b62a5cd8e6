"""The conversation that the crash tests offload, and what must be true of a folder that they left."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zstandard
from kit.conversation import tool_turn

from offload import Offloader, OffloadResult

SESSION = "crash"

Message = dict[str, Any]


def _output(name: str) -> str:
    """Return 200 lines that hardly compress, so that a record fills several pages."""
    return "".join(f"{hashlib.sha256(f'{name} {line}'.encode()).hexdigest()}\n" for line in range(200))


def _exchange(name: str) -> list[Message]:
    return tool_turn(f"toolu_{name}", TEXTS[name], "Bash", {"command": name})


TEXTS = {name: _output(name) for name in ("first", "second", "third")}
MESSAGES: list[Message] = [
    {"role": "user", "content": "Run all three."},
    *(message for name in TEXTS for message in _exchange(name)),
]
# One turn per item: the history as it stands once the item has come.
TURNS = tuple(range(3, len(MESSAGES) + 1, 2))


@functools.cache
def placeholders() -> list[Message]:
    """Return the conversation with every item replaced: the same on every store, by rule R5."""
    messages: list[Message] = Offloader("memory://", session=SESSION).offload(MESSAGES).messages
    assert [i for i, message in enumerate(messages) if message != MESSAGES[i]] == [2, 4, 6]
    return messages


def with_replaced(replaced: Mapping[int, Message]) -> list[Message]:
    """Return the conversation as an agent holds it for which the messages `replaced` were offloaded."""
    return [replaced.get(index, message) for index, message in enumerate(MESSAGES)]


def replaced_in(result: OffloadResult) -> dict[int, Message]:
    """Return the messages that `result` holds placeholders for, by index."""
    pairs = enumerate(zip(MESSAGES, result.messages, strict=False))
    return {index: after for index, (before, after) in pairs if after != before}


def contents_at_rest(root: Path) -> list[str]:
    """Return the content of every record file below `root`, read without the library."""
    return sorted(_content(path) for path in (root / "r").rglob("[!.]*") if path.is_file())


def _content(path: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".zst":
        reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
        data = reader.read()
    return data.decode()


def temporary_files(root: Path) -> list[Path]:
    return list(root.rglob(".*"))


def check_survivors(root: Path, acknowledged: Mapping[int, Message], codec: str = "zstd") -> None:
    """Assert what rules R1 to R4 promise of a folder whose writer died or failed.

    Every record is whole or absent, what was acknowledged is there, and a new process goes on as if
    nothing had happened.
    """
    survivors = contents_at_rest(root)
    assert set(survivors) <= set(TEXTS.values())
    fresh = Offloader(root, session=SESSION, codec=codec)
    assert len(fresh.records()) == len(survivors) == len(set(survivors))
    assert fresh.restore(with_replaced(acknowledged)) == MESSAGES

    restored = fresh.restore(placeholders(), on_missing="keep")
    texts = [message["content"][0]["content"] for message in restored[2::2]]
    assert sorted(text for text in texts if text in TEXTS.values()) == survivors

    check_offloads(root, codec)


def check_offloads(root: Path, codec: str = "zstd") -> None:
    """Assert that a fresh offloader takes the whole conversation out to `root` and back."""
    result = Offloader(root, session=SESSION, codec=codec).offload(MESSAGES)

    assert result.errors == []
    assert len(result.records) == len(TEXTS)
    assert contents_at_rest(root) == sorted(TEXTS.values())
    assert Offloader(root, session=SESSION).restore(result.messages) == MESSAGES
