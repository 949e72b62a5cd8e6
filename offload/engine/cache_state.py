"""The state of the provider's prompt cache at a turn: from the clock, the host, and the provider's usage."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from offload.engine.failures import Failures
from offload.engine.results import CacheCause, CacheReport
from offload.engine.settings.hooks import host_call
from offload.engine.settings.options import Options
from offload.errors import ConfigError, OffloadError, failure
from offload.messages import Usage
from offload.messages.usage import is_same_reply, usage_of

if TYPE_CHECKING:
    from offload.engine.policy import CacheModel

# The states that a host can know.
HostCache = Literal["cold", "warm"]
Cause = Literal["", "first", "pause", "host", "miss"]

# A provider caches no shorter prompt, or does so rarely.
_LEAST_TOKENS = 1024
# A reply that read less of the tokens that were sent before is a miss.
_HIT = 0.5


class CacheState(NamedTuple):
    """State of the provider's prompt cache when a request is about to be sent.

    Attributes:
        cache: "cold" if the cache holds nothing of the conversation, so that rewriting its messages costs
            nothing extra; "warm", the default, if it may hold the last request; "missed" if it holds the
            last request, which the provider had to write again.
        cause: why: "first" request, longer "pause" than the cache keeps a prompt, the "host" said so, or the
            provider reported a "miss". Empty for the default.
    """

    cache: Literal["cold", "warm", "missed"] = "warm"
    cause: Cause = ""

    @property
    def is_cold(self) -> bool:
        """Whether rewriting costs nothing extra."""
        return self.cache == "cold"


class CacheWatch:
    """Follows the requests of a session: when the last was sent, and what the provider's cache served of it.

    A request counts as sent when `offload` is called, and as cached once the model has replied to it: a
    second call before that has the same state. All figures are of one conversation, so `begin` and `end`
    are called by one thread at a time.
    """

    def __init__(self, options: Options) -> None:
        self._clock = options.clock
        self._model = options.policy.cache
        # Seconds that requests ask a prompt to be kept; None is as usual.
        self.kept_for: int | None = None
        # Times of the latest call, and of the latest request that was replied to; None if unknown.
        self._sent: float | None = None
        self._cached: float | None = None
        self._answers: int | None = 0
        self._ttl: float | None = self._model.ttl
        # Tokens of the messages of both, by the session's counter.
        self._total = self._answered = 0
        # Tokens of the last reported request, the share of it that was sent again since, the state of the
        # cache then, and whether the provider is known to use one.
        self._reported = 0
        self._share = 1.0
        self._state = CacheState()
        self._pause = 0.0
        self._has_cache = False
        # The last report, and whether there was a request since.
        self._usage: Usage | None = None
        self._reply: Any = None
        self._is_asked = False
        self._missed = 0

    @property
    def last_request(self) -> float | None:
        """Time of the last request by the clock; None if unknown."""
        return self._sent

    @last_request.setter
    def last_request(self, seconds: float | None) -> None:
        if seconds is not None and not _is_time(seconds):
            raise ConfigError(f"last_request must be seconds or None, got {seconds!r:.60}")
        self._sent, self._answers = seconds, None

    def price(self, cache: CacheModel) -> None:
        """Take the prices and the lifetime of another cache for the next requests."""
        self._model, self._ttl = cache, cache.ttl

    def begin(self, answers: int, host: HostCache | None, failures: Failures) -> CacheState:
        """Return the state of the cache for the next request of a conversation with `answers` replies.

        A clock that fails is reported; then nothing is inferred from it.
        """
        now = self._now(failures)
        self._is_asked = True
        if answers != self._answers:
            self._cached, self._answered, self._answers = self._sent, self._total, answers
        self._sent = now
        if host is not None:
            return CacheState(host, "host")
        if not answers:
            return CacheState("cold", "first")
        pause = 0.0 if now is None or self._cached is None else now - self._cached
        # A clock that was set back gives a negative pause.
        if self._ttl is not None and pause > self._ttl:
            self._pause = pause
            return CacheState("cold", "pause")
        return CacheState("missed", "miss") if self._missed else CacheState()

    def end(
        self, state: CacheState, *, tokens: int, unchanged: int, freed: int, rewritten: int
    ) -> CacheReport | None:
        """Note the messages that are sent now; return the effect on the cache, None if there is none.

        Args:
            state: the state of the cache before.
            tokens: tokens of the messages that are sent.
            unchanged: tokens of the messages at their beginning that the last answered request had too.
            freed: tokens that replacing items in messages that were sent before frees.
            rewritten: tokens that were sent before and are not in the cache.
        """
        self._share *= min(1.0, unchanged / self._answered) if self._answered else 1.0
        self._state = state if state.is_cold else self._state
        self._total = tokens
        missed, self._missed = self._missed, 0
        if not rewritten and not missed:
            return None
        prices = self._model
        return CacheReport(freed, rewritten, _cause(state, rewritten), missed, prices.read, prices.write)

    def report(self, reply: Any, *, is_changed: bool) -> Usage | None:
        """Note the usage of a provider's reply; return it, with the missed tokens.

        Raises `ConfigError` for a value that cannot have a usage.
        """
        if isinstance(reply, str | bytes | bool | list | tuple):
            raise ConfigError(f"usage must be a provider's reply, its usage or a number, got {reply!r:.60}")
        usage = usage_of(reply)
        is_repeated = usage == self._usage and (not self._is_asked or is_same_reply(reply, self._reply))
        if usage is None or is_repeated:
            # A framework shows the same reply again if its next request is repeated.
            return usage
        self._usage, self._reply, self._is_asked = usage, reply, False
        expected = 0 if is_changed else round(self._reported * self._share)
        if self._has_cache and usage.read is not None and expected >= _LEAST_TOKENS:
            usage = usage._replace(missed=self._missing(expected, usage.read))
        self._missed += usage.missed
        self._reported, self._share, self._state = usage.tokens, 1.0, CacheState()
        self._has_cache = self._has_cache or bool(usage.read or usage.written)
        if usage.kept_for is not None:
            self._ttl = self.kept_for = usage.kept_for
        return usage

    def _missing(self, expected: int, read: int) -> int:
        """Return how many tokens a warm cache missed; note the length of a pause that a cold one outlived."""
        is_hit = read >= _HIT * expected
        if is_hit and self._state.cause == "pause":
            self._ttl = self._pause
        return 0 if is_hit or self._state.is_cold else expected - read

    def _now(self, failures: Failures) -> float | None:
        try:
            with host_call():
                now = self._clock()
            if _is_time(now):
                return now
            failures.note(OffloadError(f"clock must return seconds, got {now!r:.60}"))
        except Exception as error:  # noqa: BLE001 # a clock of the caller may raise anything
            failures.note(failure("clock:", error))
        return None


def _cause(state: CacheState, rewritten: int) -> CacheCause:
    if not rewritten:
        return "miss"
    return "pause" if state.cause == "pause" else "host" if state.is_cold else "ours"


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
