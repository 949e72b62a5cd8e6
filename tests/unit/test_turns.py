"""Items over several turns: budgets, the latest result of a tool, sweeps, offloaded items."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kit.store import CountedStore

from offload import CacheReport, Offloader, OffloadPolicy, ReasonKind, Rule
from offload.engine.policy import Sweep
from offload.maintenance.retention import delete
from offload.messages.access import edits
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

Messages = list[dict[str, Any]]


def text(name: str, lines: int = 300) -> str:
    return "".join(f"{name} line {n} of a result that is long\n" for n in range(lines))


def turn(*results: tuple[str, str, str]) -> Messages:
    """Return a call of tools and their results: (tool, call id, text) each."""
    calls = [{"type": "tool_use", "id": call, "name": tool, "input": {}} for tool, call, _ in results]
    blocks = [{"type": "tool_result", "tool_use_id": call, "content": said} for _, call, said in results]
    return [{"role": "assistant", "content": calls}, {"role": "user", "content": blocks}]


def answer(said: str = "I see.") -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "text", "text": said}]}


def left(messages: Messages) -> set[str]:
    """Return the call ids whose results stand as placeholders."""
    return {
        block["tool_use_id"]
        for message in messages
        for block in message["content"]
        if block.get("type") == "tool_result" and block["content"].startswith("[Offloaded:")
    }


HIGH = {"tool_result": Rule(min_tokens=100_000)}


# The latest of a tool


def test_the_results_of_another_tool_push_nothing_out(tmp_path: Path) -> None:
    policy = OffloadPolicy(tools={"Browser": Rule(min_tokens=100, keep_recent=1)}, types=HIGH)
    other = turn(("Bash", "b", text("b")), ("Bash", "c", text("c")))
    messages = [*turn(("Browser", "p", text("p"))), *other]
    assert left(Offloader(tmp_path, policy=policy).offload(messages).messages) == set()


def test_the_latest_results_of_a_tool_stay_and_older_ones_leave(tmp_path: Path) -> None:
    policy = OffloadPolicy(tools={"Browser": Rule(min_tokens=100, keep_recent=2)})
    off = Offloader(tmp_path, policy=policy)
    messages: Messages = []
    seen = []
    for n in range(4):
        messages += turn(("Browser", f"p{n}", text(f"p{n}")))
        seen.append(left(off.offload(messages).messages))

    assert seen == [set(), set(), {"p0"}, {"p0", "p1"}]


# A sweep


def swept_policy(**fields: Any) -> OffloadPolicy:
    return OffloadPolicy(types=HIGH, sweep=Sweep(**{"trigger_tokens": 20_000, "keep_recent": 1, **fields}))


def conversation(turns: int) -> Messages:
    return [m for n in range(turns) for m in (*turn(("Bash", f"c{n}", text(f"c{n}"))), answer())]


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({}, conversation(3)),
        ({"clear_at_least": 100_000}, conversation(6)),
        ({}, turn(*(("Bash", f"c{n}", text(f"c{n}")) for n in range(8)))),
    ],
    ids=["short enough", "too little to free", "not answered yet"],
)
def test_nothing_is_swept_without_a_reason(tmp_path: Path, fields: Any, messages: Messages) -> None:
    out = Offloader(tmp_path, policy=swept_policy(**fields)).offload(messages)

    assert left(out.messages) == set()
    assert out.cache is None


def test_a_sweep_takes_all_that_is_old_at_once_and_what_left_stays_away_in_a_new_process_too(
    tmp_path: Path,
) -> None:
    off = Offloader(tmp_path, session="s", policy=swept_policy())
    messages = conversation(6)

    out = off.offload(messages)
    later = off.offload([*messages, *conversation(1)])

    assert left(out.messages) == {f"c{n}" for n in range(5)}
    assert later.messages[: len(messages)] == out.messages
    assert off.restore(out.messages) == messages
    # A new process gets the originals, or the placeholders, which are no small items.
    for given, trigger in ((messages, 10**6), (out.messages, 1000)):
        fresh = Offloader(tmp_path, session="s", policy=swept_policy(trigger_tokens=trigger))
        assert fresh.offload(given).messages == out.messages
    assert len(off.records()) == len(left(out.messages))


def test_a_sweep_ends_where_the_conversation_is_short_enough(tmp_path: Path) -> None:
    out = Offloader(tmp_path, policy=swept_policy(target_tokens=18_000)).offload(conversation(6))

    gone = left(out.messages)
    assert gone
    assert gone == {f"c{n}" for n in range(len(gone))}
    assert out.tokens_after <= 18_000


def test_a_conversation_of_exactly_the_trigger_is_not_swept(tmp_path: Path) -> None:
    messages = conversation(4)
    tokens = Offloader(tmp_path, policy=OffloadPolicy(types=HIGH)).offload(messages).tokens_before

    for trigger, expected in [(tokens, set()), (tokens - 1, {"c0", "c1", "c2"})]:
        off = Offloader(tmp_path, policy=swept_policy(trigger_tokens=trigger))
        assert left(off.offload(messages).messages) == expected


def test_what_leaves_by_a_rule_in_the_same_turn_makes_no_sweep_of_the_rest(tmp_path: Path) -> None:
    messages = [*turn(("Big", "big", text("big"))), answer(), *conversation(3)]
    rules = OffloadPolicy(types=HIGH, tools={"Big": Rule(min_tokens=1000)})
    without = Offloader(tmp_path, policy=rules).offload(messages)
    assert left(without.messages) == {"big"}

    for trigger, expected in [(without.tokens_before - 1, {"big"}), (10_000, {"big", "c0", "c1"})]:
        sweep = Sweep(trigger_tokens=trigger, keep_recent=1)
        off = Offloader(tmp_path, policy=rules.model_copy(update={"sweep": sweep}))
        assert left(off.offload(messages).messages) == expected


def test_small_items_and_those_that_wait_count_together_for_the_least_that_a_sweep_frees(
    tmp_path: Path,
) -> None:
    waiting = [m for n in range(3) for m in (*turn(("Wait", f"w{n}", text(f"w{n}"))), answer())]
    messages = [*conversation(3), *waiting]
    rules = OffloadPolicy(types=HIGH, tools={"Wait": Rule(min_tokens=1000, after_replies=100)})
    one = swept_policy().model_copy(update={"tools": rules.tools})
    all_of_it = Offloader(tmp_path, policy=one).offload(messages)
    assert left(all_of_it.messages) == {"c0", "c1", "w0", "w1"}
    freed = all_of_it.tokens_before - all_of_it.tokens_after

    for least, expected in [(freed * 3 // 4, {"c0", "c1", "w0", "w1"}), (freed * 2, set())]:
        sweep = Sweep(trigger_tokens=20_000, keep_recent=1, clear_at_least=least)
        off = Offloader(tmp_path, policy=one.model_copy(update={"sweep": sweep}))
        assert left(off.offload(messages).messages) == expected


def test_items_that_wait_are_swept_without_small_ones_too(tmp_path: Path) -> None:
    messages = [m for n in range(3) for m in (*turn(("Wait", f"w{n}", text(f"w{n}"))), answer())]
    rules = {"Wait": Rule(min_tokens=1000, after_replies=100)}
    policy = swept_policy(trigger_tokens=1, clear_at_least=1000).model_copy(update={"tools": rules})

    assert left(Offloader(tmp_path, policy=policy).offload(messages).messages) == {"w0", "w1"}


def test_a_change_that_saves_nothing_never_pays_and_a_trigger_may_be_a_part_of_the_window() -> None:
    for freed, cached in ((0, 0.1), (-5, 0.1), (5_000, 0)):
        report = CacheReport(tokens_freed=freed, tokens_rewritten=100_000)
        assert report.turns_to_pay(cached=cached) is None
    assert CacheReport(tokens_freed=5_000, tokens_rewritten=100_000).turns_to_pay() == 230
    assert Sweep(trigger_fraction=0.5, context_tokens=40_000).trigger == 20_000


def test_what_a_change_of_cached_text_costs_is_told(tmp_path: Path) -> None:
    off = Offloader(tmp_path, policy=swept_policy())
    messages = conversation(6)
    assert off.offload(messages[:9]).cache is None

    out = off.offload(messages)

    assert out.cache is not None
    assert out.cache.tokens_freed > 5000
    assert 0 < out.cache.tokens_rewritten < out.tokens_before
    assert (out.cache.turns_to_pay(cached=0.1, uncached=1.25) or 0) >= 1
    assert off.offload(messages).cache is None


# What left before


def test_a_new_conversation_asks_the_store_for_nothing_that_it_held_before() -> None:
    store = FaultyStore(MemoryStore(), nth=10**6)

    Offloader(store, session="s").offload([{"role": "user", "content": "hello"}])

    assert store.operations == 0


@pytest.mark.parametrize("verb", ["keys", None])
def test_a_store_that_cannot_be_listed_leaves_what_was_kept(verb: Any) -> None:
    inner = MemoryStore()
    messages = conversation(6)
    Offloader(inner, session="s", policy=swept_policy()).offload(messages)

    broken = FaultyStore(inner, verb=verb, is_lasting=True)
    out = Offloader(broken, session="s", policy=swept_policy(trigger_tokens=10**6)).offload(messages)

    assert out.messages == messages


# Pins


def test_a_pinned_result_stays_in_view_and_one_that_left_stays_out_in_a_new_process_too(
    tmp_path: Path,
) -> None:
    messages = [*turn(("Bash", "a", text("a", 900)), ("Bash", "b", text("b", 900))), answer()]
    off = Offloader(tmp_path, session="s")

    assert left(off.offload(messages, pinned={"a"}).messages) == {"b"}
    assert left(off.offload(messages, pinned=["a"]).messages) == {"b"}
    assert left(off.offload(messages).messages) == {"a", "b"}
    assert left(off.offload(messages, pinned={"a"}).messages) == {"a", "b"}
    fresh = Offloader(tmp_path, session="s")
    assert left(fresh.offload(messages, pinned={"a"}).messages) == {"a", "b"}


# Two who go on with one session


def test_what_is_not_finished_stays_until_it_is(tmp_path: Path) -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": text("a")}
    off = Offloader(tmp_path)

    pending = off.offload([{**output, "status": "in_progress"}])
    done = off.offload([{**output, "status": "completed"}])

    assert [d.reason.kind for d in pending.decisions] == [ReasonKind.UNFINISHED]
    assert pending.messages[0]["output"] == text("a")
    assert done.messages[0]["output"].startswith("[Offloaded:")


def test_what_one_machine_swept_and_the_other_has_not_seen_stays_away_there_too(tmp_path: Path) -> None:
    here = Offloader(tmp_path, session="s", policy=swept_policy(trigger_tokens=10**6))
    there = Offloader(tmp_path, session="s", policy=swept_policy())
    messages = conversation(6)
    here.offload(messages[:3])

    swept = there.offload(messages)
    seen = here.offload([*messages, *turn(("Bash", "new", text("new")))])

    assert len(left(swept.messages)) > 1
    assert left(seen.messages[: len(messages)]) == left(swept.messages) - {"c0"}


def test_an_edit_in_place_of_a_small_message_is_what_is_swept(tmp_path: Path) -> None:
    off = Offloader(tmp_path, policy=swept_policy())
    messages = conversation(6)
    off.offload(messages[:6])
    messages[1]["content"][0]["content"] = text("edited")

    out = off.offload(messages)

    assert "c0" in left(out.messages)
    assert off.restore(out.messages) == messages


def test_calls_that_are_messages_of_their_own_are_one_answer(tmp_path: Path) -> None:
    def item(call: str, arguments: str) -> dict[str, Any]:
        return {"type": "function_call", "call_id": call, "name": "Write", "arguments": arguments}

    large = '{"content": "' + "a file that the model wrote " * 800 + '"}'
    messages = [item("a", large), item("b", "{}")]

    out = Offloader(tmp_path).offload(messages)

    assert out.messages == messages
    assert {d.action for d in out.decisions if d.item.tool_use_id == "a"} == {"wait"}


def test_a_text_whose_record_is_over_its_time_is_stored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=100, ttl=60)})
    off = Offloader(tmp_path, session="s", policy=policy)
    first = off.offload_text(text("a"), tool_name="Bash", tool_use_id="a")
    now = time.time() + 120
    monkeypatch.setattr(time, "time", lambda: now)

    again = off.offload_text(text("a"), tool_name="Bash", tool_use_id="a")

    assert again == first
    assert len(list(tmp_path.glob("r/s/*.zst"))) == 2
    assert len(list(tmp_path.glob("r/s/*.2~*.zst"))) == 1


class Eager(MemoryStore):
    """A store with bulk verbs that notes when it stores an object."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def put(self, key: str, data: bytes, *, overwrite: bool = False) -> None:
        super().put(key, data, overwrite=overwrite)
        self.events.append("stored")


