"""A message format is one class and one row: everything else works with a format that it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from compactions import context_of

from offload import AgentConfig, ContextManager, Offloader, OffloadPolicy, Rule
from offload.agent.compaction import RoundCompactor, RoundConfig, SelectiveCompaction
from offload.errors import MessageError
from offload.messages.adapter import MessageAdapter, Scan
from offload.messages.calls import Calls
from offload.messages.context import ItemType
from offload.messages.context.pairs import partners, split_rounds, waiting_from
from offload.messages.context.tokens import MessageCounter
from offload.messages.formats import FORMATS, adapter_for, answered_calls, is_result

TEXT = "many words of a toy message\n"


class ToyAdapter(MessageAdapter):
    """Messages such as `{"who": "me", "says": "hello"}`, with `asks` for calls and `gets` for results."""

    name = "toy"

    def claims(self, message: Any) -> bool:
        return isinstance(message, Mapping) and "who" in message

    def role(self, message: Any, where: str) -> str:
        roles = {"me": "user", "bot": "assistant", "world": "tool"}
        if message["who"] not in roles:
            raise MessageError(f"{where}: unknown speaker")
        return roles[message["who"]]

    def scan(self, message: Any, where: str, calls: Calls) -> Scan:
        scan = Scan.of_role(self.role(message, where), calls)
        if "says" in message:
            scan.add_text(0, ("says",), message["says"])
        if "asks" in message:
            call = message["asks"]
            scan.add_call(1, ("asks", "with"), call["id"], call["tool"], call["with"])
        if "gets" in message:
            scan.add_result(2, ("gets",), message["gets"], f"{where}.gets", call=message["to"])
        return scan

    def user_message(self, text: str) -> Any:
        return {"who": "me", "says": text}


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offload.messages.formats.FORMATS", (ToyAdapter(), *FORMATS))


def turn(n: int) -> list[Any]:
    return [
        {"who": "me", "says": f"question {n} {TEXT}"},
        {"who": "bot", "asks": {"id": f"c{n}", "tool": "look", "with": {"at": n, "why": TEXT}}},
        {"who": "world", "gets": f"result {n}\n" + TEXT * 40, "to": f"c{n}"},
        {"who": "bot", "says": f"answer {n} {TEXT}"},
    ]


def talk(turns: int) -> list[Any]:
    return [message for n in range(turns) for message in turn(n)]


def test_items_of_the_format_are_offloaded_and_restored() -> None:
    off = Offloader(
        "memory://",
        session="s",
        policy=OffloadPolicy(types={"tool_result": Rule(min_tokens=50, preview_chars=0)}),
    )

    out = off.offload(talk(2))

    assert [(r.item_type, r.tool_name, r.tool_use_id) for r in out.records] == [
        ("tool_result", "look", "c0"),
        ("tool_result", "look", "c1"),
    ]
    assert out.messages[2]["gets"].startswith("[Offloaded: ")
    assert off.restore(out.messages) == talk(2)


def test_pairs_rounds_and_tokens_of_the_format_are_known() -> None:
    messages = talk(2)

    assert adapter_for(messages[0]).name == "toy"
    assert [is_result(m) for m in messages[:4]] == [False, False, True, False]
    assert answered_calls(messages[2]) == ["c0"]
    assert partners(messages) == {1: 2, 5: 6}
    assert split_rounds(messages) == [range(4), range(4, 8)]
    assert waiting_from(messages[:6]) == 5
    assert MessageCounter(len).message(messages[0]) == 4 + len(messages[0]["says"])
    context = context_of(messages)
    removed = context.remove_by_type(ItemType.TOOL_RESULT)
    assert [item.message for item in removed] == [*messages[1:3], *messages[5:7]]


def test_both_compactions_remove_and_restore_messages_of_the_format() -> None:
    messages = talk(6)
    off = Offloader("memory://", session="s")
    rounds = RoundCompactor(off, lambda _: "All was looked at.", RoundConfig(max_context_tokens=1500))

    short = rounds.compact(messages).new_messages

    assert short[0]["who"] == "me"
    assert "All was looked at." in short[0]["says"]
    assert rounds.restore(short) == messages
    context = context_of(messages)
    selective = SelectiveCompaction(off, threshold_tokens=1000)
    assert selective.compact(context).is_compacted
    assert selective.restore(context.lower()) == messages


def test_an_agent_loop_keeps_resumes_and_restores_messages_of_the_format() -> None:
    messages = talk(14)
    off = Offloader("memory://", session="s")
    context = ContextManager(off, AgentConfig(window_tokens=1700))
    for message in messages:
        if message["who"] == "bot":
            assert context.before_model_call().errors == []
            assert context.after_model_call(message) == []
        else:
            context.add(message)

    assert len(context.messages) < len(messages)
    assert all("who" in message for message in context.messages)
    assert context.restore() == messages
    again = ContextManager(Offloader(off.store, session="s"), AgentConfig(window_tokens=1700))
    again.resume()
    assert again.restore() == messages
