"""The read-backs of a session and the input cost that offloading saved, from its journal.

Each entry of a journal has a request, with its messages and placeholders. With the texts of the records, it
is the request without offloading.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache
from itertools import takewhile
from statistics import fmean
from typing import Any, NamedTuple

from offload.agent._usage import HIGHEST, LOWEST
from offload.base.tokens import estimate_tokens
from offload.engine.placeholder.forms import known_refs
from offload.engine.policy import CacheModel
from offload.engine.recognition import stands_for
from offload.errors import OffloadError
from offload.messages import Usage
from offload.messages.adapter import Scan
from offload.messages.base import Item
from offload.messages.files import request_of
from offload.messages.formats import scans_of
from offload.reading.tools._definitions import definitions, system_prompt
from offload.records.journal.reader import Journal, JournalChange
from offload.records.record import Header, RecordInfo
from offload.records.record.retrieval import REF_FIELDS, reads_of
from offload.records.session.reader import SessionReader
from offload.replay._actions import reads_back
from offload.replay._names import quotes_in
from offload.replay._prices import PriceCard, Prices

_FAILED = "Error: "
# In tokens: requests that differ by less do not show how the provider counts.
_LEAST_SPREAD = 1000

# By ref and item type.
RecordsByRef = Mapping[tuple[str, str], tuple[RecordInfo, Header]]


@dataclass(frozen=True, slots=True)
class Account:
    """The read-backs of a session, and the price of its input.

    Attributes:
        times: how often each record was read back, by id.
        tokens: the tokens of the answers, by the id of the first record that a call names.
        requests: the number of requests.
        extra_requests: those of them that have nothing new but read-backs.
        quotes: the quotes in edits of texts that were sent before, in messages or in answers of read-backs.
        quotes_gone: those of them with a line that the request before the edit had in such answers at most:
            the text was offloaded, or removed by a compaction.
        dollars: the price of their input.
        dollars_plain: the price without offloading, its tools and the read-backs.
        kept_out: the tokens that the requests do not have because of offloading, all requests together.
        priced_as: the model whose prices these are. With several, the last one: each request has its own.
        is_assumed: whether the journal names no model.
        is_priced: whether the prices of these models are known; else the dollars are meaningless.
        is_counted: whether the provider's counts are in the journal. `dollars` is then the price of these,
            with the system prompt and the tools, and `kept_out` is in its tokens; else both are estimates.
        models: how many models the journal names.
    """

    times: Mapping[str, int]
    tokens: Mapping[str, int]
    requests: int
    extra_requests: int
    quotes: int
    quotes_gone: int
    dollars: float
    dollars_plain: float
    kept_out: int
    priced_as: str
    is_assumed: bool
    is_priced: bool
    is_counted: bool
    models: int

    @property
    def saved(self) -> float:
        """The dollars that were saved; negative if offloading cost more."""
        return self.dollars_plain - self.dollars


class _PricedMessage(NamedTuple):
    """A message of a journal.

    Attributes:
        message: the message.
        tokens: its tokens.
        plain: its tokens without offloading.
        is_ours: whether it has nothing but calls of the retrieval tools, or their answers.
        is_replaced: whether a placeholder is in it.
        texts: its texts, without the answers of retrieval tools.
        answers: these answers.
        quotes: by the id of a call and its text, the lines of each quote in its edits.
    """

    message: Any
    tokens: int
    plain: int
    is_ours: bool
    is_replaced: bool
    texts: Sequence[str]
    answers: Sequence[str]
    quotes: Mapping[tuple[str, str], Sequence[str]]


@dataclass(slots=True)
class _PricedRequest:
    """A request: the model that it went to, and what the provider counted for it; None if that is not known.

    Attributes:
        at: when it was sent, in milliseconds.
        quotes: whether each quote in the edits that it brings was gone.
        tokens: the tokens of its messages.
        freed: those that it would have in addition without offloading.
        units: its price in uncached tokens.
        plain: its price without offloading; 0 if there would be no such request.
    """

    model: str | None
    at: int
    tokens: int
    freed: int
    units: float
    plain: float
    quotes: Sequence[bool]
    used: Usage | None = None

    @property
    def day(self) -> date:
        """The day whose prices it has."""
        return datetime.fromtimestamp(self.at / 1000, UTC).date()


@dataclass(slots=True)
class _CachePricer:
    """Prices requests in units of an uncached token; the first `known` messages are in the cache."""

    cache: CacheModel
    fixed: int = 0
    is_begun: bool = False
    known: int = 0
    sums: list[int] = field(default_factory=lambda: [0])

    def change(self, start: int, tokens: Iterator[int], unchanged: int) -> None:
        """Replace the messages from `start`; those before `unchanged` are the same as in the last request."""
        del self.sums[start + 1 :]
        for count in tokens:
            self.sums.append(self.sums[-1] + count)
        self.known = min(self.known, unchanged)

    def request(self) -> float:
        """Return the price of all: messages of the last request are read from the cache, others written."""
        fixed = self.fixed * (self.cache.read if self.is_begun else self.cache.write)
        read, written = self.sums[self.known], self.sums[-1] - self.sums[self.known]
        self.known, self.is_begun = len(self.sums) - 1, True
        return fixed + read * self.cache.read + written * self.cache.write


def replay_journal(reader: SessionReader, *, since: float = 0) -> Account:
    """Return the read-backs of a session and the price of its input, from its journal.

    Args:
        reader: reads the session.
        since: count only requests from this time on, in seconds since the epoch.

    Raises:
        OffloadError: the journal cannot be read.
    """
    changes = list(Journal(reader.store, reader.name).last_changes())
    ratios = {name: ratio for change in changes for name, ratio in change.head.get("ratios", {}).items()}
    messages = [line.message for change in changes for line in change.new]
    scans = scans_of(messages)
    items = [item for scan in scans for item in scan.offloadable]
    records = records_of(reader, items)
    priced = (_priced(message, scan, records) for message, scan in zip(messages, scans, strict=True))
    prices = Prices()
    named = [change.entry.model for change in changes if change.entry.model is not None] or [*ratios]
    model = next((name for name in reversed(named) if prices.knows(name)), None)
    name, card = prices.of(model)
    sent, plain = _CachePricer(card.cache, _fixed()), _CachePricer(card.cache)
    requests = _send(((change, [next(priced) for _ in change.new]) for change in changes), sent, plain)
    is_counted = any(request.used for request in requests)
    ratio = _ratio(requests) if is_counted else ratios.get(model or "", 1.0)
    is_priced = not named or (model is not None and all(prices.knows(r.model or model) for r in requests))
    requests = [request for request in requests if request.at >= since * 1000]
    cards = [prices.of(r.model or model, r.day)[1] if is_priced else card for r in requests]
    dollars = sum(each.dollars(r.units) for r, each in zip(requests, cards, strict=True)) * ratio
    saved = sum(each.dollars(r.plain) for r, each in zip(requests, cards, strict=True)) * ratio - dollars
    is_counted = any(request.used for request in requests)
    if is_counted:
        dollars = _paid(requests, cards)
    times, tokens = _read_backs(items)
    return Account(
        times,
        tokens,
        len(requests),
        sum(not request.plain for request in requests),
        sum(len(request.quotes) for request in requests),
        sum(sum(request.quotes) for request in requests),
        dollars=dollars,
        dollars_plain=dollars + saved,
        kept_out=round(sum(request.freed for request in requests) * ratio),
        priced_as=name,
        is_assumed=not named,
        is_priced=is_priced,
        is_counted=is_counted,
        models=len(set(named)),
    )


def _ratio(requests: Sequence[_PricedRequest]) -> float:
    """Return the provider's tokens for an estimated one, from the growth of the requests.

    Their system prompt and tools are counted by the provider alone; they are the same in each.
    """
    counted = [(request.tokens, request.used.tokens) for request in requests if request.used]
    mean, mean_used = (fmean(column) for column in zip(*counted, strict=True))
    spread = sum((tokens - mean) ** 2 for tokens, _ in counted)
    if spread < _LEAST_SPREAD**2:
        return 1.0
    slope = sum((tokens - mean) * (used - mean_used) for tokens, used in counted) / spread
    return min(HIGHEST, max(LOWEST, slope))


def _paid(requests: Sequence[_PricedRequest], cards: Sequence[PriceCard]) -> float:
    """Return the price of requests by the provider's counts; one without a count costs as the others do."""
    pairs = [*zip(requests, cards, strict=True)]
    counted = [(card.dollars(card.units_of(r.used)), card.dollars(r.units)) for r, card in pairs if r.used]
    paid, estimated = (sum(column) for column in zip(*counted, strict=True))
    others = sum(card.dollars(request.units) for request, card in pairs if request.used is None)
    return float(paid * (1 + others / estimated))


