"""A restart is invisible: a new process for each request sends what a process that never ended sends.

Both start with an empty store of their own. The conversations have regenerated last messages, rollbacks of
several messages, messages trimmed from the front, edits, and thinking that models bind to what was sent.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from restarts import FIELDS, POLICIES, Chat, compare, steps, turns

from offload import Offloader, OffloadPolicy, Rule
from offload.agent.presets.context_fs import ContextFileSystem
from offload.agent.presets.context_refs import ContextRefs
from offload_backends.memory import MemoryStore

conversations = st.lists(turns, min_size=2, max_size=7)
EACH = [
    pytest.param(policy, id=f"{name} {n}")
    for name, policies in POLICIES.items()
    for n, policy in enumerate(policies)
]


def opened(policy: OffloadPolicy, store: MemoryStore) -> Offloader:
    return Offloader(store, session="s", policy=policy, clock=lambda: 0.0)


def test_each_field_of_a_policy_and_each_named_policy_is_tried() -> None:
    assert POLICIES.keys() == FIELDS


@pytest.mark.parametrize("policy", EACH)
@settings(max_examples=2)
@given(drawn=conversations, thinks=st.booleans())
def test_a_new_process_for_each_request_sends_the_same(
    policy: OffloadPolicy, drawn: list[Any], thinks: bool
) -> None:
    compare(partial(opened, policy), steps(drawn, thinks=thinks))


@pytest.mark.slow
@pytest.mark.parametrize("policy", EACH)
@pytest.mark.parametrize("thinks", [False, True])
@settings(max_examples=100)
@given(drawn=conversations)
def test_a_new_process_sends_the_same_in_many_conversations(
    policy: OffloadPolicy, thinks: bool, drawn: list[Any]
) -> None:
    compare(partial(opened, policy), steps(drawn, thinks=thinks))


def test_a_result_whose_call_was_trimmed_keeps_its_placeholder_and_its_one_record() -> None:
    chat, store = Chat(), MemoryStore()
    chat.reply(1, 0, 40)
    chat.answer([30_000, 0, 0])
    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=200)})
    sent = opened(policy, store).offload(chat.messages).messages
    chat.trim(2)

    assert opened(policy, store).offload(chat.messages).messages == sent[2:]
    assert len([*store.keys("r/")]) == 1


@pytest.mark.parametrize("name", ["balanced", pytest.param("economy", marks=pytest.mark.slow)])
def test_thirty_regenerations_of_the_last_message_leave_no_trace(name: Any) -> None:
    drawn: list[Any] = [(2, 0, 900, [3200, 9000, 1500], "again", 6) for _ in range(2)]
    drawn.append((3, 0, 40, [9000, 3200, 30_000], "again", 30))
    compare(partial(opened, OffloadPolicy.preset(name)), steps(drawn, thinks=False))


@pytest.mark.parametrize("preset", ["context_fs", "context_refs"])
@settings(max_examples=4)
@given(drawn=conversations)
def test_a_layout_of_files_is_no_exception(
    tmp_path_factory: pytest.TempPathFactory, preset: str, drawn: list[Any]
) -> None:
    roots = [tmp_path_factory.mktemp("root") for _ in range(2)]

    def host(root: Path) -> Offloader:
        made = ContextFileSystem(root, "s") if preset == "context_fs" else ContextRefs(root, "s")
        return made.offloader

    lasting = host(roots[0])
    for messages in steps(drawn, thinks=False):
        # The text of some layouts names the folder of the store.
        sent, again = str(lasting.offload(messages).messages), str(host(roots[1]).offload(messages).messages)
        assert sent.replace(str(roots[0]), "") == again.replace(str(roots[1]), "")