def test_the_first_records_are_stored_while_others_are_drafted() -> None:
    events: list[str] = []

    def summarize(text: str) -> str:
        events.append("drafted")
        return text[:10]

    off = Offloader(Eager(events), session="s", summarizer=summarize)
    result = off.offload(turn(*(("Bash", f"t{n}", text(f"item {n}")) for n in range(3))))

    assert len(result.records) == 3
    assert [event for event in events if event == "drafted"] == ["drafted"] * 3
    assert events.index("stored") < len(events) - 1 - events[::-1].index("drafted")


def test_a_result_that_was_offloaded_under_another_name_of_its_call_leaves_in_one_turn_as_in_many() -> None:
    store = MemoryStore()
    policy = OffloadPolicy(tools={"read": Rule(min_chars=300, after_replies=1)})
    messages = [*turn(("Bash", "t", text("same"))), answer(), *turn(("read", "t", text("same")))]
    off = Offloader(store, session="s", policy=policy)
    for n in range(1, len(messages) + 1):
        out = off.offload(messages[:n])

    fresh = Offloader(store, session="s", policy=policy).offload(messages)

    assert fresh.messages == out.messages
    assert messages[-1] != out.messages[-1]


def test_a_result_that_comes_again_in_the_turn_in_which_it_leaves_leaves_with_it() -> None:
    store, messages = MemoryStore("memory://"), turn(("Read", "c", text("a")))
    policy = OffloadPolicy(tools={"Read": Rule(after_replies=1)})
    off = Offloader(store, session="s", policy=policy)
    assert left(off.offload(messages).messages) == set()

    messages += turn(("Read", "c", text("a")))
    out = off.offload(messages)

    assert [left([message]) for message in out.messages] == [set(), {"c"}, set(), {"c"}]
    assert Offloader(store, session="s", policy=policy).offload(messages).messages == out.messages


