"""The parts of a policy: rules for items, sweeps of a conversation, retention of records."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from offload.errors import ConfigError, PolicyError
from offload.policy._facts import ItemFacts
from offload.settings import Count, Flag, Fraction, Seconds, SettingsModel, Size

_MIN_TOKENS = 2000


class _PolicyPart(SettingsModel):
    _error: ClassVar[type[ConfigError]] = PolicyError


class Rule(_PolicyPart):
    """When an item is large enough to leave, and when it may.

    Give one of the three thresholds; without any it is `min_tokens=2000`.

    Attributes:
        enabled: False keeps the items that the rule is for, whatever their size.
        min_tokens: offload from this many tokens on.
        min_chars: offload from this many characters on.
        min_bytes: offload from this many bytes of UTF-8 on.
        after_turns: how often the model must have answered with the item in full view; 0 offloads it
            before the model sees it, 1 after it was seen once.
        keep_recent: how many of the latest items of a tool stay in view; older ones leave once they reach
            the threshold.
        preview_chars: characters of preview in the placeholder; 0 for none.
        ttl: how long a record is kept at least: seconds, a `timedelta`, or a text like "90s", "15m", "2h",
            "7d". After that the next collection takes it, whoever still cites it; None keeps it for good.
    """

    enabled: Flag = True
    min_tokens: Size | None = None
    min_chars: Size | None = None
    min_bytes: Size | None = None
    after_turns: Count = 0
    keep_recent: Count = 0
    preview_chars: Annotated[int, Field(strict=True, ge=0, le=20_000)] = 1000
    ttl: Annotated[Seconds, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        given = [n for n in ("min_tokens", "min_chars", "min_bytes") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"give one threshold, not {' and '.join(given)}")
        return self

    def shortfall(self, item: ItemFacts) -> str | None:
        """Return how far `item` is below the threshold, in words, or None if it reaches it."""
        if self.min_chars is not None:
            unit, least, size = "characters", self.min_chars, item.chars
        elif self.min_bytes is not None:
            unit, least, size = "bytes", self.min_bytes, item.bytes or 0
        else:
            unit, least, size = "tokens", self.min_tokens or _MIN_TOKENS, item.tokens
        return None if size >= least else f"{size} {unit}, under {least}"


class Sweep(_PolicyPart):
    """When a conversation has grown so long that what is below the thresholds leaves too.

    A sweep changes text that the provider has cached, so it should be rare and large: it takes all that it
    may, or down to `target_tokens`, and nothing if that would free less than `clear_at_least`.

    Attributes:
        trigger_tokens: sweep above so many tokens of conversation; or give the next two.
        trigger_fraction: sweep above this part of the context window.
        context_tokens: the size of the context window.
        target_tokens: stop when the conversation takes no more than this; None takes all that may go.
        keep_recent: how many of the latest results of each tool stay in view.
        clear_at_least: tokens that a sweep must free to be done at all.
    """

    trigger_tokens: Size | None = None
    trigger_fraction: Fraction | None = None
    context_tokens: Size | None = None
    target_tokens: Size | None = None
    keep_recent: Count = 3
    clear_at_least: Count = 0

    @model_validator(mode="after")
    def _one_trigger(self) -> Self:
        parts = (self.trigger_fraction, self.context_tokens)
        if (self.trigger_tokens is None) == (None in parts) or (self.trigger_tokens and any(parts)):
            raise ValueError("give trigger_tokens, or trigger_fraction and context_tokens")
        return self

    @property
    def trigger(self) -> int:
        """Above how many tokens to sweep."""
        if self.trigger_tokens is not None:
            return self.trigger_tokens
        return int((self.trigger_fraction or 0) * (self.context_tokens or 0))


class Retention(_PolicyPart):
    """How much is kept, and for how long a marked record can still be read by who is reading it.

    A quota takes the oldest records of a session, and of a store those of the least recently used session
    first; never those of a session that is pinned or live, and none that is shared.

    Attributes:
        session_bytes: stored bytes of one session.
        session_records: records of one session.
        store_bytes: stored bytes of all sessions; looked at when the whole store is collected.
        store_records: records of all sessions; the same.
        grace: how long a marked record stays before it is emptied. It must be longer than any read takes.
        live_for: how long after its last use a session counts as live.
    """

    session_bytes: Size | None = None
    session_records: Size | None = None
    store_bytes: Size | None = None
    store_records: Size | None = None
    grace: Seconds = 3600
    live_for: Seconds = 86_400
