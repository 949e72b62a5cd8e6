"""Counted costs of one offload: passes over the text and waits for the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

import offload.engine.recognition
import offload.records.codec._seekable
import offload.records.codec.content
from offload import Offloader

CHARS = 1_000_000
LINE = "{:06} a line of a log, neither long nor short\n"


class CountedText(str):
    """A text that counts how often the whole of it is encoded."""

    __slots__ = ("encoded",)
    encoded: int

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        made.encoded = 0
        return made

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        self.encoded += 1
        return super().encode(*args, **kwargs)


def long_text(number: int = 0) -> str:
    return "".join(LINE.format(number + n) for n in range(CHARS // len(LINE.format(0))))


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], list[Any]]:
    """Let a function of a module tell what it is called with from now on; it does what it did."""

    def count_calls(module: Any, name: str) -> list[Any]:
        real, seen = getattr(module, name), []

        def counted(argument: Any, *args: Any) -> Any:
            seen.append(argument)
            return real(argument, *args)

        monkeypatch.setattr(module, name, counted)
        return seen

    return count_calls


def result_message(number: int, text: str) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": text}
    return {"role": "user", "content": [block]}


def test_a_long_text_is_encoded_hashed_and_compressed_once_and_not_again_in_the_next_turn(count: Any) -> None:
    text = CountedText(long_text())
    messages = [result_message(1, text)]
    hashed = [count(offload.records.codec.content, "sha256"), count(offload.engine.recognition, "sha256")]
    compressed = count(offload.records.codec._seekable, "compress")
    off = Offloader("memory://", session="one")

    for _ in range(2):
        assert off.offload(messages).messages != messages
        assert text.encoded == 1
        assert [len(data) for seen in hashed for data in seen] == [len(text)]
        assert sum(len(chunk) for chunk in compressed) == len(text)


def test_a_local_offload_waits_for_the_disk_twice_for_the_file_and_its_folder(
    tmp_path: Path, count: Any
) -> None:
    off = Offloader(tmp_path, session="one")
    off.offload_text(long_text(), tool_use_id="toolu_1")
    synced = count(os, "fsync")

    off.offload_text(long_text(1), tool_use_id="toolu_2")

    assert len(synced) == 2


def test_a_local_turn_of_many_items_syncs_each_file_once_and_nothing_again_in_the_next_turn(
    tmp_path: Path, count: Any
) -> None:
    off = Offloader(tmp_path, session="one")
    off.offload_text(long_text(), tool_use_id="toolu_0")
    messages = [result_message(n, long_text(n)) for n in range(1, 6)]
    synced = count(os, "fsync")

    assert len(off.offload(messages).records) == 5
    assert 5 < len(synced) <= 10
    synced.clear()
    off.offload(messages)

    assert synced == []
