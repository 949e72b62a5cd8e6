"""Searches and reads made to hang or to flood are answered, and other threads continue meanwhile."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from answers import MAX_ANSWER, body, tools_for

from offload.reading.tools.search import Search, compile_pattern

# Each takes exponential or quadratic time somewhere. The last of them match the empty text, or nearly.
REDOS = [
    r"(a+)+$",
    r"(a+)+b",
    r"([a-zA-Z]+)*$|b{9}",
    r"(a|aa)+$",
    r"(a|a?)+$|c",
    r"(.*a){20}$",
    r"(.*a){25}c",
    r"^(a+)+\d$",
    r"(\w+\s?)+!$",
    r"^(\w+\s?)*\$$|q{3}",
    r"(x+x+)+y",
    r"(?:a|b|ab)*(?:a|b|ab)*c",
    r"\s+$",
    r"\s*,\s*x",
    r"^\s+|\s+$",
    r"(\s*\n?)*z",
    r"(.+)+\d\d\d\d\d\d",
    r"(.*)(.*)(.*)=",
    r".*.*.*=.*",
    r"([^,]*,)+[^,]*x$",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"^([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+[.]{1}(([a-z]{2,3}))$",
    r"(([\w]+)\.?)+@(([\w]+)\.?)+\.com",
    r"^\d*\.?\d*e\d+$",
    r"(\d+)*\.",
    r"((a*)*)*b",
    r"(a*)*$|b",
    r"(a{1,30}){1,30}b",
    r"(?:a?){30}a{30}b",
    r"(?:[ab]{0,30}){30}c",
    r"[ab].{900}c",
    r"a.{300}b.{300}c",
    r"(?:.{0,31}){31}Q",
    r"(?i)(?:k|s|\x{212A})*q",
    r"(\pL+)+\pN",
    r"\bx*\b|zz",
    r"\B|qq",
    r"a.*b|\b",
    r"a.*c|a",
    r"<(\w+)(\s[^>]*)*>.*</\w+>",
]
INPUTS = {
    "one letter": "a" * 30_000 + "!",
    "blanks": " " * 30_000 + "x",
    "words": "ab aab baa " * 3_000 + "!",
}
REFUSED = [
    r"(?=a)",
    r"(?!a)b",
    r"(?<=a)b",
    r"(?<!a)b",
    r"(a)\1",
    r"(a)(b)\2",
    r"(?P<n>a)(?P=n)",
    r"\k<n>",
    r"\g<1>",
    r"a++",
    r"a*+",
    r"a?+b",
    r"a{2}+",
    r"(?>a)",
    r"a\Z",
    r"\u0041",
    r"\U00000041",
    r"\N{BULLET}",
    r"\cA",
    r"\e[31m",
    r"\hx",
    r"\Rx",
    r"a\Kb",
    r"\Ga",
    r"(?x) a",
    r"(?#remark)a",
    r"(?a)\w",
    r"(?L)\w",
    r"(?u)\w",
    r"(?(1)a|b)",
    r"(?R)",
    r"(?&name)",
    r"(?|a|b)",
    r"a{1001}",
    r"((a{100}){100}){100}",
    r"\p{Nonsense}",
    r"[[:nonsense:]]",
    r"\pL{1000}",
]
STORED = {name: tools_for(text) for name, text in INPUTS.items()}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("pattern", REDOS)
def test_an_expression_made_to_hang_is_answered(pattern: str, name: str) -> None:
    tools, ref = STORED[name]
    answer = tools.call("context_grep", {"id": ref, "pattern": pattern, "mode": "regex"})
    assert len(answer) <= MAX_ANSWER
    assert answer.startswith("[") or "matches the empty string" in answer


@pytest.mark.timeout(10)
@pytest.mark.parametrize("pattern", REFUSED)
def test_a_pattern_that_re2_refuses_is_answered_with_a_fix(pattern: str) -> None:
    tools, _ = STORED["words"]
    answer = tools.call("context_grep", {"pattern": pattern, "mode": "regex"})
    fix = re.match(r"Error: invalid RE2 pattern: (.+)\. Fix: (.+); or search for literal text", answer)
    assert fix is not None
    assert fix[2] != "simplify the pattern"


@pytest.mark.timeout(60)
def test_other_threads_go_on_while_an_expression_is_searched_for() -> None:
    # RE2 falls back to its slow engine here: one long call, during which no other thread could run.
    pattern = compile_pattern(r"(?:.{0,31}){31}Q", "regex")
    [content] = [b"a" * 40_000]
    started, steps_within = threading.Event(), 0
    found: list[Any] = []

    def search() -> None:
        started.set()
        found.extend(Search(pattern).find([content]))
        found.append("done")

    searching = threading.Thread(target=search)
    searching.start()
    started.wait()
    while searching.is_alive():
        steps_within += not found
        searching.join(0.001)
    assert found == ["done"]
    assert steps_within > 20


def test_a_million_blank_lines_are_searched_and_read() -> None:
    tools, ref = tools_for("\n" * 1_000_000 + "needle\n" + "\n" * 1000)
    for mode in ("literal", "regex"):
        answer = tools.call("context_grep", {"pattern": "needle", "mode": mode, "context_lines": 20})
        assert "[1 match shown" in answer
        assert f"{ref} line 1000001, character 1000000:" in answer
    assert tools.grep(r"\s*x", mode="regex") == "[No matches in 1 item]"
    assert body(tools.read(ref, start_line=1_000_001, end_line=1_000_001)) == "needle\n"
    assert len(tools.tail(ref, lines=10**6)) <= MAX_ANSWER


@pytest.mark.slow
def test_a_line_of_100_mb_is_searched_read_and_its_end_shown() -> None:
    block = "0123456789abcdef " * 50_000
    text = block * 112 + "NEEDLE é " + block * 6
    assert len(text) > 100 * 10**6
    tools, ref = tools_for(text)
    at = text.index("NEEDLE")
    for pattern, mode in (("NEEDLE", "literal"), ("NEE[A-Z]+E", "regex"), (r"f NEEDLE \pL", "regex")):
        answer = tools.call("context_grep", {"id": ref, "pattern": pattern, "mode": mode})
        assert len(answer) <= 700
        assert "NEEDLE é" in answer
    assert body(tools.read(ref, offset=at, limit=8)) == "NEEDLE é"
    assert tools.tail(ref, lines=1).endswith(block[-500:] + "\n[end of item]")


def test_matches_at_every_character_are_followed_to_the_end() -> None:
    tools, ref = tools_for("a" * 20_000)
    seen, cursor = 0, None
    while True:
        answer = tools.call(
            "context_grep",
            {"id": ref, "pattern": "a.*b|a", "mode": "regex", "max_matches": 100, "cursor": cursor},
        )
        places = [int(m) for m in re.findall(r"character (\d+):", answer)]
        assert not places or places[0] >= seen
        seen = max([seen, *places])
        following = re.search(r'cursor="([^"]+)"\]$', answer)
        if following is None:
            break
        assert following[1] != cursor, "no progress"
        cursor = following[1]
    assert seen > 19_000


def test_a_name_that_is_no_tool_calls_nothing() -> None:
    tools, _ = STORED["words"]
    for name in ("", "context_", "context_call", "__init__", "context___init__", "\ud800", "x" * 10**6):
        assert tools.call(name, {"id": "x"}).startswith("Error: unknown tool ")
