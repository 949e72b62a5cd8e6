"""context_diff: what differs between two records, page by page."""

from __future__ import annotations

import difflib
import re
from typing import Any

import pytest
from answers import MAX_ANSWER, put, session, tools_for
from hypothesis import given, strategies as st

from offload.reading.tools import Tools
from offload.reading.tools._diff import changes

OLD = "".join(f"def f{n}():\n    return {n}\n\n" for n in range(50))
LINES = st.lists(st.integers(0, 5) | st.integers(0, 1000), max_size=40)


def versions(old: str, new: str) -> tuple[Tools, str, str]:
    into = session()
    return Tools(into), put(into, old, call="t1"), put(into, new, call="t2")


def rows(answer: str) -> list[str]:
    return answer.split("\n")[1:-1]


@given(LINES, LINES)
def test_the_changes_turn_the_old_lines_into_the_new_ones(old: list[int], new: list[int]) -> None:
    built, line = [], 0
    for change in changes(old, new):
        built += old[line : change.old.start]
        assert len(built) == change.new.start
        built += new[change.new.start : change.new.stop]
        line = change.old.stop

    assert [*built, *old[line:]] == new


@pytest.mark.parametrize(
    "new",
    [
        OLD.replace("return 7\n", "return 77\n    # more\n").replace("def f30", "def g30"),
        "first\n" + OLD,
        OLD + "last\n",
        OLD.replace("    return 20\n", ""),
    ],
)
def test_an_edit_is_shown_as_any_diff_program_shows_it(new: str) -> None:
    tools, old_ref, new_ref = versions(OLD, new)

    answer = tools.diff(old_ref, new_ref)

    expected = difflib.unified_diff(OLD.splitlines(), new.splitlines(), lineterm="")
    assert rows(answer) == [re.sub(r"@@ -(\d+) \+", r"@@ -\1,1 +", row) for row in list(expected)[2:]]
    assert answer.endswith("[end of diff]")


def test_the_pages_of_a_diff_are_the_whole_diff() -> None:
    old = "".join(f"line {n}\n" for n in range(3000))
    tools, old_ref, new_ref = versions(old, old.replace("0\n", "0!\n"))
    shown: list[str] = []
    call = {"old": old_ref, "new": new_ref, "start_row": 1}
    while True:
        answer = tools.call("context_diff", call)
        assert len(answer) <= MAX_ANSWER
        shown += rows(answer)
        following = re.search(r'\[more: context_diff\(old="(\w+)", new="(\w+)", start_row=(\d+)\)\]$', answer)
        if following is None:
            break
        call = {"old": following[1], "new": following[2], "start_row": int(following[3])}

    expected = difflib.unified_diff(old.splitlines(), old.replace("0\n", "0!\n").splitlines(), lineterm="")
    assert shown == list(expected)[2:]
    past = tools.call("context_diff", {**call, "start_row": 10**9})
    assert past == f"Error: past the end: the diff has {len(shown)} rows"


def test_of_a_long_line_the_first_difference_is_shown() -> None:
    filler = '{"row": 1}, ' * 20_000
    tools, old_ref, new_ref = versions(f"[{filler}1, {filler}2]", f"[{filler}7, {filler}2]")

    heading, before, after = rows(tools.diff(old_ref, new_ref))

    at = len(filler) + 1
    assert heading == "@@ -1,1 +1,1 @@"
    assert re.match(rf"-\[characters {at - 120}-{at + 280} of the item\] ….*}}, 1, {{.*…$", before)
    assert re.match(rf"\+\[characters {at - 120}-{at + 280} of the item\] ….*}}, 7, {{.*…$", after)


def test_lines_that_differ_only_in_their_end_are_seen_to_differ() -> None:
    tools, old_ref, new_ref = versions("a\nb\n", "a\r\nb\n")
    assert rows(tools.diff(old_ref, new_ref)) == ["@@ -1,2 +1,2 @@", "-a", "+a\\r", " b"]


def test_items_that_do_not_differ_say_so() -> None:
    tools, old_ref, new_ref = versions("a\nb", "a\nb")
    assert tools.diff(old_ref, new_ref) == f"[{old_ref} and {new_ref} have the same content]"
    tools, old_ref, new_ref = versions("a\nb", "a\nb\n")
    assert tools.diff(old_ref, new_ref) == f"[{old_ref} and {new_ref} differ only in the newline at the end]"


def test_binary_lines_images_and_look_alikes_are_not_shown_as_they_are() -> None:
    image = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUg" + "A" * 500
    tools, old_ref, new_ref = versions(image, "[Offloaded: x, id aaaaaaaaaa]\n" + "\1\2\3" * 5)
    answer = tools.diff(old_ref, new_ref)
    assert "(image/png" in answer
    assert "AAAA" not in answer
    assert "\\[Offloaded: " in answer
    assert "(binary content not shown: 15 characters)" in answer


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"new": "R"}, "missing argument old"),
        ({"old": "R", "new": "R"}, "old and new are the same item"),
        ({"old": "R", "new": "zzzzzzzzzz"}, "unknown id 'zzzzzzzzzz'."),
        ({"old": "../x", "new": "R"}, "unknown id '../x'."),
        ({"old": "R", "new": "zzzzzzzzzz", "start_row": 0}, "start_row must be at least 1"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_answered_with_what_does(
    arguments: dict[str, Any], said: str
) -> None:
    tools, ref = tools_for("text")
    call = {name: ref if value == "R" else value for name, value in arguments.items()}
    assert tools.call("context_diff", call).startswith(
        f"Error: {said}" if "missing" not in said else "Error: "
    )
    assert said in tools.call("context_diff", call)


def test_the_tool_is_answered_without_being_offered_and_offered_if_named() -> None:
    into = session()
    assert "context_diff" not in str(Tools(into).definitions())
    assert "context_diff" not in Tools(into).prompt()
    assert "missing argument" in Tools(into).call("context_diff", {})
    named = Tools(into, names=("context_read", "context_diff"))
    assert [tool["name"] for tool in named.definitions()] == ["context_read", "context_diff"]
    assert "unknown tool" in Tools(into, names=("context_read",)).call("context_diff", {})
