"""Token counts that may fail, and their calibration by the provider's: a moving ratio per model."""

from __future__ import annotations

from collections.abc import Mapping

from offload.base.tokens import TokenCounter, estimate_tokens
from offload.errors import OffloadError, failure

# The weight of the latest reply: the mix of code, prose and data in a conversation changes slowly.
_WEIGHT = 0.3
# No estimate is so wrong: ratios beyond these compare figures of different requests.
LOWEST, HIGHEST = 0.25, 4.0


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


class CarefulCounter:
    """Counts tokens by a hook, and estimates them if it fails; `failures` has the last failure, if any."""

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        self.failures: list[OffloadError] = []

    def __call__(self, text: str) -> int:
        try:
            return self._counter(text)
        except Exception as error:  # noqa: BLE001 # a hook may raise anything
            self.failures = [failure("token_counter failed, tokens are estimated:", error)]
            return estimate_tokens(text)