def _send(
    changes: Iterable[tuple[JournalChange, list[_PricedMessage]]], sent: _CachePricer, plain: _CachePricer
) -> list[_PricedRequest]:
    """Return the requests, priced with and without offloading."""
    before, news, requests = list[_PricedMessage](), list[_PricedMessage](), list[_PricedRequest]()
    quoting, gone = _Quoting(), list[bool]()
    for change, new in changes:
        if requests and change.entry.used is not None:
            requests[-1].used = change.entry.used
        after = change.after(before, new)
        start = 0 if change.is_whole else min((edit[0] for edit in change.edits), default=len(before))
        start = _same(before, after, start)
        sent.change(start, (each.tokens for each in after[start:]), start)
        plain.change(
            start, (each.plain for each in after[start:]), _same(before, after, start, is_plain=True)
        )
        news += after[start:]
        gone += quoting.gone(after, new)
        before = after
        if change.entry.sent is not None:
            # Without offloading there is no request with the answer of a retrieval tool.
            is_ours = bool(news) and all(each.is_ours for each in news)
            tokens, freed = sent.sums[-1], plain.sums[-1] - sent.sums[-1]
            prices = sent.request(), 0.0 if is_ours else plain.request()
            at = change.entry.sent.at
            requests.append(_PricedRequest(change.entry.model, at, tokens, freed, *prices, gone))
            news, gone = [], []
    return requests


