"""Views of a record: its outline (members of a JSON value or structural lines of a text), and matches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from offload.base.text import count
from offload.engine.preview.kinds import Kind, kind_of
from offload.engine.preview.names import TROUBLE
from offload.engine.preview.sample import END_CHARS, sample_of
from offload.errors import ConfigError
from offload.reading.tools.budget import BUDGET, Budget, BudgetExceeded
from offload.reading.tools.pointer import CONTAINERS, JsonValue, PointerReader
from offload.reading.tools.search import Pattern, Search, Span
from offload.records.codec.content import StoredContent
from offload.web._paging import page_at
from offload.web._tree import MAX_CHARS, PREVIEW_CHARS, Node, name_of, nodes_left, tree

_SHOWN, _SHOWN_MATCHES = 200, 50
_LINE_CHARS = 200
# A larger container is a list of its members.
_TREE_MEMBERS = 50
_WINDOW_CHARS = 256 * 1024
_VALUE_CHARS = 4000
_BEFORE_CHARS = 100
_MATCH_CHARS = 200
_AFTER_CHARS = 160
# Lines of at least this worth are headings.
_MIN_WORTH = 0.5
_JSON_KINDS = ("JSON", "JSON lines")


def outline(content: StoredContent, pointer: str, line: int) -> dict[str, Any]:
    """Return the outline of the JSON value at `pointer`, or of any other text from `line`, for its template.

    Raises `ConfigError` if the pointer matches nothing, the JSON is malformed, or the value is too large.
    """
    kind = kind_of_content(content)
    if kind.name not in _JSON_KINDS:
        return _text_outline(content, kind, line)
    try:
        return _json_outline(content, pointer)
    except BudgetExceeded:
        raise ConfigError(f"value too large for one request ({BUDGET})") from None


def kind_of_content(content: StoredContent) -> Kind:
    """Return the kind of a content, judged by its two ends."""
    left_out = max(0, content.chars - 2 * END_CHARS)
    ends = content.text(0, END_CHARS) + content.text(max(END_CHARS, content.chars - END_CHARS), content.chars)
    return kind_of(sample_of(ends, left_out=left_out).texts)


def _json_outline(content: StoredContent, pointer: str) -> dict[str, Any]:
    """Return a value with pointer and description of its first members, or the beginning of a scalar's text.

    Its size, the number of members, is None if counting takes too long.
    """
    reader = PointerReader(content)
    value = reader.find(pointer)
    shown: dict[str, Any] = {"is_json": True, "value": value, "page": page_at(content, value.start)}
    if value.kind not in CONTAINERS:
        text = content.text(value.start, min(value.end, value.start + _VALUE_CHARS))
        return shown | {"tree": None, "members": [], "size": None, "text": text}
    beginning = content.text(value.start, min(value.end, value.start + MAX_CHARS))
    if value.end - value.start <= MAX_CHARS and (root := tree(beginning, value.pointer)) is not None:
        return shown | {"tree": root}
    members, size = list[JsonValue](), None
    with suppress(BudgetExceeded):
        for member in islice(reader.members(value), _SHOWN):
            members.append(member)  # These are kept if the budget is spent.
        size = reader.count(value)
    left = nodes_left()
    nodes = [_node(each, beginning, value.start, left) for each in members]
    if size is not None and size <= _TREE_MEMBERS:
        return shown | {"tree": Node(value.pointer, "", count(size, "member"), nodes)}
    return shown | {"tree": None, "members": nodes, "size": size, "text": ""}


def _node(member: JsonValue, beginning: str, start: int, left: list[int]) -> Node:
    """Return a member as a tree if the `beginning` of its container, from `start`, has all of it."""
    name, text = name_of(member.pointer), beginning[member.start - start : member.end - start]
    if member.end - start <= len(beginning):
        found = tree(text, member.pointer, name, left=left)
        if found is not None:
            return found
    return Node(
        member.pointer,
        name,
        member.description,
        preview=text[:PREVIEW_CHARS] + "…" * (len(text) > PREVIEW_CHARS),
    )


def _text_outline(content: StoredContent, kind: Kind, line: int) -> dict[str, Any]:
    """Return structural lines, each with its page, and the line to continue from, None at the end."""
    budget = Budget()
    headings, next_line = list[dict[str, Any]](), None
    for number, char, text in _lines(content, line):
        next_line = number
        try:
            budget.check()
        except BudgetExceeded:
            break
        if _is_heading(kind, text):
            if len(headings) == _SHOWN:
                break
            page = page_at(content, char)
            headings.append({"line": number, "text": text[:_LINE_CHARS], "page": page})
    else:
        next_line = None
    return {"is_json": False, "kind": kind.name, "headings": headings, "next_line": next_line}


def _is_heading(kind: Kind, text: str) -> bool:
    has_trouble = bool(kind.trouble) and any(word in text for word in TROUBLE)
    return has_trouble or kind.worth(text) >= _MIN_WORTH


def _lines(content: StoredContent, number: int) -> Iterator[tuple[int, int, str]]:
    """Yield number, offset and beginning of each line from `number`, with one window of text in memory."""
    start = content.line_start(number)
    while start < content.chars:
        text = content.text(start, start + _WINDOW_CHARS)
        *whole, rest = text.split("\n")
        is_last = start + len(text) >= content.chars
        for line in [*whole, rest] if is_last else whole or [rest]:
            yield number, start, line[:_LINE_CHARS]
            start += len(line) + 1
            number += 1
        if not whole:  # the line ends after the window
            start = content.line_start(number)


# Search


def find(content: StoredContent, pattern: Pattern, start: int) -> dict[str, Any]:
    """Search `content` from byte `start` until enough matches are found or the budget of a call is spent.

    Returns the matches in order, the byte to continue from if any, and whether the budget ended the search.
    """
    budget = Budget()
    matches, next_byte, is_stopped = list[dict[str, Any]](), None, False
    offset, chunks = content.chunks_from(start)
    search = Search(pattern, start, budget.check)
    try:
        for span in search.find(budget.metered(chunks), offset=offset):
            if len(matches) == _SHOWN_MATCHES:
                next_byte = span.start
                break
            matches.append(match_of(content, span))
    except BudgetExceeded:
        next_byte, is_stopped = search.searched_to, True
    return {"matches": matches, "next_byte": next_byte, "is_stopped": is_stopped}


def match_of(content: StoredContent, span: Span) -> dict[str, Any]:
    """Return a match, the rest of its line on both sides, each part shortened, and the page that shows it."""
    start, end = content.char_at(span.start), content.char_at(span.end)
    return {
        "line": content.line_at(start),
        "page": page_at(content, start),
        "before": content.text(start - _BEFORE_CHARS, start).rpartition("\n")[2],
        "text": content.text(start, min(end, start + _MATCH_CHARS)),
        "after": content.text(end, end + _AFTER_CHARS).partition("\n")[0],
    }
