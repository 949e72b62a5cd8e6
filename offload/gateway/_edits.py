"""The changes that the engine made in the messages of a request, as changes of its body."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem, itemgetter
from typing import Any

from offload.gateway._parsed import Parsed
from offload.gateway._spans import Edit, Path, Places, body_of, read, replaced
from offload.gateway._views import (
    MARKS,
    RESPONSES,
    dicts_in,
    is_of_client,
    is_placeholder,
    result_field,
    take_marks,
)
from offload.messages.access import edits
from offload.messages.base import BlockIndex
from offload.messages.formats import role_or_none, scan_of
from offload.messages.thinking import signed_thinking

_RETURNED = [(name, "response") for name in RESPONSES]
_STEP_RETURNED = ("result",)


@dataclass(slots=True)
class Edited:
    """A request with the messages that the engine returned, and the client's bytes in all else.

    Attributes:
        parsed: the request.
        edits: by message, the changes of its text.
        problems: why messages are as the client has them though the engine changed them.
    """

    parsed: Parsed
    edits: dict[int, list[Edit]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def is_changed(self) -> bool:
        """Whether the body is another than that of the client."""
        return any(self.edits.values())

    def body(self) -> bytes:
        """Return the body that is sent."""
        return body_of(replaced(self.parsed.text, [edit for made in self.edits.values() for edit in made]))

    def message(self, index: int) -> Any:
        """Return a message as it is sent, without cache marks."""
        first, last = self.parsed.starts[index], self.parsed.ends[index]
        edits = [Edit(start - first, end - first, text) for start, end, text in self.edits.get(index, ())]
        message = json.loads(read(replaced(self.parsed.text[first:last], edits)))
        if isinstance(message, dict):
            take_marks(message)
            for _, block in dicts_in(message):
                for holder in (block, *(inner for _, inner in dicts_in(block))):
                    take_marks(holder)
        return message

    def look_alikes(self) -> list[Any]:
        """Return the messages as they are sent with texts that the engine saw as placeholders already."""
        hidden = (index for (index, _), tail in self.parsed.tails.items() if is_placeholder(tail))
        return [self.message(index) for index in dict.fromkeys(hidden) if index >= self.parsed.first]


def edited(parsed: Parsed, messages: Sequence[Any]) -> Edited:
    """Return a request with the messages that the engine returned for its views.

    One that cannot be changed is kept, and `problems` says why.
    """
    if len(messages) != len(parsed.views):
        raise ValueError("other messages than those of the request")
    made, places = Edited(parsed), Places(parsed.text)
    for index in edits(parsed.views, messages):
        if index < parsed.first:
            continue
        new, (known, changes) = messages[index], parsed.edits.get(index, (None, []))
        try:
            if known is not new:
                changes = [*_EditedMessage(parsed, places, index, parsed.views[index]).edits(new)]
                parsed.edits[index] = new, changes
            made.edits[index] = changes
        except ValueError:
            # The text of the error may quote the message.
            made.problems.append("a message cannot be changed")
    return made


def held_back(
    parsed: Parsed, messages: Sequence[Any], items: Collection[tuple[int, BlockIndex]]
) -> list[Any]:
    """Return what the engine returned for the views, with some items whole, by message and block."""
    held = list(messages)
    for index in {message for message, _ in items}:
        view = parsed.views[index]
        with suppress(ValueError):  # `edited` says it.
            changes = [c for c in _changes(view, held[index]) if not _is_in(items, index, c[0])]
            held[index] = _changed(view, changes) if changes else view
    return held


@dataclass(frozen=True, slots=True)
class _EditedMessage:
    """A message of a request: its index, and its view."""

    parsed: Parsed
    places: Places
    index: int
    view: Any

    def edits(self, new: Any) -> Iterator[Edit]:
        """Yield the changes of its text for what the engine returned. Raises `ValueError`."""
        if role_or_none(self.view) == "assistant":
            yield from self._reply_edits(new)
            return
        changes = [one for one in _changes(self.view, new) if _is_replaceable(self.view, one[0])]
        marks = self._moved_marks(changes)
        for path, value in changes:
            yield self._edit(path, value, marks.get(path, ""))

    @property
    def _start(self) -> int:
        return self.parsed.starts[self.index]

    def _tail(self, *path: str | int) -> str:
        return self.parsed.tails.get((self.index, path), "")

    def _reply_edits(self, new: Any) -> Iterator[Edit]:
        """Yield the changes for thinking that `new` lacks, and for arguments; all else of a reply is kept."""
        yield from self._without_thinking(new)
        for (path, arguments), (_, others) in zip(_arguments(self.view), _arguments(new), strict=True):
            if arguments != others:
                place = self.places.find(self._start, path)
                yield Edit(place.start, place.end, json.dumps(others))

    def _without_thinking(self, new: Any) -> Iterator[Edit]:
        """Yield the changes for the blocks of thinking that `new` lacks."""
        kept = {one.key for one in signed_thinking(new)}
        gone = [one.path for one in signed_thinking(self.view) if one.key not in kept]
        for path in dict.fromkeys(path[:-1] for path in gone):
            left: Any = reduce(getitem, path, new)
            instead = ", ".join(map(json.dumps, left))
            indexes = [int(one[-1]) for one in gone if one[:-1] == path]
            yield from self.places.without(self._start, path, indexes, instead)

    def _moved_marks(self, changes: Sequence[tuple[Path, Any]]) -> dict[Path, str]:
        """Return by the path of a new text the cache marks of a block that left with it."""
        moved: dict[Path, str] = {}
        texts = {path[:-2]: path for path, value in changes if value is not None and len(path) > 1}
        for path, value in changes:
            marks, target = self._tail(*path, MARKS), texts.get(path[:-1])
            is_gone = value is None and not self._tail(*path, "text")
            if marks and is_gone and target and not self._tail(*target[:-1], MARKS):
                moved[target] = marks
        return moved

    def _edit(self, path: Path, value: Any, mark: str) -> Edit:
        if value is None and (tail := self._tail(*path, "text")):
            # The text of the block went to another one; its reminder is kept.
            path, value = (*path, "text"), tail.lstrip()
        elif isinstance(value, str):
            value += self._tail(*path)
        place = self.places.find(self._start, path)
        if value is None:
            return Edit(place.before, place.end, "")
        return Edit(place.start, place.end, json.dumps(value) + mark)


def _is_replaceable(message: Any, path: Path) -> bool:
    """Return whether the text at `path` is of a result or a text of the client."""
    if path[0] == "parts":
        return bool(message.get("role") != "model")
    if path[0] == result_field(message) or (path[0] == "content" and is_of_client(message)):
        return True
    return path[0] == "content" and path[2:3] == ("content",)


def _arguments(message: Any) -> list[tuple[Path, Any]]:
    """Return the arguments of each tool call in a reply with their path, in order."""
    paths = [item.path for item in scan_of(message).items if item.item_type == "tool_call"]
    return [(path, reduce(getitem, path, message)) for path in paths]


def _is_in(items: Collection[tuple[int, BlockIndex]], message: int, path: Path) -> bool:
    """Return whether a change is of one of `items`; outside of a content a message is one result."""
    blocks = (None, *path[1:2]) if path[0] in ("content", "parts") and len(path) > 1 else None
    places = ((at, block[0] if isinstance(block, tuple) else block) for at, block in items)
    return any(at == message and (blocks is None or block in blocks) for at, block in places)


def _changes(old: Any, new: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the texts that differ with their paths in `old`, and the blocks that are gone with None.

    A result of Gemini is an object, which may be replaced by another one.

    Raises:
        ValueError: anything else differs.
    """
    if old is new:
        return
    if _is_one(old, new, path):
        if old != new:
            yield path, new
    elif isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for name, value in old.items():
            yield from _changes(value, new[name], (*path, name))
    elif isinstance(old, list) and isinstance(new, list):
        yield from _list_changes(old, new, path)
    elif old != new:
        raise ValueError(f"an unexpected change at {path}")


