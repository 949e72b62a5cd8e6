"""Prices of providers' prompt caches, and how long they keep a prompt."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from offload.base.schema import Duration, Seconds, merge, seconds_or_value
from offload.engine.policy._rules import PolicyPart
from offload.engine.policy.models import known_model

Price = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class CacheModel(PolicyPart):
    """Prices of a provider's prompt cache, how long it keeps a prompt, and where a request finds it.

    Prices are per token, relative to an uncached input token. The default is Claude with a cache of 5
    minutes, for most models. A policy also takes the name of a model, `OffloadPolicy(cache="gpt-5.5")`; a
    table may name one as `preset` and change some of its fields. Its price of writing is that of the lifetime
    `ttl`, if the provider has one for that.

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
        """Replace the name of a model by the prices of its cache."""
        named = {"preset": data} if isinstance(data, str) else data
        if not isinstance(named, dict) or "preset" not in named:
            return named
        changes = {field: value for field, value in named.items() if field != "preset"}
        name = named["preset"]
        fields = fields_of(name, changes.get("ttl")) if isinstance(name, str) else None
        if fields is None:
            raise ValueError(f"must be a model with a known price, see `offload models`, got {name!r:.60}")
        return merge(fields, changes)

    @model_validator(mode="after")
    def _read_is_cheaper(self) -> Self:
        if self.read > self.write:
            raise ValueError(f"read={self.read} must be at most write={self.write}")
        return self

    @classmethod
    def preset(cls, name: str) -> Self:
        """Return the cache of a model by its name. Raises `PolicyError` if its price is not known."""
        return cls.model_validate(name)

    @property
    def rewrite(self) -> float:
        """Price of writing a token again that could have been read."""
        return self.write - self.read


def fields_of(model: str | None, kept_for: Any = None, on: date | None = None) -> dict[str, Any] | None:
    """Return the fields of the cache of a model on a day, by default today; None if its price is not known.

    `kept_for` is the lifetime that requests ask for: of the usual one, if the provider has no such.
    """
    known = known_model(model)
    price = None if known is None else known.price(on)
    if known is None or price is None:
        return None
    usual = None if known.cache is None else known.cache.ttl
    seconds = seconds_or_value(kept_for)
    long = price.lifetimes.get(seconds) if isinstance(seconds, int) else None
    written = price.write if long is None else long
    return {
        "read": round(price.read / price.input, 4),
        "write": round(written / price.input, 4),
        "ttl": usual if long is None else seconds,
        "lookback": None if known.cache is None else known.cache.lookback,
    }
