"""When a compaction is tried again after one that was not enough."""

from __future__ import annotations

from typing import NamedTuple

# A compaction must free this part of the window: a model may be paid for it, and the prompt cache is lost.
LEAST_FREED = 1 / 16


class Wait(NamedTuple):
    """Whether a compaction waits until enough is new, since the last one was not enough.

    Attributes:
        until: the tokens of a request from which on it is tried; 0 if none waits.
        window: the context window in tokens; for another one, none waits.
        is_told: whether errors had why it waits.
    """

    until: int = 0
    window: int = 0
    is_told: bool = False

    def at(self, tokens: int, window: int) -> Wait:
        """Return the state at a request of `tokens`: what is new counts from the smallest request."""
        if window != self.window:
            return Wait()
        return self._replace(until=min(self.until, tokens + _least_new(window)))

    def is_all_tried(self, trigger: int) -> bool:
        """Return whether the last one left `trigger` tokens or more, so that all other steps ran too."""
        return self.until - _least_new(self.window) >= trigger

    def after(self, tokens: int, limit: int, window: int) -> Wait:
        """Return the state after a compaction that left `tokens`, and should have left less than `limit`.

        A request that fills the window is always tried, unless the compaction left no less.
        """
        if tokens < limit:
            return Wait()
        again = tokens + _least_new(window)
        return Wait(again if tokens >= window else min(again, window), window, self.is_told)


def _least_new(window: int) -> int:
    return max(1, int(window * LEAST_FREED))
