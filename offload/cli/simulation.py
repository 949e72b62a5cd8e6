"""Input cost of a recorded conversation with and without offloading, by replaying each request.

An agent sends the whole conversation with every request. The prefix that equals the previous request is read
from the provider's cache, the rest is written to it. If the transcript has the provider's usage, each request
is sent at its recorded time: after a pause longer than the cache lives (a *cold* request), and where the
provider read less than half of the previous prompt from its cache (a *miss*), the whole prompt is written
again. Without usage there are no pauses and no misses.

The assistant may need an offloaded text again. It reads back when it writes a name (path, identifier, number)
that came with an offloaded text of 1,000 characters or more, that the placeholder does not show with at least
half of the words around it, and that no other text of the request contains. That costs one more request, all
of it at the price of cached tokens, system prompt and retrieval tools too, and an answer that remains in the
conversation: a grep answer if the placeholder contains the name, else a page. The tool is called, so that the
offloader knows.

On sessions with usage this is the method of `recorded_cost.py`, which tests compare it with. It differs in
what a text is: the adapters of `offload.messages` find the texts, so arguments with one string count without
their key, images and their placeholders do not count, and a request that reads back has the retrieval tools.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import compress, count, islice
from operator import is_not
from typing import Any, NamedTuple, Protocol

from offload import Offloader, OffloadPolicy, OffloadResult
from offload.cli.transcripts import Transcript
from offload.messages import Call, CallId, Usage, adapter_for, role_of
from offload.policy import CacheModel

GREP_TOKENS, PAGE_TOKENS = 300, 2048
# A shorter text is not read back: its placeholder shows most of it.
_LEAST_CHARS = 1000
_CHARS_PER_TOKEN = 3.6
# A request that reads less than this part of the previous prompt from the cache has missed it.
_MISSED = 0.5

_NAME = re.compile(r"\w[\w./:-]{5,80}", re.ASCII)
_MARKED = re.compile(r"[\d_/.]|[a-z][A-Z]")
_WORD = re.compile(r"\w{3,}")
_AROUND = 60
_MAX_OCCURRENCES = 50
_SHORTEST = 6


class Row(NamedTuple):
    """One text of a conversation.

    Attributes:
        kind: its item type; empty for a text that is no item, such as reasoning.
        tool: the tool that was called, or None.
        text: the text.
    """

    kind: str
    tool: str | None
    text: str


class Request(NamedTuple):
    """One request of a conversation.

    Attributes:
        answer: index of its answer; the messages before it are sent.
        rows: number of texts in these messages.
        time: when the answer was logged, in seconds; 0 without usage.
        is_cold: whether the pause before it is longer than the cache lives; the first is always cold.
        is_missed: whether the provider has nothing of it in its cache: it is cold, or a miss was recorded.
        written: the names in the answer.
    """

    answer: int
    rows: int
    time: float
    is_cold: bool
    is_missed: bool
    written: frozenset[str]


class Recording:
    """A conversation as texts and requests.

    Args:
        transcript: the conversation.
        ttl: the cache's lifetime in seconds; None is unlimited.

    Attributes:
        transcript: the conversation.
        rows: its texts in order, without the system prompt.
        names: the names in each text.
        new: row → the names in it that no earlier text contains; only texts that may be read back.
        system: tokens of the system prompt.
        requests: its requests; consecutive assistant messages answer one.

    Raises:
        MessageError: a message is malformed.
    """

    def __init__(self, transcript: Transcript, ttl: float | None) -> None:
        self.transcript = transcript
        self.rows: list[Row] = []
        self.names: list[frozenset[str]] = []
        self.new: dict[int, frozenset[str]] = {}
        # The number of texts before each message, and of all.
        self._starts = [0]
        system = {"role": "system", "content": transcript.system or ""}
        prompt = [row.text for row in rows_of(system, {}, "system")]
        self.system = sum(map(tokens_of, prompt))
        self._read(names_in(*prompt))
        self.requests = list(self._find_requests(ttl))

    def replaced_rows(self, index: int, message: Any) -> Iterator[tuple[int, str]]:
        """Yield row and text of each text of `message`, the replaced message at `index`."""
        return enumerate((row.text for row in rows_of(message, {})), self._starts[index])

    def _read(self, known: frozenset[str]) -> None:
        seen, calls = set(known), dict[CallId, Call]()
        for index, message in enumerate(self.transcript.messages):
            for row in rows_of(message, calls, f"messages[{index}]"):
                names = names_in(row.text)
                if len(row.text) >= _LEAST_CHARS:
                    self.new[len(self.rows)] = names - seen
                seen |= names
                self.rows.append(row)
                self.names.append(names)
            self._starts.append(len(self.rows))

    def _find_requests(self, ttl: float | None) -> Iterator[Request]:
        messages, recorded = self.transcript.messages, self.transcript.usage
        is_answer = [role_of(m, f"messages[{i}]") == "assistant" for i, m in enumerate(messages)]
        last, is_cold = None, True
        for index, end in _runs(is_answer):
            answer = recorded.get(index)
            if answer is not None:
                is_cold = last is None or (ttl is not None and answer.time - last.time > ttl)
            is_short = answer is not None and last is not None and _has_missed(answer.usage, last.usage)
            last = answer or last
            start = self._starts[index]
            written = frozenset().union(*self.names[start : self._starts[end]])
            yield Request(index, start, last.time if last else 0.0, is_cold, is_cold or is_short, written)
            is_cold = False


class Sender(Protocol):
    """A way to send a conversation."""

    @property
    def tools(self) -> float:
        """Tokens of its tool definitions and its prompt, which are part of every request."""

    def replaced(self, request: Request, /) -> Mapping[int, str]:
        """Return texts that are replaced in this request, by row; those replaced before may be missing."""

    def read_back(self, text: str, /) -> None:
        """Read the offloaded text that `text` replaces."""


class Untouched:
    """Sends a conversation as it is."""

    tools = 0.0

    def replaced(self, _request: Request) -> Mapping[int, str]:
        """Return no texts."""
        return {}

    def read_back(self, _text: str) -> None:
        """Do nothing."""


class Offloading:
    """Sends a conversation through an offloader, whose clock shows the time of the request.

    Args:
        recording: the conversation.
        policy: which items are offloaded.
        store: the store of the records, in a session of the transcript's name; the default keeps none.
        model: the name of the model that the offloader gets; None for no name.

    Attributes:
        offloader: the offloader.
        tools: as in `Sender`.
    """

    def __init__(
        self,
        recording: Recording,
        policy: OffloadPolicy,
        store: str | None = None,
        model: str | None = None,
    ) -> None:
        self._recording = recording
        self._now = 0.0
        url, session = (store, recording.transcript.name) if store else ("memory://", "simulation")
        self.offloader = Offloader(
            url,
            session=session,
            policy=policy,
            on_error="raise",
            clock=lambda: self._now,
            model=model,
        )
        definitions = json.dumps(self.offloader.tools.definitions("anthropic"), ensure_ascii=False)
        self.tools = tokens_of(definitions + self.offloader.prompt())
        self._sent: list[Any] = []

    def replaced(self, request: Request) -> Mapping[int, str]:
        """Return the texts of the messages that changed since the last request."""
        self._now = request.time
        messages = self._recording.transcript.messages
        before = [*self._sent, *messages[len(self._sent) : request.answer]]
        self._sent = sent = self.offloader.offload(messages[: request.answer]).messages
        changed = compress(count(), map(is_not, sent, before))
        return {
            row: text for index in changed for row, text in self._recording.replaced_rows(index, sent[index])
        }

    def read_back(self, text: str) -> None:
        """Call the tool that reads the record behind a placeholder."""
        ref = self.offloader.options.placeholder.find_ref(text)
        if ref is not None:
            self.offloader.tools.call("context_read", {"id": ref, "limit": GREP_TOKENS})

    def finish(self) -> OffloadResult:
        """Return the result of offloading the whole conversation, the last answer too."""
        return self.offloader.offload(self._recording.transcript.messages)


@dataclass(slots=True)
class Bill:
    """Price of the input of all requests of a conversation, in units of an uncached token.

    Attributes:
        texts: price of its texts and its system prompt.
        rewritten: the part of `texts` for cached text that was written again behind a replaced text.
        tools: price of tool definitions and prompt.
        read_backs: price of the requests that read back, and of the answers in later requests.
        reads: number of read-backs.
        replaced: number of replaced texts of 1,000 characters or more.
        seen: how many of them were sent in full before, by row.
        totals: the cost so far, after each request.
        sizes: the tokens of each request, without tools.
    """

    texts: float = 0
    rewritten: float = 0
    tools: float = 0
    read_backs: float = 0
    reads: int = 0
    replaced: set[int] = field(default_factory=set)
    seen: set[int] = field(default_factory=set)
    totals: list[float] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)

    @property
    def cost(self) -> float:
        """The whole price."""
        return self.decided + self.tools

    @property
    def decided(self) -> float:
        """The price without tool definitions and prompt, which no decision changes."""
        return self.texts + self.read_backs


def measure(recording: Recording, sender: Sender, cache: CacheModel) -> Bill:
    """Return the price of sending a conversation at the prices of a provider's cache."""
    bill, view, answers = Bill(), View(recording), 0.0
    for request in recording.requests:
        known = cache.write if request.is_missed else cache.read
        kept, rewritten, new = view.send(request.rows, sender.replaced(request), bill)
        bill.sizes.append(recording.system + kept + rewritten + new + answers)
        bill.texts += (recording.system + kept) * known + (rewritten + new) * cache.write
        bill.rewritten += rewritten * (cache.write - known)
        bill.read_backs += answers * known
        bill.tools += sender.tools * known
        for text, tokens in view.read_backs(request.written):
            sender.read_back(text)
            prefix = sender.tools + recording.system + answers + view.tokens
            bill.read_backs += prefix * cache.read
            answers += tokens
            bill.reads += 1
        bill.totals.append(bill.cost)
    return bill


