"""One turn of a conversation: what its steps share, and the guard around each of them and every item."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from offload.engine.binding import Binding
from offload.engine.cache_state import HostCache
from offload.engine.failures import Failures, name_of
from offload.engine.items import Slot, State
from offload.engine.log import Log
from offload.engine.policy.facts import Readers
from offload.engine.policy.reasons import Reason, ReasonKind
from offload.engine.recognition import Recognition
from offload.engine.removed import RemovedThinking
from offload.engine.results import OffloadResult
from offload.engine.settings.options import Options
from offload.engine.writer import ItemWriter
from offload.errors import OffloadError, unexpected

if TYPE_CHECKING:
    from offload.engine.policy import OffloadPolicy

P = ParamSpec("P")
T = TypeVar("T")


class Terms(msgspec.Struct, frozen=True, eq=False):
    """The terms of one `Offloader.offload`; see there.

    Attributes:
        pinned: ids of the tool calls whose results the caller wants to keep.
        agent: the name of the agent; None is that of the options.
        policy: the policy of this call; None is that of the session.
        only: indices of the messages whose items may leave; None is all.
        file_readers: as in `OffloadPolicy.decide`.
    """

    pinned: frozenset[str] = frozenset()
    cache: HostCache | None = None
    model: str | None = None
    agent: str | None = None
    policy: OffloadPolicy | None = None
    only: frozenset[int] | None = None
    file_readers: Readers = "keep"


class Turn(msgspec.Struct, eq=False):
    """One call of `offload`, as its steps share it; the log holds what the next turn needs.

    Attributes:
        terms: the terms of the call.
        model: the name of the model; None if it is not known.
        code_calls: ids of the tool calls made by code, which reads the results itself. They are known also
            after the message of the call was removed from the list.
        policy: the policy of this call; by default that of the session.
        is_aside: whether that is another one, which decides without the plan by cost.
        before: how many messages the last turn had.
        late: the items of those messages that were due in this turn; some may have been kept after all.
        placed: the items that have a record now.
        replies: how many replies of the model were read in this turn.
        thinking_removed: how many blocks of thinking were removed.
        is_listed: whether the session was listed in this call: its messages name no later record.
        on_recalled: see `Conversation`.
    """

    log: Log
    recognition: Recognition
    writer: ItemWriter
    thinking: RemovedThinking
    options: Options
    failures: Failures
    terms: Terms
    model: str | None
    code_calls: set[str]
    policy: OffloadPolicy
    is_aside: bool = False
    before: int = 0
    late: list[Slot] = []
    placed: list[Slot] = []
    replies: int = 0
    thinking_removed: int = 0
    is_listed: bool = False
    on_recalled: Callable[[OffloadResult], object] | None = None

    def __post_init__(self) -> None:
        self.before = len(self.log)
        self.is_aside = self.policy is not self.options.policy

    # Messages that were sent

    @property
    def binding(self) -> Binding:
        """The rules for messages that were sent."""
        # A policy of one call with another rule says nothing of the model: that of the session may.
        is_open = self.policy.history not in ("append_only", "editable")
        return self.thinking.binding((self.options.policy if is_open else self.policy).history, self.model)

    @property
    def binds(self) -> bool:
        """Whether signed thinking may be refused after a change of what was sent."""
        has_thinking = self.policy.history == "append_only" or bool(self.log.thinking.at)
        return has_thinking and self.binding.keeps_sent

    @property
    def is_bound(self) -> bool:
        """Whether the messages so far may not change once they were sent."""
        return self.binds and self.policy.history != "rewrite"

    def is_before_thinking(self, slot: Slot) -> bool:
        """Return whether an item was sent, and its change now may cost thinking."""
        return self.binds and slot.at < self.log.fresh

    def is_sent(self, slot: Slot) -> bool:
        """Return whether an item may no longer change, since it was sent."""
        return self.is_bound and slot.at < self.log.fresh

    # Failures

    def part(self, part: Callable[P, T], otherwise: T, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a part of the turn; if it fails, return `otherwise`, and the next turn starts over."""
        try:
            return part(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 # the other parts still run
            self.failures.report(unexpected(error))
            self.failures.is_incomplete = True
            return otherwise

    def each(self, slots: Iterable[Slot], step: Callable[[Turn, Slot], object]) -> None:
        """Do something for each item; one for which it fails is kept in its message in this turn."""
        for slot in slots:
            try:
                step(self, slot)
            except Exception as error:  # noqa: BLE001 # one item's failure is one item's
                self.part(self.fail, None, slot, error)

    def fail(self, slot: Slot, error: Exception) -> None:
        """Keep an item in its message in this turn, and report why."""
        problem = unexpected(error)
        self.report(slot, problem)
        reason, items = Reason(ReasonKind.FAILED, name=str(problem)), self.log.items
        if slot.is_replaced:
            self.failures.is_incomplete = True
        elif slot.state is State.UNWEIGHED:
            items.note(slot, replace(slot.decision, action="keep", reason=reason, is_exempt=True))
        elif slot.state is not State.SETTLED:
            items.keep(slot, reason, State.FAILED)

    def report(self, slot: Slot, error: OffloadError) -> None:
        """Report an error that costs an item its offload."""
        # A single text is in no message, and has no plan.
        self.failures.report(error, name_of(slot.item, None if self.log.plan is None else slot.at))

    def count(self, text: str) -> int:
        """Return the tokens of a text; if the counter fails, an estimate, and report it."""
        tokens, problem = self.options.count_or_estimate(text)
        if problem is not None:
            self.failures.report(problem)
        return tokens
