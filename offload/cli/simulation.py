"""Input cost of a recorded conversation with and without offloading, by replaying each request.

An agent sends the whole conversation with every request. The prefix that equals the previous request is read
from the provider's cache; the rest is not. Both have a price.

The assistant may need an offloaded item again. A read back is counted when it writes a name (path,
identifier, number) that came with an offloaded item and that the placeholder does not show with at least
half of the words around it. It costs one more request, whose answer remains in the conversation: a grep
answer if the placeholder contains the name, else a page. The assistant is assumed to know its own texts. The
method is that of `session_cost.py`, which `benchmarks/bench_savings.py` runs; here the answer of a read back
is paid as new text once, and offloaded user messages are read back too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

from offload import Offloader, OffloadPolicy, OffloadResult
from offload.cli.transcripts import Transcript
from offload.messages import Block, Scan, adapter_for, role_of
from offload.tokens import estimate_tokens

GREP_TOKENS, PAGE_TOKENS = 300, 2048

# Types of items that the assistant writes.
_OWN_WORDS = ("assistant_message", "tool_call")
_NAME = re.compile(r"\w[\w./:-]{5,80}", re.ASCII)
_MARKED = re.compile(r"[\d_/.]|[a-z][A-Z]")
_WORD = re.compile(r"\w{3,}")
_AROUND = 60
_MAX_OCCURRENCES = 50
_SHORTEST = 6

# Indexes of a message and of a block in it.
_Place = tuple[int, Block]


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of an input token in any unit: read from the provider's cache, or not."""

    cached: float = 0.1
    uncached: float = 1.25


@dataclass(slots=True)
class Bill:
    """Input tokens of several requests, the part of them read from the cache, and the price."""

    tokens: int = 0
    cached: int = 0
    cost: float = 0


@dataclass(slots=True)
class Simulation:
    """Result of replaying a conversation: counts, the bill with offloading and the `plain` one without.

    `requests` excludes read backs, `bill` includes them. A break is a change of text that was sent before, so
    that it was no longer cached; it is paid if it saved more than it cost before the conversation ended.
    """

    requests: int
    offloaded: int = 0
    plain: Bill = field(default_factory=Bill)
    bill: Bill = field(default_factory=Bill)
    read_backs: int = 0
    breaks: int = 0
    breaks_paid: int = 0


def simulate(transcript: Transcript, policy: OffloadPolicy, prices: Prices) -> Simulation:
    """Return the input cost of a conversation under a policy; no records are stored.

    Consecutive assistant messages answer one request. Raises `MessageError` if a message is malformed.
    """
    messages = transcript.messages
    answers = [i for i, m in enumerate(messages) if i and role_of(m, f"messages[{i}]") == "assistant"]
    firsts = set(answers) - {i + 1 for i in answers}
    system = [{"role": "system", "content": transcript.system}] if transcript.system else []
    off = Offloader("memory://", session="simulation", policy=policy, on_error="raise")
    result, needs = Simulation(len(firsts)), _Needs(system)
    plain, sent = _Prompt(result.plain, prices), _Prompt(result.bill, prices)
    requests_left = len(firsts)
    for answer in answers:
        if answer in firsts:
            out = off.offload(messages[:answer])
            plain.send([*system, *messages[:answer]])
            sent.send([*system, *out.messages])
            needs.note(messages[:answer], out)
            result.offloaded = len(out.records)
            if out.cache is not None:
                turns = out.cache.turns_to_pay(prices.cached, prices.uncached)
                result.breaks += 1
                result.breaks_paid += turns is not None and turns <= requests_left
            requests_left -= 1
        for tokens in needs.read_backs(messages[answer]):
            sent.read_back(tokens)
            result.read_backs += 1
    return result