def _changed(message: Any, changes: Sequence[tuple[Path, Any]]) -> Any:
    """Return a message with some changes that `_changes` yielded."""
    new = deepcopy(message)
    # The last blocks first: one that is gone moves those behind it.
    for path, value in sorted(changes, key=itemgetter(0), reverse=True):
        holder = reduce(getitem, path[:-1], new)
        if value is None:
            del holder[path[-1]]
        else:
            holder[path[-1]] = value
    return new


def _is_one(old: Any, new: Any, path: Path) -> bool:
    """Return whether a value is replaced as one: a text, or an object by one with other fields."""
    if (path[-2:] in _RETURNED or path == _STEP_RETURNED) and isinstance(old, dict) and isinstance(new, dict):
        return bool(old.keys() != new.keys())
    return isinstance(old, str) and isinstance(new, str)


def _list_changes(old: list[Any], new: list[Any], path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the changes of a list of blocks; if one was replaced for several, the others of them are gone."""
    is_shorter = len(new) < len(old)
    is_replaced = False
    rest = list(reversed(new))
    for index, value in enumerate(old):
        if rest and rest[-1] is value:
            rest.pop()
        elif is_shorter and is_replaced:
            yield (*path, index), None
        elif rest:
            is_replaced = True
            yield from _changes(value, rest.pop(), (*path, index))
    if rest or len(new) > len(old):
        raise ValueError(f"an unexpected change at {path}")
