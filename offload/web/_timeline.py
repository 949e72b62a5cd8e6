"""The timeline of a session for its pages: its requests and their cost, what fills the context, its forks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from offload.base.threads.locks import cached
from offload.base.tokens import estimate_tokens
from offload.engine.placeholder.forms import known_refs
from offload.errors import CollisionError, ConfigError, CorruptError, NotFoundError
from offload.messages.calls import Calls
from offload.messages.formats import role_or_none, scan_next
from offload.reading.timeline import SentRequest, Timeline
from offload.reading.timeline.forks import SessionFork
from offload.records.journal.format import JournalEntry
from offload.records.journal.reader import JournalState
from offload.records.session.reader import SessionReader
from offload.replay import RequestCost, costs_of
from offload.web._paging import list_page
from offload.web._plot import curves

# Of a journal, uncompressed: all of its entries are read to show any message.
_MOST_BYTES = 64 * 1024 * 1024
# Tools with a color of their own; the others share one.
_TOOLS = 4
# The parts of the strip, in order, with those of tools before "other results".
_PARTS = ("system and tools", "user", "assistant", "other results", "placeholders")


class Fill(NamedTuple):
    """A part of what fills the context: its class in the style sheet, its tokens, its place in 1,000."""

    kind: str
    label: str
    tokens: int
    start: int
    length: int


class Overview:
    """The timeline of a session as its pages show it.

    Args:
        reader: reads the session.
        keys: those of its journal.
        own: its entries.

    Attributes:
        keys: as given.
        timeline: its requests.
        costs: the cost of each.

    Raises:
        StoreError: the store failed.
    """

    def __init__(self, reader: SessionReader, keys: Sequence[str], own: Sequence[JournalEntry]) -> None:
        self._reader = reader
        self.keys = keys
        self.timeline = Timeline(reader.store, reader.name, own=own)
        self.costs: Sequence[RequestCost] = [*costs_of(self.timeline)]

    @cached
    def curves(self) -> dict[str, Any] | None:
        """The plot, see `offload.web._plot.curves`."""
        return curves(self.timeline, self.costs)

    @property
    def forks(self) -> SessionFork | None:
        """The tree of the forks of the session; None if it has none. Raises `StoreError`."""
        tree = self.timeline.forks
        return tree if tree.forks or tree.left else None

    @cached
    def fills(self) -> list[Fill] | str:
        """The parts that fill the context now, or why they cannot be shown. Raises `StoreError`.

        A text counts as a placeholder if it names a record of the session.
        """
        try:
            check_size(self.timeline)
            state = self.timeline.latest()
        except (CollisionError, ConfigError, CorruptError, NotFoundError) as error:
            return str(error)
        requests = self.timeline
        ratio = state.ratios.get(requests[-1].model or "" if requests else "", 1.0)
        tokens = Counter[tuple[str, str]]()
        for kind, label, count in _parts(self._reader, state):
            tokens[kind, label] += round(count * ratio)
        tokens["part-0", _PARTS[0]] += _unlisted(requests, tokens.total())
        return _strip(tokens)

    def page(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the page of requests and costs in the query, newest first, for a template."""
        return list_page([*zip(self.timeline, self.costs, strict=True)][::-1], query)


def check_size(timeline: Timeline) -> None:
    """Raise `ConfigError` if the journal of a session is too large to show a message of it."""
    size = timeline.stored_bytes
    if size > _MOST_BYTES:
        raise ConfigError(
            f"a shown conversation must have at most {_MOST_BYTES:,} bytes, got {size:,}; use offload log"
        )


def _unlisted(requests: Sequence[SentRequest], listed: int) -> int:
    """Return the tokens of the last request beyond its messages: of the system prompt and the tools.

    A `ContextManager` counts them; else it is what the provider counted beyond the messages.
    """
    if not requests:
        return 0
    counted = next((each for each in reversed(requests) if each.usage), None)
    beyond = max(0, counted.usage.tokens - counted.tokens) if counted and counted.usage else 0
    return max(0, requests[-1].tokens - listed) + beyond


def _parts(reader: SessionReader, state: JournalState) -> Iterator[tuple[str, str, int]]:
    """Yield the kind, the label and the tokens of the parts of the messages."""
    refs = {info.ref for info in reader.catalog.recent()}
    calls = Calls()
    for line in state.messages:
        scan = scan_next(line.message, calls)
        rest = scan.tokens(estimate_tokens)
        for item in scan.offloadable:
            if item.item_type == "tool_result" or not refs.isdisjoint(known_refs(item.text)):
                count = min(rest, estimate_tokens(item.text))
                rest -= count
                tool = item.tool_name or (item.call.name if item.call else None)
                is_out = not refs.isdisjoint(known_refs(item.text))
                yield ("part-4", _PARTS[4], count) if is_out else ("tool", tool or "", count)
        place = {"system": 0, "developer": 0, "assistant": 2}.get(role_or_none(line.message) or "", 1)
        yield f"part-{place}", _PARTS[place], rest


def _strip(tokens: Counter[tuple[str, str]]) -> list[Fill]:
    """Return the parts in order, the largest tools first, each with its place."""
    tools = [pair for pair, _ in tokens.most_common() if pair[0] == "tool"]
    named = {pair: (f"tool-{n}", f"results of {pair[1]}") for n, pair in enumerate(tools[:_TOOLS]) if pair[1]}
    sums = Counter[tuple[str, str]]()
    for pair, count in tokens.items():
        sums[named.get(pair, ("part-3", _PARTS[3]) if pair[0] == "tool" else pair)] += count
    order = ["part-0", "part-1", "part-2", *(kind for kind, _ in named.values()), "part-3", "part-4"]
    total, start, strip = sums.total() or 1, 0, []
    for (kind, label), count in sorted(sums.items(), key=lambda one: order.index(one[0][0])):
        end = start + count
        left, right = round(1000 * start / total), round(1000 * end / total)
        if count:
            strip.append(Fill(kind, label, count, left, max(1, right - left)))
        start = end
    return strip
