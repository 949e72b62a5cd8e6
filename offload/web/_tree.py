"""A small JSON value as a tree that a template renders, with a pointer to each member."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

MAX_CHARS = 32 * 1024
_MAX_NODES, _MAX_MEMBERS, _MAX_DEPTH = 500, 50, 6
_MAX_TEXT = 300
# Members of a container that is open at first, if it has at most so many.
_OPEN = 12


class Node(NamedTuple):
    """A member of a value; `members` is None for a scalar, and `text` is then its JSON, shortened.

    Of a container, `hidden` members are not shown.
    """

    pointer: str
    name: str
    text: str
    members: list[Node] | None = None
    hidden: int = 0

    @property
    def is_open(self) -> bool:
        """Whether its members are shown before a visitor opens it."""
        return (
            self.members is not None
            and len(self.members) <= _OPEN
            and self.pointer.count("/") < _MAX_DEPTH // 2
        )


class _Pairs(list[tuple[str, Any]]):
    """The members of an object, which may have one name twice."""


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def tree(text: str, pointer: str) -> Node | None:
    """Return the value that `text` is the JSON of, at `pointer`; None if it has too many members to show.

    Also None if it is no JSON, or too deep for the parser.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_Number
        )
    except (ValueError, RecursionError):
        return None
    root = _node(pointer, "", value, [_MAX_NODES], _MAX_DEPTH)
    return None if root.hidden else root


def _node(pointer: str, name: str, value: Any, left: list[int], depth: int) -> Node:
    """Return a node; `left` counts the nodes that may follow."""
    left[0] -= 1
    if not isinstance(value, list):
        return Node(pointer, name, _scalar(value))
    is_object = isinstance(value, _Pairs)
    pairs = value if is_object else [(str(n), member) for n, member in enumerate(value)]
    members = list[Node]()
    for key, member in pairs[:_MAX_MEMBERS] if depth else ():
        if left[0] <= 0:
            break
        members.append(_node(f"{pointer}/{_escaped(key)}", key, member, left, depth - 1))
    noun = ("member" if is_object else "item") + "s" * (len(pairs) != 1)
    return Node(pointer, name, f"{len(pairs):,} {noun}", members, len(pairs) - len(members))


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _scalar(value: Any) -> str:
    text = str(value) if isinstance(value, _Number) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…"
