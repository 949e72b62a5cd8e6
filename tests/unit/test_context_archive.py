"""Removed messages are restored at their places, in any order of compactions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from anthropic.types import TextBlock
from hypothesis import given, strategies as st
from kit.conversation import from_model, from_user, tool_use
from strength import examples

from offload import MessageError, Offloader
from offload.agent.compaction import MessageArchive

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


@pytest.mark.parametrize(
    "value", [(1, ("a", [()])), math.inf, -math.inf, math.nan, {"$tuple": [1]}, {"$$float": 2}]
)
def test_tuples_and_numbers_that_json_lacks_are_restored_as_they_were(value):
    archive = MessageArchive(Offloader("memory://", session="s"))
    text = ({"type": "text", "text": "word " * 60},)
    messages: list[Any] = [from_user(text), from_model([tool_use("t", "f", {"x": value})]), MESSAGES[0]]

    restored = archive.restore(without(archive, messages, [0, 1]))

    # NaN equals none.
    assert repr(restored) == repr(messages)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({3}, "x: set has no JSON"),
        ([{}, (object(),)], r"x\[1\]\[0\]: object has no JSON"),
        ({1: 2}, "x: the name of a field is int"),
    ],
)
def test_a_message_that_has_no_json_is_kept_and_the_error_names_the_place(value, said):
    off = Offloader("memory://", session="s")
    messages: list[Any] = [MESSAGES[0], from_model([tool_use("t", "f", {"x": value})]), *MESSAGES[2:]]

    with pytest.raises(MessageError, match=rf"^messages\[1\]\.content\[0\]\.input\.{said}"):
        without(MessageArchive(off), messages, [0, 1])
    assert off.records() == []
