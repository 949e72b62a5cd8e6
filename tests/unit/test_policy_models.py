"""The table of models that bind their thinking, and what a bound policy decides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from offload import ItemFacts, OffloadPolicy
from offload.engine.policy.models import MODELS, binds_thinking

SIZES = (100, 3000, 5000, 12_000, 60_000)


def test_every_row_names_its_page_and_its_month_as_the_page_on_models_does() -> None:
    for known in MODELS:
        assert known.source.startswith("https://")
        assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])", known.as_of)
        assert known.names
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert re.findall(r"\| (?:yes|no) \| (\S+) \|", page) == [f"[{k.as_of}]({k.source})" for k in MODELS]


@pytest.mark.parametrize(
    ("model", "binds"),
    [
        ("claude-opus-5", False),
        ("claude-opus-5-5", True),
        ("claude-opus-5.5", True),
        ("claude-opus-5-20260101", False),
        ("claude-opus-5-5-20260801", True),
        ("eu.anthropic.claude-haiku-5-5", True),
        ("anthropic/claude-fable-5.2", True),
        ("claude-fable-5", False),
        ("claude-mythos-5-1", True),
        ("claude-sonnet-4-6", False),
        ("gpt-5.6-sol", False),
        ("gemini-3-flash-preview", False),
        ("house-model", None),
        ("", None),
        (None, None),
    ],
)
def test_a_model_is_known_by_its_whole_name(model: str | None, binds: bool | None) -> None:
    assert binds_thinking(model) is binds


def facts(**changes: Any) -> ItemFacts:
    given = {
        "message": 2,
        "block": 0,
        "tool_use_id": "c",
        "item_type": "tool_result",
        "tool_name": "Bash",
        "chars": 36_000,
        "tokens": 10_000,
        **changes,
    }
    given = {"bytes": given["chars"], **given}
    return ItemFacts(**{name: value for name, value in given.items() if name in ItemFacts._fields})


@pytest.mark.parametrize(
    ("changes", "action", "is_by_cost"),
    [
        ({}, "offload", False),
        ({"answers": 1}, "keep", False),
        ({"answers": 1, "was_stored": True}, "offload", False),
        ({"is_error": True}, "keep", False),
        ({"tool_name": "Read"}, "keep", True),
        ({"tool_name": "Read", "answers": 1}, "keep", False),
        ({"tool_name": "Read", "tokens": 740, "chars": 2600}, "keep", False),
        ({"tokens": 1000, "chars": 3600}, "keep", True),
        ({"item_type": "tool_call"}, "keep", False),
        ({"item_type": "assistant_message"}, "keep", False),
    ],
)
def test_a_bound_policy_lets_nothing_leave_that_was_sent(
    changes: dict[str, Any],
    action: str,
    is_by_cost: bool,
) -> None:
    decision = OffloadPolicy().decide(facts(**changes), is_bound=True)
    assert (decision.action, decision.is_by_cost) == (action, is_by_cost)


@pytest.mark.parametrize("chars", SIZES)
def test_a_preview_has_the_same_size_for_equal_facts_and_at_most_a_quarter_of_the_item(chars: int) -> None:
    item = facts(chars=chars, tokens=chars // 4)
    sizes = {OffloadPolicy().decide(item, is_bound=True).preview_chars for _ in range(3)}
    assert sizes == {min(1000, chars // 4)}
