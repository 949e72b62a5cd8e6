"""Removed messages are restored at their places, in any order of compactions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anthropic.types import TextBlock
from hypothesis import given
from hypothesis import strategies as st
from strength import examples

from offload import Offloader
from offload.compaction import MessageArchive

MESSAGES = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "word " * 60} for n in range(8)]


def without(archive: MessageArchive, messages: list[Any], leaving: list[int]) -> list[Any]:
    """Return `messages` with a notice for those at the indices `leaving`, at the place of the first."""
    notice = replace(archive.notice(messages), messages=len(leaving), summary="a summary")
    _, message = archive.store(messages, leaving, notice)
    kept = [m for i, m in enumerate(messages) if i not in leaving]
    return [*kept[: leaving[0]], message, *kept[leaving[0] :]]


@given(st.data())
@examples(40)
def test_several_compactions_of_one_conversation_are_undone_latest_first(data):
    archive = MessageArchive(Offloader("memory://", session="s"))
    messages: list[Any] = MESSAGES
    for _ in range(data.draw(st.integers(1, 4))):
        size = len(messages)
        leaving = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=3)))
        messages = without(archive, messages, leaving)

    assert archive.restore(messages) == MESSAGES


def test_sdk_blocks_bytes_and_a_field_with_a_reserved_name_are_restored_as_data():
    archive = MessageArchive(Offloader("memory://", session="s"))
    said = "word " * 60
    image = {"image": {"format": "png", "source": {"bytes": b"\x00\xff"}}}
    call = {"toolUse": {"toolUseId": "t", "name": "f", "input": {"$bytes": "no base64"}}}
    messages: list[Any] = [
        {"role": "assistant", "content": [TextBlock(type="text", text=said)]},
        {"role": "user", "content": [{"text": said}, image]},
        {"role": "assistant", "content": [call]},
        MESSAGES[0],
    ]

    short = without(archive, messages, [0, 1, 2])

    assert len(short) == 2
    data = {"role": "assistant", "content": [{"type": "text", "text": said}]}
    assert archive.restore(short) == [data, *messages[1:]]


def test_later_messages_follow_the_restored_ones():
    archive = MessageArchive(Offloader("memory://", session="s"))
    later = {"role": "user", "content": "and now"}

    short = without(archive, without(archive, MESSAGES, [5, 6]), [0, 2])

    assert len(short) == 6
    assert archive.restore([later, *short]) == [later, *MESSAGES]
    assert archive.restore([*short, later]) == [*MESSAGES, later]
