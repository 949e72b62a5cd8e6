"""One call of a retrying store: how often it was tried, and when it must end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from offload.errors import StoreUnavailableError

T = TypeVar("T")


class Call:
    """One call's retries: how often it failed, and when it must end."""

    def __init__(
        self,
        deadline: float,
        pauses: tuple[float, float],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        jitter: Callable[[], float],
    ) -> None:
        self.failures = 0
        self._until = clock() + deadline
        self._longest, self._max_pause = pauses
        self._clock, self._sleep, self._jitter = clock, sleep, jitter

    def run(self, attempt: Callable[[], T]) -> T:
        """Return what `attempt` returns, trying until it is available or the deadline comes."""
        while True:
            try:
                return attempt()
            except StoreUnavailableError:
                if not self.waits():
                    raise

    def waits(self) -> bool:
        """Count a failure and wait before the next try; False if that would pass the deadline."""
        self.failures += 1
        pause = self._jitter() * min(self._longest, self._max_pause)
        self._longest = min(self._longest * 2, self._max_pause)
        if self._clock() + pause >= self._until:
            return False
        self._sleep(pause)
        return True
