"""The input cost of the requests of a timeline, and those that found the provider's cache cold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from itertools import pairwise
from typing import Literal, NamedTuple

from offload.errors import ConfigError
from offload.reading.timeline import SentRequest
from offload.replay._prices import PriceCard, Prices


class RequestCost(NamedTuple):
    """The input of one request.

    Attributes:
        dollars: its price, None if the provider's count or the price of the model is not known.
        cold: "missed" if nothing was read from the provider's cache, although the request before used it;
            "expired" if in addition, or without a count of cached tokens, the pause before it is longer than
            the cache of its model lives. None for the first request, and if neither is known.
    """

    dollars: float | None
    cold: Literal["expired", "missed"] | None


def costs_of(requests: Iterable[SentRequest], prices: Prices | None = None) -> Iterator[RequestCost]:
    """Yield the cost of each request of a timeline, in order; prices are the known ones by default."""
    prices = prices or Prices()
    cards: dict[tuple[str | None, date], PriceCard | None] = {}
    for before, request in pairwise([None, *requests]):
        if request is None:
            continue
        key = request.model, request.time.date()
        if key not in cards:
            cards[key] = _card(prices, *key)
        card = cards[key]
        yield RequestCost(_dollars(request, card), _cold(before, request, card))


def _card(prices: Prices, model: str | None, on: date) -> PriceCard | None:
    try:
        return None if model is None else prices.of(model, on)[1]
    except ConfigError:
        return None


def _dollars(request: SentRequest, card: PriceCard | None) -> float | None:
    usage = request.usage
    return None if usage is None or card is None else card.dollars(card.units_of(usage))


def _cold(
    before: SentRequest | None, request: SentRequest, card: PriceCard | None
) -> Literal["expired", "missed"] | None:
    if before is None:
        return None
    ttl = card.cache.ttl if card else None
    is_late = ttl is not None and (request.time - before.time).total_seconds() > ttl
    read = request.usage.read if request.usage else None
    if read is None:
        return "expired" if is_late else None
    was_cached = before.usage is not None and bool(before.usage.read or before.usage.written)
    if read or not was_cached:
        return None
    return "expired" if is_late else "missed"