class View:
    """The texts of the last request, and which names of replaced texts they hide."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.tokens = 0.0
        self._texts: list[str] = []
        self._sizes: list[float] = []
        # In how many texts each name is.
        self._shown: Counter[str] = Counter()
        # Row → the names that its replacement hides, and those that it contains.
        self._hidden: dict[int, tuple[set[str], frozenset[str]]] = {}
        self._hiding: defaultdict[str, list[int]] = defaultdict(list)

    def send(self, rows: int, replaced: Mapping[int, str], bill: Bill) -> tuple[float, float, float]:
        """Send the first `rows` texts.

        Returns the tokens of the prefix that equals the last request, of its other texts, and of new ones.
        """
        sent = len(self._texts)
        changed = sorted(row for row, text in replaced.items() if self._text(row) != text)
        for row in range(sent, rows):
            self._append(row)
        for row in changed:
            self._replace(row, replaced[row])
            if row in self._recording.new:
                bill.replaced.add(row)
                bill.seen |= {row} if row < sent else set()
        first = min([sent, *changed])
        rewritten, new = sum(self._sizes[first:sent]), sum(self._sizes[sent:])
        return self.tokens - rewritten - new, rewritten, new

    def hidden_of(self, row: int) -> tuple[set[str], frozenset[str]]:
        """Return the names that the replacement of a text hides, and those that it contains."""
        return self._hidden.get(row, (set(), frozenset()))

    def read_backs(self, written: frozenset[str]) -> Iterator[tuple[str, int]]:
        """Yield text and tokens of each read-back that an answer with the names `written` needs."""
        rows = {row for name in written for row in self._hiding.get(name, ())}
        for row in [row for row in self._hidden if row in rows] if rows else ():
            hidden, shown = self._hidden[row]
            used = {name for name in hidden & written if self._shown[name] == (name in shown)}
            if used <= shown:
                hidden -= used
                tokens = GREP_TOKENS
            else:
                hidden.clear()
                tokens = PAGE_TOKENS
            if used:
                yield self._texts[row], tokens

    def _text(self, row: int) -> str:
        return self._texts[row] if row < len(self._texts) else self._recording.rows[row].text

    def _append(self, row: int) -> None:
        self._texts.append(self._recording.rows[row].text)
        self._sizes.append(tokens_of(self._texts[row]))
        self.tokens += self._sizes[row]
        self._shown.update(self._recording.names[row])

    def _replace(self, row: int, text: str) -> None:
        shown = names_in(text)
        self._shown.subtract(names_in(self._texts[row]))
        self._shown.update(shown)
        self.tokens += tokens_of(text) - self._sizes[row]
        self._texts[row], self._sizes[row] = text, tokens_of(text)
        new = self._recording.new.get(row)
        if new is not None:
            hidden = _hidden(self._recording.rows[row].text, new, text)
            self._hidden[row] = hidden, shown
            for name in hidden:
                self._hiding[name].append(row)


def rows_of(message: Any, calls: dict[CallId, Call], where: str = "message") -> Iterator[Row]:
    """Yield the texts of a message, those that are no items first; its tool calls are added to `calls`.

    Raises `MessageError` with its place `where` if it is malformed.
    """
    scan = adapter_for(message).scan(message, where, calls)
    calls.update(scan.calls)
    for part in scan.fixed:
        yield Row("", None, part.text)
    for item in (*scan.documents, *scan.items):
        yield Row(item.item_type, item.tool_name, item.text)


def tokens_of(text: str) -> float:
    """Return the tokens of a text, by its characters."""
    return len(text) / _CHARS_PER_TOKEN


def names_in(*texts: str) -> frozenset[str]:
    """Return the names in texts: paths, identifiers, numbers."""
    tokens = (token.strip("./:-") for text in texts for token in _NAME.findall(text))
    return frozenset(name for name in tokens if len(name) >= _SHORTEST and _MARKED.search(name))


def _hidden(text: str, names: frozenset[str], placeholder: str) -> set[str]:
    """Return which of the `names` in `text` are hidden when `placeholder` replaces it."""
    views: dict[str, list[set[str]]] = {}
    for line in placeholder.split("\n"):
        for name in names & names_in(line):
            views.setdefault(name, []).append(next(_words_around(line, name), set()))
    visible = {name for name, words in views.items() if _is_shown(text, name, words)}
    return set(names - visible)


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


def _has_missed(usage: Usage, last: Usage) -> bool:
    """Return whether a request did not find the previous prompt in the cache."""
    return usage.read is not None and usage.read < _MISSED * last.tokens


def _runs(flags: list[bool]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each run of true flags."""
    begins = (i for i, flag in enumerate(flags) if flag and not (i and flags[i - 1]))
    for begin in begins:
        yield begin, next((i for i in range(begin, len(flags)) if not flags[i]), len(flags))


@dataclass(frozen=True, slots=True)
class Simulation:
    """A conversation with and without offloading.

    Attributes:
        requests: number of requests, read-backs not counted.
        plain: the price without offloading.
        bill: the price with it.
        result: the result of offloading the whole conversation in the end.
    """

    requests: int
    plain: Bill
    bill: Bill
    result: OffloadResult


def simulate(
    transcript: Transcript,
    policy: OffloadPolicy,
    cache: CacheModel,
    store: str | None = None,
    model: str | None = None,
) -> Simulation:
    """Return the price of a conversation under a policy, at the prices of a provider's cache.

    Args:
        transcript: the conversation.
        policy: which items are offloaded.
        cache: prices and lifetime of the cache.
        store: the store of the records, in a session of the transcript's name; the default keeps none.
        model: the name of the model that the offloader gets; None for no name.

    Raises:
        MessageError: a message is malformed.
        OffloadError: an item could not be stored.
    """
    recording = Recording(transcript, cache.ttl)
    plain = measure(recording, Untouched(), cache)
    offloading = Offloading(recording, policy, store, model)
    bill = measure(recording, offloading, cache)
    return Simulation(len(recording.requests), plain, bill, offloading.finish())
