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
conversation: a grep answer if the placeholder contains the name, else a page. The offloader gets the call and
an answer among the messages, since it offloads less when the model reads back more.

On sessions with usage this is the method of `recorded_cost.py`, which tests compare it with. It differs in
what a text is: the adapters of `offload.messages` find the texts, so arguments with one string count without
their key, images and their placeholders do not count, and a request that reads back has the retrieval tools.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress, count
from operator import is_not
from typing import Any, Protocol

from msgspec import structs

from offload import CacheModel, Offloader, OffloadPolicy, OffloadResult
from offload.replay._names import hidden_names, names_in
from offload.replay._recording import Recording, Request, tokens_of

# The size of a search's answer, and of a page's.
GREP_TOKENS, PAGE_TOKENS = 300, 2048
_READ = "context_read"


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
        # The messages of the conversation and of the reads in it, with the index in the recording or None.
        self._messages: list[Any] = []
        self._indexes: list[int | None] = []
        self._recorded = 0
        self._sent: list[Any] = []

    def replaced(self, request: Request) -> Mapping[int, str]:
        """Return the texts of the messages that changed since the last request."""
        self._now = request.time
        self._add_until(request.answer)
        before = [*self._sent, *self._messages[len(self._sent) :]]
        self._sent = sent = self.offloader.offload(self._messages).messages
        changed = [(self._indexes[at], sent[at]) for at in compress(count(), map(is_not, sent, before))]
        return {
            row: text
            for index, message in changed
            if index is not None
            for row, text in self._recording.replaced_rows(index, message)
        }

    def read_back(self, text: str) -> None:
        """Read the record behind a placeholder; the call and its answer are in all later requests."""
        ref = self.offloader.options.placeholder.find_ref(text)
        if ref is None:
            return
        arguments = {"id": ref, "limit": GREP_TOKENS}
        call_id = f"read_{len(self._messages)}"
        answer = self.offloader.tools.call(_READ, arguments)
        call = {"type": "tool_use", "id": call_id, "name": _READ, "input": arguments}
        result = {"type": "tool_result", "tool_use_id": call_id, "content": answer}
        self._messages += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        self._indexes += [None, None]

    def finish(self) -> OffloadResult:
        """Return the result of offloading the whole conversation, the last answer too.

        It has the decisions on recorded items alone, with their places in the recording.
        """
        self._add_until(len(self._recording.transcript.messages))
        result = self.offloader.offload(self._messages)
        places = [(decision, self._indexes[decision.item.message]) for decision in result.decisions]
        decisions = [
            structs.replace(decision, item=decision.item._replace(message=index))
            for decision, index in places
            if index is not None
        ]
        read = sum(decision.item.tokens for decision, index in places if index is None)
        return replace(result, decided=(decisions, len(decisions)), tokens_before=result.tokens_before - read)

    def _add_until(self, end: int) -> None:
        """Add the recorded messages before `end`."""
        new = range(self._recorded, end)
        self._messages += self._recording.transcript.messages[self._recorded : end]
        self._indexes += new
        self._recorded = max(end, self._recorded)


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
            hidden = hidden_names(self._recording.rows[row].text, new, text)
            self._hidden[row] = hidden, shown
            for name in hidden:
                self._hiding[name].append(row)
