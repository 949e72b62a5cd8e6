"""Offloading by expected cost: what pays, when, and that no session becomes dearer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pairs import each_in_turn
from strength import examples

from offload import CacheModel, ItemFacts, Offloader, OffloadPolicy, Rule
from offload.messages.access import block_count
from offload.policy import Decision
from offload.policy.cost import Candidate, CostPlan
from offload.policy.groups import saving
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

Messages = list[dict[str, Any]]

NO_CLOCK: Any = {"clock": lambda: 0.0}


def plan(cache: CacheModel | None = None) -> CostPlan[str]:
    return CostPlan(cache or CacheModel(marks=1))


def item(key: str = "a", tokens: int = 6000, **fields: Any) -> Candidate[str]:
    given = {"item_type": "tool_result", "freed": tokens - 500, "waits": 1, **fields}
    return Candidate(key, given.pop("item_type"), tokens, given.pop("freed"), **given)


def pass_turns(costs: CostPlan[str], count: int, tokens: int = 50, blocks: int = 1) -> None:
    for _ in range(count):
        costs.add(tokens, is_reply=True, blocks=blocks)


# --- the plan -------------------------------------------------------------------------------------


def test_a_new_item_leaves_at_once_only_if_its_rule_does_not_wait() -> None:
    costs = plan()
    costs.add(12_000, [item("now", waits=0), item("later", waits=1)])
    assert list(costs.due) == ["now"]
    assert costs.due["now"] == "frees 5500 tokens of each of 20 more requests expected"


def test_an_item_leaves_while_little_is_rewritten_and_stays_when_much_would_be() -> None:
    near, far = plan(), plan()
    for costs, behind in ((near, 50), (far, 30_000)):
        costs.add(2000)
        costs.add(6000, [item(waits=2)], is_reply=True)
        pass_turns(costs, 1, behind)
        pass_turns(costs, 1)
    assert (list(near.due), list(far.due)) == (["a"], [])


def test_an_item_in_the_first_request_waits_for_what_is_written_before_it_too() -> None:
    """No earlier request ends before it, so the tools and the system prompt are written again."""
    any_prefix, ends = plan(CacheModel(marks=None)), plan()
    for costs in (any_prefix, ends):
        costs.add(6000, [item()])
        pass_turns(costs, 2)
    assert (list(any_prefix.due), list(ends.due)) == (["a"], [])
    pass_turns(ends, 10)
    assert list(ends.due) == ["a"]


def test_items_of_turns_in_a_row_leave_together_rather_than_one_by_one() -> None:
    costs = plan()
    costs.add(2000)
    edits = []
    for n in range(30):
        costs.add(6000, [item(f"{n}", is_ruled=True)], is_reply=True)
        edits.append(len(costs.due))
        costs.due.clear()
    assert 0 < sum(map(bool, edits)) <= 15
    assert sum(edits) >= 25


def test_a_ruled_item_that_was_seen_waits_where_an_edit_would_not_pay() -> None:
    costs = plan()
    costs.add(2000)
    costs.add(6000, [item(is_ruled=True)], is_reply=True)
    costs.add(90_000)
    pass_turns(costs, 3)
    assert costs.due == {}
    costs.cool()
    assert list(costs.due) == ["a"]


def test_no_end_is_known_after_a_cold_request_but_its_own() -> None:
    def left(*, is_cold: bool) -> list[str]:
        costs = plan()
        costs.add(30_000)
        costs.add(4000, is_reply=True)
        costs.add(6000, [item(waits=2)], is_reply=True)
        if is_cold:
            costs.cool()
        pass_turns(costs, 3)
        return list(costs.due)

    assert (left(is_cold=False), left(is_cold=True)) == (["a"], [])


def left_behind(marks: int, waits: int, first: int, blocks: int) -> list[str]:
    """Return what left of an item behind a large message, whose messages have so many blocks."""
    costs = plan(CacheModel(marks=marks))
    costs.add(60_000, is_reply=first > 0, blocks=first or 1)
    costs.add(6000, [item(waits=waits)], is_reply=True, blocks=blocks)
    pass_turns(costs, max(waits, 3), blocks=blocks)
    return list(costs.due)


def test_an_item_stays_when_the_cache_would_not_find_what_was_sent_before_it() -> None:
    # The item's turn and the four after it, and one that begins: 18 blocks, and 24.
    assert [left_behind(1, 5, blocks, blocks) for blocks in (3, 4)] == [["a"], []]


def test_what_is_far_back_leaves_where_all_is_written_again_for_less_than_it_saves() -> None:
    costs = plan(CacheModel(marks=1))
    costs.add(20_000)
    costs.add(60_000, [item(tokens=50_000, waits=5)], is_reply=True, blocks=9)
    pass_turns(costs, 12, blocks=9)
    assert list(costs.due) == ["a"]


def test_a_second_mark_begins_another_search() -> None:
    def left(marks: int) -> list[str]:
        costs = plan(CacheModel(marks=marks))
        costs.add(60_000)
        costs.add(6000, [item(waits=2)], is_reply=True, blocks=9)
        pass_turns(costs, 3, blocks=9)
        return list(costs.due)

    assert (left(1), left(2)) == ([], ["a"])


def test_a_run_of_calls_or_results_counts_as_one_block() -> None:
    kinds = ["thinking", "text", "tool_use", "tool_use", "tool_result", "tool_result", "text", "text"]
    assert block_count({"role": "user", "content": [{"type": kind} for kind in kinds]}) == 6
    assert [block_count({"content": "text"}), block_count({"content": []}), block_count({})] == [1, 1, 1]


def test_a_cold_cache_lets_an_item_leave_that_waited() -> None:
    costs = plan()
    costs.add(6000, [item()])
    costs.add(30_000)
    pass_turns(costs, 10)
    assert costs.due == {}
    costs.cool()
    assert costs.due == {"a": "frees 5500 tokens of each of 20 more requests expected, and the cache is cold"}


def test_items_leave_together_with_one_that_breaks_the_cache_before_them() -> None:
    alone, together = plan(), plan()
    for costs, first in ((alone, []), (together, [item("ruled", 60_000, is_ruled=True)])):
        costs.add(2000)
        costs.add(60_000, first, is_reply=True)
        costs.add(6000, [item("with it")])
        costs.add(20_000)
        pass_turns(costs, 3)
    assert (list(alone.due), sorted(together.due)) == ([], ["ruled", "with it"])


@pytest.mark.parametrize(("reads", "next_items", "old_items"), [(0, ["a"], ["old"]), (100, [], [])])
def test_reads_beyond_those_expected_keep_the_next_items_and_old_ones_at_a_cold_moment(
    reads: int, next_items: list[str], old_items: list[str]
) -> None:
    costs = plan()
    costs.add(100_000, reads=reads)
    costs.add(6000, [item(waits=0)])
    assert list(costs.due) == next_items

    costs = plan()
    costs.add(200_000, [item(f"out {n}", waits=0) for n in range(20)], reads=reads)
    costs.add(1000, [item("old", tokens=1000)])
    pass_turns(costs, 40)
    costs.due.clear()
    costs.cool()
    assert list(costs.due) == old_items


def test_the_chance_of_a_read_falls_ever_more_slowly_and_is_greatest_for_the_words_of_the_user() -> None:
    chances = [item().chance(age) for age in (0, 8, 16, 56)]
    assert chances == pytest.approx([chances[0], chances[0] / 2, chances[0] / 3, chances[0] / 8])
    kinds = [item(item_type=kind).chance(1) for kind in ("tool_result", "tool_call", "user_message")]
    assert kinds == sorted(kinds)


def test_an_item_that_cannot_leave_stays_in_the_sums_of_later_decisions() -> None:
    refusing, without = plan(), plan()
    refusing.may_leave = lambda key: not key.startswith("kept")
    for n in range(40):
        refusing.add(3000, [item(f"kept{n}", 3000)], is_reply=True)
        without.add(3000, is_reply=True)
        for costs in (refusing, without):
            costs.add(6000, [item(f"{n}")])
        assert [*refusing.reasons] == [*without.reasons]
    assert refusing.reasons == without.reasons != {}


def test_an_item_leaves_once_nothing_holds_it_unless_its_message_was_dropped() -> None:
    held = {"a", "b"}
    costs = plan()
    costs.may_leave = lambda key: key not in held
    costs.add(6000, [item("a", waits=0)])
    costs.add(6000, [item("b", waits=0)])
    costs.truncate(1)
    held.clear()
    costs.retry_refused()
    assert list(costs.due) == ["a"]


Drawn = list[tuple[int, list[tuple[int, int, bool]], bool, int]]
drawn_messages = st.lists(
    st.tuples(
        st.sampled_from([50, 700, 6000, 40_000]),
        st.lists(
            st.tuples(st.sampled_from([600, 5000, 20_000]), st.integers(0, 2), st.booleans()), max_size=3
        ),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=8,
)


def feed(costs: CostPlan[str], name: str, messages: Drawn) -> None:
    for n, (tokens, items, is_reply, reads) in enumerate(messages):
        made = [
            item(f"{name} {n} {i}", size, waits=waits, is_ruled=is_ruled)
            for i, (size, waits, is_ruled) in enumerate(items)
        ]
        costs.add(tokens + sum(one.tokens for one in made), made, is_reply=is_reply, reads=reads)


A_RESULT: Drawn = [(50, [(5000, 1, False)], False, 0)]


@examples(200)
@example(first=A_RESULT, dropped=A_RESULT, later=[(50, [], True, 0)], marks=None)
@given(
    first=drawn_messages, dropped=drawn_messages, later=drawn_messages, marks=st.sampled_from([None, 1, 2])
)
def test_messages_that_are_dropped_leave_no_trace(
    first: Drawn, dropped: Drawn, later: Drawn, marks: int | None
) -> None:
    fresh, taken_back = (plan(CacheModel(marks=marks)) for _ in range(2))
    for costs in (fresh, taken_back):
        costs.may_leave = lambda key: not key.endswith("2")
        feed(costs, "first", first)
    feed(taken_back, "dropped", dropped)
    taken_back.truncate(len(first))
    for costs in (fresh, taken_back):
        feed(costs, "later", later)
        costs.cool()
        costs.may_leave = lambda _: True
        costs.retry_refused()
    assert taken_back.due == fresh.due
    assert taken_back.reasons == fresh.reasons


@pytest.mark.parametrize("marks", [None, 1, 2])
def test_items_of_one_message_leave_as_those_of_two_messages_of_the_turn(marks: int | None) -> None:
    for sizes in ((600, 9000, 600), (9000, 600, 600), (600, 600, 9000), (3000, 3000, 3000)):
        together, apart = (plan(CacheModel(marks=marks)) for _ in range(2))
        for costs, groups in ((together, [sizes]), (apart, [(size,) for size in sizes])):
            costs.add(20_000, is_reply=True)
            number = iter(range(len(sizes)))
            for group in groups:
                made = [item(f"{next(number)}", size, waits=size == sizes[1]) for size in group]
                costs.add(sum(group), made)
            pass_turns(costs, 12, 900)
        assert together.reasons == apart.reasons


def test_a_plan_looks_at_the_latest_turns_only_while_the_cache_is_warm() -> None:
    """One more reply takes no longer with ten times as many turns before it."""
    looked: list[int] = []

    class Counted(Candidate[str]):
        def chance(self, age: int) -> float:
            looked.append(age)
            return super().chance(age)

    for turns in (40, 400):
        costs, looked[:] = plan(), []
        for n in range(turns):
            costs.add(50_000, [Counted(f"{n}", "tool_result", 300, 150, 1)], is_reply=True)
        looked.clear()
        pass_turns(costs, 1)
        assert 0 < len(looked) <= 32


def is_offloaded(freed: int, *, marks: int | None = 1, is_cold: bool = False, **given: Any) -> bool:
    """Return whether an item that frees so many tokens is offloaded by the end of some turns."""
    fields: dict[str, Any] = {"waits": 0, "before": 20_000, "read": 0.1, **given}
    turns = fields.pop("turns", 0), fields.pop("each", 50), fields.pop("blocks", 1)
    earlier, others, reads = (fields.pop(name, 0) for name in ("earlier", "others", "reads"))
    costs = plan(CacheModel(marks=marks, read=fields.pop("read")))
    pass_turns(costs, earlier)
    costs.add(fields.pop("before"), [item(f"other {n}", waits=0) for n in range(others)], is_reply=True)
    costs.add(freed + 60, [item(tokens=freed + 60, freed=freed, **fields)], reads=reads)
    pass_turns(costs, *turns)
    if is_cold:
        costs.cool()
    return "a" in costs.due


# In 20 requests to come, the first size saves 1231 * 0.1 * 20, and the write of 1231 * 1.15: in all 3878. A
# read has a chance of 1231 / 3731. It has the price of a request, 20,000 * 0.1, and of an answer,
# 3000 * (1.25 + 0.1 * 20): with that chance 3877.
@pytest.mark.parametrize(
    ("smallest", "moment"),
    [
        (1231, {}),
        (909, {"earlier": 50}),
        (796, {"earlier": 200}),
        (783, {"read": 0.02}),
        (2531, {"item_type": "tool_call"}),
        (3231, {"item_type": "user_message"}),
        (3770, {"before": 100_000}),
        (1836, {"before": 100_000, "shown": 0.5}),
        (1697, {"reads": 1}),
        (5163, {"before": 200_000, "others": 20, "reads": 20}),
        (574, {"is_cold": True, "waits": 1, "turns": 3, "each": 5000}),
        (1989, {"is_cold": True, "waits": 9, "turns": 30, "before": 200_000, "others": 4, "reads": 14}),
        (23_299, {"waits": 1, "turns": 5}),
        (38_832, {"waits": 3, "turns": 5}),
        (38_640, {"waits": 1, "turns": 3, "is_ruled": True}),
        (16_663, {"waits": 1, "turns": 10, "each": 500}),
        (17_426, {"waits": 1, "turns": 9, "blocks": 4}),
        (10_091, {"waits": 1, "turns": 40}),
        (16_310, {"waits": 1, "turns": 4, "each": 500, "marks": 2}),
        (16_366, {"waits": 1, "turns": 4, "each": 500, "marks": 2, "blocks": 7}),
        (3034, {"waits": 3, "turns": 5, "each": 500, "marks": None}),
        (1692, {"waits": 1, "turns": 1, "others": 2, "marks": None}),
    ],
    ids=str,
)
def test_an_item_is_offloaded_from_the_size_on_that_pays(smallest: int, moment: dict[str, Any]) -> None:
    assert [is_offloaded(size, **moment) for size in (smallest - 1, smallest)] == [False, True]


# --- conversations --------------------------------------------------------------------------------

WORDS = ("cache", "provider", "prefix", "request", "time", "over", "reads", "until")


def text(chars: int, seed: int) -> str:
    rng = Random(seed)  # noqa: S311 # reproducible
    lines: list[str] = []
    while sum(len(line) for line in lines) < chars:
        lines.append(f"{rng.choice(WORDS)} {rng.choice(WORDS)} item_{rng.randrange(10**6)}\n")
    return "".join(lines)[:chars]


def turn(number: int, chars: int, tool: str = "Bash", arguments: int = 10) -> Messages:
    call = {"type": "tool_use", "id": f"c{number}", "name": tool, "input": {"x": text(arguments, -number)}}
    result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": text(chars, number)}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def session(seed: int, turns: int = 25) -> Messages:
    rng = Random(seed)  # noqa: S311 # reproducible
    messages: Messages = [{"role": "user", "content": text(rng.choice((80, 2500)), seed)}]
    for n in range(turns):
        size = rng.choice((60, 400, 1500, 2500, 4000, 9000))
        messages += turn(n, size, rng.choice(("Bash", "Read")), rng.choice((10, 10, 2500)))
    return messages


def policy(name: Any) -> OffloadPolicy:
    return OffloadPolicy.preset(name)


BY_COST = ("balanced", "economy")


@pytest.mark.parametrize("name", BY_COST)
def test_a_list_given_at_once_equals_one_that_grew_with_and_without_a_restart(name: str) -> None:
    messages, store = session(1), MemoryStore()
    growing = Offloader(store, session="s", policy=policy(name), **NO_CLOCK)
    for end in range(1, len(messages) + 1):
        grown = growing.offload(messages[:end])

    at_once = Offloader("memory://", session="s", policy=policy(name), **NO_CLOCK).offload(messages)
    restarted = Offloader(store, session="s", policy=policy(name), **NO_CLOCK).offload(messages)

    assert any("requests expected" in decision.reason for decision in grown.decisions)
    assert at_once.messages == restarted.messages == grown.messages
    assert growing.restore(grown.messages) == messages


def test_a_cold_cache_only_adds_to_what_left_for_good_and_changes_no_placeholder() -> None:
    messages, store = session(4), MemoryStore()
    warm = Offloader("memory://", session="s", **NO_CLOCK).offload(messages)
    cold = Offloader(store, session="s", **NO_CLOCK).offload(messages, cache="cold")

    kept = {info.ref for info in warm.records}
    assert kept < {info.ref for info in cold.records}
    changed = [(a, b) for a, b in zip(warm.messages, cold.messages, strict=True) if a != b]
    originals = [c for a, _ in changed for c in messages if a == c]
    assert len(originals) == len(changed)
    assert Offloader(store, session="s", **NO_CLOCK).offload(messages).messages == cold.messages


def test_a_pause_longer_than_the_cache_lives_is_a_cold_moment() -> None:
    now = [0.0]
    off = Offloader("memory://", session="s", clock=lambda: now[0])
    messages = session(5)
    before = off.offload(messages[:-2])
    now[0] += 301
    after = off.offload(messages)

    assert any("the cache is cold" in d.reason for d in after.decisions)
    assert len(after.records) > len(before.records)


def test_a_small_item_that_is_pinned_or_could_not_be_stored_leaves_later() -> None:
    messages = [*turn(1, 4000), *turn(2, 60), *turn(3, 60)]
    store = FaultyStore(MemoryStore(), verb="put", nth=1)
    off = Offloader(store, session="s", **NO_CLOCK)
    assert off.offload(messages, pinned={"c1"}, cache="cold").records == []
    failed = off.offload(messages)
    assert (len(failed.errors), failed.records) == (1, [])
    assert [i.tool_use_id for i in off.offload(messages).records] == ["c1"]


def test_a_host_may_keep_a_small_item() -> None:
    asked: list[ItemFacts] = []

    def veto(facts: ItemFacts) -> bool:
        asked.append(facts)
        return False

    off = Offloader("memory://", should_offload=veto, **NO_CLOCK)
    messages = [*turn(1, 4000), *turn(2, 60)]
    for _ in range(2):
        assert off.offload(messages, cache="cold").records == []
    assert len(asked) == 1


def veto_kept(facts: ItemFacts) -> bool:
    return facts.tool_name != "Kept"


KEPT = {f"c{n}" for n in range(0, 20, 2)}


@pytest.mark.parametrize(
    ("options", "pinned", "chars", "pays"),
    [
        ({"should_offload": veto_kept}, (), 4000, True),
        ({"should_offload": veto_kept}, (), 3000, False),
        ({}, KEPT, 4000, True),
    ],
    ids=["vetoed", "vetoed beside small ones", "pinned"],
)
def test_what_stays_counts_as_if_it_had_never_been_a_candidate(
    options: dict[str, Any], pinned: Sequence[str], chars: int, pays: bool
) -> None:
    messages: Messages = [{"role": "user", "content": "go"}]
    for n in range(20):
        messages += turn(n, 9000 if f"c{n}" in KEPT else chars, "Kept" if f"c{n}" in KEPT else "Bash")
    without = OffloadPolicy.model_validate({"preset": "balanced", "exclude_tools": ["Kept"]})
    expected = Offloader("memory://", session="s", policy=without, **NO_CLOCK)
    off = Offloader("memory://", session="s", **options, **NO_CLOCK)
    for end in range(1, len(messages) + 1):
        out = off.offload(messages[:end], pinned=pinned)
        assert out.messages == expected.offload(messages[:end]).messages
    assert bool(out.records) is pays
    at_once = Offloader("memory://", session="s", **options, **NO_CLOCK)
    assert at_once.offload(messages, pinned=pinned).messages == out.messages


@pytest.mark.parametrize(("more", "action"), [(0, "offload"), (1, "keep")])
def test_an_item_leaves_for_its_cost_if_it_is_expected_to_free_the_least_saving(
    more: int, action: str
) -> None:
    messages = [*turn(1, 4000), *turn(2, 60)]

    def decided(min_saving: int) -> Decision:
        chosen = OffloadPolicy.model_validate({"preset": "economy", "min_saving": min_saving})
        off = Offloader("memory://", policy=chosen, token_counter=lambda text: len(text) // 4, **NO_CLOCK)
        return max(off.offload(messages, cache="cold").decisions, key=lambda d: d.item.chars)

    assert decided(saving(decided(1)) + more).action == action


def test_the_reasons_are_in_plain_words() -> None:
    task = {"role": "user", "content": "word " * 800}
    out = Offloader("memory://", policy=policy("economy"), **NO_CLOCK).offload([task, *turn(1, 4000)])
    reasons = {d.item.item_type: d.reason for d in out.decisions}
    assert reasons["tool_result"].endswith(" tokens of each of 20 more requests expected")
    assert reasons["user_message"].endswith("offloading it is not expected to lower the cost yet")


def test_own_rules_and_single_texts_have_thresholds_in_every_policy() -> None:
    own = OffloadPolicy(types={"tool_result": Rule(min_tokens=10**6)})
    assert own.by_cost == OffloadPolicy(tools={}).by_cost == "none"
    assert Offloader("memory://", policy=own).offload(session(6), cache="cold").records == []
    economy = Offloader("memory://", policy=policy("economy"))
    assert economy.offload_text(text(2000, 1)) == text(2000, 1)
    assert economy.offload_text(text(9000, 1)) != text(9000, 1)


# --- never dearer ---------------------------------------------------------------------------------

READ, WRITE = 0.1, 1.25


def tokens_of(message: Any) -> float:
    return len(str(message["content"])) / 3.6


def bill(sent: Sequence[Messages]) -> float:
    """Return the price of the requests: the prefix that equals the last request is read from the cache."""
    total = 0.0
    before: Messages = []
    for messages in sent:
        same = 0
        while same < min(len(before), len(messages)) and before[same] == messages[same]:
            same += 1
        total += READ * sum(map(tokens_of, messages[:same])) + WRITE * sum(map(tokens_of, messages[same:]))
        before = messages
    return total


def with_reads(off: Offloader, wants_read: Callable[[], bool], seed: int) -> tuple[float, float, float]:
    """Return the prices without and with offloading, and the slack: a rewrite and a read per item out."""
    messages = session(seed, 18)
    plain: list[Messages] = []
    sent: list[Messages] = []
    reads, answers, out = 0.0, 0.0, None
    read: set[str] = set()
    rewritten = 0.0
    for end in range(1, len(messages) + 1, 2):
        out = off.offload(messages[:end])
        plain.append(messages[:end])
        sent.append(out.messages)
        reads += answers * READ
        if out.cache is not None:
            rewritten += out.cache.cost
        for info in out.records:
            if info.ref not in read and wants_read():
                read.add(info.ref)
                answer = len(off.tools.read(info.ref)) / 3.6
                reads += sum(map(tokens_of, out.messages)) * READ + answer * WRITE
                answers += answer
    assert out is not None
    size = sum(map(tokens_of, out.messages))
    page = 8192 / 3.6
    # Each item still out: its placeholder, one request and one page that stays in view.
    each = size * READ + page * (WRITE + READ * len(sent)) + 400 * WRITE
    return bill(plain), bill(sent) + reads, rewritten + each * len(out.records)


@pytest.mark.parametrize(("name", "drawn"), each_in_turn(BY_COST, [(0.0, 1), (0.0, 2), (0.2, 3), (1.0, 4)]))
def test_no_session_becomes_dearer_than_its_reads(name: str, drawn: tuple[float, int]) -> None:
    rate, seed = drawn
    rng = Random(seed)  # noqa: S311 # reproducible
    off = Offloader("memory://", policy=policy(name), **NO_CLOCK)
    plain, ours, slack = with_reads(off, lambda: rng.random() < rate, seed)
    assert ours <= plain + (slack if rate else 0)


def test_a_model_that_reads_everything_back_has_fewer_small_items_offloaded() -> None:
    counts = []
    for reads_all in (False, True):
        off = Offloader("memory://", policy=policy("economy"), **NO_CLOCK)
        messages = session(7, 18)
        for n, message in enumerate(messages):
            calls = [info.ref for info in off.offload(messages[: n + 1]).records] if reads_all else []
            if message["role"] == "assistant":
                message["content"] += [
                    {"type": "tool_use", "id": f"{n} {ref}", "name": "context_read", "input": {"id": ref}}
                    for ref in calls
                ]
        off.offload(messages)
        counts.append(len(off.records()))
    assert counts[1] < counts[0]


def test_where_any_prefix_is_cached_a_ruled_item_leaves_when_its_rule_says_so() -> None:
    costs = plan(CacheModel())
    costs.add(2000)
    costs.add(6000, [item(is_ruled=True)], is_reply=True)
    costs.add(6000, [item("with it")])
    costs.add(60_000)
    pass_turns(costs, 1)
    assert list(costs.due) == ["with it"], "the rule itself lets the other one leave"
