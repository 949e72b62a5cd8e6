"""Offloading by expected cost: which items of a conversation are offloaded to lower the price of its input.

An item is offloaded when the savings of later requests exceed the price of the tokens that are written again
and of a read-back, times its chance. A provider finds a cached prompt only at the end of an earlier request,
so an edit writes again all that follows the latest such end before it. The chances and their decay are
priors: rounded from recorded sessions, the same for every tool and source; `docs/policy.md` has the figures
behind them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from offload.policy.cache import CacheModel

T = TypeVar("T")

# As many requests are expected to follow as were made, within these bounds.
LEAST_REQUESTS, MOST_REQUESTS = 20, 100
# A new text is read back with a chance of h / (h + H), where h are the tokens that its placeholder hides.
# The model returns to its own words and to the user's sooner than to the output of a tool.
HIDDEN_TOKENS = {"tool_result": 2500, "tool_call": 1200}
HIDDEN_WORDS = 500
# After so many replies the chance is a half of that, after twice as many a third: what is old is returned to
# more often than with a constant half-life.
HALVED_AFTER = 8
# Tokens of an answer that reads an item back, and of the reply that asks for it, which costs more: a page, or
# the lines that a search finds. What a preview shows or names is searched for, so the share of pages falls
# with the fourth power of the share that the preview hides.
PAGE_TOKENS, FOUND_TOKENS = 3000, 1000
# The reads seen count against so many expected ones more.
PRIOR_READS = 8
# Tokens of tools and of a system prompt outside the messages: where a request finds no cached end, it writes
# them again too. Many agents have more.
FIRST_TOKENS = 5000
# Items are offloaded once the requests that they waited for cost this share of what is written again: before
# that, a session that ends or an item that follows them would make the edit a loss. Recorded sessions and
# runs of file reads are both cheap with it.
WAITED_SHARE = 0.5
# While the cache is warm, items of so many latest turns are considered: what is older breaks too much of it.
WARM_TURNS = 32


class Candidate(msgspec.Struct, Generic[T], eq=False):
    """An item that may be offloaded.

    Attributes:
        freed: tokens that offloading it frees.
        waits: replies of the model before it may be offloaded.
        is_ruled: whether a rule offloads it; if it waits, the cost decides when.
        shown: the share of it that its preview shows, if the model has not seen it.
        start: tokens of its turn before it, as if nothing of the turn were offloaded.
        is_out: whether it is offloaded.
    """

    key: T
    item_type: str
    tokens: int
    freed: int
    waits: int = 0
    is_ruled: bool = False
    shown: float = 0.0
    start: int = 0
    is_out: bool = False

    def chance(self, age: int) -> float:
        """Return the chance that it is read back if it is offloaded after `age` replies."""
        scale = HIDDEN_TOKENS.get(self.item_type, HIDDEN_WORDS)
        return float(self.freed / (self.freed + scale) * HALVED_AFTER / (HALVED_AFTER + age))

    @property
    def answer(self) -> float:
        """Tokens of an answer that reads it back."""
        return FOUND_TOKENS + (PAGE_TOKENS - FOUND_TOKENS) * (1 - self.shown) ** 4


class _Turn(msgspec.Struct, Generic[T], eq=False):
    """The messages between two requests: a reply and what follows it.

    Attributes:
        tokens: their tokens as sent.
        freed: tokens that its offloaded items free.
        blocks: their content blocks, where a run of tool calls or of results counts as one.
        items: the items that may be offloaded, in order; of these, `waiting` are not offloaded.
    """

    tokens: int = 0
    freed: int = 0
    blocks: int = 0
    items: list[Candidate[T]] = msgspec.field(default_factory=list)
    waiting: int = 0

    def add(self, tokens: int, blocks: int, items: Sequence[Candidate[T]]) -> None:
        """Append a message."""
        start = self.tokens + self.freed
        for item in items:
            item.start, start = start, start + item.tokens
        self.tokens += tokens
        self.blocks += blocks
        self.items += items
        self.waiting += len(items)

    def remove(self, tokens: int, blocks: int, items: Sequence[Candidate[T]]) -> None:
        """Undo `add`, once all that was offloaded since is restored."""
        self.tokens -= tokens
        self.blocks -= blocks
        self.waiting -= len(items)
        del self.items[len(self.items) - len(items) :]

    def move(self, item: Candidate[T], *, is_out: bool) -> None:
        """Offload an item, or undo that."""
        sign = 1 if is_out else -1
        item.is_out = is_out
        self.freed += sign * item.freed
        self.tokens -= sign * item.freed
        self.waiting -= sign

    def inside(self) -> list[tuple[Candidate[T], int]]:
        """Return the items that are not offloaded, latest first, and the tokens from each on as sent."""
        left, end = self.waiting, self.tokens + self.freed
        found: list[tuple[Candidate[T], int]] = []
        for item in reversed(self.items):
            if len(found) == left:
                break
            if item.is_out:
                end -= item.freed
            else:
                found.append((item, end - item.start))
        return found


class _Figures(msgspec.Struct, frozen=True):
    """Sums over the messages of a plan.

    Attributes:
        tokens: tokens of the messages as sent.
        reads: reads of the model in them.
        expected_reads: reads that were expected of what was offloaded.
        left: how many items were offloaded.
        ends: the last turns of earlier requests whose prompts are cached as they would be sent now, in order.
    """

    tokens: int = 0
    reads: int = 0
    expected_reads: float = 0.0
    left: int = 0
    ends: tuple[int, ...] = ()


class _Message(msgspec.Struct, Generic[T], eq=False):
    """A message, the figures before it, and the items offloaded or refused since, with their turns."""

    tokens: int
    items: tuple[Candidate[T], ...]
    is_reply: bool
    blocks: int
    before: _Figures
    left: list[tuple[_Turn[T], Candidate[T]]] = msgspec.field(default_factory=list)
    refused: list[Candidate[T]] = msgspec.field(default_factory=list)


class _Outlook(msgspec.Struct, frozen=True):
    """Prices at one request, in units of an uncached input token.

    Attributes:
        requests: expected requests to come.
        saved: price of a token in all of them.
        rewrite: extra price of a token that could have been read from the cache.
        request: price of one more request, which reads an item back.
        answer: price of a token of its answer, in that request and in all that follow.
    """

    requests: int
    saved: float
    rewrite: float
    request: float
    answer: float

    def saving(self, item: Candidate[T], chance: float) -> float:
        """Return what offloading an item is expected to save, before it rewrites anything."""
        return item.freed * self.saved - chance * (self.request + item.answer * self.answer)


class CostPlan(Generic[T]):
    """The items of one conversation that are offloaded by expected cost, decided as its messages are added.

    A message changes the plan the same way whether it comes alone or with many, and no trace of it
    is kept once it is dropped: decisions on older items are made when a reply begins, and depend on the
    messages before it only. A cold cache is the exception.

    Attributes:
        due: the items to offload and the reasons, until the caller takes them.
        reasons: the reasons for all that was offloaded by expected cost.
        may_leave: returns whether an item can be offloaded; one that cannot counts as in view.
    """

    def __init__(self, cache: CacheModel) -> None:
        self._cache = cache
        self._messages: list[_Message[T]] = []
        self._turns: list[_Turn[T]] = [_Turn()]
        self._figures = _Figures()
        self.due: dict[T, str] = {}
        self.reasons: dict[T, str] = {}
        self.may_leave: Callable[[T], bool] = _always
        self._refused: dict[Candidate[T], _Turn[T]] = {}

    def add(
        self,
        tokens: int,
        items: Iterable[Candidate[T]] = (),
        *,
        reads: int = 0,
        is_reply: bool = False,
        blocks: int = 1,
        is_bound: bool = False,
    ) -> None:
        """Append a message: its tokens, the items that may be offloaded, the calls of retrieval tools in it.

        A run of tool calls counts as one of its content `blocks`, and so does a run of results. With
        `is_bound`, no item is offloaded that was sent.
        """
        message = _Message(tokens, tuple(items), is_reply, blocks, self._figures)
        self._messages.append(message)
        if is_reply:
            self._note_sent()
            self._turns.append(_Turn())
            if not is_bound:
                self._decide_old()
        turn = self._turns[-1]
        outlook = self._outlook() if message.items else None
        turn.add(tokens, blocks, message.items)
        figures = self._figures
        self._figures = replace(figures, tokens=figures.tokens + tokens, reads=figures.reads + reads)
        if outlook is not None:
            self._decide_new(turn, message.items, outlook)

    def cool(self) -> None:
        """Decide on all items that the model has seen: the next request writes every message anyway."""
        outlook = self._outlook()
        self._figures = replace(self._figures, ends=())
        for turn, age in self._ages(len(self._turns)):
            for item, _ in reversed(turn.inside()):
                if age < max(1, item.waits):
                    continue
                if item.is_ruled or self._worth(item, age, outlook) > 0:
                    self._take(turn, item, age, outlook, ", and the cache is cold")

    def retry_refused(self) -> None:
        """Offload the items that could not be offloaded when they were due."""
        outlook, last = self._outlook(), len(self._turns) - 1
        for item, turn in [*self._refused.items()]:
            if self.may_leave(item.key):
                del self._refused[item]
                self._take(turn, item, last - self._turns.index(turn), outlook)

    def truncate(self, length: int) -> None:
        """Drop all messages but the first `length`, and all later decisions."""
        while len(self._messages) > length:
            message = self._messages.pop()
            for turn, item in message.left:
                turn.move(item, is_out=False)
                self.due.pop(item.key, None)
                self.reasons.pop(item.key, None)
            for item in (*message.refused, *message.items):
                self._refused.pop(item, None)
            self._turns[-1].remove(message.tokens, message.blocks, message.items)
            if message.is_reply:
                self._turns.pop()
            self._figures = message.before

    def _decide_new(self, turn: _Turn[T], items: Iterable[Candidate[T]], outlook: _Outlook) -> None:
        """Decide on the items of a new message."""
        for item in items:
            # It is written to the cache in any case: only what the placeholder has, or all of it.
            new = item.freed * outlook.rewrite
            if item.waits == 0 and (item.is_ruled or outlook.saving(item, self._chance(item, 0)) + new > 0):
                self._take(turn, item, 0, outlook)

    def _decide_old(self) -> None:
        """Decide on the items of the latest turns but the new one, while the cache is warm.

        An edit writes again all that follows the latest cached end before it. All items behind an end that
        pay are offloaded together, from the end on whose items save most. Edits in turn would each write much
        of it again, so they wait for each other until the requests since then paid a share of the price. With
        more than one mark, or if any prefix is cached, an edit costs less, and an item is offloaded when its
        rule says so.
        """
        if not any(map(attrgetter("waiting"), self._turns[-WARM_TURNS - 1 : -1])):
            return
        outlook, refused = self._outlook(), set[Candidate[T]]()
        leaving = self._paying(outlook, refused)
        while stays := [(turn, item) for turn, item, _ in leaving if not self.may_leave(item.key)]:
            for turn, item in stays:
                self._refuse(turn, item)
                refused.add(item)
            leaving = self._paying(outlook, refused)
        for turn, item, age in leaving:
            self._take(turn, item, age, outlook)
            self._break(len(self._turns) - 1 - age)

    def _paying(
        self, outlook: _Outlook, refused: Container[Candidate[T]]
    ) -> list[tuple[_Turn[T], Candidate[T], int]]:
        """Return the items to offload, none of `refused`, with their turns and the replies since."""
        cache = self._cache
        leaving: list[tuple[_Turn[T], Candidate[T], int]] = []
        worth = most = freed = waited = broken = 0.0
        chosen, is_forced = 0, False
        for turn, item, age, again in self._edits():
            if item is not None and item not in refused:
                value = self._worth(item, age, outlook)
                leaves_now = item.is_ruled and cache.marks != 1
                if value > 0 or leaves_now:
                    worth += value
                    freed += item.freed
                    waited += item.freed * (age - max(1, item.waits) + 1)
                    leaving.append((turn, item, age))
                is_forced = is_forced or leaves_now
                chosen = len(leaving) if leaves_now else chosen
            if again is None:
                continue
            if is_forced:
                # All that follows is written again in any case.
                broken, most, chosen, is_forced = again, worth, len(leaving), False
            gain = worth - (again - broken) * cache.rewrite
            has_waited = waited * cache.read >= WAITED_SHARE * (again - freed) * cache.rewrite
            if gain > most and (has_waited or cache.marks != 1):
                most, chosen = gain, len(leaving)
        return leaving[:chosen]

    def _worth(self, item: Candidate[T], age: int, outlook: _Outlook) -> float:
        """Return what offloading an item saves if it is written again in any case."""
        # The rule has weighed its chance of a read.
        chance = 0.0 if item.is_ruled else self._chance(item, age)
        return outlook.saving(item, chance) + item.freed * outlook.rewrite

    def _edits(self) -> Iterator[tuple[_Turn[T], Candidate[T] | None, int, int | None]]:
        """Yield what may be offloaded in a warm cache, latest first, and the places to write again from.

        With each item come its turn and the replies after it; with a place, the tokens behind it.
        """
        later = age = 0
        turn, last = self._turns[-1], len(self._turns) - 2
        # Behind an end that is too far for a request, the earlier ones are too.
        is_near = self._cache.marks is not None
        for turn, age in self._ages(WARM_TURNS):
            for item, tokens in turn.inside():
                if age >= max(1, item.waits):
                    yield turn, item, age, later + tokens if self._cache.marks is None else None
            later += turn.tokens
            if is_near and last - age in self._figures.ends:
                is_near = self._is_found(last - age)
                if is_near:
                    yield turn, None, age, later
        if self._cache.marks is not None:
            yield turn, None, age, self._figures.tokens + FIRST_TOKENS

    def _is_found(self, last: int) -> bool:
        """Return whether a request finds the cached end of the one whose last turn was `last`.

        The turn that begins is expected to have as many blocks as the largest of those in between.
        """
        if self._cache.lookback is None:
            return True
        # The earliest mark of the new request is the nearest.
        between = [turn.blocks for turn in self._turns[last + 1 : -1]]
        counts = [*between, max(between, default=0)]
        until = max(0, len(counts) + 1 - (self._cache.marks or 1))
        return sum(counts[:until]) < self._cache.lookback

    def _note_sent(self) -> None:
        """Note the ends that the request before a reply marked."""
        sent = len(self._turns)
        marked = range(max(0, sent - (self._cache.marks or 1)), sent)
        ends = self._figures.ends
        kept = ends[bisect_left(ends, sent - WARM_TURNS) : bisect_left(ends, marked.start)]
        self._figures = replace(self._figures, ends=(*kept, *marked))

    def _break(self, turn: int) -> None:
        """Forget the ends behind an item of a turn that was sent with another text."""
        ends = tuple(end for end in self._figures.ends if end < turn)
        self._figures = replace(self._figures, ends=ends)

    def _ages(self, count: int) -> Iterator[tuple[_Turn[T], int]]:
        """Return the last `count` turns before the new one, latest first, and the replies after each."""
        last = len(self._turns) - 1
        latest = self._turns[max(0, last - count) : last]
        return zip(reversed(latest), range(1, len(latest) + 1), strict=True)

    def _take(self, turn: _Turn[T], item: Candidate[T], age: int, outlook: _Outlook, why: str = "") -> None:
        if not self.may_leave(item.key):
            self._refuse(turn, item)
            return
        self._refused.pop(item, None)
        turn.move(item, is_out=True)
        self._messages[-1].left.append((turn, item))
        figures = self._figures
        self._figures = replace(
            figures,
            tokens=figures.tokens - item.freed,
            expected_reads=figures.expected_reads + item.chance(age),
            left=figures.left + 1,
        )
        if not item.is_ruled or (age and self._cache.marks == 1):
            freed, requests = item.freed, outlook.requests
            reason = f"frees {freed} tokens of each of {requests} more requests expected{why}"
            self.due[item.key] = self.reasons[item.key] = reason

    def _refuse(self, turn: _Turn[T], item: Candidate[T]) -> None:
        """Note that an item was to be offloaded and cannot be."""
        if item not in self._refused:
            self._refused[item] = turn
            self._messages[-1].refused.append(item)

    def _chance(self, item: Candidate[T], age: int) -> float:
        """Return the chance of a read; more reads than expected so far raise it for all, fewer lower it.

        A model that reads back most of what was offloaded does so at any age and size.
        """
        reads, expected = self._figures.reads, self._figures.expected_reads
        scale = (reads + PRIOR_READS) / (expected + PRIOR_READS)
        unexpected = (reads - expected - PRIOR_READS) / (self._figures.left + PRIOR_READS)
        return min(1.0, max(item.chance(age) * scale, unexpected))

    def _outlook(self) -> _Outlook:
        cache = self._cache
        requests = min(max(len(self._turns) - 1, LEAST_REQUESTS), MOST_REQUESTS)
        saved = cache.read * requests
        # One more request, and an answer that is written to the cache and sent with all that follow.
        return _Outlook(
            requests, saved, cache.rewrite, self._figures.tokens * cache.read, cache.write + saved
        )


def _always(_: object) -> bool:
    return True
