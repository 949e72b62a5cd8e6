"""A preview keeps to its budget and says truly how far it reads without a gap."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from offload.preview import head_tail

many = settings(max_examples=400, deadline=None)

texts = (
    st.text(st.characters(exclude_categories=()), max_size=400)
    | st.text("ab\n", max_size=3000)
    | st.builds(
        lambda piece, n: piece * n, st.text("line \n\u00e9", min_size=1, max_size=90), st.integers(1, 300)
    )
)
budgets = st.integers(0, 200) | st.integers(0, 20_000)


@many
@given(texts, budgets)
def test_a_preview_is_never_longer_than_its_budget(text: str, budget: int) -> None:
    assert len(head_tail(text, budget).text) <= budget


@many
@given(texts, budgets)
def test_head_chars_is_how_far_the_preview_reads_like_the_text(text: str, budget: int) -> None:
    shown, head_chars = head_tail(text, budget)
    assert 0 <= head_chars <= len(text)
    assert shown[:head_chars] == text[:head_chars]
    rest = shown[head_chars:]
    assert rest.startswith("\n[… ") or rest == ""


@many
@given(texts, budgets)
def test_a_text_that_fits_is_shown_whole_and_no_other_is(text: str, budget: int) -> None:
    preview = head_tail(text, budget)
    assert (preview == (text, len(text))) == (len(text) <= budget)


@many
@given(texts, budgets)
def test_what_stands_after_the_gap_is_the_end_and_the_gap_says_how_much_is_missing(
    text: str, budget: int
) -> None:
    shown, head_chars = head_tail(text, budget)
    gap = re.match(r"\n\[… (\d+) characters left out …\]\n", shown[head_chars:])
    if gap is None:
        return
    tail = shown[head_chars + gap.end() :]
    assert text.endswith(tail)
    assert head_chars + int(gap[1]) + len(tail) == len(text)