# A new process


def calls(count: int, *, small: bool = False) -> Messages:
    """Return calls with their results, three in four of them small if that is asked for."""
    sizes = [3 if small and n % 4 else 300 for n in range(count)]
    return [m for n, size in enumerate(sizes) for m in turn(("Bash", f"t{n}", text(f"t{n}", size)))]


@pytest.mark.parametrize(("is_sent", "listings"), [(True, 1), (False, 2)])
def test_a_new_process_lists_a_session_once_and_once_more_before_it_takes_over_records(
    is_sent: bool, listings: int
) -> None:
    messages = calls(20)
    sent = Offloader("memory://a-new-process", session="s").offload(messages).messages
    store = CountedStore("memory://a-new-process")

    out = Offloader(store, session="s").offload([*(sent if is_sent else messages), answer()])

    assert out.messages[:-1] == sent
    assert len(left(sent)) == 20
    assert store.count("keys") == listings


def test_a_new_process_does_not_take_over_what_is_deleted_while_it_reads() -> None:
    messages = calls(20)
    url = "memory://deleted-meanwhile"
    refs = [info.ref for info in Offloader(url, session="s").offload(messages).records]
    undeleted = [*refs]

    class Deleting(MemoryStore):
        def get(self, key: str, *, start: int = 0, end: int | None = None) -> bytes:
            if undeleted and key.startswith("r/"):
                delete(MemoryStore(url), "s", [undeleted.pop()])
            return super().get(key, start=start, end=end)

    out = Offloader(Deleting(url), session="s").offload([*messages, answer()])

    assert not undeleted
    assert len(left(out.messages)) == 20
    assert Offloader(url, session="s").restore(out.messages)[:-1] == messages
    assert {info.key for info in out.records} == {info.key for info in Offloader(url, session="s").records()}


