"""Searches of a model: every match once, in bounded answers, with the next call."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from answers import MAX_ANSWER, body, damage, put, session, tools_for

from offload.reading.tools import Tools, budget
from offload_backends.memory import MemoryStore

LOG = "".join(f"{n:05} {'x' * (n % 37)} event é\n" for n in range(2000))


def test_a_needle_in_one_line_of_ten_megabytes_is_shown_in_500_characters_and_reading_goes_on_there() -> None:
    filler = json.dumps({"row": list(range(50)), "name": "some value"})
    text = "[" + ",".join([filler] * (9 * 10**6 // (len(filler) + 1)))
    at = len(text) + 11
    text += ',{"found": "NEEDLE"},' + ",".join([filler] * (10**6 // (len(filler) + 1))) + "]"
    assert len(text) > 9.9 * 10**6
    assert text.count("\n") == 0
    tools, ref = tools_for(text)
    answer = tools.call("context_grep", {"id": ref, "pattern": "NEEDLE"})
    assert len(answer) <= 500
    assert '"found": "NEEDLE"' in answer
    place = re.search(r"character (\d+):", answer)
    assert place is not None
    assert text[int(place[1]) :].startswith("NEEDLE")
    assert at < int(place[1]) < at + 10
    assert body(tools.read(ref, offset=int(place[1]), limit=6)) == "NEEDLE"


def answers(tools: Tools, **arguments: Any) -> Iterator[str]:
    """Yield the answers to a search, over all cursors."""
    cursor = None
    for _ in range(3000):
        answer = tools.call("context_grep", {**arguments, "cursor": cursor})
        assert len(answer) <= MAX_ANSWER
        yield answer
        following = re.search(r'cursor="([^"]+)"\]$', answer)
        if following is None:
            return
        assert following[1] != cursor, "no progress"
        cursor = following[1]
    pytest.fail("the cursors never end")


def follow(tools: Tools, **arguments: Any) -> list[tuple[str, int]]:
    """Return the (ref, character) of every match that is shown."""
    match = re.compile(r"^([a-z]{10}) line \d+, character (\d+):$", re.MULTILINE)
    found = (match.findall(answer) for answer in answers(tools, **arguments))
    return [(ref, int(at)) for page in found for ref, at in page]


@pytest.mark.parametrize("max_matches", [1, 7, 100])
@pytest.mark.parametrize("mode", ["literal", "regex"])
def test_cursors_cover_every_match_in_every_item_exactly_once(mode: str, max_matches: int) -> None:
    rng = random.Random(6)  # noqa: S311 # reproducible
    into, expected = session(), []
    for call in "abc":
        text = "".join(rng.choice(["plain line\n", "a needle é\n", "\n"]) for _ in range(400))
        ref = put(into, text, call=call)
        expected += [(ref, m.start()) for m in re.finditer("needle", text)]
    count = Counter(ref for ref, _ in expected)
    expected.sort(key=lambda match: -count[match[0]])
    found = follow(Tools(into), pattern="needle", mode=mode, max_matches=max_matches)
    assert found == expected


def test_a_search_of_all_items_shows_those_with_most_matches_first_with_their_titles() -> None:
    into = session()
    few = put(into, "needle\n" + LOG, call="t1", tool="WebFetch")
    none = put(into, LOG, call="t2")
    many = put(into, "needle\n" * 5 + LOG, call="t3", tool=None, item_type="user_message")
    most = put(into, "needle\n" * 1500, call="t4")
    tools = Tools(into)
    shown = "".join(answers(tools, pattern="needle", max_matches=100))
    assert shown.startswith("[100 matches shown, in 4 items]")
    assert f"[{most}, 1000 or more matches: Bash]\n{most} line 1, " in shown
    assert shown.index(f"[{many}, 5 matches: user_message]") < shown.index(f"[{few}, 1 match: WebFetch]")
    assert none not in shown
    assert shown.count("\nneedle") == 1506


def test_the_title_is_also_shown_if_one_of_several_items_matches_and_not_for_the_only_item() -> None:
    into = session()
    one = put(into, "needle\n" + LOG, call="t1", tool="WebFetch")
    assert "WebFetch" not in Tools(into).grep("needle")
    put(into, LOG, call="t2")
    assert f"\n[{one}, 1 match: WebFetch]\n{one} line 1, " in Tools(into).grep("needle")


def test_words_match_a_line_that_has_all_of_them_in_any_order() -> None:
    tools, ref = tools_for("the quick brown fox\na fox\na brown Quick FOX\nquick\nfox brown, quickly\n")

    def lines(pattern: str, **more: Any) -> list[str]:
        answer = tools.call("context_grep", {"id": ref, "pattern": pattern, "mode": "words", **more})
        return re.findall(r"line (\d+),", answer) or [answer]

    assert lines("fox quick") == lines("quick brown fox fox") == ["1", "5"]
    assert lines("x quick") == ["1", "5"]
    assert lines("FOX quick", ignore_case=True) == ["1", "3", "5"]
    assert lines(" ") == ["Error: pattern must have 1 to 32 words, got 0"]
    assert "got 33" in lines(" ".join(map(str, range(100, 133))))[0]


@pytest.mark.parametrize("max_matches", [1, 7, 100])
def test_cursors_cover_every_line_with_all_words_exactly_once(max_matches: int) -> None:
    rng = random.Random(7)  # noqa: S311 # reproducible
    lines = [" ".join(rng.choices(["one", "two", "three", "é" * 50], k=3)) for _ in range(300)]
    tools, ref = tools_for("\n".join(lines))
    found = follow(tools, pattern="two three", mode="words", max_matches=max_matches)
    starts = [sum(len(line) + 1 for line in lines[:n]) for n in range(300)]
    both = [n for n, line in enumerate(lines) if "two" in line and "three" in line]
    assert found == [(ref, starts[n] + lines[n].index("three")) for n in both]


def test_cursors_cover_every_match_also_where_the_work_of_a_call_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Five chunks of the ten a call; the budget is what a call may search, smaller.
    monkeypatch.setattr(budget, "MAX_BYTES", 5 * 256 * 1024)
    text = ("-" * 99 + "\n") * 26_000
    marks = range(50_000, len(text), 50_000)
    parts = [text[a:b] for a, b in zip([0, *marks], [*marks, len(text)], strict=True)]
    tools, ref = tools_for("needle\n".join(parts))
    expected = [(ref, at + 7 * n) for n, at in enumerate(marks)]
    assert follow(tools, pattern="needle", max_matches=100) == expected


def test_every_match_is_shown_with_the_lines_around_it() -> None:
    tools, ref = tools_for("".join(f"line {n}\n" for n in range(1, 100)))
    answer = tools.grep("line 50", ref, context_lines=2)
    assert body(answer) == f"{ref} line 50, character {LINE_50}:\nline 48\nline 49\nline 50\nline 51\nline 52"


def test_records_that_cannot_be_searched_are_named_and_hide_no_other() -> None:
    store = MemoryStore()
    into = session(store)
    refs = [put(into, f"needle {n}\n" + LOG, call=f"t{n}") for n in range(120)]
    for ref in refs[:100]:
        damage(store, ref)
    tools = Tools(session(store))
    shown = "".join(answers(tools, pattern="needle", max_matches=100))
    assert [ref for ref in refs[:100] if f"{ref} could not be searched: " not in shown] == []
    assert [ref for ref in refs[100:] if f"{ref} line 1, character 0:" not in shown] == []


def test_what_was_found_before_a_damaged_place_is_shown_beside_the_damage() -> None:
    store = MemoryStore()
    rng = random.Random(3)  # noqa: S311 # reproducible
    into = session(store)
    put(into, "of another record", call="t2")
    ref = put(into, "needle\n" + "".join(f"{rng.random()}\n" for _ in range(130_000)) + "needle\n")
    damage(store, ref)
    answer = Tools(session(store)).call("context_grep", {"pattern": "needle"})
    assert answer.startswith("[1 match shown, in 2 items]")
    assert f"{ref} line 1, character 0:\nneedle\n{ref} could not be searched: " in answer


def test_a_call_ends_in_time_and_with_a_cursor_whatever_the_matches_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each look at the clock is a second later, so a call has some ten matches.
    clock = itertools.count()
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    tools, ref = tools_for("needle\n" * 60)
    answer = tools.call("context_grep", {"pattern": "needle", "max_matches": 100})
    assert "stopped at 1 GiB or 10 seconds: repeat with cursor=" in answer
    assert follow(tools, pattern="needle", max_matches=100) == [(ref, 7 * n) for n in range(60)]


def test_matches_among_a_hundred_thousand_blank_lines_have_their_numbers() -> None:
    tools, ref = tools_for("\n" * 100_000 + "needle\n" + "\n" * 100_000 + "needle")
    answer = tools.grep("needle", ref)
    assert f"{ref} line 100001, character 100000:\nneedle" in answer
    assert f"{ref} line 200002, character 200007:\nneedle" in answer


LINE_50 = 9 * len("line 1\n") + 40 * len("line 10\n")


def test_every_match_is_in_an_answer_also_when_the_lines_around_it_are_long() -> None:
    lines = [f"needle {n:03} " + "x" * 300 for n in range(60)]
    tools, ref = tools_for("\n".join(lines))
    shown = "".join(answers(tools, pattern="needle", context_lines=20))
    assert [n for n in range(60) if f"needle {n:03}" not in shown] == []
    assert ref in shown


def test_a_search_goes_on_where_lines_around_a_match_fill_an_answer() -> None:
    lines = ["\ud800" * 390 for _ in range(41)]
    lines[20] = lines[22] = "needle"
    tools, _ = tools_for("\n".join(lines))
    assert len(follow(tools, pattern="needle", context_lines=20)) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"pattern": ""}, "1 to 1000 characters"),
        ({"pattern": "x" * 1001}, "1 to 1000 characters"),
        ({"pattern": "(?=a)", "mode": "regex"}, "invalid RE2 pattern"),
        ({"pattern": "a*", "mode": "regex"}, "matches the empty string"),
        ({"pattern": "a", "mode": "glob"}, "mode must be one of literal, regex"),
        ({"pattern": "a", "cursor": "7"}, "invalid cursor"),
        ({"pattern": "a", "cursor": "aaaaaaaaaa:-1"}, "invalid cursor"),
        ({"pattern": "a", "context_lines": -1}, "at least 0"),
        ({"id": "abcdefghij"}, "with titles, or without a pattern, leave out id"),
    ],
)
def test_a_search_that_cannot_be_meant_is_answered_with_what_can(
    arguments: dict[str, Any], said: str
) -> None:
    answer = tools_for(LOG)[0].call("context_grep", arguments)
    assert answer.startswith("Error: ")
    assert said in answer


def test_an_expression_that_was_read_as_text_and_is_nowhere_is_answered_with_the_mode_for_it() -> None:
    tools, ref = tools_for(LOG)
    for pattern in (r"\d{5} x+", "event.*é", "warning|event", "^00001"):
        answer = tools.call("context_grep", {"id": ref, "pattern": pattern})
        assert answer.startswith("[No matches in 1 item; ")
        assert 'mode="regex"' in answer
        assert "\n" not in answer
        assert "event" in tools.grep(pattern, ref, mode="regex")
    for pattern in ("nowhere", "src/a_file.py", "f(x)", "rows[0]"):
        assert tools.grep(pattern, ref) == "[No matches in 1 item]"
    assert tools.grep("nowhere|neither", ref, mode="regex") == "[No matches in 1 item]"
    assert tools.grep("event é nowhere", ref) == (
        '[No matches in 1 item; mode="words" finds lines with all of these words]'
    )
    for pattern in (r"event é\n\d+", "é\n0"):
        answer = tools.call("context_grep", {"id": ref, "pattern": pattern, "mode": "regex"})
        assert answer.startswith("[No matches in 1 item; no match of a regex crosses lines")
