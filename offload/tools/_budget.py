"""What one call may cost: so much content looked at, so much time."""

from __future__ import annotations

import time
from collections.abc import Iterator

MAX_SECONDS = 10.0
MAX_BYTES = 1024 * 1024 * 1024
BUDGET = "1 GiB or 10 seconds"


class BudgetExceeded(Exception):  # noqa: N818 # not an error: a call goes no further
    """The budget of a call is spent."""


class Budget:
    """The budget of one call, which begins now."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + MAX_SECONDS
        self._bytes = MAX_BYTES

    def check(self) -> None:
        """Raise `BudgetExceeded` if the time is over."""
        if time.monotonic() > self._deadline:
            raise BudgetExceeded

    def metered(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield `chunks` until the budget is spent; then raise `BudgetExceeded`."""
        for chunk in chunks:
            self._bytes -= len(chunk)
            if self._bytes < 0:
                raise BudgetExceeded
            self.check()
            yield chunk
