"""The offline token estimate: its figures, its bounds, its steadiness."""

from __future__ import annotations

import pytest

from offload.tokens import TokenCounter, estimate_tokens

PROSE = "The quick brown fox jumps over the lazy dog while it rains. " * 40
LISTING = '{"id": 4711, "state": "OPEN", "at": "2026-01-31T23:59:59Z"}\n' * 40


def test_no_text_has_no_tokens() -> None:
    assert estimate_tokens("") == 0


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("a" * 1000, 275),
        ("A" * 1000, 1000),
        ("7" * 1000, 870),
        ("{" * 1000, 161),
        ("\n" * 1000, 1731),
        ("é" * 1000, 502),
        ("\0" * 1000, 500),
        ("\x1b" * 1000, 1000),
    ],
    ids=["lower", "upper", "digit", "punctuation", "newline", "wide", "nul", "control"],
)
def test_each_class_of_bytes_has_its_weight(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


# What o200k, claude-2 and deepseek make of 4,000 characters: the least and the most.
RUNS = {
    "spaces": (" ", 7, 32),
    "tabs": ("\t", 250, 500),
    "NULs": ("\0", 7, 4000),
    "escapes": ("\x1b", 4000, 4000),
    "carriage returns": ("\r", 2000, 4000),
    "letters apart": ("x ", 2001, 2001),
}


@pytest.mark.parametrize(("unit", "least", "most"), RUNS.values(), ids=RUNS)
def test_a_text_of_blanks_or_odd_runs_takes_what_real_vocabularies_make_of_it(
    unit: str, least: int, most: int
) -> None:
    assert least <= estimate_tokens((unit * 4000)[:4000]) <= 1.1 * most


def test_the_line_ends_of_another_system_take_no_more_tokens() -> None:
    assert estimate_tokens(LISTING.replace("\n", "\r\n")) == estimate_tokens(LISTING)


def test_an_estimate_lies_where_real_vocabularies_do() -> None:
    # 12-13 tokens a sentence of the prose, 28-36 a row of the listing, in o200k and its like.
    assert 10 <= estimate_tokens(PROSE) / 40 <= 16
    assert 24 <= estimate_tokens(LISTING) / 40 <= 42


def test_a_lone_surrogate_is_counted_and_does_no_harm() -> None:
    assert estimate_tokens("\ud800" * 1000) == 753


@pytest.mark.parametrize("text", [PROSE, LISTING], ids=["prose", "listing"])
def test_a_long_text_is_sampled_and_comes_out_as_the_sum_of_its_parts(text: str) -> None:
    times = 4 * 1024 * 1024 // len(text)
    whole = estimate_tokens(text * times)
    assert whole == pytest.approx(estimate_tokens(text) * times, rel=0.02)


def test_what_stands_at_the_end_of_a_long_text_is_weighed_too() -> None:
    spaces = " " * 1024 * 1024
    blank = estimate_tokens(spaces)
    assert estimate_tokens(spaces + "A" * 8192) > 2 * blank
    assert estimate_tokens("A" * 8192 + spaces) > 2 * blank


def test_the_same_text_always_has_the_same_estimate() -> None:
    text = LISTING * 500
    assert len({estimate_tokens(text) for _ in range(3)}) == 1


def test_a_plain_function_is_a_counter() -> None:
    assert isinstance(estimate_tokens, TokenCounter)
    assert isinstance(len, TokenCounter)
