"""A search over chunks finds what a search over the whole text finds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
from hypothesis import example, given, strategies as st
from kit.inner import find
from strength import examples

from offload.reading.tools import search
from offload.reading.tools.search import compile_pattern

many = examples(300)

texts = st.text("ab\né", max_size=120)
patterns = st.text("abé", min_size=1, max_size=4)
# Of these Python's `re` and RE2 think the same, and none is slow in either.
regexes = st.sampled_from(
    [
        "a",
        "a+",
        "^a",
        "a$",
        "^a+$",
        "b|aa",
        "[ab]{2}",
        "^b.*a",
        "a.?b",
        r"\bb",
        r"a\b",
        "(ab)+",
        "é",
        "[^a]b",
        "^.b",
        ".",
    ]
)


@pytest.fixture(autouse=True, scope="module")
def _small_buffers() -> Iterator[None]:
    """Let every text be larger than a buffer, as a record is; the figures are the only change."""
    patch = pytest.MonkeyPatch()
    patch.setattr(search, "_BUFFER_BYTES", 8)
    yield
    patch.undo()


@st.composite
def chunked(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    text = draw(texts)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=10)) | {0, len(text)})
    return text, [text[a:b].encode() for a, b in itertools.pairwise(cuts)]


def literal_oracle(text: str, pattern: str) -> list[tuple[int, int]]:
    content, needle, spans, at = text.encode(), pattern.encode(), [], 0
    while (at := content.find(needle, at)) >= 0:
        spans.append((at, at + len(needle)))
        at += len(needle)
    return spans


def regex_oracle(text: str, pattern: str, flags: int = 0) -> list[tuple[int, int]]:
    """Search line by line, as characters, and count the bytes afterwards."""
    spans: list[tuple[int, int]] = []
    start = 0
    for line in text.split("\n"):
        for match in re.finditer(pattern, line, re.ASCII | flags):
            first, last = (start + len(line[:i].encode()) for i in match.span())
            spans += [(first, last)] if first < last else []
        start += len(line.encode()) + 1
    return spans


@many
@given(chunked(), patterns)
def test_a_literal_is_found_wherever_chunks_end(case: tuple[str, list[bytes]], pattern: str) -> None:
    text, chunks = case
    assert list(find(chunks, compile_pattern(pattern))) == literal_oracle(text, pattern)


@many
@given(chunked(), regexes)
def test_an_expression_is_found_wherever_chunks_end(case: tuple[str, list[bytes]], pattern: str) -> None:
    text, chunks = case
    assert list(find(chunks, compile_pattern(pattern, "regex"))) == regex_oracle(text, pattern)


@many
@given(chunked(), regexes)
def test_an_overlap_smaller_than_the_text_changes_no_match(
    case: tuple[str, list[bytes]], pattern: str
) -> None:
    # With the shipped overlap of 64 KiB these texts never leave the first buffer.
    text, chunks = case
    compiled = compile_pattern(pattern, "regex")._replace(overlap=16)
    longest = max((b - a for a, b in regex_oracle(text, pattern)), default=0)
    if longest < 16 and "*" not in pattern and "+" not in pattern:
        assert list(find(chunks, compiled)) == regex_oracle(text, pattern)


@many
@given(chunked(), st.text("abAB", min_size=1, max_size=3))
def test_case_makes_no_difference_where_it_is_to_make_none(
    case: tuple[str, list[bytes]], pattern: str
) -> None:
    text, chunks = case
    found = list(find(chunks, compile_pattern(pattern, ignore_case=True)))
    assert found == regex_oracle(text, re.escape(pattern), re.IGNORECASE)


@many
@given(chunked(), patterns, st.integers(0, 10**9))
def test_offsets_count_from_where_the_first_chunk_stands(
    case: tuple[str, list[bytes]], pattern: str, offset: int
) -> None:
    text, chunks = case
    found = find(chunks, compile_pattern(pattern), offset=offset)
    assert [(a - offset, b - offset) for a, b in found] == literal_oracle(text, pattern)


@many
@example(text="\u00c0\uf900", ignore_case=False)
@given(st.text(st.characters(exclude_characters="<>"), min_size=1, max_size=30), st.booleans())
def test_a_literal_finds_itself_whatever_it_is_made_of(text: str, ignore_case: bool) -> None:  # drawn
    content = text.encode("utf-8", "surrogatepass")
    assert next(iter(find([b"<", content, b">"], compile_pattern(text, ignore_case=ignore_case)))) == (
        1,
        len(content) + 1,
    )
