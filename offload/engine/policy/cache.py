"""Prices of providers' prompt caches, and how long they keep a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

from pydantic import Field, model_validator

from offload.base.schema import Duration, Seconds, merge
from offload.engine.policy._rules import PolicyPart

_ANTHROPIC = "https://platform.claude.com/docs/en/about-claude/pricing"
_OPENAI = "https://developers.openai.com/api/docs/guides/prompt-caching"
_OPENAI_PRICES = "https://developers.openai.com/api/docs/pricing"
_GOOGLE = "https://docs.cloud.google.com/vertex-ai/generative-ai/docs/context-cache/context-cache-overview"
_AWS = "https://docs.aws.amazon.com/bedrock/latest/userguide/prompt-caching.html"
_DEEPSEEK = "https://api-docs.deepseek.com/quick_start/pricing"


class KnownCache(NamedTuple):
    """A published price of a prompt cache.

    Attributes:
        read: as in `CacheModel`, like `write` and `ttl`.
        write: price of a token that is written to the cache.
        ttl: seconds after the last use.
        models: the models that it applies to.
        source: the page that states it.
        as_of: the month of that page.
        lookback: as in `CacheModel`.
    """

    read: float
    write: float
    ttl: int | None
    models: str
    source: str
    as_of: str
    lookback: int | None = None


# Where a provider promises no lifetime, `ttl` is the shortest that its page gives. For Gemini, whose page has
# only a maximum of 24 hours, it is an hour.
CACHES: Mapping[str, KnownCache] = {
    "anthropic": KnownCache(0.1, 1.25, 300, "Claude, cached for 5 minutes", _ANTHROPIC, "2026-10", 20),
    "anthropic-1h": KnownCache(0.1, 2.0, 3600, "Claude, cached for 1 hour", _ANTHROPIC, "2026-10", 20),
    "anthropic-5.5": KnownCache(0.05, 1.25, 300, "Claude Opus and Sonnet 5.5", _ANTHROPIC, "2026-10", 20),
    "anthropic-fable-5.1": KnownCache(0.025, 1.25, 300, "Claude Fable 5.1", _ANTHROPIC, "2026-10", 20),
    "bedrock": KnownCache(0.1, 1.25, 300, "Claude on Amazon Bedrock", _AWS, "2026-09", 20),
    "deepseek": KnownCache(0.02, 1.0, 7200, "DeepSeek Flash", _DEEPSEEK, "2026-10"),
    "deepseek-pro": KnownCache(0.033, 1.0, 7200, "DeepSeek V4 Pro", _DEEPSEEK, "2026-10"),
    "gemini": KnownCache(0.1, 1.0, 3600, "Gemini, implicit caching", _GOOGLE, "2026-07"),
    "openai": KnownCache(0.1, 1.25, 1800, "GPT-5.6 and later", _OPENAI, "2026-11"),
    "openai-12h": KnownCache(0.1, 2.5, 43_200, "GPT-5.6 and later, for 12 hours", _OPENAI, "2026-11"),
    "openai-gpt-5": KnownCache(0.1, 1.0, 300, "GPT-5 to GPT-5.5", _OPENAI_PRICES, "2026-06"),
    "openai-gpt-4.1": KnownCache(0.25, 1.0, 300, "GPT-4.1, o3, o4-mini", _OPENAI_PRICES, "2026-06"),
    "openai-gpt-4o": KnownCache(0.5, 1.0, 300, "GPT-4o", _OPENAI_PRICES, "2026-06"),
    "none": KnownCache(1.0, 1.0, None, "no prompt cache", "", "", 20),
}

Price = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class CacheModel(PolicyPart):
    """Prices of a provider's prompt cache, how long it keeps a prompt, and where a request finds it.

    Prices are per token, relative to an uncached input token. The default is Claude with a cache of 5
    minutes. A policy also takes the name of a known cache, `OffloadPolicy(cache="openai")`; a table may name
    one as `preset` and change some of its fields.

    Attributes:
        read: price of a token that is read from the cache.
        write: price of a token that is not read from it, including the price of storing it there.
        ttl: how long the provider keeps a prompt after its last use: seconds, a `timedelta`, or a text such
            as "5m" or "1h". After a longer pause the cache counts as cold; with None, it never does.
        lookback: how many positions the provider searches backwards from a mark, the mark's own included, for
            the end of an earlier request. A position is a content block; a run of tool calls is one, and so
            is a run of results. None is unlimited. Anthropic states 20.
        marks: how many of the ends of the latest requests a request marks; a prompt is cached only up to a
            mark. 1 is automatic caching, which marks the end of each request. None, the default, is not
            known: any prefix counts as cached, and `lookback` has no effect.
    """

    read: Price = 0.1
    write: Price = 1.25
    ttl: Annotated[Seconds, Field(gt=0)] | None = 300
    lookback: Annotated[int, Field(strict=True, gt=0)] | None = 20
    marks: Annotated[int, Field(strict=True, gt=0)] | None = None

    if TYPE_CHECKING:
        # Checkers would take the type of `ttl` from the field, which is in seconds.
        def __init__(
            self,
            *,
            read: float = 0.1,
            write: float = 1.25,
            ttl: Duration | None = 300,
            lookback: int | None = 20,
            marks: int | None = None,
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        """Replace the name of a known cache by its prices."""
        named = {"preset": data} if isinstance(data, str) else data
        if not isinstance(named, dict):
            return named
        if "preset" not in named:
            return named
        changes = {field: value for field, value in named.items() if field != "preset"}
        for name, known in CACHES.items():
            if name == named["preset"]:
                fields = ("read", "write", "ttl", "lookback")
                return merge({field: getattr(known, field) for field in fields}, changes)
        raise ValueError(f"must be one of {', '.join(CACHES)}, got {named['preset']!r:.60}")

    @model_validator(mode="after")
    def _read_is_cheaper(self) -> Self:
        if self.read > self.write:
            raise ValueError(f"read={self.read} must be at most write={self.write}")
        return self

    @classmethod
    def preset(cls, name: str) -> Self:
        """Return a known cache by its name, one of `CACHES`. Raises `PolicyError`."""
        return cls.model_validate(name)

    @property
    def rewrite(self) -> float:
        """Price of writing a token again that could have been read."""
        return self.write - self.read
