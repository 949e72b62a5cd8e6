"""Patterns over content that comes in chunks: borders, lines, hostile expressions, refusals."""

from __future__ import annotations

import tracemalloc

import pytest
from kit.inner import find

from offload.errors import ConfigError
from offload.reading.tools.search import MAX_PATTERN_CHARS, PatternMode, Search, compile_pattern

MIB = 1024 * 1024


def chunks_of(content: bytes, size: int = 256 * 1024) -> list[bytes]:
    return [content[i : i + size] for i in range(0, len(content), size)]


RED = b"\x1b[1;31m\x1b[K"


@pytest.mark.parametrize(
    ("pattern", "mode"),
    [("E  Error: 42", "literal"), (r"^E .*: \d+$", "regex"), ("42 Error", "words")],
)
@pytest.mark.parametrize("ignore_case", [False, True])
def test_a_text_matches_as_a_terminal_shows_it(
    pattern: str, mode: PatternMode, ignore_case: bool
) -> None:  # a case
    line = RED + b"E  " + RED + b"Er" + RED + b"ror" + RED + b": " + RED + b"42" + RED
    compiled = compile_pattern(pattern, mode, ignore_case=ignore_case)
    for before in [0, MIB - 70, MIB - 35, MIB - 14, MIB - 3, MIB - 4 * 1024 - 9]:
        content = b"\n".join([b"-" * before, line, RED, line])

        found = [content[start:end] for start, end in find(chunks_of(content), compiled)]

        assert [b"42" in match for match in found] == [True, True]
        assert all(match.removeprefix(RED) in line.removesuffix(RED) for match in found if mode != "words")


def test_a_line_begins_at_its_color_wherever_a_buffer_ends() -> None:
    pattern = compile_pattern("^needle", "regex")
    for at in range(pattern.buffer - pattern.overlap - 13, pattern.buffer - pattern.overlap + 1):
        content = b"-" * at + b"\n" + RED + b"needle" + b"-" * (2 * pattern.overlap)
        assert list(find(chunks_of(content), pattern)) == [(at + 11, at + 17)]


def test_a_pattern_with_colors_matches_them_and_a_search_goes_on_within_one() -> None:
    content = RED + b"needle" + RED + b"needle"
    for pattern, mode in [("\x1b[1;31m", "literal"), (r"\x1b\[", "regex"), ("[K", "literal")]:
        assert len(list(find([content], compile_pattern(pattern, mode)))) > 1  # type: ignore[arg-type] # a case
    for start in range(len(content)):
        expected = [span for span in [(10, 16), (26, 32)] if span[0] >= start]
        assert list(Search(compile_pattern("needle"), start).find([content])) == expected


@pytest.mark.parametrize(
    ("content", "pattern", "starts"),
    [
        (b"x" * (3 * MIB) + b"\n" + b"x" * (3 * MIB), "x$", [3 * MIB - 1, 6 * MIB]),
        (b"x" * (3 * MIB) + b"\n" + b"x" * (3 * MIB), "^x", [0, 3 * MIB + 1]),
        (b"a" * (2 * MIB) + b" a", r"\ba", [0, 2 * MIB + 1]),
    ],
    ids=["end", "beginning", "word"],
)
def test_lines_and_words_have_borders_nowhere_else_where_a_buffer_has_one(
    content: bytes, pattern: str, starts: list[int]
) -> None:
    found = list(find(chunks_of(content), compile_pattern(pattern, "regex")))
    assert found == [(start, start + 1) for start in starts]


def test_no_expression_matches_across_lines_and_there_is_nothing_in_nothing() -> None:
    for pattern in ("a.b", "a[^x]b", r"a\sb", r"(?s)a.b"):
        assert list(find([b"a\nb"], compile_pattern(pattern, "regex"))) == []
    literals = [list(find([b"a\nb"], compile_pattern("a\nb", ignore_case=flag))) for flag in (False, True)]
    assert literals[0] == literals[1]
    for mode in ("literal", "regex"):
        assert list(find([], compile_pattern("a", mode))) == []
        assert list(find([b"", b""], compile_pattern("a", mode))) == []


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a$", ["a\r", "a"]),
        ("^(a|b)$", ["a\r", "b\r", "a"]),
        (r"(?i)B$", ["b\r"]),
        (r"a\$", ["a$"]),
        (r"\Qa$\E", ["a$"]),
        ("[]$]$", ["$"]),
        (r"[[:alpha:]][$\]]", ["a$"]),
    ],
)
def test_the_end_of_a_line_is_before_the_return_of_windows_too(pattern: str, found: list[str]) -> None:
    content = b"a\r\nb\r\nab c\r\na$\na"
    spans = find([content], compile_pattern(pattern, "regex"))
    assert [content[start:end].decode() for start, end in spans] == found