class _Prompt:
    """The input of consecutive requests and its bill."""

    def __init__(self, bill: Bill, prices: Prices) -> None:
        self._bill, self._prices = bill, prices
        # Each message of the last request, and the tokens of each of its texts.
        self._sent: list[tuple[Any, list[tuple[str, int]]]] = []
        self._read_back = 0

    def send(self, messages: Sequence[Any]) -> None:
        """Charge a request; the prefix that equals the previous request is cached."""
        before = self._texts()
        kept = _count_equal(messages, [message for message, _ in self._sent])
        self._sent[kept:] = [
            (m, [(t, estimate_tokens(t)) for t in _scan(m).all_texts]) for m in messages[kept:]
        ]
        now = self._texts()
        same = _count_equal(now, before)
        cached, uncached = (sum(tokens for _, tokens in part) for part in (now[:same], now[same:]))
        self._charge(cached + self._read_back, uncached)

    def read_back(self, tokens: int) -> None:
        """Charge one more request, whose answer of `tokens` is part of all later requests."""
        self._charge(sum(each for _, each in self._texts()) + self._read_back, tokens)
        self._read_back += tokens

    def _texts(self) -> list[tuple[str, int]]:
        return [text for _, texts in self._sent for text in texts]

    def _charge(self, cached: int, uncached: int) -> None:
        self._bill.tokens += cached + uncached
        self._bill.cached += cached
        self._bill.cost += cached * self._prices.cached + uncached * self._prices.uncached


class _Needs:
    """The names that came with each item, and those hidden since it was offloaded."""

    def __init__(self, system: Iterable[Any]) -> None:
        self._seen = {name for message in system for name in _names(*_scan(message).all_texts)}
        self._known = 0
        # The text of each item and the names that first appeared in it.
        self._items: dict[_Place, tuple[str, set[str]]] = {}
        # The names of each offloaded item that its placeholder hides, and all names in the placeholder.
        self._hidden: list[tuple[set[str], set[str]]] = []

    def note(self, messages: Sequence[Any], result: OffloadResult) -> None:
        """Note the new items of `messages` and the items that were offloaded now."""
        for index, message in enumerate(messages[self._known :], self._known):
            scan = _scan(message)
            for item in scan.items:
                names = _names(item.text)
                if item.item_type not in _OWN_WORDS:
                    self._items[index, item.block] = item.text, names - self._seen
                self._seen |= names
            self._seen |= _names(*scan.texts)
        self._known = len(messages)
        for decision in result.decisions:
            place = decision.item.message, decision.item.block
            if decision.ref is not None and place in self._items:
                placeholder = _text_at(result.messages, place)
                hidden = _hidden(*self._items.pop(place), placeholder)
                self._hidden.append((hidden, _names(placeholder)))

    def read_backs(self, answer: Any) -> Iterator[int]:
        """Yield the tokens of each read back that the assistant needs for its answer."""
        written = _names(*_scan(answer).all_texts)
        for hidden, shown in self._hidden:
            used = hidden & written
            if used <= shown:
                hidden.difference_update(used)
                yield from [GREP_TOKENS] if used else []
            else:
                hidden.clear()
                yield PAGE_TOKENS


def _hidden(text: str, names: set[str], placeholder: str) -> set[str]:
    """Return which of the `names` in `text` are hidden when `placeholder` replaces it."""
    views: dict[str, list[set[str]]] = {}
    for line in placeholder.splitlines():
        for name in names & _names(line):
            views.setdefault(name, []).append(next(_words_around(line, name), set()))
    visible = {name for name, words in views.items() if _is_shown(text, name, words)}
    return names - visible


def _is_shown(text: str, name: str, views: list[set[str]]) -> bool:
    places = islice(_words_around(text, name), _MAX_OCCURRENCES)
    return any(words and 2 * len(words & view) >= len(words) for words in places for view in views)


def _words_around(text: str, name: str) -> Iterator[set[str]]:
    """Yield the words around each occurrence of `name` on its line, without the words of the name."""
    own = set(_WORD.findall(name))
    for match in re.finditer(re.escape(name), text):
        before = text[max(0, match.start() - _AROUND) : match.start()].rpartition("\n")[2]
        after = text[match.end() : match.end() + _AROUND].partition("\n")[0]
        yield set(_WORD.findall(f"{before} {after}")) - own


def _names(*texts: str) -> set[str]:
    tokens = (token.strip("./:-") for text in texts for token in _NAME.findall(text))
    return {name for name in tokens if len(name) >= _SHORTEST and _MARKED.search(name)}


def _scan(message: Any) -> Scan:
    return adapter_for(message).scan(message, "message", {})


def _text_at(messages: Sequence[Any], place: _Place) -> str:
    index, block = place
    return next(item.text for item in _scan(messages[index]).items if item.block == block)


def _count_equal(some: Sequence[Any], others: Sequence[Any]) -> int:
    """Return the length of the common prefix of two sequences."""
    pairs = zip(some, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1] or pair[0] == pair[1], pairs))
