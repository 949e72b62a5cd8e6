"""The limits of what a gateway sends to compare replies with and without offloading."""

from __future__ import annotations

from dataclasses import dataclass

from offload.errors import ConfigError, check_number


@dataclass(frozen=True, slots=True)
class ShadowPlan:
    """The limits of shadow requests.

    Args:
        share: the share of changed requests that is drawn, above 0 and at most 1.
        budget: the most dollars that they may cost in the session, by the table of models.
        stop: the harm at which the gateway offloads no more: as soon as the interval of the difference is
            above this share of requests; None never stops.

    Raises:
        ConfigError: a value is out of its range.
    """

    share: float
    budget: float
    stop: float | None = None

    def __post_init__(self) -> None:
        for name in ("share", "budget") + ("stop",) * (self.stop is not None):
            check_number(name, getattr(self, name), 0, is_whole=False)
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"the share of shadow requests must be above 0 and at most 1, got {self.share:g}"
            )
        if not 0 < self.budget < float("inf"):
            raise ConfigError(f"the budget of shadow requests must be above 0 dollars, got {self.budget:g}")
        if self.stop is not None and not 0 < self.stop < 1:
            raise ConfigError(f"the harm that stops must be between 0 and 1, got {self.stop:g}")
