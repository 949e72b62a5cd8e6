"""Counters of a gateway, for its status page and its log: nothing of a request but its API and its size."""

from __future__ import annotations

import logging
from collections import Counter
from enum import StrEnum
from typing import Any

from offload.base.threads.locks import Lock
from offload.errors import OffloadError
from offload.messages import Usage
from offload.records.observer import error_text

logger = logging.getLogger("offload.gateway")


class Unchanged(StrEnum):
    """Why nothing new is replaced in a request."""

    NOTHING_DUE = "nothing to replace"
    NOTHING_THERE = "without tools or messages"
    NO_READ_BACK = "without tools to read back"
    NO_TOOLS_NOW = "without the tools of its conversation"
    KEPT_ELSEWHERE = "the provider keeps the conversation"
    COUNTED = "tokens are counted"
    SIGNED = "signed"
    TOO_LONG = "larger than 32 MB"
    NOT_UNDERSTOOD = "not understood"
    NOT_RECALLED = "the store did not say in time what was sent before"
    SLOW = "the store is slow"
    STORE_FAILED = "the store failed"
    FAILED = "failed"
    HARM = "shadow requests showed harm"


class Status:
    """Counters of a gateway; safe to use from several threads.

    Attributes:
        has_stopped: whether nothing new is replaced any more, since that does harm.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        self._passed: Counter[str] = Counter()
        self._said: set[str] = set()
        self.open_requests = 0
        self.has_stopped = False

    def count(self, name: str, by: int = 1) -> None:
        with self._lock:
            self._counts[name] += by

    def passed(self, why: Unchanged) -> None:
        """Count a request of a known API that passes unchanged."""
        with self._lock:
            self._passed[why.value] += 1

    def failed(self, problem: str) -> None:
        """Count a failure, and log it if it is a new one."""
        self.count("failures")
        self.say_once(problem)

    def lost(self, what: str, error: Exception) -> None:
        """Count and log what an error cost; its text may quote content unless it is one of the store."""
        if isinstance(error, OffloadError):
            self.failed(f"{what}, since the store failed: {error_text(error)}")
        else:
            self.failed(f"{what}: {type(error).__name__}")

    def say_once(self, text: str) -> None:
        """Log a warning that was not logged before."""
        with self._lock:
            is_new = text not in self._said and len(self._said) < _MOST_SAID
            self._said.add(text) if is_new else None
        if is_new:
            logger.warning("%s", text)

    def stop(self, why: str) -> None:
        """Let requests pass unchanged from now on, and log why."""
        self.has_stopped = True
        self.say_once(why)

    def note_usage(self, usage: Usage) -> None:
        """Add what a provider counted for a request."""
        self.count("input_tokens", usage.tokens)
        self.count("cache_read_tokens", usage.read or 0)
        self.count("cache_written_tokens", usage.written)
        self.count("cache_missed_tokens", usage.missed)

    def facts(self) -> dict[str, Any]:
        with self._lock:
            counts = {name: self._counts[name] for name in _COUNTERS}
            return {
                **counts,
                "open_requests": self.open_requests,
                "passed": dict(sorted(self._passed.items())),
                "warnings": sorted(self._said),
            }


_MOST_SAID = 100
_COUNTERS = (
    *("requests", "rewritten", "results_replaced", "tokens_removed", "stored_again", "failures", "late"),
    *("thinking_refused", "thinking_removed", "calls_answered", "calls_left_out"),
    *("input_tokens", "cache_read_tokens", "cache_written_tokens", "cache_missed_tokens"),
)
