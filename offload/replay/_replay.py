"""A recorded conversation under a policy, and without one: tokens, read-backs, and cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from offload import CacheModel, OffloadPolicy, OffloadResult
from offload.engine.policy import policy_of
from offload.engine.policy.facts import PolicyName
from offload.replay._bill import Bill, measure
from offload.replay._counts import CountCheck, check_counts
from offload.replay._prices import PriceCard, Prices
from offload.replay._recording import Recording
from offload.replay._senders import Offloading, Untouched
from offload.replay._transcripts import Transcript

_TOOLS = "the retrieval tools, which are part of each request, cost more than offloading saves"
_READS = "offloaded items are read back"
_REWRITES = "cached text is written again when an item before it is offloaded"


@dataclass(frozen=True, slots=True)
class Replay:
    """A recorded conversation with and without offloading.

    Attributes:
        transcript: the conversation.
        requests: number of requests, read-backs not counted.
        priced_as: the model whose prices apply.
        card: its prices.
        cache: the prompt cache.
        plain: the price of the input without offloading.
        bill: the price with offloading, its tools and the read-backs; `bill.reads` is the
            number of requests that read back.
        result: the result of offloading the whole conversation in the end, with the decision on each item.
    """

    transcript: Transcript
    requests: int
    priced_as: str
    card: PriceCard
    cache: CacheModel
    plain: Bill
    bill: Bill
    result: OffloadResult

    @property
    def dollars_plain(self) -> float:
        """The price without offloading."""
        return self.card.dollars(self.plain.cost)

    @property
    def dollars(self) -> float:
        """The price with offloading."""
        return self.card.dollars(self.bill.cost)

    @property
    def dollars_recorded(self) -> float | None:
        """The price of the input that the provider counted, None without usage."""
        units = [self.card.units_of(answer.usage) for answer in self.transcript.usage.values()]
        return self.card.dollars(sum(units)) if units else None

    @property
    def counts(self) -> CountCheck | None:
        """The predicted and the counted tokens of the requests; None without usage."""
        return check_counts(self.transcript, self.cache.ttl)

    @property
    def dearer_because(self) -> str | None:
        """Why offloading would cost more, None if it would not."""
        if self.bill.cost <= self.plain.cost:
            return None
        if self.bill.decided <= self.plain.cost:
            return _TOOLS
        return _READS if self.bill.read_backs >= self.bill.rewritten else _REWRITES


def replay(
    transcript: Transcript,
    policy: OffloadPolicy | PolicyName | None = None,
    *,
    prices: Prices | None = None,
    cache: CacheModel | None = None,
    store: str | None = None,
    model: str | None = None,
) -> Replay:
    """Replay each request of a recorded conversation offline, with and without offloading.

    Args:
        transcript: the conversation.
        policy: which items are offloaded, or the name of a policy; if it sets no `cache`, it gets that
            of the replay.
        prices: the prices of models; by default, the known ones.
        cache: prices and lifetime of the cache; by default, of the one that most of the recorded prompt was
            written to.
        store: the store of the records, in a session of the transcript's name; the default keeps none.
        model: the name of the model that the offloader gets; None for no name.

    Raises:
        ConfigError: the price of the transcript's model is not known.
        MessageError: a message is malformed.
        OffloadError: an item could not be stored.
    """
    name, card = (prices or Prices()).of(transcript.model)
    cache = cache or _cache_of(transcript, card)
    recording = Recording(transcript, cache.ttl)
    offloading = Offloading(recording, _knowing(policy_of(policy), cache), store, model)
    plain, bill = (measure(recording, sender, cache) for sender in (Untouched(), offloading))
    requests = len(recording.requests)
    return Replay(transcript, requests, name, card, cache, plain, bill, offloading.finish())


def _cache_of(transcript: Transcript, card: PriceCard) -> CacheModel:
    """Return the cache that most of the recorded prompt was written to."""
    written: Counter[int | None] = Counter()
    for answer in transcript.usage.values():
        written[answer.usage.kept_for] += answer.usage.written
    return card.cache_for(max(written, key=lambda kept_for: written[kept_for], default=None))


def _knowing(policy: OffloadPolicy, cache: CacheModel) -> OffloadPolicy:
    """Return the policy with the cache of a conversation, unless it sets one."""
    return policy if "cache" in policy.model_fields_set else policy.model_copy(update={"cache": cache})
