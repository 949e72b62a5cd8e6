"""The states of an item, and what can follow each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offload.engine.items import TRANSITIONS, Items, Slot, State
from offload.engine.judge import unweighed
from offload.messages.base import Item

FINAL = (State.SETTLED, State.OFFLOADED)


def slot() -> Slot:
    item = Item(None, "tool_result", "a result")
    return Slot(item, unweighed(item, 0))


def test_every_state_is_reached_and_is_left_or_final() -> None:
    reached = {State.UNWEIGHED}.union(*TRANSITIONS.values())
    assert reached == set(TRANSITIONS) == set(State)
    assert [state for state in State if not TRANSITIONS[state]] == [State.SETTLED]


@given(st.lists(st.sampled_from(State)))
def test_an_item_moves_only_where_the_table_says_and_is_open_until_it_is_kept_or_final(
    states: list[State],
) -> None:
    items, one = Items(), slot()
    items.add([one])
    for state in states:
        before = one.state
        if state is before or state in TRANSITIONS[before]:
            items.move(one, state)
            assert one.state is state
        else:
            with pytest.raises(ValueError, match=f"cannot become {state.value} after {before.value}"):
                items.move(one, state)
            assert one.state is before
        assert (one in items.opened()) == (one.state not in (State.KEPT, *FINAL))


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 30))
def test_what_a_sweep_may_free_is_the_sum_of_what_stands_aside(kept: list[bool], dropped: int) -> None:
    items, slots = Items(), [slot() for _ in kept]
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
    assert items.sweepable_saving == sum(one.saving for one in aside)
    assert items.decided()[0] == [one.decision for one in left]
