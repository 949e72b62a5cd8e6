"""Files under the presets: one that the model works on stays in view; unseen, its names are shown."""

from __future__ import annotations

import re
from itertools import product
from random import Random
from typing import Any

import pytest
from kit.conversation import tool_turn
from strength import some

from offload import Offloader, OffloadPolicy
from offload.engine.policy.cost import LEFT_ALONE

Messages = list[dict[str, Any]]

FILE = "".join(f"def part_{n}(value): return value + {n}\n" for n in range(900))
NAMES = re.compile(r"\[Names within it: (.*)\]")


def called(number: int, tool: str, said: str, **given: Any) -> Messages:
    return tool_turn(f"c{number}", said, tool, given)


def reasons(preset: Any, tool: str = "Read", *, edited_at: int | None = None, replies: int = 60) -> list[str]:
    """Return the decisions on a file's text after each reply since, in which nothing else is large."""
    off = Offloader("memory://", session="s", policy=OffloadPolicy.preset(preset), clock=lambda: 0.0)
    messages = [{"role": "user", "content": "go"}, *called(0, tool, FILE, path="src/a.py")]
    found = []
    for number in range(1, replies + 1):
        out = off.offload(messages)
        [large] = [each for each in out.decisions if each.item.tokens > 5000]
        assert (large.action == "offload") == (out.messages[2] != messages[2])
        found.append(f"{large.action}: {large.reason}")
        edit = number == edited_at
        messages += (
            called(number, "Edit", "done", path="./src/a.py") if edit else called(number, "Bash", "ok")
        )
    return found


def replies_in_view(decided: list[str]) -> int:
    """Return after how many replies the text leaves for good."""
    left = [text.startswith("offload") for text in decided]
    assert left == sorted(left)
    assert left[-1]
    return left.index(True)


@pytest.mark.parametrize("tool", ["Read", "Write", "mcp__fs__edit_file"])
def test_a_file_that_is_edited_soon_stays_in_view_and_leaves_later(tool: str) -> None:
    alone, edited = reasons("balanced", tool), reasons("balanced", tool, edited_at=8)

    assert replies_in_view(alone) == LEFT_ALONE
    assert replies_in_view(edited) == 8 + LEFT_ALONE
    assert not any("its file is being worked on" in text for text in alone)
    worked_on = ["its file is being worked on" in text for text in edited]
    assert worked_on == [8 <= replies < 8 + LEFT_ALONE for replies in range(60)]


def test_presets_keep_a_file_for_as_long_as_they_say() -> None:
    presets = ("economy", "balanced", "verbatim")
    assert [replies_in_view(reasons(preset)) for preset in presets] == [5, LEFT_ALONE, 40]


def test_the_output_of_another_tool_is_not_kept_for_its_path() -> None:
    assert replies_in_view(reasons("balanced", "Bash", edited_at=8)) == 0


@pytest.mark.parametrize("preset", ["balanced", "economy"])
def test_names_follow_the_preview_of_a_file_that_is_never_seen(preset: Any) -> None:
    policy = OffloadPolicy.model_validate({"preset": preset, "history": "append_only"})
    ends = ["".join(each) for each in product("abcdefgh", repeat=3)]
    names = {f"{word}_{end}" for end in ends for word in ("part", "a_longer_part")}
    text = "".join(f"def {name}(value): return {name}\n" for name in sorted(names))
    messages = [{"role": "user", "content": "go"}, *called(0, "Read", text, path="src/a.py")]

    placeholder = Offloader("memory://", policy=policy).offload(messages).messages[2]["content"][0]["content"]

    [line] = NAMES.findall(placeholder)
    shown = line.split()
    assert len(shown) > 100
    assert {*shown} <= names
    assert len({*shown}) == len(shown)
    # The first tell the left-out lines apart; the last are in order.
    assert shown[-100:] == sorted(shown[-100:], key=lambda name: (len(name), name))
    assert sum(len(name) + 1 for name in shown) <= min(len(text) // 4, 10_000) + 3000


def work(seed: int, turns: int) -> Messages:
    """Return reads, edits and commands of all sizes, on few files."""
    rng = Random(seed)  # noqa: S311 # reproducible
    messages: Messages = [{"role": "user", "content": "Please review."}]
    for n in range(turns):
        tool = rng.choice(["Read", "Read", "Write", "Edit", "Bash", "Grep"])
        given = {"path": f"src/{rng.randrange(6)}.py", "content": FILE[: rng.choice([40, 9000])]}
        said = (FILE * 2)[rng.randrange(9000) :][: rng.choice([200, 1000, 4000, 9000, 30_000])]
        messages += called(n, tool, said, **(given if tool in ("Write", "Edit") else {"path": given["path"]}))
    return messages


@pytest.mark.parametrize("preset", ["balanced", "economy"])
@pytest.mark.parametrize("keeps_placeholders", [False, True])
def test_a_process_that_repeats_a_request_sends_what_the_first_one_sent(
    preset: Any, keeps_placeholders: bool
) -> None:
    policy = OffloadPolicy.model_validate({"preset": preset, "history": "editable"})
    for seed in some(range(3), 3):
        messages, given = work(seed, 36), list[Any]()
        off = Offloader("memory://", session="s", policy=policy, clock=lambda: 0.0)
        for end in range(1, len(messages) + 1, 2):
            given += messages[len(given) : end]
            sent = off.offload(given).messages
            again = (
                Offloader(off.store, session="s", policy=policy, clock=lambda: 0.0).offload(given).messages
            )
            assert again == sent
            given = [*sent] if keeps_placeholders else given
        assert sent != messages
