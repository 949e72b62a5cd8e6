"""The guard around every part of a turn and every item: one's failure is its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from offload.engine.failures import Failures, name_of
from offload.engine.history import History
from offload.engine.items import Slot, State
from offload.errors import OffloadError, unexpected

# The beginnings of reasons whose error was reported.
NOT_STORED, NOT_OFFLOADED = "not stored: ", "not offloaded: "
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Guard:
    """Runs the parts of a turn, and what they do for each item."""

    history: History
    failures: Failures

    def part(self, part: Callable[P, T], otherwise: T, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a part of the turn; if it fails, return `otherwise`, and the next turn starts over."""
        try:
            return part(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 # the other parts still run
            self.failures.report(unexpected(error))
            self.failures.is_incomplete = True
            return otherwise

    def each(self, slots: Iterable[Slot], step: Callable[[Slot], object]) -> None:
        """Do something for each item; one for which it fails is kept in its message in this turn."""
        for slot in slots:
            try:
                step(slot)
            except Exception as error:  # noqa: BLE001 # one item's failure is one item's
                self.fail(slot, error)

    def fail(self, slot: Slot, error: Exception) -> None:
        """Keep an item in its message in this turn, and report why."""
        problem = unexpected(error)
        self.report(slot, problem)
        if slot.number < 0 or slot.is_replaced:
            self.failures.is_incomplete = True
        elif slot.state is not State.SETTLED:
            state = State.UNWEIGHED if slot.state is State.UNWEIGHED else State.FAILED
            self.part(self.history.items.keep, None, slot, f"{NOT_OFFLOADED}{problem}", state)

    def report(self, slot: Slot, error: OffloadError) -> None:
        """Report an error that costs an item its offload."""
        # A single text is in no message, and has no plan.
        self.failures.report(error, name_of(slot.item, None if self.history.plan is None else slot.at))
