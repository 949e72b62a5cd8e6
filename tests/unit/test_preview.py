"""The plain preview: its excerpt, and the small part of a text that it reads."""

from __future__ import annotations

import pytest
from watched import WatchedText

from offload.engine.preview.preview import head_tail


def test_a_preview_shows_the_beginning_and_the_end_on_line_borders() -> None:
    text = "".join(f"line {n:04}\n" for n in range(1000))
    preview = head_tail(text, 200)
    head, tail = preview.text.split("\n[… ")[0], preview.text.split(" …]\n")[1]
    assert head.split("\n") == [f"line {n:04}" for n in range(len(head.split("\n")))]
    assert tail.endswith("line 0999\n")
    assert all(len(line) == len("line 0000") for line in tail.split("\n")[:-1])
    assert preview.head_chars == len(head)


def test_a_long_line_is_shown_from_both_sides_and_the_end_keeps_its_share() -> None:
    preview = head_tail("a" * 5000 + "z" * 5000, 300)
    assert preview.text.startswith("aaa")
    assert preview.text.endswith("zzz")
    assert 290 < len(preview.text) <= 300
    assert head_tail("x" * 100_000 + "\nError: exit 1\n", 300).text.endswith("Error: exit 1\n")


def test_a_budget_too_small_for_more_than_the_gap_shows_nothing() -> None:
    gap = "\n[… 1000 characters left out …]\n"
    assert head_tail("text", 0) == ("", 0)
    assert {head_tail("x" * 1000, budget) for budget in range(len(gap) + 1)} == {("", 0)}
    assert head_tail("x" * 1000, len(gap) + 10).text.startswith("xxx")


@pytest.mark.parametrize("piece", ["x", "line\n", "\n"])
def test_work_is_bounded_by_the_budget_and_not_by_the_text(piece: str) -> None:
    small, large = WatchedText(piece * 10_000), WatchedText(piece * 2_000_000)
    head_tail(small, 1000)
    head_tail(large, 1000)
    assert 0 < small.seen <= 4000
    assert 0 < large.seen <= 4000
