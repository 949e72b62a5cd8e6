"""Context windows by the name of the model."""

from __future__ import annotations

import pytest

from offload.agent.compaction import threshold_for


@pytest.mark.parametrize(
    ("names", "window"),
    [
        ("claude-fable-5-2 claude-mythos-5-2 claude-fable-5-1 claude-fable-5", 1_000_000),
        ("claude-opus-5-5 claude-opus-5 claude-sonnet-5-5 claude-sonnet-5 claude-haiku-5-5", 1_000_000),
        ("claude-opus-4-8 claude-opus-4-7 claude-opus-4-6 claude-sonnet-4-6", 1_000_000),
        ("claude-opus-4-5-20251101 claude-sonnet-4-5 claude-haiku-4-5 claude-3-5-haiku-latest", 200_000),
        (
            "gpt-6.1-sol gpt-6-astra gpt-5.6-sol gpt-5.5 openai/gpt-5.5-2026-04-23 gpt-5.4 gpt-5.4-pro",
            922_000,
        ),
        ("gpt-5.4-mini gpt-5.4-nano gpt-5.3-codex gpt-5", 272_000),
        ("o3 o4-mini", 200_000),
        ("gemini-2.5-pro gemini-3.1-pro-preview models/gemini-4-argon", 1_048_576),
        ("deepseek-flash deepseek-v4-flash deepseek-v4-pro", 1_000_000),
        ("gpt-55 opus house-model", 128_000),
    ],
)
def test_the_threshold_is_four_fifths_of_the_window_of_the_model(names: str, window: int) -> None:
    assert [threshold_for(name) for name in names.split()] == [int(window * 0.8)] * len(names.split())
