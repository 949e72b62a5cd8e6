"""A recorded conversation as texts and requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

from offload.messages import Usage
from offload.messages.adapter import Scan
from offload.messages.calls import Calls
from offload.messages.formats import adapter_for, role_of
from offload.replay._names import EditQuote, names_in, quotes_in, tokens_of
from offload.replay._transcripts import Transcript

# A shorter text is not read back: its placeholder shows most of it.
_LEAST_CHARS = 1000
# A request that reads less than this part of the previous prompt from the cache has missed it.
_MISSED = 0.5


class RecordedText(NamedTuple):
    """One text of a conversation.

    Attributes:
        kind: its item type; empty for a text that is not an item, such as reasoning.
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
        is_missed: whether no part of it is in the provider's cache: it is cold, or a miss was recorded.
        written: the names in the answer.
        quotes: the texts that edits in the answer quote, of those whose lines earlier texts contain.
    """

    answer: int
    rows: int
    time: float
    is_cold: bool
    is_missed: bool
    written: frozenset[str]
    quotes: tuple[EditQuote, ...] = ()


class Recording:
    """A conversation as texts and requests.

    Args:
        transcript: the conversation.
        ttl: the cache's lifetime in seconds; None is unlimited.

    Attributes:
        transcript: the conversation.
        rows: its texts in order, without the system prompt.
        starts: the number of texts before each message, and of all.
        new: row → the names in it that no earlier text contains; only texts that may be read back.
        system: tokens of the system prompt.
        requests: its requests; consecutive assistant messages answer one.

    Raises:
        MessageError: a message is malformed.
    """

    def __init__(self, transcript: Transcript, ttl: float | None) -> None:
        self.transcript = transcript
        self.rows: list[RecordedText] = []
        self.starts = [0]
        self.new: dict[int, frozenset[str]] = {}
        self._names: list[frozenset[str]] = []
        # The quotes in each message.
        self._quotes: list[list[tuple[str, list[str]]]] = []
        scan = scan_at({"role": "system", "content": transcript.system or ""}, "system", Calls())
        prompt = [row.text for row in rows_of(scan)]
        self.system = sum(map(tokens_of, prompt))
        self._read(frozenset().union(*map(names_in, prompt)))
        self.requests = list(self._find_requests(ttl))

    def names_of(self, row: int, text: str) -> frozenset[str]:
        """Return the names in the text of a row, or in another one that is sent in its place."""
        is_own = row < len(self.rows) and text is self.rows[row].text
        return self._names[row] if is_own else names_in(text)

    def _read(self, known: frozenset[str]) -> None:
        seen, calls = set(known), Calls()
        for index, message in enumerate(self.transcript.messages):
            scan = scan_at(message, f"messages[{index}]", calls)
            self._quotes.append([quote for _, call in scan.calls for quote in quotes_in(call)])
            for row in rows_of(scan):
                names = names_in(row.text)
                if len(row.text) >= _LEAST_CHARS:
                    self.new[len(self.rows)] = names - seen
                seen |= names
                self.rows.append(row)
                self._names.append(names)
            # The model knows the names of arguments from the definitions of its tools.
            seen |= {name for _, call in scan.calls for name in call.fields}
            self.starts.append(len(self.rows))

    def _find_requests(self, ttl: float | None) -> Iterator[Request]:
        messages, recorded = self.transcript.messages, self.transcript.usage
        is_answer = [role_of(m, f"messages[{i}]") == "assistant" for i, m in enumerate(messages)]
        lines = _Lines([row.text for row in self.rows])
        last, is_cold = None, True
        for index, end in _runs(is_answer):
            answer = recorded.get(index)
            if answer is not None:
                is_cold = last is None or (ttl is not None and answer.time - last.time > ttl)
            is_short = answer is not None and last is not None and _has_missed(answer.usage, last.usage)
            last = answer or last
            start = self.starts[index]
            written = frozenset().union(*self._names[start : self.starts[end]])
            found = (quote for quotes in self._quotes[index:end] for quote in quotes)
            placed = [
                EditQuote(text, {line: lines.rows(line, start) for line in some}) for text, some in found
            ]
            quotes = tuple(quote for quote in placed if all(quote.lines.values()))
            time = last.time if last else 0.0
            yield Request(index, start, time, is_cold, is_cold or is_short, written, quotes)
            is_cold = False


class _Lines:
    """Texts, searched for lines."""

    def __init__(self, texts: list[str]) -> None:
        self._text = "\n".join(texts)
        # The start of each text, and of one behind the last.
        self._starts = [*accumulate((len(text) + 1 for text in texts), initial=0)]

    def rows(self, line: str, end: int) -> tuple[int, ...]:
        """Return which of the first `end` texts contain a line."""
        rows, at, stop = list[int](), 0, self._starts[end]
        while (at := self._text.find(line, at, stop)) >= 0:
            rows.append(bisect_right(self._starts, at) - 1)
            at = self._starts[rows[-1] + 1]
        return tuple(rows)


def scan_at(message: Any, where: str, calls: Calls) -> Scan:
    """Return the parts of a message; its tool calls are added to `calls`.

    Raises `MessageError` with its place `where` if it is malformed.
    """
    scan = adapter_for(message).scan(message, where, calls)
    calls.add(scan.calls, scan.results, is_reply=scan.is_reply)
    return scan


def rows_of(scan: Scan) -> Iterator[RecordedText]:
    """Yield the texts of a message, those that are not items first."""
    for part in scan.fixed:
        yield RecordedText("", None, part.text)
    for item in (*scan.documents, *scan.items):
        yield RecordedText(item.item_type, item.tool_name, item.text)


def texts_of(message: Any) -> list[str]:
    """Return the texts of a message that can be read."""
    return [row.text for row in rows_of(scan_at(message, "message", Calls()))]


def _has_missed(usage: Usage, last: Usage) -> bool:
    """Return whether a request did not find the previous prompt in the cache."""
    return usage.read is not None and usage.read < _MISSED * last.tokens


def _runs(flags: list[bool]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each run of true flags."""
    begins = (i for i, flag in enumerate(flags) if flag and not (i and flags[i - 1]))
    for begin in begins:
        yield begin, next((i for i in range(begin, len(flags)) if not flags[i]), len(flags))