def test_the_first_turn_of_a_new_process_takes_few_calls_a_message() -> None:
    sent = Offloader("memory://calls", session="s").offload(calls(100, small=True)).messages
    off, made = Offloader("memory://calls", session="s"), 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal made
        made += event == "call"

    sys.setprofile(count)
    try:
        off.offload([*sent, answer()])
    finally:
        sys.setprofile(None)

    assert len(left(sent)) == 25
    assert made / len(sent) <= 260


def test_a_small_item_has_the_decision_of_the_policy_on_its_facts_of_now() -> None:
    messages = [message for n in range(4) for message in turn(("Bash", f"t{n}", text(f"t{n}", 3)))]
    policy = OffloadPolicy(types={"tool_result": Rule(min_tokens=200, after_replies=2, keep_recent=1)})
    decisions = Offloader("memory://", policy=policy).offload(messages).decisions
    small = [each for each in decisions if each.item.item_type == "tool_result"]

    assert [each.item.newer for each in small] == [3, 2, 1, 0]
    assert small == [policy.decide(each.item) for each in small]


def test_a_new_process_syncs_a_folder_twice_for_all_records_that_it_takes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = calls(20)
    sent = Offloader(tmp_path, session="s").offload(messages)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    again = Offloader(tmp_path, session="s").offload(messages)

    assert len(sent.records) == 20
    assert again.messages == sent.messages
    assert synced.count((tmp_path / "r/s").stat().st_ino) == 2


