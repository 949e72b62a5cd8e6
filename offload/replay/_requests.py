"""The input of the requests of a timeline: its cost, a cold cache, and what should have been counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date
from itertools import pairwise
from typing import Literal, NamedTuple

from offload.errors import ConfigError
from offload.reading.timeline import SentRequest
from offload.replay._counts import Prediction, SizedRequest, predictions
from offload.replay._prices import PriceCard, Prices


class RequestCost(NamedTuple):
    """The input of one request.

    Attributes:
        dollars: its price, None if the provider's count or the price of the model is not known.
        cold: "missed" if nothing was read from the provider's cache, although the request before used it;
            "expired" if in addition, or without a count of cached tokens, the pause before it is longer than
            the cache of its model lives. None for the first request, and if neither is known.
        predicted: what the provider should have counted; None without counts.
    """

    dollars: float | None
    cold: Literal["expired", "missed"] | None
    predicted: Prediction | None = None


def costs_of(requests: Iterable[SentRequest]) -> Iterator[RequestCost]:
    """Yield the cost of each request of a timeline, in order, at the known prices."""
    prices, requests = Prices(), [*requests]
    keys = [(request.model, request.time.date()) for request in requests]
    cards = {key: _card(prices, *key) for key in keys}
    pairs = [*pairwise([None, *requests])]
    sized = [_sized(before, now, cards[key]) for (before, now), key in zip(pairs, keys, strict=True) if now]
    for (before, request), key, predicted in zip(pairs, keys, predictions(sized), strict=True):
        if request is not None:
            card = cards[key]
            yield RequestCost(_dollars(request, card), _cold(before, request, card), predicted)


def _sized(before: SentRequest | None, now: SentRequest, card: PriceCard | None) -> SizedRequest:
    lifetime = card.cache.ttl if card else None
    is_shorter = before is not None and before.tokens > now.tokens
    is_changed = is_shorter or now.is_compacted or now.records > 0
    return SizedRequest(now.tokens, now.time.timestamp(), lifetime, now.usage, is_changed, now.model)


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
