"""Offloading by expected cost: which items of a conversation are offloaded to lower the price of its input.

A new item is offloaded before the model sees it if the tokens that it frees in the requests to come are worth
more than the read-backs that are expected. What was sent is offloaded in batches: an edit of the conversation
writes again all that follows it, so items wait until together they free more than that. An item that the
model works on is kept: a call that reads, changes or reads back its file renews it. A cold cache writes
everything again anyway, so then all that is old enough is offloaded.

The figures are priors: rounded from recorded sessions, the same for every source; `docs/policy.md` has the
measurements behind them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from offload.engine.policy.reasons import Reason, ReasonKind

if TYPE_CHECKING:
    from offload.engine.policy.cache import CacheModel

T = TypeVar("T")

# As many requests are expected to follow as were made, within these bounds. A batch can wait for more
# certainty, so it counts on fewer: so many, and one more for every few that were made.
LEAST_REQUESTS, MOST_REQUESTS = 20, 100
LEAST_IN_BATCH, MADE_PER_REQUEST = 10, 4
# A hidden text is read back m * h / (h + H) times, where h are the hidden tokens: the model returns to a file
# that it read, and quotes it, more often than to the output of another tool.
READS_OF_FILES, READS_OF_RESULTS, HIDDEN_TOKENS = 8.0, 2.0, 8000
# Replies without a use of a text or its file, after which the model seldom quotes it; and replies after which
# it seldom needs a result that shows no file, or what it read back.
LEFT_ALONE, RESULT_LEFT_ALONE = 9, 3
# Tokens of the call that reads back and of its answer, mostly the lines that a search finds.
ANSWER_TOKENS = 150
# An item that was left alone for so long that it may be offloaded is read back less often, by this share.
LEFT_SHARE = 0.15
# A batch must save the price of so many requests: below that it can wait for more.
LEAST_GAIN = 5
# At a cold moment an item may leave after this part of the replies that it waits for otherwise.
COLD_SHARE = 3 / 8
# With more items in view, batches are weighed in every second reply, every third and so on: that bounds the
# work of a reply.
WEIGHED_ITEMS = 128
# Tokens of tools and of a system prompt outside the messages: where a request finds no cached end, it writes
# them again too. Many agents have more.
FIRST_TOKENS = 5000


class Candidate(msgspec.Struct, Generic[T], eq=False):
    """An item that may be offloaded.

    Attributes:
        freed: tokens that offloading it frees.
        waits: replies of the model without a use of it, before it may be offloaded.
        is_unseen: whether it may be offloaded before the model sees it if that pays.
        reads: how often the model reads it back at most, see `READS_OF_FILES`.
        sources: the files that it shows or changes, or the ids of the records that an answer shows.
        turn: replies before it.
        at: index of its message.
        start: tokens of its message before it.
        is_out: whether it is offloaded.
    """

    key: T
    tokens: int
    freed: int
    waits: int
    is_unseen: bool = False
    reads: float = READS_OF_RESULTS
    sources: Sequence[str] = ()
    turn: int = 0
    at: int = 0
    start: int = 0
    is_out: bool = False

    @property
    def expected_reads(self) -> float:
        """Number of read-backs that are expected if the model never saw it in full."""
        return self.reads * self.freed / (self.freed + HIDDEN_TOKENS)


class _PlannedMessage(msgspec.Struct, Generic[T], eq=False):
    """A message: the replies up to it, its size, the items in it and the files that it uses."""

    turn: int
    is_reply: bool
    tokens: int
    blocks: int
    items: Sequence[Candidate[T]]
    uses: list[str]


class CostPlan(Generic[T]):
    """The items of one conversation that are offloaded by expected cost.

    Decisions depend on the messages and on which items are out, so another process makes the same.

    Attributes:
        reasons: the reasons for all that was offloaded by expected cost.
    """

    def __init__(self, cache: CacheModel) -> None:
        self.cache = cache
        self._messages: list[_PlannedMessage[T]] = []
        # Tokens before each message as it is sent, and of all.
        self._before = [0]
        # The first message of each turn: a reply, but for the first turn.
        self._firsts = [0]
        self._items: dict[T, Candidate[T]] = {}
        self._inside: list[Candidate[T]] = []
        # By source, the turns that use it, in order.
        self._uses: dict[str, list[int]] = {}
        # Indices of messages, and the records that they read back, whose files were not looked up yet.
        self._reads: list[tuple[int, str]] = []
        self.reasons: dict[T, Reason] = {}

    @property
    def turn(self) -> int:
        """Number of replies so far."""
        return len(self._firsts) - 1

    def add(
        self,
        tokens: int,
        items: Iterable[Candidate[T]] = (),
        *,
        is_reply: bool = False,
        blocks: int = 1,
        uses: Iterable[str] = (),
        reads: Iterable[str] = (),
    ) -> None:
        """Append a message.

        Args:
            tokens: its tokens.
            items: the items in it that may be offloaded.
            is_reply: whether the model wrote it; several such messages in a row are one reply.
            blocks: content blocks, where a run of tool calls counts as one, and so does a run of results.
            uses: the files that its tool calls read or change, and the ids of records that they read back.
            reads: these ids alone.
        """
        at = len(self._messages)
        if is_reply and not (at and self._messages[-1].is_reply):
            self._firsts.append(at)
        message = _PlannedMessage(self.turn, is_reply, tokens, blocks, tuple(items), [])
        start = 0
        for item in message.items:
            self._items[item.key] = item
            item.turn, item.at, item.start = self.turn, at, start
            start += item.tokens
        self._messages.append(message)
        self._before.append(self._before[-1] + tokens)
        self._inside += message.items
        for source in uses:
            self._use(message, source)
        self._reads += [(at, ref) for ref in reads]

    def truncate(self, length: int) -> None:
        """Drop all messages but the first `length`."""
        for message in self._messages[length:]:
            for source in message.uses:
                self._uses[source].remove(message.turn)
                if not self._uses[source]:
                    del self._uses[source]
            for item in message.items:
                self._items.pop(item.key, None)
                self.reasons.pop(item.key, None)
        del self._messages[length:], self._before[length + 1 :]
        del self._firsts[(self._messages[-1].turn if self._messages else 0) + 1 :]
        self._inside = [item for item in self._inside if item.at < length]
        self._reads = [(at, ref) for at, ref in self._reads if at < length]

    def settle(self, out: Iterable[T], ref_of: Callable[[T], str | None]) -> None:
        """Learn what became of the items, before new decisions.

        Args:
            out: items that were offloaded since the last call, or that were before and will be now.
            ref_of: returns the id of an item's record, if it has one.
        """
        found = [self._items[key] for key in dict.fromkeys(out) if key in self._items]
        self._move([item for item in found if not item.is_out])
        wanted = {ref for _, ref in self._reads}
        if wanted:
            sources = {ref_of(item.key): item.sources for item in self._items.values() if item.sources}
            for at, ref in self._reads:
                for source in sources.get(ref, ()):
                    self._use(self._messages[at], source)
            self._reads.clear()

    def decide(
        self, turn: int, may_leave: Callable[[T], bool], *, is_bound: bool = False, is_cold: bool = False
    ) -> list[T]:
        """Return the items to offload in the request after so many replies, and note the reasons.

        Args:
            turn: the number of replies before the request.
            may_leave: returns whether an item can be offloaded; one that cannot counts as in view.
            is_bound: whether nothing that was sent may change.
            is_cold: whether the provider's cache holds nothing of the conversation.
        """
        unseen = [item for item in self._paying_unseen(turn) if may_leave(item.key)]
        seen = [] if is_bound else self._paying_seen(turn, may_leave, is_cold=is_cold)
        self._note(unseen, ReasonKind.PAYS, _requests(turn))
        self._note(seen, ReasonKind.PAYS_COLD if is_cold else ReasonKind.PAYS, _requests_in_batch(turn))
        self._move([*unseen, *seen])
        return [item.key for item in (*unseen, *seen)]

    def _note(self, items: Iterable[Candidate[T]], kind: ReasonKind, requests: int) -> None:
        for item in items:
            self.reasons[item.key] = Reason(kind, item.tokens, count=requests, freed=item.freed)

    def is_in_use(self, key: T) -> bool:
        """Return whether a call used a source of an item since, within the replies that it waits for."""
        item, last = self._items.get(key), self.last_use(key)
        return item is not None and last > item.turn and self.turn - last < item.waits

    def last_use(self, key: T) -> int:
        """Return the number of replies up to the last use of a source of an item; 0 for an unknown item."""
        item = self._items.get(key)
        return 0 if item is None else self._last_use(item, self.turn)

    # Items before the model sees them

    def _paying_unseen(self, turn: int) -> list[Candidate[T]]:
        """Return the new items that pay even if the model reads them back as often as is expected."""
        begin, end = self._range(turn)
        messages = self._messages[begin:end]
        new = [i for m in messages for i in m.items if i.is_unseen and not i.is_out]
        saved = self.cache.read * _requests(turn)
        # One more request, and an answer that is written to the cache and sent with all that follow.
        # New items count in full, so that a process that repeats the request decides the same.
        tokens = self._before[begin] + sum(message.tokens for message in messages)
        read_back = self._request(tokens) + ANSWER_TOKENS * (self.cache.write + saved)
        written = saved + self.cache.rewrite
        return [i for i in new if i.freed * written > i.expected_reads * read_back]

    # Items that were sent

    def _paying_seen(self, turn: int, may_leave: Callable[[T], bool], *, is_cold: bool) -> list[Candidate[T]]:
        """Return the items that pay most together, none if they save too little."""
        if not is_cold and turn % (1 + len(self._inside) // WEIGHED_ITEMS):
            return []
        share = COLD_SHARE if is_cold else 1.0
        due = [i for i in self._inside if i.turn < turn and self._is_due(i, turn, share)]
        while True:
            batch = self._best_batch(due, turn, is_cold=is_cold)
            staying = {id(item) for item in batch if not may_leave(item.key)}
            if not staying:
                return batch
            due = [item for item in due if id(item) not in staying]

    def _is_due(self, item: Candidate[T], turn: int, share: float) -> bool:
        return turn - self._last_use(item, turn) >= max(1, int(item.waits * share))

    def _last_use(self, item: Candidate[T], turn: int) -> int:
        """Return the last turn until `turn` that uses a source of an item, or in which the item is."""
        last = item.turn
        for source in item.sources:
            uses = self._uses.get(source, ())
            count = bisect_right(uses, turn)
            last = max(last, uses[count - 1]) if count else last
        return last

    def _best_batch(self, due: Sequence[Candidate[T]], turn: int, *, is_cold: bool) -> list[Candidate[T]]:
        """Return the latest of the items that are due, back to the one with which they save most."""
        saved = self.cache.read * (_requests_in_batch(turn) + 1)
        sent = self._before[self._firsts[turn]]
        least = 0.0 if is_cold else LEAST_GAIN * self._request(sent)
        if sum(item.freed for item in due) * saved <= least:
            return []
        rewrite = 0.0 if is_cold else self.cache.rewrite
        answer = ANSWER_TOKENS * (self.cache.write + saved)
        best, most, freed, reads = 0, least, 0, 0.0
        for count, (item, rewritten) in enumerate(self._rewrites(due, turn), 1):
            freed += item.freed
            reads += LEFT_SHARE * item.expected_reads
            # A request that reads back has none of the items that leave together.
            read_back = self._request(sent - freed) + answer
            gain = freed * saved - reads * read_back - rewrite * (rewritten - freed)
            if gain > most:
                best, most = count, gain
        return [*reversed(due)][:best]

    def _rewrites(self, due: Sequence[Candidate[T]], turn: int) -> Iterator[tuple[Candidate[T], int]]:
        """Yield the items, latest first, with the tokens to be written again if one is out.

        Where only marked ends are cached, these are all since the last end that a request finds.
        """
        sent = self._before[self._firsts[turn]]
        nearest = self._nearest_end(turn)
        for item in reversed(due):
            if nearest is None:
                yield item, sent - self._before[item.at] - item.start
            elif item.turn >= nearest:
                yield item, sent - self._before[self._firsts[item.turn]]
            else:
                yield item, sent + FIRST_TOKENS

    def _nearest_end(self, turn: int) -> int | None:
        """Return the first turn whose beginning a request finds in the cache; None if it finds any text."""
        marks, lookback = self.cache.marks, self.cache.lookback
        if marks is None:
            return None
        # A mark on an earlier request begins another search.
        first, blocks = max(1, turn - marks + 1), 0
        for earlier in range(first, 0, -1):
            begin, end = self._range(earlier)
            blocks += sum(message.blocks for message in self._messages[begin:end])
            if lookback is not None and blocks >= lookback:
                break
            first = earlier
        return first

    # State

    def _request(self, tokens: int) -> float:
        """Return the price of one more request with messages of so many tokens."""
        return self.cache.read * (tokens + FIRST_TOKENS)

    def _range(self, turn: int) -> tuple[int, int]:
        """Return the first message of a turn, and the end of its messages."""
        end = self._firsts[turn + 1] if turn < self.turn else len(self._messages)
        return self._firsts[turn], end

    def _use(self, message: _PlannedMessage[T], source: str) -> None:
        message.uses.append(source)
        insort(self._uses.setdefault(source, []), message.turn)

    def _move(self, items: Sequence[Candidate[T]]) -> None:
        """Note that items are out."""
        if not items:
            return
        for item in items:
            item.is_out = True
        self._inside = [item for item in self._inside if not item.is_out]
        first = min(item.at for item in items)
        before = self._before[first]
        for at, message in enumerate(self._messages[first:], first):
            before += message.tokens - sum([item.freed for item in message.items if item.is_out])
            self._before[at + 1] = before


def _requests(turn: int) -> int:
    return min(max(turn, LEAST_REQUESTS), MOST_REQUESTS)


def _requests_in_batch(turn: int) -> int:
    return min(LEAST_IN_BATCH + turn // MADE_PER_REQUEST, MOST_REQUESTS)
