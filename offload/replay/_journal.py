"""The read-backs of a session and the input cost that offloading saved, from its journal.

Each entry of a journal is written with a request. So the requests are known, and the messages of each, with
the placeholders in it. With the texts of their records it is the request without offloading.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from offload.engine.recognition import stands_for
from offload.errors import OffloadError
from offload.messages import Call
from offload.messages.base import Item, Scan
from offload.messages.calls import CallId
from offload.messages.formats import role_or_none, scan_of
from offload.placeholder.forms import known_refs
from offload.policy import CacheModel
from offload.policy.tool_names import is_read_back
from offload.record import Header, RecordInfo
from offload.replay._prices import Prices
from offload.session.reader import SessionReader
from offload.settings.hooks import Hooks
from offload.timeline.journal import Journal, JournalChange, apply_edits
from offload.tokens import estimate_tokens
from offload.tools._definitions import definitions, system_prompt

_REF_ARGUMENTS = ("id", "old", "new")
_LIST = "context_list"
_FAILED = "Error: "

# By ref and item type.
Records = Mapping[tuple[str, str], tuple[RecordInfo, Header]]


@dataclass(frozen=True, slots=True)
class Account:
    """The read-backs of a session, and the price of its input.

    Attributes:
        times: how often each record was read back, by id.
        tokens: the tokens of the answers, by the id of the first record that a call names.
        requests: the number of requests.
        dollars: the price of their input.
        dollars_plain: what it would have been without offloading, its tools and the read-backs.
        priced_as: the model whose prices these are.
        is_assumed: whether the journal names no model.
        is_priced: whether the price of a model that it names is known; else the dollars say nothing.
        models: how many models the journal names. It does not say which of them a request was sent to.
    """

    times: Mapping[str, int]
    tokens: Mapping[str, int]
    requests: int
    dollars: float
    dollars_plain: float
    priced_as: str
    is_assumed: bool
    is_priced: bool
    models: int

    @property
    def saved(self) -> float:
        """The dollars that were saved; negative if offloading cost more."""
        return self.dollars_plain - self.dollars


class _Row(NamedTuple):
    """A message of a journal.

    Attributes:
        message: the message.
        tokens: its tokens.
        plain: its tokens without offloading.
        is_answer: whether the model wrote it.
        is_ours: whether it has nothing but calls of the retrieval tools, or their answers.
        is_replaced: whether a placeholder is in it.
    """

    message: Any
    tokens: int
    plain: int
    is_answer: bool
    is_ours: bool
    is_replaced: bool


@dataclass(slots=True)
class _Bill:
    """The price of the input of requests in units of an uncached token; the `known` rows are in the cache."""

    cache: CacheModel
    fixed: int = 0
    units: float = 0.0
    known: int = 0
    sums: list[int] = field(default_factory=lambda: [0])

    def change(self, start: int, tokens: Iterator[int], unchanged: int) -> None:
        """Replace the rows from `start`; those before `unchanged` are the same as in the last request."""
        del self.sums[start + 1 :]
        for count in tokens:
            self.sums.append(self.sums[-1] + count)
        self.known = min(self.known, unchanged)

    def request(self) -> None:
        """Add a request with all rows: what the last one had is read from the cache, the rest is written."""
        fixed = self.fixed * (self.cache.read if self.units else self.cache.write)
        read, written = self.sums[self.known], self.sums[-1] - self.sums[self.known]
        self.units += fixed + read * self.cache.read + written * self.cache.write
        self.known = len(self.sums) - 1


def replay_journal(reader: SessionReader) -> Account:
    """Return the read-backs of a session and the price of its input, from its journal.

    Raises `OffloadError` if the journal cannot be read.
    """
    changes = list(Journal(reader.store, reader.name, Hooks()).changes())
    ratios = {name: ratio for change in changes for name, ratio in change.head.get("ratios", {}).items()}
    scans = _scans([line.message for change in changes for line in change.new])
    items = [item for _, scan in scans for item in scan.offloadable]
    records = records_of(reader, items)
    rows = (_row(message, scan, records) for message, scan in scans)
    prices = Prices()
    model = next((name for name in reversed(ratios) if prices.knows(name)), None)
    name, card = prices.of(model)
    sent, plain = _Bill(card.cache, _fixed()), _Bill(card.cache)
    requests = _send(((change, [next(rows) for _ in change.new]) for change in changes), sent, plain)
    ratio = ratios.get(model or "", 1.0)
    times, tokens = _read_backs(items)
    return Account(
        times,
        tokens,
        requests,
        dollars=card.dollars(sent.units * ratio),
        dollars_plain=card.dollars(plain.units * ratio),
        priced_as=name,
        is_assumed=not ratios,
        is_priced=model is not None or not ratios,
        models=len(ratios),
    )


def _send(changes: Iterable[tuple[JournalChange, list[_Row]]], sent: _Bill, plain: _Bill) -> int:
    """Add each request to the bills, with and without offloading; return their number."""
    before, news, requests = list[_Row](), list[_Row](), 0
    for change, new in changes:
        edits = change.head.get("edits", ())
        after = new if change.is_whole else apply_edits(before, edits, new)
        start = 0 if change.is_whole else min((edit[0] for edit in edits), default=len(before))
        start = _same(before, after, start)
        sent.change(start, (row.tokens for row in after[start:]), start)
        plain.change(start, (row.plain for row in after[start:]), _same(before, after, start, is_plain=True))
        news += after[start:]
        before = after
        if after and not after[-1].is_answer:
            requests += 1
            sent.request()
            # Without offloading there is no request with the answer of a retrieval tool.
            if not news or not all(row.is_ours for row in news):
                plain.request()
            news = []
    return requests


def _same(before: Sequence[_Row], after: Sequence[_Row], start: int, *, is_plain: bool = False) -> int:
    """Return the number of rows that are equal, given the first `start` are; if plain, replaced ones too."""
    for place, (old, new) in enumerate(zip(before[start:], after[start:], strict=False), start):
        if old is not new and not (is_plain and new.is_replaced) and old.message != new.message:
            return place
    return min(len(before), len(after))


def _scans(messages: Iterable[Any]) -> list[tuple[Any, Scan]]:
    """Return each message with its parts, which know their tool calls."""
    calls: dict[CallId, Call] = {}
    scans = []
    for message in messages:
        scan = scan_of(message, calls)
        calls |= scan.calls
        scans.append((message, scan))
    return scans


def _row(message: Any, scan: Scan, records: Records) -> _Row:
    tokens = plain = scan.tokens(estimate_tokens)
    is_replaced = False
    for item in scan.offloadable:
        record = next(proven(item, records), None)
        if record is not None:
            plain += record.tokens - estimate_tokens(item.text)
            is_replaced = True
        elif _is_read_back(item):
            plain -= estimate_tokens(item.text)
    is_ours = _is_ours(scan)
    is_answer = role_or_none(message) == "assistant"
    return _Row(message, tokens, 0 if is_ours else plain, is_answer, is_ours, is_replaced)


def records_of(reader: SessionReader, items: Sequence[Item]) -> Records:
    """Return the records that texts name, by ref and item type, from one listing and one bulk read."""
    named = {(ref, item.item_type) for item in items for ref in known_refs(item.text)}
    infos = [info for info in reader.catalog.recent() if (info.ref, info.item_type) in named] if named else []
    return {
        (info.ref, info.item_type): (info, record.header)
        for info, record in reader.open_many(infos)
        if not isinstance(record, OffloadError)
    }


def proven(item: Item, records: Records) -> Iterator[RecordInfo]:
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
        and all(map(_reads, scan.calls.values()))
        and all(map(_is_read_back, results))
        and not any(item.item_type == "user_message" for item in scan.items)
    )


def _is_read_back(item: Item) -> bool:
    return item.item_type == "tool_result" and item.call is not None and _reads(item.call)


def _reads(call: Call) -> bool:
    return is_read_back(call.name) or call.name.endswith(_LIST)


def _read_backs(items: Iterable[Item]) -> tuple[Counter[str], Counter[str]]:
    """Return how often each record was read back, and the tokens of the answers."""
    times, tokens = Counter[str](), Counter[str]()
    # An entry with the whole conversation repeats them.
    for item in {(item.tool_use_id, item.text): item for item in items if _is_read_back(item)}.values():
        refs = _refs(item.call.fields if item.call else {})
        if refs and not item.text.startswith(_FAILED):
            times.update(set(refs))
            tokens[refs[0]] += estimate_tokens(item.text)
    return times, tokens


def _refs(fields: Mapping[str, Any]) -> list[str]:
    several = fields.get("ids")
    named = [*map(fields.get, _REF_ARGUMENTS), *(several if isinstance(several, list) else ())]
    return [ref for ref in named if isinstance(ref, str)]


@cache
def _fixed() -> int:
    """Return the tokens of the retrieval tools and their prompt, which are part of every request."""
    return estimate_tokens(json.dumps(definitions(), ensure_ascii=False) + system_prompt())
