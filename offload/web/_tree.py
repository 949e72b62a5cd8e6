"""A small JSON value as a tree that a template renders, with a pointer to each member."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from offload.base.text import count

MAX_CHARS = 32 * 1024
_MAX_NODES, _MAX_MEMBERS, _MAX_DEPTH = 500, 50, 6
_MAX_TEXT = 300
PREVIEW_CHARS = 90
_PREVIEWED, _SHORT_CHARS = 5, 30
_NO_JSON = object()
# Members of a container that is open at first, if it has at most so many.
_OPEN = 12


class Node(NamedTuple):
    """A member of a value; `members` is None for a scalar, and `text` is then its JSON, shortened.

    Of a container, `hidden` members are not shown, and `preview` is its beginning.
    """

    pointer: str
    name: str
    text: str
    members: list[Node] | None = None
    hidden: int = 0
    preview: str = ""

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


class _JsonNumber(str):
    """A number as it is written."""

    __slots__ = ()


def tree(text: str, pointer: str, name: str = "", *, left: list[int] | None = None) -> Node | None:
    """Return the value that `text` is the JSON of, at `pointer`; None if it has too many members to show.

    Also None if it is not JSON, or too deep for the parser. `left` counts down the nodes that several trees
    may have together.
    """
    value = _parsed(text)
    root = None if value is _NO_JSON else _node(pointer, name, value, left or nodes_left(), _MAX_DEPTH)
    return None if root is None or root.hidden else root


def members_of(text: str) -> list[tuple[Node, str | None]] | None:
    """Return the members of the object that `text` is the JSON of, each with its text if it is one.

    None if it is not a JSON object; of more than 50 members, the first.
    """
    value, left = _parsed(text), nodes_left()
    if not isinstance(value, _Pairs):
        return None
    return [
        (_node(f"/{_escaped(key)}", key, member, left, _MAX_DEPTH), _text_of(member))
        for key, member in value[:_MAX_MEMBERS]
    ]


def nodes_left() -> list[int]:
    """Return a new count of the nodes that one page may still have."""
    return [_MAX_NODES]


def _parsed(text: str) -> Any:
    try:
        return json.loads(
            text,
            object_pairs_hook=_Pairs,
            parse_int=_JsonNumber,
            parse_float=_JsonNumber,
            parse_constant=_JsonNumber,
        )
    except (ValueError, RecursionError):
        return _NO_JSON


def _text_of(value: Any) -> str | None:
    return value if isinstance(value, str) and not isinstance(value, _JsonNumber) else None


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
    size = count(len(pairs), "member" if is_object else "item")
    preview = _preview(value, is_object=is_object)
    return Node(pointer, name, size, members, len(pairs) - len(members), preview)


def _preview(value: Any, *, is_object: bool) -> str:
    """Return the first members of a container on one line."""
    shown = [
        f"{json.dumps(each[0], ensure_ascii=False)}: {_short(each[1])}" if is_object else _short(each)
        for each in value[:_PREVIEWED]
    ]
    text = ", ".join(shown + ["…"] * (len(value) > _PREVIEWED))
    text = text if len(text) <= PREVIEW_CHARS else text[:PREVIEW_CHARS] + "…"
    return f"{{{text}}}" if is_object else f"[{text}]"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "{…}" if isinstance(value, _Pairs) else "[…]"
    return _scalar(value, _SHORT_CHARS)


def name_of(pointer: str) -> str:
    """Return the key of the member that a pointer ends with."""
    return pointer.rpartition("/")[2].replace("~1", "/").replace("~0", "~")


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _scalar(value: Any, most: int = _MAX_TEXT) -> str:
    text = str(value) if isinstance(value, _JsonNumber) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else text[:most] + "…"