class _Quoting:
    """The texts that were sent so far, and the quotes of edits in them that were counted."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._counted: set[tuple[str, str]] = set()

    def gone(self, messages: Sequence[_PricedMessage], new: Sequence[_PricedMessage]) -> Iterator[bool]:
        """Yield for each quote of a sent text in `new` messages whether it was gone before its message."""
        for each in new:
            # An entry with the whole conversation repeats them.
            quotes = {key: lines for key, lines in each.quotes.items() if key not in self._counted}
            self._counted |= quotes.keys()
            shown = _before(messages, each) if quotes else []
            for lines in quotes.values():
                is_shown = _are_in(lines, shown)
                if is_shown or _are_in(lines, self._texts):
                    yield not is_shown
            self._texts += (*each.texts, *each.answers)


def _before(messages: Sequence[_PricedMessage], message: _PricedMessage) -> list[str]:
    """Return the texts before a message, without the answers of retrieval tools."""
    return [text for other in takewhile(lambda other: other is not message, messages) for text in other.texts]


def _are_in(lines: Iterable[str], texts: Sequence[str]) -> bool:
    return all(any(line in text for text in texts) for line in lines)


def _same(
    before: Sequence[_PricedMessage], after: Sequence[_PricedMessage], start: int, *, is_plain: bool = False
) -> int:
    """Return how many messages are equal, given the first `start` are; if plain, replaced ones too."""
    for place, (old, new) in enumerate(zip(before[start:], after[start:], strict=False), start):
        if old is not new and not (is_plain and new.is_replaced) and old.message != new.message:
            return place
    return min(len(before), len(after))


def _priced(message: Any, scan: Scan, records: RecordsByRef) -> _PricedMessage:
    tokens = plain = scan.tokens(estimate_tokens)
    is_replaced = False
    for item in scan.offloadable:
        record = next(proven(item, records), None)
        is_replaced |= record is not None
        if _is_read_back(item):
            plain -= estimate_tokens(item.text)
        elif record is not None:
            plain += record.tokens - estimate_tokens(item.text)
    is_ours = _is_ours(scan)
    quotes = {(call_id, text): lines for call_id, call in scan.calls for text, lines in quotes_in(call)}
    texts, answers = list[str](), list[str]()
    for item in (*scan.documents, *scan.items):
        (answers if _is_read_back(item) else texts).append(item.text)
    plain = 0 if is_ours else plain
    return _PricedMessage(message, tokens, plain, is_ours, is_replaced, texts, answers, quotes)


def records_of(reader: SessionReader, items: Sequence[Item]) -> RecordsByRef:
    """Return the records that texts name, by ref and item type, from one listing and one bulk read."""
    named = {(ref, item.item_type) for item in items for ref in known_refs(item.text)}
    infos = [info for info in reader.catalog.recent() if (info.ref, info.item_type) in named] if named else []
    return {
        (info.ref, info.item_type): (info, record.header)
        for info, record in reader.open_many(infos)
        if not isinstance(record, OffloadError)
    }


def proven(item: Item, records: RecordsByRef) -> Iterator[RecordInfo]:
    """Yield the record whose header says that the text of an item is its placeholder."""
    for ref in known_refs(item.text):
        found = records.get((ref, item.item_type))
        if found and stands_for(found[1], item):
            yield found[0]


def _is_ours(scan: Scan) -> bool:
    """Return whether a message has only calls of retrieval tools, or only their answers."""
    results = [item for item in scan.items if item.item_type == "tool_result"]
    return (
        bool(scan.calls or results)
        and all(reads_back(call) for _, call in scan.calls)
        and all(map(_is_read_back, results))
        and not any(item.item_type == "user_message" for item in scan.items)
    )


def _is_read_back(item: Item) -> bool:
    return item.item_type == "tool_result" and item.call is not None and reads_back(item.call)


def _read_backs(items: Sequence[Item]) -> tuple[Counter[str], Counter[str]]:
    """Return how often each record was read back, and the tokens of the answers."""
    times, tokens = Counter[str](), Counter[str]()
    # An entry with the whole conversation repeats them, and a placeholder follows its answer.
    answers = {(i.tool_use_id, request_of(i.call)): i for i in reversed(items) if _is_read_back(i) and i.call}
    for item in answers.values():
        refs = _refs(item.call.fields if item.call else {})
        if refs and not item.text.startswith(_FAILED):
            times.update(set(refs))
            tokens[refs[0]] += estimate_tokens(item.text)
    return times, tokens


def _refs(fields: Mapping[str, Any]) -> list[str]:
    return reads_of({name: fields[name] for name in REF_FIELDS if name in fields})


@cache
def _fixed() -> int:
    """Return the tokens of the retrieval tools and their prompt, which are part of every request."""
    return estimate_tokens(json.dumps(definitions(), ensure_ascii=False) + system_prompt())
