"""The query of a preview: the call and the messages before its result, and nothing after it."""

from __future__ import annotations

from typing import Any

import pytest
from kit.conversation import from_model, from_user, tool_turn

from offload import Offloader, OffloadPolicy, Rule

POLICY = OffloadPolicy(types={"tool_result": Rule(min_chars=1000, preview_chars=400)}, exclude_tools=())
ROWS = "id,name,mail\n" + "".join(f"{n + 1},user{n},user{n}@example.com\n" for n in range(500))
WANTED = "322,user321,user321@example.com"


def anthropic(question: str, query: str) -> list[dict[str, Any]]:
    return [from_user(question), *tool_turn("c1", ROWS, "sql", {"query": query})]


def openai_chat(question: str, query: str) -> list[dict[str, Any]]:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "sql", "arguments": f'{{"query": "{query}"}}'},
    }
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": ROWS},
    ]


def shown(messages: list[dict[str, Any]]) -> str:
    return str(Offloader("memory://", session="s", policy=POLICY).offload(messages).messages[2])


@pytest.mark.parametrize("conversation", [anthropic, openai_chat])
def test_a_preview_shows_the_line_that_the_call_or_the_user_asked_for(conversation) -> None:
    assert WANTED not in shown(conversation("Look it up.", "all"))
    assert WANTED in shown(conversation("Look it up.", "select user321"))
    assert WANTED in shown(conversation("What is the mail of user321?", "all"))


@pytest.mark.parametrize("conversation", [anthropic, openai_chat])
def test_a_question_that_is_many_calls_old_still_counts(conversation) -> None:
    question, *call = conversation("What is the mail of user321?", "all")
    between = [{"role": "assistant", "content": "I go on."}] * 300
    out = Offloader("memory://", session="s", policy=POLICY).offload([question, *between, *call])
    assert WANTED in str(out.messages[-1])


@pytest.mark.parametrize("conversation", [anthropic, openai_chat])
def test_what_is_said_after_an_answer_changes_nothing_in_its_placeholder(conversation) -> None:
    messages = conversation("Look it up.", "all")
    later = [*messages, from_user("And user321?"), from_model("user321")]
    assert shown(later) == shown(messages)
