"""A host that removes or moves messages passes the others on: what is known of them is not read again."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from kit.conversation import builds

from offload import Offloader, OffloadPolicy, Rule
from offload.engine import reading

EAGER = OffloadPolicy(types={"tool_result": Rule(min_tokens=300)})


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often the message at an index was read."""
    counts: Counter[int] = Counter()
    parts = reading._parts

    def count(turn: Any, index: int, message: Any) -> Any:
        counts[index] += 1
        return parts(turn, index, message)

    monkeypatch.setattr(reading, "_parts", count)
    return counts


def test_messages_behind_removed_ones_are_sent_as_before_and_not_read_again(
    tmp_path: Path, read: Counter[int]
) -> None:
    off, messages = Offloader(tmp_path, session="s", policy=EAGER), builds(6)
    before = off.offload(messages).messages
    left = [messages[0], *messages[5:]]
    read.clear()
    out = off.offload(left)
    assert not read
    assert out.messages == [before[0], *before[5:]]
    assert all(one is other for one, other in zip(out.messages[1:], before[5:], strict=True))
    assert [info.tool_use_id for info in out.records] == ["t2", "t3", "t4", "t5"]
    assert [decision.item.message for decision in out.decisions] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    other = Offloader(tmp_path, session="s", policy=EAGER).offload(deepcopy(left))
    assert (out.messages, out.tokens_before, out.tokens_after, out.chars_freed) == (
        other.messages,
        other.tokens_before,
        other.tokens_after,
        other.chars_freed,
    )


def test_a_moved_message_that_was_edited_is_read_again(tmp_path: Path, read: Counter[int]) -> None:
    off, messages = Offloader(tmp_path, policy=EAGER), builds(3)
    off.offload(messages)
    edited = "".join(f"another line {line}\n" for line in range(500))
    messages[4]["content"][0]["content"] = edited
    read.clear()
    out = off.offload([messages[0], *messages[3:]])
    assert dict(read) == {2: 1}
    assert "another line 0" in str(out.messages[2])
    assert off.restore(out.messages) == [messages[0], *messages[3:]]


def test_a_result_whose_call_was_removed_is_read_again(tmp_path: Path, read: Counter[int]) -> None:
    off, messages = Offloader(tmp_path, policy=EAGER), builds(3)
    off.offload(messages)
    read.clear()
    out = off.offload([messages[0], *messages[4:]])
    assert dict(read) == {1: 1}
    [result] = [decision for decision in out.decisions if decision.item.message == 1]
    assert result.item.tool_name is None


def test_a_message_that_is_in_the_list_twice_has_items_of_its_own_each_time(tmp_path: Path) -> None:
    off, text = Offloader(tmp_path, policy=EAGER), "".join(f"line {n}\n" for n in range(2000))
    task, again = {"role": "user", "content": "Go on."}, {"role": "user", "content": text}
    off.offload([task, again])
    out = off.offload([again, task, again])
    assert len(out.decisions) == 3
    assert [decision.item.message for decision in out.decisions] == [0, 1, 2]


def test_originals_are_the_messages_as_they_were_passed(tmp_path: Path) -> None:
    off, messages = Offloader(tmp_path, session="s", policy=EAGER), builds(2)
    sent = off.offload(messages).messages
    assert sent[2] != messages[2]
    assert all(one is other for one, other in zip(off.originals(sent), messages, strict=True))
    assert off.originals([{"role": "user", "content": "new"}]) == [None]


def test_a_message_that_was_passed_with_a_placeholder_has_no_original(tmp_path: Path) -> None:
    sent = Offloader(tmp_path, session="s", policy=EAGER).offload(builds(2)).messages
    off = Offloader(tmp_path, session="s", policy=EAGER)
    out = off.offload(sent)
    assert [one is None for one in off.originals(out.messages)] == [False, False, True, False, True]
