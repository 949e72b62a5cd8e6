"""The table of models, and what a bound policy decides."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from offload import ItemFacts, OffloadPolicy
from offload.agent.compaction import threshold_for
from offload.engine.policy import models
from offload.engine.policy.models import THINKING, known_model, names_of_models
from offload.replay import Prices

SIZES = (100, 3000, 5000, 12_000, 60_000)


def test_the_page_on_models_has_each_answer_with_its_page_and_month() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| ([^|]+) \| `(\w+)` \| \[([\d-]+)\]\((\S+)\) \|", page)
    assert rows == [(one.models, one.answer, one.as_of, one.source) for one in THINKING]


@pytest.mark.parametrize(
    ("names", "model", "answer", "window", "dollars"),
    [
        (
            (
                "claude-opus-5-5 claude-opus-5-5-20260801 anthropic/claude-opus-5.5 "
                "eu.anthropic.claude-opus-5-5 openrouter/anthropic/claude-opus-5.5 "
                "vertex_ai/claude-opus-5-5@20260801 azure_ai/claude-opus-5-5 "
                "arn:aws:bedrock:us-east-1:123:inference-profile/us.anthropic.claude-opus-5-5-20260801-v1:0"
            ),
            *("claude-opus-5-5", "binds", 1_000_000, (4, 0.2, 5)),
        ),
        (
            (
                "claude-opus-4-5-20251101 us.anthropic.claude-opus-4-5-20251101-v1:0 claude-opus-4-5@default "
                "projects/p/locations/us-east5/publishers/anthropic/models/claude-opus-4-5@20251101"
            ),
            *("claude-opus-4-5", "free", 200_000, (5, 0.5, 6.25)),
        ),
        ("claude-fable-5-2 Claude-Fable-5.2", "claude-fable-5-2", "binds", 1_000_000, (8, 0.2, 10)),
        ("claude-opus-4-6[1m]", "claude-opus-4-6", "free", 1_000_000, (5, 0.5, 6.25)),
        ("claude-sonnet-4-20250514", "claude-sonnet-4-0", "free", 200_000, (3, 0.3, 3.75)),
        ("gpt-5.5 openai/gpt-5.5-2026-04-23", "gpt-5.5", "free", 922_000, (5, 0.5, 5)),
        ("gpt-5-codex azure/gpt-5", "gpt-5", "free", 272_000, (1.25, 0.125, 1.25)),
        ("openrouter/openai/o4-mini", "o4-mini", "free", 200_000, (1.1, 0.275, 1.1)),
        ("gpt-4o-2024-08-06", "gpt-4o", "free", 128_000, (2.5, 1.25, 2.5)),
        ("gpt-6.2-sol", "gpt-6.2-sol", "free", 922_000, (2, 0.1, 2.5)),
        ("models/gemini-2.5-pro", "gemini-2.5-pro", "free", 1_048_576, (1.25, 0.125, 1.25)),
        ("deepseek/deepseek-v4-flash", "deepseek-v4-flash", "required", 1_000_000, (0.15, 0.003, 0.15)),
        ("moonshotai/kimi-k3 openrouter/moonshotai/kimi-k3", "kimi-k3", "required", 1_048_576, (3, 0.3, 3)),
        ("MiniMax-M3", "minimax-m3", "required", 1_000_000, (0.3, 0.06, 0.3)),
        ("z-ai/glm-5.3", "glm-5.3", "required", 1_000_000, (1.4, 0.26, 1.4)),
        ("xai/grok-4.7", "grok-4.7", None, 500_000, (2, 0.5, 2)),
        # With another word around the name, the price may be that of another model.
        ("ft:gpt-4o:house/gpt-4o house/gpt-4o gpt-4o-v2", "gpt-4o", "free", 128_000, None),
        ("gpt-5-latest", "gpt-5", "free", 272_000, None),
        ("claude-opus-4-5-v2", "claude-opus-4-5", "free", 200_000, None),
        ("deepseek/gpt-5", "gpt-5", "free", 272_000, None),
        ("global.moonshotai.kimi-k3 azure_ai/kimi-k3", "kimi-k3", "required", 1_048_576, None),
        ("groq/moonshotai/kimi-k2.5 fireworks_ai/kimi-k2.5", "kimi-k2.5", "required", 262_144, None),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13", "free", 128_000, None),
        # Of these only the family is known.
        ("claude-opus-4-99 claude-opus-6", "", "binds", 200_000, None),
        ("gpt-6-nova", "", "free", 922_000, None),
        ("kimi-for-coding", "", "required", None, None),
    ],
)
def test_a_model_is_known_by_all_its_names(
    names: str, model: str, answer: str | None, window: int, dollars: tuple[float, ...] | None
) -> None:
    for name in names.split():
        known = known_model(name)
        assert known is not None, name
        assert (known.name, known.thinking, known.window) == (model, answer, window), name
        price = known.price(date(2026, 11, 30))
        assert (price and price[1:4]) == dollars, name


@pytest.mark.parametrize("name", [None, "", "house-model", "opus", "gpt", "a,gpt-5"])
def test_of_a_name_that_nobody_has_nothing_is_known(name: str | None) -> None:
    assert known_model(name) is None


def test_each_row_has_the_name_that_it_is_found_by_and_a_page() -> None:
    for name in names_of_models():
        known = known_model(name)
        assert known is not None
        assert (known.name, known.source[:8]) == (name, "https://")
        assert (known.price() is not None) or not known.prices
    path = Path(models.__file__).with_name("models.json")
    assert not json.loads(path.read_text())["models"].keys() & models._OWN.keys()


@pytest.mark.parametrize(("day", "dollars"), [("2026-11-30", (2, 0.1)), ("2026-12-01", (4, 0.2))])
def test_a_price_changes_on_its_day(day: str, dollars: tuple[float, float]) -> None:
    for name in ("gemini-4-argon", "gemini-4-carbon"):
        known = known_model(name)
        assert known is not None
        price = known.price(date.fromisoformat(day))
        assert price is not None
        assert (price.input, price.read) == dollars
        card = Prices().of(name, date.fromisoformat(day))[1]
        assert (card.input, card.cache.read) == (dollars[0], 0.05)


def test_an_unknown_window_is_said_and_the_threshold_is_four_fifths(caplog: pytest.LogCaptureFixture) -> None:
    assert threshold_for("claude-opus-5-5") == 800_000
    assert threshold_for("kimi-for-coding") == threshold_for("a-house-model") == int(128_000 * 0.8)
    assert "unknown model 'a-house-model': assuming a window of 128000 tokens" in caplog.text


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
        ({"is_error": True}, "keep", True),
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
