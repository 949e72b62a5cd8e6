"""Reports of background tasks, which a coding agent passes inside a text between tags."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st
from kit.conversation import tool_turn

from offload import Offloader, OffloadPolicy
from offload.messages.formats import FORMATS, answered_calls, scan_of

REPORT = "".join(f"{n}. the module {n * n} has no test\n" for n in range(900))


def notification(report: str, task: str = "a1", call: str | None = "toolu_1") -> str:
    named = "" if call is None else f"<tool-use-id>{call}</tool-use-id>\n"
    return (
        f"<task-notification>\n<task-id>{task}</task-id>\n{named}<status>completed</status>\n"
        f'<summary>Agent "review" completed</summary>\n<result>{report}</result>\n'
        "<usage><total_tokens>9</total_tokens></usage>\n</task-notification>\nFull transcript: /tmp/a1.jsonl"
    )


def conversation(text: str, role: str = "system", *, is_block: bool = False) -> list[dict[str, Any]]:
    content: Any = [{"type": "text", "text": text}] if is_block else text
    return [
        {"role": "user", "content": "Review it."},
        *tool_turn("toolu_1", "started", "Task", {"description": "review the code"}),
        {"role": "assistant", "content": [{"type": "text", "text": "It is running."}]},
        {"role": role, "content": content},
    ]


def text_of(message: Any) -> str:
    content = message["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


@pytest.mark.parametrize("is_block", [True, False])
@pytest.mark.parametrize("role", ["system", "user"])
def test_a_report_leaves_alone_at_append_and_comes_back(role: str, is_block: bool) -> None:
    off = Offloader("memory://", session="s")
    messages = conversation(notification(REPORT), role, is_block=is_block)

    out = off.offload(messages)

    before, _, after = notification("|").partition("|")
    shown = text_of(out.messages[-1])
    assert shown.startswith(f"{before}[Offloaded: Task result")
    assert shown.endswith(after)
    [record] = out.records
    assert b"".join(off.content(record.ref)).decode() == REPORT
    assert (record.tool_use_id, "review the code" in str(record.title)) == ("toolu_1", True)
    assert Offloader(off.store, session="s").restore(out.messages) == messages


@pytest.mark.parametrize("report", ["short", REPORT[:7000], REPORT])
@pytest.mark.parametrize("policy", [OffloadPolicy(), OffloadPolicy().once_seen()])
def test_what_is_sent_of_a_report_never_changes_later(report: str, policy: OffloadPolicy) -> None:
    store = Offloader("memory://", session="s").store
    messages = conversation(notification(report))
    live = Offloader(store, session="s", policy=policy)
    first = live.offload(messages).messages[-1]

    for n in range(12):
        messages += [{"role": "assistant", "content": f"{n}"}, {"role": "user", "content": f"Go on {n}."}]
        fresh = Offloader(store, session="s", policy=policy)
        assert live.offload(messages).messages[4] == first == fresh.offload(messages).messages[4]


def test_each_report_of_several_in_a_text_leaves_alone() -> None:
    off = Offloader("memory://", session="s")
    text = "\n".join(notification(f"{n}\n{REPORT}", f"t{n}", f"toolu_{n}") for n in range(3))

    out = off.offload(conversation(text))

    shown = text_of(out.messages[-1])
    assert [shown.count(tag) for tag in ("<task-id>", "[Offloaded: ")] == [3, 3]
    assert off.restore(out.messages) == conversation(text)


def test_a_message_with_a_report_answers_no_call_in_any_format() -> None:
    for message in ({"role": "system", "content": notification(REPORT)}, {"role": "user", "content": "x"}):
        assert [list(adapter.results(message)) for adapter in FORMATS if adapter.claims(message)] in (
            [],
            [[]],
        )
        assert answered_calls(message) == []
    openai = {"role": "user", "content": [{"type": "input_text", "text": notification(REPORT)}]}
    assert answered_calls(openai) == []


@pytest.mark.parametrize(
    "text",
    [
        "see <task-notification>",
        "<task-notification><status>failed</status></task-notification>",
        f"<task-notification><result>{REPORT}",
        f"<task-notification></task-notification><result>{REPORT}</result>",
        f"{REPORT}{notification('short')}",
    ],
)
def test_another_text_has_no_report(text: str) -> None:
    [item] = scan_of({"role": "user", "content": text}).items
    assert (item.item_type, item.text) == ("user_message", text)


TAGS = [
    "<task-notification>",
    "</task-notification>",
    "<result>",
    "</result>",
    "<tool-use-id>t</tool-use-id>",
]
drawn = st.lists(st.sampled_from([*TAGS, "\n", "a", notification("r"), REPORT[:9000]]), max_size=12)


@given(drawn.map("".join), st.sampled_from(["system", "user"]))
def test_any_text_with_the_tags_is_restored_exactly(text: str, role: str) -> None:
    off = Offloader("memory://", session="s")
    messages = conversation(notification(text), role)

    out = off.offload(messages)

    assert off.restore(out.messages) == messages
    assert all(len(error.args[0]) < 300 for error in out.errors)
