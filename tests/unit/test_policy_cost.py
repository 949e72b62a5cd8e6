"""Offloading by expected cost: what pays, when, and that no session becomes dearer."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st
from kit.conversation import tool_turn
from strength import examples

from offload import CacheModel, ItemFacts, Offloader, OffloadPolicy, OffloadResult, Reason, ReasonKind, Rule
from offload.engine.policy import Decision
from offload.engine.policy.cost import READS_OF_FILES, Candidate, CostPlan
from offload.engine.policy.groups import saving
from offload.messages.access import block_count
from offload.testing import FaultyStore
from offload_backends.memory import MemoryStore

Messages = list[dict[str, Any]]

NO_CLOCK: Any = {"clock": lambda: 0.0}


class Plan(CostPlan[str]):
    """A plan whose decisions are carried out."""

    def __init__(self, cache: CacheModel | None = None) -> None:
        super().__init__(cache or CacheModel())
        self.held: set[str] = set()

    def leaving(self, *, is_bound: bool = False, is_cold: bool = False) -> list[str]:
        """Return what leaves in the next request, in order."""
        held = self.held
        return sorted(self.decide(self.turn, lambda key: key not in held, is_bound=is_bound, is_cold=is_cold))


def item(key: str = "a", tokens: int = 6000, **fields: Any) -> Candidate[str]:
    return Candidate(key, tokens, **{"freed": tokens - 500, "waits": 3, **fields})


def pass_turns(costs: CostPlan[str], count: int, tokens: int = 50, **fields: Any) -> None:
    for _ in range(count):
        costs.add(tokens, is_reply=True)
        costs.add(0, **fields)


# --- items before the model sees them -------------------------------------------------------------


def test_a_new_item_leaves_unseen_only_if_it_may() -> None:
    costs = Plan()
    costs.add(12_000, [item("now", is_unseen=True), item("later")])
    assert costs.leaving() == ["now"]
    assert costs.reasons == {"now": Reason(ReasonKind.PAYS, 6000, count=20, freed=5500)}


def test_an_item_that_was_sent_is_not_unseen_any_more_and_nothing_that_was_sent_leaves_when_bound() -> None:
    costs = Plan()
    costs.held = {"a"}
    costs.add(6000, [item(is_unseen=True)])
    assert costs.leaving(is_bound=True) == []
    costs.held.clear()
    pass_turns(costs, 60)
    assert costs.leaving(is_bound=True) == []
    assert costs.leaving() == ["a"]


# In the 20 requests to come, a token saves 0.1 in each, and the 1.15 of writing it. A read-back costs a
# request with all that is sent and 5,000 tokens before it, at 0.1, and an answer of 150 tokens at 1.25 + 2.
# Of a file 8 * h / (h + 8000) are expected where h tokens are hidden, of another result a quarter of these.
@pytest.mark.parametrize(
    ("smallest", "moment"),
    [
        (1, {"before": 100_000}),
        (5691, {"before": 200_000}),
        (26_702, {"before": 100_000, "reads": READS_OF_FILES}),
        (60_744, {"before": 200_000, "reads": READS_OF_FILES}),
        (807, {"before": 100_000, "reads": READS_OF_FILES, "earlier": 100}),
        (6107, {"before": 100_000, "reads": READS_OF_FILES, "read": 0.025}),
    ],
    ids=str,
)
def test_an_unseen_item_leaves_from_the_size_on_that_pays(smallest: int, moment: dict[str, Any]) -> None:
    assert [leaves(size, is_unseen=True, **moment) for size in (smallest - 1, smallest)] == [False, True]


def leaves(freed: int, *, is_cold: bool = False, marks: int | None = None, **moment: Any) -> bool:
    """Return whether an item that frees so many tokens leaves after some turns."""
    fields: dict[str, Any] = {"before": 20_000, "read": 0.1, **moment}
    before, earlier, first = fields.pop("before"), fields.pop("earlier", 0), fields.pop("first", 0)
    turns, each = fields.pop("turns", 0), fields.pop("each", 50)
    costs = Plan(CacheModel(read=fields.pop("read"), marks=marks))
    pass_turns(costs, earlier, tokens=0)
    costs.add(before)
    costs.add(first, is_reply=first > 0)
    beside = fields.pop("beside", 0)
    items = [item("b", beside, waits=1000), item(tokens=freed + 60, freed=freed, **fields)]
    costs.add(sum(i.tokens for i in items), items)
    pass_turns(costs, turns, each)
    return "a" in costs.leaving(is_cold=is_cold)


# --- items that were sent -------------------------------------------------------------------------


# The edit writes again what follows, at 1.15 more, and must save 5 requests more than the reads expected, of
# which it counts 15 in 100, in 10 requests to come and one for each 4 that were made.
@pytest.mark.parametrize(
    ("smallest", "moment"),
    [
        (22_330, {"turns": 3}),
        (17_431, {"turns": 10}),
        (19_812, {"turns": 10, "reads": READS_OF_FILES}),
        (10_223, {"turns": 40}),
        (27_685, {"turns": 3, "each": 1000}),
        (78_203, {"turns": 3, "each": 10_000}),
        (1, {"turns": 1, "is_cold": True}),
        (16_937, {"turns": 3, "each": 10_000, "is_cold": True, "before": 200_000, "reads": READS_OF_FILES}),
        (70_479, {"turns": 3, "marks": 1}),
        (19_348, {"turns": 3, "marks": 1, "first": 100}),
        (34_358, {"turns": 30, "marks": 1, "first": 100}),
        (12_003, {"turns": 30, "first": 100}),
        (17_565, {"turns": 10, "beside": 203}),
    ],
    ids=str,
)
def test_an_item_that_was_sent_leaves_from_the_size_on_that_pays(
    smallest: int, moment: dict[str, Any]
) -> None:
    assert [leaves(size, **moment) for size in (smallest - 1, smallest)] == [False, True]


def test_items_are_weighed_in_every_reply_and_128_of_them_in_every_second() -> None:
    def are_weighed(items: int, turns: int) -> bool:
        costs = Plan()
        costs.add(6000 * items, [item(f"{n}") for n in range(items)])
        pass_turns(costs, turns)
        return costs.leaving() != []

    assert [are_weighed(127, turns) for turns in (5, 6)] == [True, True]
    assert [are_weighed(128, turns) for turns in (5, 6)] == [False, True]


def test_items_leave_together_in_rare_batches() -> None:
    costs = Plan()
    costs.add(2000)
    edits = []
    for n in range(60):
        costs.add(0, is_reply=True)
        costs.add(6000, [item(f"{n}", waits=3)])
        edits.append(len(costs.leaving()))
    assert 0 < sum(map(bool, edits)) <= 12
    assert sum(edits) >= 40


@pytest.mark.parametrize("is_used", [True, False])
def test_a_use_of_its_file_renews_an_item_and_so_does_a_read_back(is_used: bool) -> None:
    def left(use: dict[str, Any]) -> list[str]:
        costs = Plan()
        costs.add(60_000, [item("a", 60_000, sources=["a.py"]), item("b", 60_000, sources=["b.py"])])
        costs.settle([], lambda key: f"ref {key}")
        pass_turns(costs, 2)
        pass_turns(costs, 1, **(use if is_used else {}))
        costs.settle([], lambda key: f"ref {key}")
        return costs.leaving()

    kept = ["b"] if is_used else ["a", "b"]
    assert left({"uses": ["a.py"]}) == left({"reads": ["ref a"]}) == kept
    assert left({"uses": ["c.py"]}) == left({"reads": ["ref of another session"]}) == ["a", "b"]


def test_an_item_is_in_use_until_its_file_was_left_alone_for_the_replies_that_it_waits_for() -> None:
    costs = Plan()
    costs.add(6000, [item("a", sources=["a.py"])])
    seen = [costs.is_in_use("a")]
    pass_turns(costs, 1, uses=["a.py"])
    for _ in range(4):
        seen.append(costs.is_in_use("a"))
        pass_turns(costs, 1)
    assert seen == [False, True, True, True, False]


def test_a_cold_cache_lets_items_leave_sooner_and_whatever_follows_them() -> None:
    costs = Plan()
    costs.add(6000, [item("old", waits=8), item("file", waits=8, sources=["a.py"])])
    pass_turns(costs, 2, 50_000)
    costs.add(6000, [item("new", waits=8)])
    pass_turns(costs, 1, uses=["a.py"])
    assert costs.leaving() == []
    assert costs.leaving(is_cold=True) == ["old"]
    assert costs.reasons["old"] == Reason(ReasonKind.PAYS_COLD, 6000, count=10, freed=5500)


def test_what_is_far_back_waits_where_much_follows_it_and_what_is_near_leaves() -> None:
    costs = Plan()
    costs.add(6000, [item("far", 20_000)])
    costs.add(200_000, is_reply=True)
    costs.add(40_000, [item("near", 90_000)])
    pass_turns(costs, 3)
    assert costs.leaving() == ["near"]


@pytest.mark.parametrize(("marks", "blocks", "expected"), [(1, 6, ["a"]), (1, 7, []), (2, 7, ["a"])])
def test_an_edit_is_dear_where_the_provider_does_not_find_the_end_before_it(
    marks: int, blocks: int, expected: list[str]
) -> None:
    """It looks 20 blocks back from a mark: the turn of the item, one more, and the new one."""
    costs = Plan(CacheModel(marks=marks))
    costs.add(20_000)
    for made in ([item("a", 40_000, waits=1)], [], []):
        costs.add(50, is_reply=True, blocks=blocks)
        costs.add(40_000 * len(made), made, blocks=0)
    assert costs.leaving() == expected


def test_an_item_that_is_out_counts_no_more_and_one_that_cannot_leave_counts_as_in_view() -> None:
    def left(behind: list[Candidate[str]], *, is_out: bool = False, is_held: bool = False) -> list[str]:
        costs = Plan()
        costs.held = {"behind"} if is_held else set()
        costs.add(100, [item("a", 24_000)])
        costs.add(90_000, behind)
        pass_turns(costs, 3)
        costs.settle(["behind"] if is_out else [], lambda _: None)
        return costs.leaving()

    behind = item("behind", 90_000)
    assert left([]) == left([behind], is_held=True) == []
    assert left([item("behind", 90_000)], is_out=True) == ["a"]
    assert left([item("behind", 90_000)]) == ["a", "behind"]


def test_several_messages_of_the_model_in_a_row_are_one_reply() -> None:
    costs = Plan()
    for _ in range(3):
        costs.add(10, is_reply=True)
    costs.add(10)
    costs.add(10, is_reply=True)
    assert costs.turn == 2


def test_a_run_of_calls_or_results_counts_as_one_block() -> None:
    kinds = ["thinking", "text", "tool_use", "tool_use", "tool_result", "tool_result", "text", "text"]
    assert block_count({"role": "user", "content": [{"type": kind} for kind in kinds]}) == 6
    assert [block_count({"content": "text"}), block_count({"content": []}), block_count({})] == [1, 1, 1]


Drawn = list[tuple[int, list[tuple[int, int, bool]], bool, int]]
drawn_messages = st.lists(
    st.tuples(
        st.sampled_from([50, 700, 6000, 40_000]),
        st.lists(
            st.tuples(st.sampled_from([600, 5000, 20_000]), st.integers(1, 3), st.booleans()), max_size=3
        ),
        st.booleans(),
        st.integers(0, 3),
    ),
    max_size=8,
)


def feed(costs: Plan, name: str, messages: Drawn) -> None:
    for n, (tokens, items, is_reply, file) in enumerate(messages):
        made = [
            item(f"{name} {n} {i}", size, waits=waits, is_unseen=is_unseen, sources=[f"{i}.py"])
            for i, (size, waits, is_unseen) in enumerate(items)
        ]
        total = tokens + sum(one.tokens for one in made)
        costs.add(total, made, is_reply=is_reply, uses=[f"{file}.py"] if file else [])


@examples(200)
@given(
    first=drawn_messages, dropped=drawn_messages, later=drawn_messages, marks=st.sampled_from([None, 1, 2])
)
def test_messages_that_are_dropped_leave_no_trace(
    first: Drawn, dropped: Drawn, later: Drawn, marks: int | None
) -> None:
    fresh, taken_back = (Plan(CacheModel(marks=marks)) for _ in range(2))
    for costs in (fresh, taken_back):
        feed(costs, "first", first)
    feed(taken_back, "dropped", dropped)
    taken_back.truncate(len(first))
    for costs in (fresh, taken_back):
        feed(costs, "later", later)
    for is_cold in (False, True):
        assert taken_back.leaving(is_cold=is_cold) == fresh.leaving(is_cold=is_cold)
    assert taken_back.reasons == fresh.reasons


@examples(200)
@given(messages=drawn_messages, marks=st.sampled_from([None, 1]))
def test_another_process_that_knows_what_is_out_decides_the_same(messages: Drawn, marks: int | None) -> None:
    grown, out = Plan(CacheModel(marks=marks)), set[str]()
    for end in range(1, len(messages) + 1):
        at_once = Plan(CacheModel(marks=marks))
        feed(at_once, "m", messages[:end])
        at_once.settle(out, lambda _: None)
        n, (tokens, items, is_reply, file) = end - 1, messages[end - 1]
        made = [
            item(f"m {n} {i}", size, waits=waits, is_unseen=is_unseen, sources=[f"{i}.py"])
            for i, (size, waits, is_unseen) in enumerate(items)
        ]
        total = tokens + sum(one.tokens for one in made)
        grown.add(total, made, is_reply=is_reply, uses=[f"{file}.py"] if file else [])
        left = grown.leaving()
        assert at_once.leaving() == left
        out |= {*left}


# --- conversations --------------------------------------------------------------------------------

WORDS = ("cache", "provider", "prefix", "request", "time", "over", "reads", "until")


def text(chars: int, seed: int) -> str:
    rng = Random(seed)  # noqa: S311 # reproducible
    lines: list[str] = []
    while sum(len(line) for line in lines) < chars:
        lines.append(f"{rng.choice(WORDS)} {rng.choice(WORDS)} item_{rng.randrange(10**6)}\n")
    return "".join(lines)[:chars]


def turn(number: int, chars: int, tool: str = "Bash", arguments: int = 10) -> Messages:
    return tool_turn(f"c{number}", text(chars, number), tool, {"x": text(arguments, -number)})


def session(seed: int, turns: int = 25) -> Messages:
    rng = Random(seed)  # noqa: S311 # reproducible
    messages: Messages = [{"role": "user", "content": text(rng.choice((80, 2500)), seed)}]
    for n in range(turns):
        size = rng.choice((60, 400, 1500, 2500, 4000, 9000))
        messages += turn(n, size, rng.choice(("Bash", "Read")), rng.choice((10, 10, 2500)))
    return messages


def policy(name: Any) -> OffloadPolicy:
    return OffloadPolicy.preset(name)


def kinds(result: OffloadResult) -> set[ReasonKind]:
    return {decision.reason.kind for decision in result.decisions}


COST_PLAN = ("balanced", "economy")


@pytest.mark.parametrize("name", COST_PLAN)
def test_a_list_given_at_once_equals_one_that_grew_with_and_without_a_restart(name: str) -> None:
    messages, store = session(1, 80), MemoryStore()
    growing = Offloader(store, session="s", policy=policy(name), **NO_CLOCK)
    for end in range(1, len(messages) + 1):
        grown = growing.offload(messages[:end])

    at_once = Offloader("memory://", session="s", policy=policy(name), **NO_CLOCK).offload(messages)
    restarted = Offloader(store, session="s", policy=policy(name), **NO_CLOCK).offload(messages)

    assert ReasonKind.PAYS in kinds(grown)
    assert at_once.messages == restarted.messages == grown.messages
    assert growing.restore(grown.messages) == messages


def editing(seed: int, turns: int) -> Messages:
    """Return a session that reads, edits and reads back files, with large outputs between."""
    rng = Random(seed)  # noqa: S311 # reproducible
    messages: Messages = [{"role": "user", "content": "go"}]
    for n in range(turns):
        tool, chars = rng.choice(
            (("Read", 12_000), ("Read", 3000), ("Edit", 200), ("Bash", 9000), ("Bash", 60))
        )
        path = f"{rng.randrange(4)}.py"
        edit = {"old_string": text(60, rng.randrange(9)), "new_string": text(2500, n)}
        given = {"file_path": path, **(edit if tool == "Edit" else {})}
        messages += tool_turn(f"c{n}", text(chars, seed + n), tool, given)
    return messages


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize("name", ["balanced", "economy", "verbatim"])
def test_a_process_that_restarts_before_each_request_sends_what_one_that_runs_on_sends(
    name: str, seed: int
) -> None:
    messages, store, again = editing(seed, 60), MemoryStore(), MemoryStore()
    rng = Random(seed)  # noqa: S311 # reproducible
    on = Offloader(store, session="s", policy=policy(name), **NO_CLOCK)
    for end in range(1, len(messages) + 1, 2):
        cache: Any = "cold" if end == 1 or rng.random() < 0.1 else "warm"
        sent = on.offload(messages[:end], cache=cache)
        new = Offloader(again, session="s", policy=policy(name), **NO_CLOCK)
        assert new.offload(messages[:end], cache=cache).messages == sent.messages
    assert sent.records
    assert on.restore(sent.messages) == messages


def test_a_file_that_is_worked_on_stays_and_leaves_once_it_was_left_alone() -> None:
    def read(n: int, path: str) -> Messages:
        return tool_turn(f"r{n}", text(60_000, n), "Read", {"file_path": path})

    def edit(n: int) -> Messages:
        given = {"file_path": "a.py", "old_string": "a", "new_string": "b"}
        return tool_turn(f"e{n}", "done", "Edit", given)

    messages = [{"role": "user", "content": "go"}, *read(1, "a.py"), *read(2, "b.py")]
    off = Offloader("memory://", session="s", **NO_CLOCK)
    assert ReasonKind.FILE_IN_USE not in kinds(off.offload(messages))
    for n in range(12):
        messages += edit(n)
        out = off.offload(messages)
    assert [info.tool_use_id for info in out.records] == ["r2"]
    assert ReasonKind.FILE_IN_USE in kinds(out)
    for n in range(3, 15):
        messages += turn(n, 60)
        out = off.offload(messages)
    assert [info.tool_use_id for info in out.records] == ["r1", "r2"]


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

    assert ReasonKind.PAYS_COLD in kinds(after)
    assert len(after.records) > len(before.records)


def test_a_small_item_that_is_pinned_or_could_not_be_stored_leaves_later() -> None:
    messages = [*turn(1, 4000), *turn(2, 60), *turn(3, 60), *turn(4, 60)]
    store = FaultyStore(MemoryStore(), verb="put", nth=1)
    off = Offloader(store, session="s", **NO_CLOCK)
    assert off.offload(messages, pinned={"c1"}, cache="cold").records == []
    failed = off.offload(messages, cache="cold")
    assert (len(failed.errors), failed.records) == (1, [])
    assert [i.tool_use_id for i in off.offload(messages).records] == ["c1"]


def test_a_host_may_keep_a_small_item() -> None:
    asked: list[ItemFacts] = []

    def veto(facts: ItemFacts) -> bool:
        asked.append(facts)
        return False

    off = Offloader("memory://", should_offload=veto, **NO_CLOCK)
    messages = [*turn(1, 4000), *turn(2, 60), *turn(3, 60), *turn(4, 60)]
    for _ in range(2):
        assert off.offload(messages, cache="cold").records == []
    assert len(asked) == 1


def veto_kept(facts: ItemFacts) -> bool:
    return facts.tool_name != "Kept"


KEPT = {f"c{n}" for n in range(0, 20, 2)}


@pytest.mark.parametrize(
    ("options", "pinned", "chars"),
    [({"should_offload": veto_kept}, (), 4000), ({"should_offload": veto_kept}, (), 3000), ({}, KEPT, 4000)],
    ids=["vetoed", "vetoed beside small ones", "pinned"],
)
def test_what_stays_counts_as_if_it_had_never_been_a_candidate(
    options: dict[str, Any], pinned: Sequence[str], chars: int
) -> None:
    messages: Messages = [{"role": "user", "content": "go"}]
    for n in range(20):
        messages += turn(n, 9000 if f"c{n}" in KEPT else chars, "Kept" if f"c{n}" in KEPT else "Bash")
    without = OffloadPolicy.model_validate({"preset": "balanced", "exclude_tools": ["Kept"]})
    expected = Offloader("memory://", session="s", policy=without, **NO_CLOCK)
    off = Offloader("memory://", session="s", **options, **NO_CLOCK)
    for end in range(1, len(messages) + 1):
        cache: Any = "cold" if end % 20 == 1 else "warm"
        out = off.offload(messages[:end], pinned=pinned, cache=cache)
        assert out.messages == expected.offload(messages[:end], cache=cache).messages
    assert out.records


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


def test_a_large_user_message_waits_where_a_result_pays() -> None:
    task = {"role": "user", "content": "word " * 800}
    out = Offloader("memory://", policy=policy("economy"), **NO_CLOCK).offload([task, *turn(1, 4000)])
    reasons = {d.item.item_type: d.reason for d in out.decisions}
    assert (reasons["tool_result"].kind, reasons["tool_result"].count) == (ReasonKind.PAYS, 20)
    assert reasons["user_message"].kind is ReasonKind.NOT_YET


def test_own_rules_and_single_texts_have_thresholds_in_every_policy() -> None:
    own = OffloadPolicy(types={"tool_result": Rule(min_tokens=10**6)})
    assert own.cost_plan == OffloadPolicy(tools={}).cost_plan == "none"
    assert Offloader("memory://", policy=own).offload(session(6), cache="cold").records == []
    economy = Offloader("memory://", policy=policy("economy"))
    assert economy.offload_text(text(2000, 1)) == text(2000, 1)
    assert economy.offload_text(text(9000, 1)) != text(9000, 1)


@pytest.mark.parametrize(("name", "is_kept"), [("balanced", True), ("economy", False)])
def test_a_small_text_of_the_user_may_be_the_task_and_stays(name: str, is_kept: bool) -> None:
    messages: Messages = [{"role": "user", "content": text(5000, 1)}]
    for n in range(12):
        messages += turn(n, 60)
    sent = Offloader("memory://", policy=policy(name), **NO_CLOCK).offload(messages, cache="cold").messages
    assert (sent[0] == messages[0]) is is_kept
