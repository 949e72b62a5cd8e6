"""Parts of a policy: rules for items, sweeps of a conversation, retention of records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from offload.base.schema import Bytes, Count, Duration, Flag, Fraction, Seconds, SettingsModel, Size
from offload.engine.policy.facts import ItemFacts
from offload.engine.policy.reasons import Reason, ReasonKind
from offload.errors import ConfigError, PolicyError

_MIN_TOKENS = 2000


class PolicyPart(SettingsModel):
    """A part of a policy, whose errors are `PolicyError`."""

    _error: ClassVar[type[ConfigError]] = PolicyError


class Rule(PolicyPart):
    """Size threshold and timing for offloading an item.

    Set at most one of the three thresholds; without one it is `min_tokens=2000`.

    Attributes:
        enabled: False keeps the items of this rule at any size.
        min_tokens: offload items of at least this many tokens.
        min_chars: offload items of at least this many characters.
        min_bytes: offload items of at least this many UTF-8 bytes.
        after_replies: number of model replies with the item in full view before it is offloaded; 0 offloads
            it before the model sees it, 1 after the model's next reply. Where `cost_plan` is not
            "none", they count from the last use of its file, and then it is offloaded when that pays.
        keep_recent: number of the latest items of each tool to keep; older ones at or above the threshold
            are offloaded.
        preview_chars: maximum characters of preview in the placeholder; 0 for none.
        ttl: minimum lifetime of a record: seconds, a `timedelta`, or a text such as "90s", "15m", "2h",
            "7d". The next `gc` after that deletes the record, even if a message refers to it. None keeps it.
    """

    enabled: Flag = True
    min_tokens: Size | None = None
    min_chars: Size | None = None
    min_bytes: Size | None = None
    after_replies: Count = 0
    keep_recent: Count = 0
    preview_chars: Annotated[int, Field(strict=True, ge=0, le=20_000)] = 1000
    ttl: Annotated[Seconds, Field(gt=0)] | None = None

    if TYPE_CHECKING:
        # Checkers would take the type of `ttl` from the field, which is in seconds.
        def __init__(
            self,
            *,
            enabled: bool = True,
            min_tokens: int | None = None,
            min_chars: int | None = None,
            min_bytes: int | None = None,
            after_replies: int = 0,
            keep_recent: int = 0,
            preview_chars: int = 1000,
            ttl: Duration | None = None,
        ) -> None: ...

    @model_validator(mode="after")
    def _at_most_one_threshold(self) -> Self:
        names = [n for n in ("min_tokens", "min_chars", "min_bytes") if getattr(self, n) is not None]
        if len(names) > 1:
            raise ValueError(f"set one threshold, got {' and '.join(names)}")
        return self

    def shortfall(self, item: ItemFacts) -> Reason | None:
        """Return the reason why `item` is below the threshold, or None if it is not."""
        if self.min_chars is not None:
            unit, least, size = "characters", self.min_chars, item.chars
        elif self.min_bytes is not None:
            unit, least, size = "bytes", self.min_bytes, item.bytes or 0
        else:
            unit, least, size = "tokens", self.min_tokens or _MIN_TOKENS, item.tokens
        return None if size >= least else Reason(ReasonKind.TOO_SMALL, size, least, unit)


class Sweep(PolicyPart):
    """A bulk pass that offloads many old items at once when the conversation is long.

    A sweep changes text in the provider's prompt cache, so it should be rare and large: it offloads all
    that it may, or as many as `target_tokens` requires, and none if that frees less than `clear_at_least`.

    Attributes:
        trigger_tokens: sweep a conversation of more tokens than this; or set the next two.
        trigger_fraction: sweep above this fraction of the context window.
        context_tokens: size of the context window.
        target_tokens: stop when the conversation has at most this many tokens; None offloads all it may.
        keep_recent: number of the latest results of each tool to keep.
        clear_at_least: do not sweep if it would free fewer tokens.
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
            raise ValueError("set trigger_tokens, or trigger_fraction and context_tokens")
        return self

    @property
    def trigger(self) -> int:
        """Number of tokens above which to sweep."""
        if self.trigger_tokens is not None:
            return self.trigger_tokens
        return int((self.trigger_fraction or 0) * (self.context_tokens or 0))


class Retention(PolicyPart):
    """Quotas of stored records, and the grace period before their bytes are deleted.

    A quota evicts the oldest records of a session; a quota of the store starts with the least recently used
    session. Shared records and records of pinned or active sessions are never evicted.

    Attributes:
        session_bytes: maximum stored bytes of one session, or a text such as "20MB".
        session_records: maximum records of one session.
        store_bytes: maximum stored bytes of all sessions; checked when `gc` runs on the whole store.
        store_records: maximum records of all sessions; checked when `gc` runs on the whole store.
        grace: grace period between marking a record for deletion and deleting its bytes. It must be longer
            than any read.
        live_for: how long a session counts as active after its last use.
    """

    session_bytes: Annotated[
        Bytes | None, Field(title="Bytes per session", description="Maximum size of a session")
    ] = None
    session_records: Annotated[
        Size | None, Field(title="Records per session", description="Maximum records of a session")
    ] = None
    store_bytes: Annotated[
        Bytes | None, Field(title="Bytes in the store", description="Maximum size of the store")
    ] = None
    store_records: Annotated[
        Size | None, Field(title="Records in the store", description="Maximum records of the store")
    ] = None
    grace: Annotated[
        Seconds,
        Field(title="Grace period", description="Keep a marked record's bytes for this grace period"),
    ] = 3600
    live_for: Annotated[
        Seconds,
        Field(
            title="Exempt sessions used within",
            description="Exempt a session from quotas for this long after its last use",
        ),
    ] = 86_400

    if TYPE_CHECKING:
        # Checkers would take the types of sizes and durations from the fields, which are numbers.
        def __init__(
            self,
            *,
            session_bytes: int | str | None = None,
            session_records: int | None = None,
            store_bytes: int | str | None = None,
            store_records: int | None = None,
            grace: Duration = 3600,
            live_for: Duration = 86_400,
        ) -> None: ...