def test_a_result_says_how_many_messages_are_those_of_the_call_before() -> None:
    off, messages = Offloader("memory://"), calls(20)
    before = off.offload(messages)
    messages += [*calls(21)[-2:], answer()]
    grown = off.offload(messages)
    other = off.offload([*messages[:10], {"role": "user", "content": "Stop."}, *messages[11:]])

    assert (before.unchanged, grown.unchanged, other.unchanged) == (0, len(before.messages), 10)


@pytest.mark.parametrize(
    ("other", "found"),
    [([1, 2], []), ([1.0, 3], [1]), ([1], [1]), ([2, 2, 4], [0, 2]), ([], [0, 1])],
)
def test_edits_are_the_places_of_different_values_then_those_of_the_longer_list(
    other: list[float], found: list[int]
) -> None:
    assert [*edits([1, 2], other)] == [*edits(other, [1, 2])] == found


def test_two_objects_are_compared_as_the_caller_asks_and_one_object_never() -> None:
    asked = list[tuple[Any, Any]]()

    def ask(one: Any, other: Any) -> bool:
        asked.append((one, other))
        return bool(one["content"] == other["content"])

    shared, alike = {"content": "a"}, ({"content": "b"}, {"content": "b", "mark": 1})
    assert [*edits([shared, alike[0], shared], [shared, alike[1], alike[0]], ask)] == [2]
    assert asked == [alike, (shared, alike[0])]
