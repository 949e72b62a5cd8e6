"""One call of `offload` may have another policy: what it offloads remains so, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.conversation import builds
from kit.store import ActingStore, failing

from offload import ConfigError, Offloader, OffloadPolicy, Rule, StoreError, Sweep, open_store

OWN = OffloadPolicy(types={"tool_result": Rule(min_tokens=100_000)})
EAGER = OffloadPolicy(types={"tool_result": Rule(min_tokens=300)}, min_saving=1)
SWEPT = OffloadPolicy(
    types={"tool_result": Rule(min_tokens=100_000)}, sweep=Sweep(trigger_tokens=1, keep_recent=2)
)


def replaced(messages: list[Any], sent: list[Any]) -> list[int]:
    return [at for at, (one, other) in enumerate(zip(messages, sent, strict=True)) if one != other]


def test_what_the_other_policy_offloads_remains_so_and_the_rest_is_decided_as_before(tmp_path: Path) -> None:
    off, messages = Offloader(tmp_path, session="s", policy=OWN), builds(4)
    assert off.offload(messages).messages == messages
    swept = off.offload(messages, policy=SWEPT)
    assert replaced(messages, swept.messages) == [2, 4]
    messages = [*messages, *builds(6)[9:]]
    later = off.offload(messages)
    assert replaced(messages, later.messages) == [2, 4]
    assert later.messages[:9] == swept.messages
    other = Offloader(tmp_path, session="s", policy=OWN)
    assert other.offload(messages).messages == later.messages
    assert other.restore(later.messages) == messages


def test_a_call_by_another_policy_decides_about_new_messages_too(tmp_path: Path) -> None:
    off, messages = Offloader(tmp_path, policy=OWN), builds(3)
    assert replaced(messages, off.offload(messages, policy=EAGER).messages) == [2, 4, 6]
    messages = [*messages, *builds(4)[7:]]
    assert replaced(messages, off.offload(messages).messages) == [2, 4, 6]


def test_a_policy_of_a_call_may_ask_for_a_smaller_saving_but_not_past_a_veto(tmp_path: Path) -> None:
    asked: list[str | None] = []

    def approve(item: Any) -> bool:
        asked.append(item.tool_use_id)
        return bool(item.tool_use_id != "t0")

    stingy = OffloadPolicy(types={"tool_result": Rule(min_tokens=300)}, min_saving=90_000)
    off, messages = Offloader(tmp_path, policy=stingy, should_offload=approve), builds(2)
    assert off.offload(messages).messages == messages
    assert replaced(messages, off.offload(messages, policy=EAGER).messages) == [4]
    assert set(asked) == {"t0", "t1"}
    assert len(asked) == 2


def test_explain_shows_the_last_call_by_the_policy_of_the_offloader(tmp_path: Path) -> None:
    off, messages = Offloader(tmp_path, policy=OWN), builds(2)
    off.offload(messages)
    before = off.explain()
    off.offload(messages, policy=EAGER)
    assert off.explain() == before


def test_a_call_by_another_policy_cuts_no_text_that_it_cannot_store(tmp_path: Path) -> None:
    full = ActingStore(open_store(tmp_path), failing(StoreError("the disk is full"), "put"))
    off, messages = Offloader(full, policy=OWN, on_error="truncate"), builds(2)
    out = off.offload(messages, policy=EAGER)
    assert out.messages == messages
    assert {type(error) for error in out.errors} == {StoreError}


def test_a_policy_of_a_call_may_be_named_and_another_value_is_refused(tmp_path: Path) -> None:
    off, messages = Offloader(tmp_path, policy=OWN), builds(3)
    assert off.offload(messages, policy="archive").records
    wrong: Any = {"sweep": None}
    with pytest.raises(ConfigError, match="policy must be an OffloadPolicy or the name of one, got dict"):
        off.offload(messages, policy=wrong)
