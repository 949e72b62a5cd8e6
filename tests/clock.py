"""The virtual clock of the retries of a remote store, so that a wait takes no time."""

from __future__ import annotations

import time
from functools import partial

import pytest
import tenacity

from offload_backends._bucket import client as bucket_client


class Clock:
    """The time that the retries see: it goes on by itself, and jumps where they would sleep."""

    def __init__(self) -> None:
        self.slept = 0.0
        self.start = time.monotonic()

    def monotonic(self) -> float:
        return time.monotonic() + self.slept

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds

    @property
    def passed(self) -> float:
        return self.monotonic() - self.start


def virtual(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let all retries of the test see a virtual clock, and return it."""
    clock = Clock()
    monkeypatch.setattr(tenacity, "time", clock)
    monkeypatch.setattr(bucket_client, "AsyncRetrying", partial(tenacity.AsyncRetrying, sleep=clock.sleep))
    return clock


def end_calls_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the deadline of every call, whatever it moves, a second."""
    monkeypatch.setattr(bucket_client, "DEADLINE", 1.0)
    monkeypatch.setattr(bucket_client, "SLOWEST", 1e12)
    monkeypatch.setattr(bucket_client, "_ASSUMED_SIZE", 0)
