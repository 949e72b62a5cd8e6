"""What a journal tells, and which of its entries tell it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from offload.context import ItemType
from offload.errors import CollisionError, NotFoundError


class Line(Protocol):
    """A message of a conversation, and what it is."""

    @property
    def item_type(self) -> ItemType:
        """What the message is."""
        ...

    @property
    def message(self) -> Any:
        """The message."""
        ...


@dataclass(frozen=True, slots=True)
class ToldLine:
    """A line as a journal tells it."""

    item_type: ItemType
    message: Any


@dataclass(frozen=True, slots=True)
class Told:
    """A conversation as a journal tells it.

    Attributes:
        lines: its messages, in order.
        ratios: model → tokens that its provider counts for one that is estimated.
    """

    lines: list[ToldLine] = field(default_factory=list)
    ratios: Mapping[str, float] = field(default_factory=dict)


class Entry(NamedTuple):
    """An entry as a listing shows it.

    Attributes:
        number: the how many-th of its journal it is, from 0.
        kind: `begun` and `whole` tell all, the first by who read nothing before; `grown` what changed.
        at: where it is kept.
        size: how many bytes it says.
    """

    number: int
    kind: str
    at: Any
    size: int = 0


def number_after(found: Iterable[Entry]) -> int:
    """Return the number of the entry that comes after those that were found."""
    return max((entry.number + 1 for entry in found), default=0)


def latest(found: Iterable[Entry], session: str) -> list[Entry]:
    """Return the entries that tell the conversation of `session` as it is, in order.

    Raises `CollisionError` if two tell it since it was begun, and `NotFoundError` if one is missing.
    """
    entries = sorted(found, key=lambda entry: entry.number)
    begun = max((entry.number for entry in entries if entry.kind == "begun"), default=0)
    numbers = [entry.number for entry in entries if entry.number >= begun]
    if len(set(numbers)) < len(numbers):
        raise CollisionError(f"two agents went on at once: the journal of session {session!r} tells of both")
    whole = max((entry.number for entry in entries if entry.kind != "grown"), default=-1)
    wanted = [entry for entry in entries if entry.number >= whole]
    if wanted and (whole < 0 or wanted[-1].number - whole >= len(wanted)):
        raise NotFoundError(
            f"the journal of session {session!r} lacks entries, which were removed: begin anew"
        )
    return wanted
