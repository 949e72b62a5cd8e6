"""Limits of the text that enters a request: one item, and all new items of a turn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kit.conversation import from_user, tool_result

from offload import ItemFacts, Offloader, OffloadPolicy, OffloadResult, Rule
from offload.base.tokens import estimate_tokens
from offload.engine.policy.policy import MAX_VIEW_TOKENS
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

SMALL = OffloadPolicy.model_validate({"preset": "balanced", "max_view_tokens": 4000, "cost_plan": "none"})


def text(tokens: int, name: str = "") -> str:
    """Return a text of about so many tokens and no fewer."""
    line = f"{name} another line of some words to read\n"
    return line * -(-tokens // max(1, estimate_tokens(line * 100) // 100) + 1)


def calls(*names: str) -> dict[str, Any]:
    uses = [{"type": "tool_use", "id": n, "name": n.rstrip("0123456789"), "input": {}} for n in names]
    return {"role": "assistant", "content": uses}


def result(name: str, content: str, **fields: Any) -> dict[str, Any]:
    return from_user([tool_result(name, content, **fields)])


def left(out: OffloadResult) -> list[str | None]:
    return [info.tool_use_id for info in out.records]


TASK = from_user("Look at it all.")
LARGE = text(2 * MAX_VIEW_TOKENS)


@pytest.mark.parametrize(
    "messages",
    [
        [TASK, calls("read1"), result("read1", LARGE)],
        [TASK, calls("bash1"), result("bash1", LARGE, is_error=True)],
        [TASK, calls("read1"), result("read1", LARGE, is_error=True)],
        [from_user(LARGE)],
        [TASK, calls("bash1"), result("bash1", "fine"), from_user(LARGE)],
    ],
)
def test_what_is_above_the_ceiling_leaves_before_the_model_sees_it(messages: list[Any]) -> None:
    off = Offloader("memory://")
    out = off.offload(messages)

    assert len(out.records) == 1
    assert out.tokens_after < 1000
    assert LARGE[:30] in str(out.messages)
    assert out.errors == []
    assert "above max_view_tokens" in off.explain()
    assert off.restore(out.messages) == messages
    without = OffloadPolicy(max_view_tokens=None, cost_plan="none")
    assert Offloader("memory://", policy=without).offload(messages).records == []


def test_new_texts_of_a_turn_leave_largest_first_until_the_rest_is_within_the_ceiling() -> None:
    sizes = {"read1": 1400, "bash1": 1300, "read2": 1900, "bash2": 1000}
    results = [result(n, text(s, n), is_error=n == "bash1") for n, s in sizes.items()]
    out = Offloader("memory://", policy=SMALL).offload([TASK, calls(*sizes), *results])

    assert left(out) == ["read2"]
    seen = [d.item.tokens for d in out.decisions if d.ref is None]
    assert 3000 < sum(seen) <= 4000


def test_a_turn_that_comes_in_several_calls_is_one_turn_and_the_next_has_a_ceiling_of_its_own() -> None:
    off = Offloader("memory://", policy=SMALL)
    messages: list[Any] = [TASK, calls("read1", "read2", "read3")]
    for name in ("read1", "read2", "read3"):
        messages = [*messages, result(name, text(1700, name))]
        out = off.offload(messages)

    # Of equals the first; the others were seen by nobody either.
    assert left(out) == ["read1"]
    assert sum(d.item.tokens for d in out.decisions if d.ref is None) <= 4000
    off, messages = Offloader("memory://", policy=SMALL), [TASK]
    for turn in range(1, 5):
        name = f"bash{turn}"
        messages = [*messages, calls(name), result(name, text(1200, name)), from_user(text(1200, name))]
        assert off.offload(messages).records == []


def test_what_left_for_the_ceiling_stays_away_in_later_turns_and_other_processes(tmp_path: Path) -> None:
    first = [
        TASK,
        calls("bash1", "bash2"),
        *(result(n, text(2300, n), is_error=True) for n in ("bash1", "bash2")),
    ]
    later = [*first, calls("bash3"), result("bash3", "done"), calls("bash4"), result("bash4", "done")]
    off = Offloader(tmp_path, session="s", policy=SMALL)
    out = off.offload(first)
    assert left(out) == ["bash1"]

    for other in (off, off, Offloader(tmp_path, session="s", policy=SMALL)):
        assert other.offload(later).messages[:4] == out.messages
        # One of the two was cut off since: together the rest would be small enough.
        assert other.offload(later[:3]).messages == out.messages[:3]
        assert other.offload(later).messages[:4] == out.messages


@pytest.mark.parametrize(
    ("messages", "pinned", "reason"),
    [
        ([TASK, calls("read1"), result("read1", text(9000))], ["read1"], "pinned"),
        ([TASK, {"role": "assistant", "content": text(9000)}], [], "assistant_message"),
    ],
    ids=["pinned", "written by the model"],
)
def test_what_is_kept_by_design_is_not_said_to_have_failed(
    messages: list[Any], pinned: list[str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []
    off = Offloader("memory://", session="s", policy=SMALL)
    off.events.subscribe(heard.append)

    [error] = off.offload(messages, pinned=pinned).errors

    assert error.kind == "above_ceiling"
    assert reason in str(error)
    assert [event.data for event in heard if event.event_type == "above_ceiling"] == [
        {"session": "s", "kind": "above_ceiling"}
    ]
    assert [event for event in heard if event.event_type == "offload_failed"] == []
    assert caplog.messages == [f"session s: {error}"]


def test_what_is_pinned_stays_above_the_ceiling_and_the_errors_tell() -> None:
    off = Offloader("memory://", policy=SMALL)
    messages = [TASK, calls("read1", "read2"), result("read1", text(9000)), result("read2", text(3000))]
    out = off.offload(messages, pinned=["read1"])

    assert out.messages == messages
    [error] = out.errors
    assert "messages[2]: tool_result of" in str(error)
    assert str(error).endswith("above max_view_tokens (4000): pinned")
    assert left(off.offload(messages)) == ["read1"]


def test_a_system_prompt_above_the_ceiling_stays_and_is_told_in_its_turn_alone() -> None:
    off = Offloader("memory://", policy=SMALL, on_error="raise")
    messages = [{"role": "system", "content": text(9000)}, from_user(text(3000))]
    out = off.offload(messages)

    assert out.messages == messages
    assert ["system_prompt" in str(e) for e in out.errors] == [True]
    assert off.offload([*messages, calls("bash1"), result("bash1", "fine")]).errors == []


def test_what_the_caller_keeps_stays_above_the_ceiling_in_every_call_of_the_turn() -> None:
    asked = []

    def never(facts: ItemFacts) -> bool:
        asked.append(facts)
        return False

    off = Offloader("memory://", policy=SMALL, should_offload=never)
    messages = [calls("read1", "read2"), result("read1", text(9000))]

    for more in ([], [result("read2", "fine")]):
        out = off.offload([*messages, *more])
        assert out.records == []
        assert ["kept by should_offload" in str(e) for e in out.errors] == [True]
    assert len(asked) == 1


def test_many_texts_too_small_to_leave_are_told_together() -> None:
    names = [f"bash{n}" for n in range(60)]
    messages = [calls(*names), *(result(n, text(100, n)) for n in names)]
    out = Offloader("memory://", policy=SMALL).offload(messages)

    assert out.records == []
    assert ["in total are kept" in str(e) for e in out.errors] == [True]


def test_a_store_that_fails_is_one_error_and_the_turn_is_tried_again() -> None:
    store = FaultyStore(MemoryStore(), verb="put", is_lasting=True)
    off = Offloader(store, policy=SMALL)
    messages = [calls("bash1", "bash2"), *(result(f"bash{n}", text(2300), is_error=True) for n in (1, 2))]

    out = off.offload(messages)
    assert out.messages == messages
    assert [error.kind for error in out.errors] == ["store_unavailable"]

    store.heal()
    assert left(off.offload(messages)) == ["bash1"]


def test_a_single_text_and_a_sink_have_the_same_ceiling() -> None:
    off = Offloader("memory://", policy=SMALL)
    content = text(9000)

    assert off.offload_text(content, tool_name="read_file", file_readers="keep") != content
    with off.open_sink(tool_name="read_file", file_readers="keep") as sink:
        sink.write(content)
    assert sink.info is not None
    assert off.offload_text(content[:8000], tool_name="read_file", file_readers="keep") == content[:8000]


def test_placeholders_of_another_process_never_leave_for_the_ceiling(tmp_path: Path) -> None:
    eager = OffloadPolicy(types={"tool_result": Rule(min_tokens=500)})
    names = [f"bash{n}" for n in range(30)]
    messages = [calls(*names), *(result(n, text(600, n)) for n in names)]
    sent = Offloader(tmp_path, session="s", policy=eager).offload(messages).messages
    other = Offloader(tmp_path, session="s", policy=SMALL)

    out = other.offload(sent)
    assert (out.messages, out.errors) == (sent, [])
    assert other.restore(sent) == messages
