"""What a provider counted, against what was estimated: a moving ratio per model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offload.messages._access import get

# How much the latest reply weighs: the mix of code, prose and data in a conversation moves slowly.
_WEIGHT = 0.3
# No estimate is so wrong: beyond these the figures are of different things.
_LOWEST, _HIGHEST = 0.25, 4.0
# Anthropic counts what came from the cache and what went there apart; OpenAI counts it in.
_INPUT_FIELDS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


def input_tokens(usage: Any) -> int | None:
    """Return the tokens of the request that `usage` reports, all that was cached included.

    Args:
        usage: the `usage` of a reply by the Anthropic or OpenAI API, as an object or a mapping, or the
            number itself.

    Returns:
        The number; None if it reports none.
    """
    if isinstance(usage, int):
        return usage
    fields = ("prompt_tokens",) if get(usage, "prompt_tokens") is not None else _INPUT_FIELDS
    counts = [count for name in fields if isinstance(count := get(usage, name), int)]
    return sum(counts) or None


class Calibration:
    """Corrects an estimate of tokens by what a provider counted, for each model by itself.

    Args:
        ratios: model → ratio, as `ratios` had it before.
    """

    def __init__(self, ratios: Mapping[str, float] | None = None) -> None:
        self.ratios = dict(ratios or {})

    def observe(self, model: str, estimated: int, counted: int) -> None:
        """Note that a request of `estimated` tokens was counted as `counted` by the provider of `model`."""
        if estimated <= 0 or counted <= 0:
            return
        seen = min(_HIGHEST, max(_LOWEST, counted / estimated))
        before = self.ratios.get(model, seen)
        self.ratios[model] = before + _WEIGHT * (seen - before)

    def corrected(self, model: str, estimated: int) -> int:
        """Return `estimated` as the provider of `model` would count it, as far as is known."""
        return round(estimated * self.ratios.get(model, 1.0))
