"""A preview keeps to its budget and says truly how far it reads without a gap."""

from __future__ import annotations

import re

from hypothesis import given, strategies as st
from strength import examples

from offload.engine.preview import preview_of
from offload.engine.preview.names import TROUBLE, error_parts, error_words
from offload.engine.preview.preview import head_tail

many = examples(400)

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


# The number of lines that differ from a line only in numbers.
NOTE = re.compile(r" \(\+\d+(?: or more)? alike\)$", re.MULTILINE)
salient_texts = texts | st.lists(
    st.sampled_from(
        [
            "def foo_bar(a, b):",
            "    return self.value.other",
            "ERROR: it failed in src/main.py:12",
            '{"id": 1, "name": "a_b"}',
            "diff --git a/x.py b/x.py",
            "# Heading",
            "",
            "word " * 80,
            "x" * 700,
            "  12\tnumbered_line",
            "\ud800\udc00 e\u0301 \u200d",
        ]
    ),
    max_size=300,
).map("\n".join)
questions = st.sampled_from(["", "foo_bar", '{"path": "src/main.py"}']) | st.text(max_size=50)


@many
@given(salient_texts, st.integers(200, 3000), questions)
def test_a_salient_preview_keeps_to_its_budget_and_is_the_same_each_time(
    text: str, budget: int, asked: str
) -> None:
    preview = preview_of(text, budget, query=asked)
    assert len(preview.text) <= budget
    assert preview == preview_of(text, budget, query=asked)


@many
@given(salient_texts, st.integers(200, 3000), questions)
def test_no_letter_is_missing_as_far_as_a_salient_preview_says_that_it_reads(
    text: str, budget: int, asked: str
) -> None:
    preview = preview_of(text, budget, query=asked)
    if "\x1b" in text or preview == head_tail(text, budget):
        return
    assert 0 <= preview.head_chars <= len(text)
    shown = re.sub(r"^(?:\d+|@\d+) ", "", preview.text.split("\n", 1)[1], flags=re.MULTILINE)
    shown = NOTE.sub("", shown)
    no_letters = re.compile(r"[\W\d]+")
    assert no_letters.sub("", shown).startswith(no_letters.sub("", text[: preview.head_chars]))


@many
@given(salient_texts, st.integers(200, 3000), questions)
def test_every_line_of_a_salient_preview_is_marked_numbered_or_at_its_offset(
    text: str, budget: int, asked: str
) -> None:
    preview = preview_of(text, budget, query=asked)
    if preview == head_tail(text, budget):
        return
    first, *rest = preview.text.split("\n")
    assert first.startswith("[")
    assert all(re.match(r"(?:\d+|@\d+) |\[Names within it: ", line) for line in rest)


@many
@given(salient_texts, st.integers(200, 3000), questions)
def test_every_numbered_line_of_a_salient_preview_is_in_that_line_of_the_text(
    text: str, budget: int, asked: str
) -> None:
    preview = preview_of(text, budget, query=asked)
    if "numbers printed" in preview.text or preview == head_tail(text, budget):
        return
    lines = text.split("\n")
    for number, shown in re.findall(r"^(\d+) (.*)$", preview.text.split("\n", 1)[1], re.MULTILINE):
        original = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]", "", lines[int(number) - 1])
        assert NOTE.sub("", shown).strip("… ") in original


@given(
    st.lists(st.sampled_from([*TROUBLE, "Err", "or:", "FAIL", "\ud800", "\n", "\0"]) | st.text(max_size=3))
)
def test_the_error_words_of_a_text_are_those_in_it(parts: list[str]) -> None:
    text = "".join(parts)
    assert error_words(text) == [word for word in TROUBLE if word in text]


@given(st.lists(st.sampled_from([*TROUBLE, "Err", "or:", "\n"]) | st.integers(1, 40_000), max_size=12))
def test_each_error_word_is_in_the_parts_that_are_told_of_it(parts: list[str | int]) -> None:
    text = "".join(part if isinstance(part, str) else "x" * part for part in parts)
    found = error_parts(text)
    assert [*found] == error_words(text)
    for word, places in found.items():
        ends = [match.end() for match in re.finditer(f"(?={re.escape(word)})", text)]
        assert all(any(at in place and at + len(word) <= place.stop for place in places) for at in ends)
