"""A recorded conversation as texts and requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from offload.messages import Usage
from offload.messages.calls import Calls
from offload.messages.formats import adapter_for, role_of
from offload.replay._names import names_in
from offload.replay._transcripts import Transcript

# A shorter text is not read back: its placeholder shows most of it.
_LEAST_CHARS = 1000
_CHARS_PER_TOKEN = 3.6
# A request that reads less than this part of the previous prompt from the cache has missed it.
_MISSED = 0.5


class Row(NamedTuple):
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
        prompt = [row.text for row in rows_of(system, Calls(), "system")]
        self.system = sum(map(tokens_of, prompt))
        self._read(names_in(*prompt))
        self.requests = list(self._find_requests(ttl))

    def replaced_rows(self, index: int, message: Any) -> Iterator[tuple[int, str]]:
        """Yield row and text of each text of `message`, the replaced message at `index`."""
        return enumerate((row.text for row in rows_of(message, Calls())), self._starts[index])

    def _read(self, known: frozenset[str]) -> None:
        seen, calls = set(known), Calls()
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


def rows_of(message: Any, calls: Calls, where: str = "message") -> Iterator[Row]:
    """Yield the texts of a message, those that are not items first; its tool calls are added to `calls`.

    Raises `MessageError` with its place `where` if it is malformed.
    """
    scan = adapter_for(message).scan(message, where, calls)
    calls.add(scan.calls, scan.results, is_reply=scan.is_reply)
    for part in scan.fixed:
        yield Row("", None, part.text)
    for item in (*scan.documents, *scan.items):
        yield Row(item.item_type, item.tool_name, item.text)


def tokens_of(text: str) -> float:
    """Return the tokens of a text, by its characters."""
    return len(text) / _CHARS_PER_TOKEN


def _has_missed(usage: Usage, last: Usage) -> bool:
    """Return whether a request did not find the previous prompt in the cache."""
    return usage.read is not None and usage.read < _MISSED * last.tokens


def _runs(flags: list[bool]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each run of true flags."""
    begins = (i for i, flag in enumerate(flags) if flag and not (i and flags[i - 1]))
    for begin in begins:
        yield begin, next((i for i in range(begin, len(flags)) if not flags[i]), len(flags))
