"""The errors of one call: each is reported once, with all items that it cost, and raised if asked for.

The work that they prevented is left to the next call.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from offload.base.events import EventType
from offload.errors import MessageError, OffloadError, StoreError, failure
from offload.messages.base import Item
from offload.records.observer import Observer

# Number of items that an error names.
_NAMED = 5


class AboveCeilingError(OffloadError, kind="above_ceiling"):
    """An item or a turn is kept above `OffloadPolicy.max_view_tokens` by design; nothing failed."""


class _Failure(msgspec.Struct, eq=False):
    """An error, the event that reports it, and the items that it cost."""

    error: OffloadError
    event: EventType
    is_reported: bool
    items: dict[str, None] = msgspec.field(default_factory=dict)

    def named(self) -> OffloadError:
        """Return the error with the names of the items before its text."""
        if not self.items:
            return self.error
        names = ", ".join([*self.items][:_NAMED])
        more = f" and {len(self.items) - _NAMED} more" if len(self.items) > _NAMED else ""
        return _with_text(self.error, f"{names}{more}: {self.error}")


class Failures:
    """Collects the failures of one call; they become its `errors` at its end.

    Attributes:
        errors: the errors of the call, once it has ended.
        is_incomplete: whether a part of the call failed, so that nothing may be built on what it left.
    """

    def __init__(self, observer: Observer, *, raises: bool) -> None:
        self.errors: list[OffloadError] = []
        self.is_incomplete = False
        self._found: list[_Failure] = []
        self._observer = observer
        self._raises = raises

    def report(self, error: OffloadError, item: str = "") -> None:
        """Report an error that cost the item with this name its offload, or the call if it has none.

        A store or a hook that fails for many items is reported once.
        """
        same = next((known for known in self._found if _is_repeated(error, known.error)), None)
        if same is None:
            same = _Failure(error, EventType.OFFLOAD_FAILED, is_reported=True)
            self._found.append(same)
        if item:
            same.items[item] = None

    def note(self, error: OffloadError, event: EventType = EventType.OFFLOAD_FAILED) -> None:
        """Report an error that is never raised."""
        self._found.append(_Failure(error, event, is_reported=False))

    def end(self) -> None:
        """Report what failed. Raises the first error if the caller asked for that."""
        self.errors += [found.named() for found in self._found]
        for found, error in zip(self._found, self.errors, strict=True):
            self._observer.failed(error, found.event)
        if self._raises and self.first is not None:
            raise self.first

    @property
    def first(self) -> OffloadError | None:
        """The first error that cost an item its offload, or the call; None before the end, or without one."""
        pairs = zip(self._found, self.errors, strict=False)
        return next((error for found, error in pairs if found.is_reported), None)


def name_of(item: Item, at: int | None) -> str:
    """Return the name of an item in an error; `at` is the index of its message, if it is in one."""
    place = "" if at is None else f"messages[{at}]: "
    tool = f" of {item.tool_name:.60}" if item.tool_name else ""
    call = f" ({item.tool_use_id:.60})" if item.tool_use_id else ""
    return f"{place}{item.item_type}{tool}{call}"


def malformed(error: Exception, where: str) -> MessageError:
    """Return the error for a message, or a part of one, that its adapter could not handle."""
    if isinstance(error, MessageError):
        return error
    wrapped = MessageError(str(failure(f"{where}:", error, None)))
    wrapped.__cause__ = error
    return wrapped


def _with_text(error: OffloadError, text: str) -> OffloadError:
    """Return an error of the same class and cause with another text."""
    try:
        changed = type(error)(text)
    except Exception:  # noqa: BLE001 # a class of a store may take other arguments
        changed = OffloadError(text)
    changed.__cause__ = error.__cause__
    return changed


def _is_repeated(error: OffloadError, known: OffloadError) -> bool:
    if isinstance(error, StoreError):
        return isinstance(known, StoreError)
    return type(error) is type(known) is OffloadError and str(error) == str(known)


class Repair(Enum):
    """A kind of work on a message.

    Attributes:
        READ: it, or a block of it, could not be read.
        LIST: it and the later ones were added while the session could not be listed, so that it is not known
            which of their items were offloaded before.
        UNBIND: it changed before thinking that could not be stored and removed.
    """

    READ = "read"
    LIST = "list"
    UNBIND = "unbind"

    __hash__ = object.__hash__  # Members are singletons; the hash of an enum's name is slower.


class Pending:
    """The messages of a log that work is left for, by the kind of work."""

    def __init__(self) -> None:
        self._work: set[tuple[Repair, int]] = set()

    def __contains__(self, repair: Repair) -> bool:
        return any(kind is repair for kind, _ in self._work)

    def add(self, repair: Repair, index: int) -> None:
        """Note that a message needs a kind of work."""
        self._work.add((repair, index))

    def all(self, repair: Repair, end: int | None = None) -> list[int]:
        """Return the indices of the messages before `end` that need a kind of work, in order."""
        return sorted(at for kind, at in self._work if kind is repair and (end is None or at < end))

    def take(self, repair: Repair) -> int | None:
        """Return the first message that needs a kind of work, and take that for done; None if none does."""
        found = self.all(repair)
        self._work -= {(repair, at) for at in found}
        return min(found, default=None)

    def truncate(self, length: int) -> None:
        """Forget what only concerned the messages from `length` on, which are read again."""
        self._work -= {(Repair.READ, at) for at in self.all(Repair.READ) if at >= length}
