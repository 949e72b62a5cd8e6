"""The state of the provider's prompt cache at a turn, if it is known."""

from __future__ import annotations

from typing import Literal, NamedTuple

CacheState = Literal["cold", "warm", "missed"]
Cause = Literal["", "first", "pause", "host", "miss"]


class Moment(NamedTuple):
    """State of the provider's prompt cache when a request is about to be sent.

    Attributes:
        cache: "cold" if the cache holds nothing of the conversation, so that rewriting its messages costs
            nothing extra; "warm", the default, if it may hold the last request; "missed" if it holds the
            last request, which the provider had to write again in full.
        cause: why: "first" request, longer "pause" than the cache keeps a prompt, the "host" said so, or the
            provider reported a "miss". Empty for the default.
    """

    cache: CacheState = "warm"
    cause: Cause = ""

    @property
    def is_cold(self) -> bool:
        """Whether rewriting costs nothing extra."""
        return self.cache == "cold"
