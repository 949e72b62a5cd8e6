"""Input cost of a recorded conversation, with and without offloading, by replaying each request.

An agent sends the whole conversation with every request. The prefix that equals the previous request is read
from the provider's cache, the rest is written to it. If the transcript has the provider's usage, each request
is sent at its recorded time: after a pause longer than the cache lives (a *cold* request), and where the
provider read less than half of the previous prompt from its cache (a *miss*), the whole prompt is written
again. Without usage there are no pauses and no misses.

If an answer needs what its request hides, names or quotes, the assistant reads back. Each text whose names
are needed costs one more request, all of it at the price of cached tokens, system prompt and retrieval tools
too; all quotes of an answer cost one together, unless names are read back for it already. Call and answer
are part of the conversation from then on: they are written to the cache, and may be replaced.

On sessions with usage this is the method of `loop_cost.py`, which tests compare it with. It differs in
what a text is: the adapters of `offload.messages` find the texts, so arguments with one string count without
their key, images and their placeholders do not count, and assistant messages in a row answer one request. A
request that reads back has the retrieval tools, and one that reads names and quotes counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from offload import CacheModel
from offload.replay._names import tokens_of
from offload.replay._needs import Hidden, Need
from offload.replay._recording import Recording
from offload.replay._senders import Sender


@dataclass(slots=True)
class Bill:
    """Price of the input of all requests of a conversation, in units of an uncached token.

    Attributes:
        texts: price of its texts and its system prompt.
        rewritten: the part for cached text that was written again behind a replaced text.
        tools: price of tool definitions and prompt.
        read_backs: price of the requests that read back, and of their calls and answers in later requests.
        reads: number of requests that read back.
        quotes: number of quotes in edits whose lines earlier texts contain.
        quotes_gone: how many of them had a line that their request did not show.
        replaced: rows of the replaced texts of 1,000 characters or more.
        seen: those of them that were sent in full before.
        totals: the cost so far, after each request.
        sizes: the tokens of each request, without tools.
    """

    texts: float = 0
    rewritten: float = 0
    tools: float = 0
    read_backs: float = 0
    reads: int = 0
    quotes: int = 0
    quotes_gone: int = 0
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
    sent, answers = SentTexts(recording), 0.0
    bill = Bill(replaced=sent.replaced, seen=sent.seen)
    for request in recording.requests:
        known = cache.write if request.is_missed else cache.read
        tokens = sent.send(request.rows, sender.replaced(request))
        size = recording.system + sent.tokens + answers
        bill.sizes.append(size)
        bill.texts += (recording.system + tokens.kept) * known + tokens.written * cache.write
        bill.rewritten += tokens.rewritten * (cache.write - known)
        bill.read_backs += (answers + tokens.kept_reads) * known + tokens.written_reads * cache.write
        bill.tools += sender.tools * known
        needs = sent.needs(request)
        reads = reads_of(needs)
        bill.reads += reads
        bill.read_backs += reads * (sender.tools + size) * cache.read
        bill.quotes += len(request.quotes)
        bill.quotes_gone += sum(need.is_quote for need in needs)
        for need in needs:
            texts = sender.read(need)
            if texts is None:
                sent.answer(need)
                bill.read_backs += need.tokens * cache.write
                answers += need.tokens
            else:
                sent.add(texts)
        bill.totals.append(bill.cost)
    return bill


def reads_of(needs: Iterable[Need]) -> int:
    """Return the number of requests that read back: one for each text with names, else one for quotes."""
    kinds = [need.is_quote for need in needs]
    return kinds.count(False) or bool(kinds)


class PromptTokens(NamedTuple):
    """The tokens of a request by their place in the cache.

    Attributes:
        kept: texts of the conversation in the prefix that equals the last request.
        written: its other texts.
        kept_reads: texts of read-backs in the prefix.
        written_reads: other texts of read-backs.
        rewritten: all texts behind the prefix that the last request had too.
    """

    kept: float
    written: float
    kept_reads: float
    written_reads: float
    rewritten: float


class SentTexts:
    """The texts of the last request in their order, and what they hide.

    Attributes:
        tokens: the tokens of all texts.
        replaced: rows of the replaced texts of 1,000 characters or more.
        seen: those of them that were sent in full before.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self.tokens = 0.0
        self.replaced: set[int] = set()
        self.seen: set[int] = set()
        self._hidden = Hidden(recording)
        self.needs, self.answer, self.names_of = (
            self._hidden.needs,
            self._hidden.answer,
            self._hidden.names_of,
        )
        self._recorded, self._next_row = 0, len(recording.rows)
        # The place of each row; by place, the size of its text, and its part in the texts of read-backs.
        self._places: dict[int, int] = {}
        self._sizes: list[float] = []
        self._read_sizes: list[float] = []
        self._sent = 0

    def send(self, rows: int, replaced: Mapping[int, str]) -> PromptTokens:
        """Send the first `rows` texts of the recording, and those that were added."""
        for row in range(self._recorded, rows):
            self._add(row, self._recording.rows[row].text)
        self._recorded = max(rows, self._recorded)
        first = self._sent
        for row, text in replaced.items():
            if self._hidden.texts[row] != text:
                self._replace(row, text)
                first = min(first, self._places[row])
        written, reads = sum(self._sizes[first:]), sum(self._read_sizes[first:])
        kept_reads = sum(self._read_sizes[:first])
        kept = self.tokens - written - kept_reads
        rewritten = sum(self._sizes[first : self._sent])
        self._sent = len(self._sizes)
        return PromptTokens(kept, written - reads, kept_reads, reads, rewritten)

    def add(self, texts: Iterable[str]) -> None:
        """Add the texts of a read-back behind those of the last request."""
        for text in texts:
            self._add(self._next_row, text)
            self._next_row += 1

    def _add(self, row: int, text: str) -> None:
        self._hidden.send(row, text)
        self._places[row] = len(self._sizes)
        self._sizes.append(tokens_of(text))
        self._read_sizes.append(0.0 if row < len(self._recording.rows) else tokens_of(text))
        self.tokens += tokens_of(text)

    def _replace(self, row: int, text: str) -> None:
        place, size = self._places[row], tokens_of(text)
        self._hidden.send(row, text)
        self.tokens += size - self._sizes[place]
        self._sizes[place] = size
        if row >= len(self._recording.rows):
            self._read_sizes[place] = size
        elif row in self._recording.new:
            self.replaced.add(row)
            self.seen |= {row} if place < self._sent else set()
