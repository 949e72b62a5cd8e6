"""The names in a text, which of them a placeholder hides, and the texts that edits quote."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from offload.messages import Call
from offload.messages.calls import COMMAND_FIELDS, PATCH_FIELDS

_NAME = re.compile(r"\w[\w./:-]{5,80}", re.ASCII)
_MARKED = re.compile(r"[\d_/.]|[a-z][A-Z]")
_WORD = re.compile(r"\w{3,}")
_AROUND = 60
_MAX_OCCURRENCES = 50
_SHORTEST = 6
_CHARS_PER_TOKEN = 3.6

# Fields of the edits of clients with the text that they replace, and those with further edits.
_QUOTED = ("old_string", "old_str", "oldString", "oldText", "old_text")
_NESTED = ("edits", "input")
_PATCH = re.compile(r"^\*\*\* Begin Patch$.*?(?:^\*\*\* End Patch|\Z)", re.MULTILINE | re.DOTALL)
# The start of the lines of another hunk, and of those of another file.
_HUNK = re.compile(r"^@@.*$|^\*\*\* .*$", re.MULTILINE)
# A shorter line is not searched for: a bracket is everywhere.
_LEAST_LINE = 4


class EditQuote(NamedTuple):
    """A text that an edit quotes exactly.

    Attributes:
        text: the text.
        lines: its lines, stripped, each with the rows of the earlier texts that contain it.
    """

    text: str
    lines: Mapping[str, tuple[int, ...]]


def tokens_of(text: str) -> float:
    """Return the tokens of a text, by its characters."""
    return len(text) / _CHARS_PER_TOKEN


# Names


@lru_cache(4096)
def names_in(text: str) -> frozenset[str]:
    """Return the names in a text: paths, identifiers, numbers."""
    return _names_in(text)


def _names_in(text: str) -> frozenset[str]:
    tokens = (token.strip("./:-") for token in _NAME.findall(text))
    return frozenset(name for name in tokens if len(name) >= _SHORTEST and _MARKED.search(name))


@lru_cache(4096)
def hidden_names(text: str, names: frozenset[str], placeholder: str) -> frozenset[str]:
    """Return which of the `names` in `text` are hidden when `placeholder` replaces it."""
    views: dict[str, list[set[str]]] = {}
    for line in placeholder.split("\n"):
        for name in names & _names_in(line):
            views.setdefault(name, []).append(next(_words_around(line, name), set()))
    visible = {name for name, words in views.items() if _is_shown(text, name, words)}
    return names - visible


def _is_shown(text: str, name: str, views: list[set[str]]) -> bool:
    places = islice(_words_around(text, name), _MAX_OCCURRENCES)
    return any(words and 2 * len(words & view) >= len(words) for words in places for view in views)


def _words_around(text: str, name: str) -> Iterator[set[str]]:
    """Yield the words around each occurrence of `name` on its line, without the words of the name."""
    own, at = set(_WORD.findall(name)), text.find(name)
    while at >= 0:
        end = at + len(name)
        before = text[max(0, at - _AROUND) : at].rpartition("\n")[2]
        after = text[end : end + _AROUND].partition("\n")[0]
        yield set(_WORD.findall(f"{before} {after}")) - own
        at = text.find(name, end)


# Quotes


def quotes_in(call: Call) -> list[tuple[str, list[str]]]:
    """Return the texts that a tool call quotes, each with its lines, stripped; short lines do not count."""
    fields = call.fields
    texts = [*_edited(fields), *(old for patch in _patches(fields) for old in _replaced(patch))]
    lines = ([line.strip() for line in text.splitlines()] for text in texts)
    pairs = ((t, [n for n in some if len(n) >= _LEAST_LINE]) for t, some in zip(texts, lines, strict=True))
    return [(text, some) for text, some in pairs if some]


def _edited(value: Any) -> Iterator[str]:
    """Yield the texts that the edits in a value replace."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name in _QUOTED and isinstance(part, str):
                yield part
            elif name in _NESTED:
                yield from _edited(part)
    elif isinstance(value, list):
        for part in value:
            yield from _edited(part)


def _patches(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the patches in the fields of a call; a command may have one on its standard input."""
    for name in (*PATCH_FIELDS, *COMMAND_FIELDS):
        value = fields.get(name)
        for part in value if isinstance(value, list) else [value]:
            yield from _PATCH.findall(part) if isinstance(part, str) else ()
    if fields.get("type") == "update_file" and isinstance(diff := fields.get("diff"), str):
        yield diff


def _replaced(patch: str) -> Iterator[str]:
    """Yield the context and removed lines of each hunk of a patch."""
    for hunk in _HUNK.split(patch):
        old = [line[1:] for line in hunk.splitlines() if line.startswith((" ", "-"))]
        if old:
            yield "\n".join(old)
