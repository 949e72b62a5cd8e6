"""Calibration of token estimates by the provider's counts: a moving ratio per model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offload.messages._access import get

# The weight of the latest reply: the mix of code, prose and data in a conversation changes slowly.
_WEIGHT = 0.3
# No estimate is so wrong: ratios beyond these compare figures of different requests.
LOWEST, HIGHEST = 0.25, 4.0
# Anthropic counts cached tokens separately; OpenAI includes them.
_INPUT_FIELDS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def input_tokens(usage: Any) -> int | None:
    """Return the tokens of the request in `usage`, cached ones included; None if it has no such number.

    It is that of a reply by the Anthropic or OpenAI API, or the number itself.
    """
    if isinstance(usage, int):
        return usage
    fields = ("prompt_tokens",) if get(usage, "prompt_tokens") is not None else _INPUT_FIELDS
    counts = [count for name in fields if isinstance(count := get(usage, name), int)]
    return sum(counts) or None


class Calibration:
    """Corrects token estimates by a provider's counts: `ratios` maps each model to its ratio."""

    def __init__(self, ratios: Mapping[str, float] | None = None) -> None:
        self.ratios = dict(ratios or {})

    def observe(self, model: str, estimated: int, counted: int) -> None:
        """Record that the provider of `model` counted `counted` tokens for an estimate of `estimated`."""
        if estimated <= 0 or counted <= 0:
            return
        latest = min(HIGHEST, max(LOWEST, counted / estimated))
        before = self.ratios.get(model, latest)
        self.ratios[model] = before + _WEIGHT * (latest - before)

    def learn(self, model: str, estimated: int, counted: int) -> None:
        """Record what the provider of `model` counted for a request that it refused: the next must fit."""
        self.ratios[model] = counted / estimated

    def correct(self, model: str, estimated: int) -> int:
        """Return `estimated` corrected for `model`; unchanged if its provider counted nothing yet."""
        return round(estimated * self.ratios.get(model, 1.0))
