"""The messages as the caller passed and received them, and the edits that were made in place since.

A snapshot of each message reveals an edit; its containers are copies, its texts are shared. Lists of the same
objects are compared in one pass over their pointers. Edits are looked for in the last messages, in those that
a turn looks at anyway, and in some of the others each turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, compress
from operator import is_not
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from offload.messages.access import are_equal, begins_with, edits

# Messages checked for edits: so many of the last in every turn, and so many of the older ones in rotation.
LAST_WATCHED, OLDER_WATCHED = 64, 256

# Deeper parts, and those after so many containers, are compared without being copied.
_MAX_DEPTH, _MAX_CONTAINERS = 40, 20_000
# An artifact is read by code, not by the model, and may have any size: only its identity is compared.
_NOT_LOOKED_INTO = "artifact"
# Which fields were set says nothing of a message: a checkpoint of LangGraph sets all of them.
_NO_FIELDS = ("__dict__", "__weakref__", "__pydantic_fields_set__")
_PLAIN = (str, int, float, bytes, type(None), type, ModuleType)
_PLAIN_KINDS = frozenset({str, int, float, bool, bytes, type(None)})


class _Object(msgspec.Struct, frozen=True, eq=False):
    """A snapshot of an object, which equals another snapshot but never the object."""

    kind: type
    fields: dict[str, Any]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Object) and self.kind is other.kind and self.fields == other.fields

    __hash__ = object.__hash__


class Look(NamedTuple):
    """A message with its look, and what the caller received in its place with the look of that."""

    passed: Any
    seen: Any
    sent: Any
    sent_seen: Any

    @property
    def mark(self) -> Any:
        """The look of what the caller received."""
        return self.seen if self.sent is self.passed else self.sent_seen

    @property
    def received(self) -> Any:
        """The message that the caller received, as it was then."""
        # Unless it was edited, the object itself: a snapshot of an SDK object is not read as a message.
        return self.sent if is_same(self.mark, self.sent) else self.mark


class WatchedMessages:
    """The messages of the last turn.

    Attributes:
        passed: the messages, and `seen` how each of them looked.
        sent: the messages as the caller received them, and `sent_seen` how these looked. One without
            replaced items is the message itself.
        dropped: the messages that this turn does not keep.
        first_output: index of the first message that may be sent otherwise than before this turn.
    """

    def __init__(self) -> None:
        self.passed: list[Any] = []
        self.seen: list[Any] = []
        self.sent: list[Any] = []
        self.sent_seen: list[Any] = []
        self.dropped: list[Look] = []
        # How many messages this turn kept.
        self._kept = self._next = 0
        self.first_output = 0

    def keep_common(self, messages: Sequence[Any], opened: Iterable[int]) -> int:
        """Return how many of the messages are still the first of `messages`.

        One that was edited in place counts as changed once the edit is noticed; those at the indices
        `opened` are always checked.
        """
        known = self._common(messages)
        self._kept = self._first_edited(messages, known, self._watched(known, opened))
        self.dropped = self.looks(self._kept)
        self.first_output = self._kept
        return self._kept

    def add(self, message: Any, known: Look | None = None) -> None:
        """Append a message, new or with a `known` look. If it raises an exception, nothing has changed."""
        _, seen, sent, sent_seen = known or (message, look(message), message, message)
        self.passed.append(message)
        self.seen.append(seen)
        self.sent.append(sent)
        self.sent_seen.append(sent_seen)

    def looks(self, first: int, end: int | None = None) -> list[Look]:
        """Return the messages from `first` on, before `end`, with their looks."""
        return [*map(Look, *(one[first:end] for one in (self.passed, self.seen, self.sent, self.sent_seen)))]

    def truncate(self, length: int) -> None:
        """Forget all messages but the first `length`."""
        for same in (self.passed, self.seen, self.sent, self.sent_seen):
            del same[length:]
        self.first_output = min(self.first_output, length)

    def send(self, index: int, output: Any) -> None:
        """Set the message that the caller receives in place of message `index`."""
        self.sent[index] = output
        self.sent_seen[index] = output if output is self.passed[index] else look(output)
        self.first_output = min(self.first_output, index)

    def edited_outputs(self, opened: Iterable[int]) -> list[int]:
        """Return the indices of outputs that the caller edited, among the messages checked this turn."""
        parts = self._watched(len(self.passed), opened)
        return [i for part in parts for i in edited(self.sent_seen, self.sent, part)]

    def unchanged(self) -> int:
        """Return how many messages at the beginning are sent as in the last call."""
        first = self._kept
        while self.is_as_before(first):
            first += 1
        return first

    def marks(self, start: int) -> list[Any]:
        """Return a mark of each message from an index on.

        It is another object once the message is sent otherwise, also if it was edited in place.
        """
        return [one.mark for one in self.looks(start)]

    def is_as_before(self, at: int) -> bool:
        """Return whether a dropped message is sent as before, because the caller passes its output on."""
        index = at - self._kept
        return 0 <= index < min(len(self.dropped), len(self.sent) - self._kept) and are_equal(
            self.dropped[index].received, self.sent[at]
        )

    def end_turn(self) -> None:
        """Select the next of the older messages to check for edits."""
        older = len(self.passed) - LAST_WATCHED
        self._next = self._next + OLDER_WATCHED if older > 0 else 0
        if self._next >= older:
            self._next = 0

    def _common(self, messages: Sequence[Any]) -> int:
        """Return how many leading messages are the known objects or equal to them."""
        known = self.passed
        return len(known) if begins_with(messages, known) else next(edits(known, messages), len(known))

    def _watched(self, end: int, opened: Iterable[int]) -> list[slice[int, int]]:
        """Return the messages before index `end` that are checked for edits in this turn."""
        last = max(0, len(self.passed) - LAST_WATCHED)
        older = range(self._next, min(last, self._next + OLDER_WATCHED))
        single = (range(at, at + 1) for at in sorted({at for at in opened if at < last and at not in older}))
        return [slice(part.start, min(part.stop, end)) for part in (*single, older, range(last, end))]

    def _first_edited(self, messages: Sequence[Any], known: int, parts: Sequence[slice[int, int]]) -> int:
        """Return the index of the first edited message among those checked this turn; `known` if none is."""
        for index in chain.from_iterable(edited(self.seen, self.passed, part) for part in parts):
            return index
        if any(any(map(is_not, self.passed[part], messages[part])) for part in parts):
            self._renew(messages[:known])
        return known

    def _renew(self, messages: Sequence[Any]) -> None:
        """Replace known messages by equal ones that are new objects; the snapshots are theirs too."""
        known = len(messages)
        replaced = [*compress(range(known), map(is_not, self.sent, self.passed))]
        for outputs in (self.sent, self.sent_seen):
            kept = [outputs[i] for i in replaced]
            outputs[:known] = messages
            for i, output in zip(replaced, kept, strict=True):
                outputs[i] = output
        self.passed[:known] = messages


def look(message: Any) -> Any:
    """Return a snapshot of `message` for `edited`; texts and other values are shared, not copied.

    Fields of objects, such as SDK objects and dataclasses, are copied like containers. A message with fields
    that cannot be read is known by its identity.
    """
    try:
        return _copied(message, 0, set())
    except Exception:  # noqa: BLE001 # a message object may raise anything
        return message


def edited(seen: Sequence[Any], messages: Sequence[Any], part: slice[int, int]) -> Iterator[int]:
    """Yield the indices in `part` of the messages that were changed since `look` returned `seen` for them."""
    before, now = seen[part], messages[part]
    # Messages of plain values equal their snapshots, so one comparison of the lists is enough.
    if not are_equal(before, now):
        yield from (part.start + at for at in edits(before, now, is_same))


def is_same(seen: Any, message: Any) -> bool:
    """Return whether `message` looks as it did when `look` returned `seen`."""
    try:
        # A message of plain values equals its snapshot, so it need not be copied.
        return bool(seen is message or seen == message or seen == look(message))
    except Exception:  # noqa: BLE001 # a value inside a message may not support comparison
        return False


def _copied(thing: Any, depth: int, met: set[int]) -> Any:
    kind = type(thing)
    if kind in _PLAIN_KINDS or (kind is not dict and isinstance(thing, _PLAIN)):
        return thing
    if depth > _MAX_DEPTH or id(thing) in met or len(met) >= _MAX_CONTAINERS:
        return thing
    met.add(id(thing))
    if isinstance(thing, list | tuple):
        parts = [v if type(v) in _PLAIN_KINDS else _copied(v, depth + 1, met) for v in thing]
        return parts if isinstance(thing, list) else tuple(parts)
    fields = thing if isinstance(thing, dict) else _fields(thing)
    if fields is None:
        return thing
    copy = dict(fields)
    for name, value in fields.items():
        if type(value) not in _PLAIN_KINDS and name != _NOT_LOOKED_INTO:
            copy[name] = _copied(value, depth + 1, met)
    return copy if isinstance(thing, dict) else _Object(kind, copy)


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of an object by name; None if it has none that could be edited."""
    kind: Any = type(value)
    kept, slots = getattr(value, "__dict__", None), _slots_of(kind)
    if kept is None and not slots:
        return None
    return {**(kept or {}), **{name: getattr(value, name, None) for name in slots}}


@cache
def _slots_of(kind: Any) -> tuple[str, ...]:
    declared = (base.__dict__.get("__slots__", ()) for base in kind.__mro__)
    names = chain.from_iterable([names] if isinstance(names, str) else names for names in declared)
    return tuple(name for name in names if name not in _NO_FIELDS)
