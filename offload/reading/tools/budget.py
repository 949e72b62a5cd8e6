"""The budget of one call: bytes of content and time."""

from __future__ import annotations

import time
from collections.abc import Iterator

MAX_SECONDS = 10.0
MAX_BYTES = 1024 * 1024 * 1024
BUDGET = "1 GiB or 10 seconds"


class BudgetExceeded(Exception):  # noqa: N818 # not an error: the call ends early
    """A call has used up its budget."""


class Budget:
    """The budget of one call, or a `share` of it, which starts now."""

    def __init__(self, share: float = 1.0) -> None:
        self._deadline = time.monotonic() + share * MAX_SECONDS
        self._bytes = int(share * MAX_BYTES)

    def check(self) -> None:
        """Raise `BudgetExceeded` after the deadline."""
        if time.monotonic() > self._deadline:
            raise BudgetExceeded

    def metered(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Yield `chunks`; raise `BudgetExceeded` once they exceed the budget."""
        for chunk in chunks:
            self._bytes -= len(chunk)
            if self._bytes < 0:
                raise BudgetExceeded
            self.check()
            yield chunk
