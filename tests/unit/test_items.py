"""What is counted of items is what their states say."""

from __future__ import annotations

from hypothesis import given, strategies as st
from msgspec.structs import replace

from offload.engine.items import TRANSITIONS, Items, Slot, State, unweighed
from offload.engine.policy.facts import Decision
from offload.engine.policy.reasons import Reason, ReasonKind
from offload.messages.base import Item
from offload.records.record import RecordInfo


def slot(number: int = 0) -> Slot:
    """Return an item whose replacement frees tokens unless `number` is 0, of one of three tools."""
    item = Item(None, "tool_result", "a result" + "!" * number, tool_name=f"tool{number % 3}")
    decision = unweighed(item, 0)
    return Slot(item, replace(decision, item=decision.item._replace(tokens=100 * number)))


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 30))
def test_what_a_sweep_may_free_is_the_sum_of_what_stands_aside(kept: list[bool], dropped: int) -> None:
    items, slots = Items(), [slot(n) for n, _ in enumerate(kept)]
    items.add(slots)
    for one, is_kept in zip(slots, kept, strict=True):
        items.move(one, State.OPEN)
        if is_kept:
            items.move(one, State.KEPT)
            items.set_aside(one)
    for one in slots[::3]:
        items.reopen(one)
    left = slots[: len(slots) - min(dropped, len(slots))]
    items.drop(reversed(slots[len(left) :]))

    aside = [one for one in left if one.state is State.KEPT]
    assert list(items.sweepable.values()) == aside
    assert items.sweepable_saving == sum(max(0, 100 * one.number - 60) for one in aside)
    assert items.decided()[0] == [one.decision for one in left]
    again = [slot(n) for n in range(5)]
    items.add(again)
    assert [items.newer(one) for one in [*left, *again]] == newer([*left, *again])


def newer(slots: list[Slot]) -> list[int]:
    """Return for each item how many later ones are of its tool."""
    tools = [one.item.tool_name for one in slots]
    return [tools[at + 1 :].count(tool) for at, tool in enumerate(tools)]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["cut", "store", "undo", "drop"])), max_size=40))
def test_what_replacements_free_and_their_records_are_those_of_the_items_that_are_replaced(
    steps: list[tuple[int, str]],
) -> None:
    items, slots = Items(), [slot(n) for n in range(6)]
    items.add(slots)
    for step, (number, action) in enumerate(steps):
        if action == "drop":
            items.drop([slots.pop()] if slots else [])
        elif number < len(slots):
            replace_or_undo(items, slots[number], action, step)

        replaced = [one for one in slots if one.is_replaced]
        assert items.infos() == [one.info for one in replaced if one.info is not None]
        assert items.chars_freed == sum(len(one.item.text) - len(one.text) for one in replaced)
        assert items.tokens_freed == sum(one.tokens_freed for one in replaced)
        assert [decision for decision, _ in zip(*numbered(items), strict=False)] == [
            one.decision for one in slots
        ]


def replace_or_undo(items: Items, one: Slot, action: str, step: int) -> None:
    """Do what a turn does with an item, if it may."""
    if action == "undo":
        if one.state is State.OFFLOADED:
            items.undo(one)
        return
    if State.LEAVING not in TRANSITIONS[one.state] and one.state is not State.FAILED:
        return
    if one.state is State.FAILED:
        items.retry()
    items.move(one, State.LEAVING)
    text = f"{one.item.text[:3]}{step}"
    decision = replace(one.decision, tokens_after=step % 7)
    items.put(one, text, info(f"record{step}") if action == "store" else None, decision)


def numbered(items: Items) -> tuple[list[Decision], range]:
    decisions, count = items.decided()
    return decisions, range(count)


def info(ref: str) -> RecordInfo:
    return RecordInfo(
        ref=ref,
        session="s",
        item_type="tool_result",
        tool_name=None,
        chars=1,
        tokens=1,
        stored_bytes=1,
        created_at=0.0,
        key=ref,
    )


def test_only_items_that_leave_and_open_look_alikes_are_due_in_order() -> None:
    items, slots = Items(), [slot(n) for n in range(4)]
    items.add(slots)
    plain, look_alike, kept, leaving = slots
    look_alike.proof = kept.proof = "refuted"
    for one, states in [
        (leaving, [State.LEAVING]),
        (plain, [State.OPEN]),
        (kept, [State.OPEN, State.KEPT]),
        (look_alike, [State.OPEN]),
    ]:
        for state in states:
            items.move(one, state)

    assert items.due() == [look_alike, leaving]
    assert items.leaving() == [leaving]


def test_only_a_kept_item_is_opened_again() -> None:
    items, slots = Items(), [slot(n) for n in range(2)]
    items.add(slots)
    kept, leaving = slots
    for one, state in [(kept, State.OPEN), (kept, State.KEPT), (leaving, State.LEAVING)]:
        items.move(one, state)

    for one in slots:
        items.reopen(one)

    assert [one.state for one in slots] == [State.OPEN, State.LEAVING]


def test_a_decision_on_an_item_that_is_not_added_yet_is_its_own_alone() -> None:
    items, first, second = Items(), slot(), slot(1)
    items.add([first])

    items.note(second, replace(second.decision, reason=Reason(ReasonKind.VETOED)))

    assert second.decision.reason.kind is ReasonKind.VETOED
    assert items.decided()[0] == [first.decision]
    items.add([second])
    assert items.decided()[0] == [first.decision, second.decision]