def test_memory_does_not_grow_with_the_content() -> None:
    chunk = b"some line of text\n" * 14_000
    tracemalloc.start()
    assert sum(1 for _ in find((chunk for _ in range(200)), compile_pattern("absent", "regex"))) == 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * MIB < 200 * len(chunk)


def test_chunks_are_taken_only_as_far_as_the_match_that_is_asked_for() -> None:
    chunks = iter([b"needle" + b"-" * MIB] * 100)
    assert next(find(chunks, compile_pattern("needle"))) == (0, 6)
    assert len(list(chunks)) == 99


HOSTILE = [
    (r"(a+)+$", b"a" * 50_000 + b"!"),
    (r"(a|a)*c", b"a" * 50_000),
    (r"\s+$", b" " * 50_000 + b"x"),
    (r"(a|aa)+$", b"a" * 50_000 + b"!"),
    (r"(.*a){20}", b"a" * 19 + b"b" * 50_000),
    (r"(\w*)*\d", b"a" * 50_000),
    (r".*.*.*=", b"x" * 50_000),
]


@pytest.mark.timeout(10)
@pytest.mark.parametrize(("pattern", "content"), HOSTILE, ids=[p for p, _ in HOSTILE])
def test_an_expression_that_would_take_years_elsewhere_comes_to_an_end(pattern: str, content: bytes) -> None:
    assert list(find([content], compile_pattern(pattern, "regex"))) == []


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("(?=a)", r"\(\?="),
        ("(?!a)", r"\(\?!"),
        ("(?<=a)b", r"\(\?<="),
        ("(?<!a)b", r"\(\?<!"),
        (r"(a)\1", r"\\1"),
        ("(?P<n>a)(?P=n)", r"\(\?P"),
        ("a++", r"\+\+"),
        ("(?>a)", r"\(\?>"),
        (r"a\Z", r"\\Z"),
        (r"\u0041", r"\\u"),
        ("(?x)a", r"\(\?x"),
        ("a{1001}", r"\{1001\}|1001"),
        ("(a", "missing"),
        ("a)", r"unexpected|missing"),
        ("[a", "missing"),
        ("*a", r"\*"),
        ("(((a{100}){100}){100})", "repetition size"),
    ],
)
def test_a_construct_that_is_refused_is_named(pattern: str, named: str) -> None:
    with pytest.raises(ConfigError, match=f"invalid RE2 pattern: .*({named}).*Fix: "):
        compile_pattern(pattern, "regex")


def test_an_expression_of_many_instructions_gets_less_at_once_and_finds_the_same() -> None:
    content = b"-" * 70_000 + b"ab" * 900 + b"-" * 300_000 + b"ab" * 900
    slow = compile_pattern("[ab]{1000}[^x]{0,500}-", "regex")
    assert slow.overlap < slow.buffer == 64 * 1024 < compile_pattern("[ab]+", "regex").buffer
    assert [span.start for span in find(chunks_of(content), slow)] == [70_300]


def test_a_search_can_be_ended_also_between_matches_of_the_empty_text() -> None:
    class EnoughError(Exception):
        pass

    seen = 0

    def check() -> None:
        nonlocal seen
        seen += 1
        if seen == 100:
            raise EnoughError

    search = Search(compile_pattern(r"\b|needle", "regex"), check=check)
    content = b"words and " * 50_000 + b" ,needle"
    with pytest.raises(EnoughError):
        list(search.find([content]))
    assert 0 < search.searched_to < len(content)


def test_an_expression_that_matches_nothing_is_empty_or_too_long_is_refused() -> None:
    for pattern in ("a*", "^", "$", "()", "a?", "|a", r"\B", "(?i)"):
        with pytest.raises(ConfigError, match="matches the empty string"):
            compile_pattern(pattern, "regex")
    for mode in ("literal", "regex"):
        for pattern in ("", "a" * (MAX_PATTERN_CHARS + 1)):
            with pytest.raises(ConfigError, match="1 to 1000 characters, got"):
                compile_pattern(pattern, mode)


def test_a_literal_means_itself_also_without_regard_to_case() -> None:
    for flag in (False, True):
        assert list(find([b"a.c abc a.c"], compile_pattern("a.c", ignore_case=flag))) == [(0, 3), (8, 11)]


@pytest.mark.parametrize("mode", ["literal", "regex"])
@pytest.mark.parametrize("ignore_case", [False, True])
def test_a_lone_surrogate_in_a_pattern_is_found_where_it_is_and_only_there(
    mode: PatternMode, ignore_case: bool
) -> None:
    pattern = compile_pattern("\ud800", mode, ignore_case=ignore_case)
    assert list(find([b"a\xed\xa0\x80 and \xed\xa0\x81"], pattern)) == [(1, 4)]
    assert list(find([b"none in \xef\xbf\xbd ?"], pattern)) == []
