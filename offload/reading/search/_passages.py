"""Cutting a text into passages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from offload.base.binary import encoding_of, is_binary

PASSAGE_CHARS = 1200
# A passage that ends within a line ends at a space, if there is one so near.
_NEAR = 200
_SAMPLE_CHARS = 1000
_BASE64 = re.compile(r"(?:data:[\w/.+;=-]{1,200},)?[A-Za-z0-9+/]{500,}={0,2}", re.ASCII)


class Cut(NamedTuple):
    """A passage of a text: its first character, from 0, its first line, from 1, and its text."""

    start: int
    line: int
    text: str


def cut_passages(chunks: Iterable[str]) -> Iterator[Cut]:
    """Yield the passages of a text that comes in chunks: whole lines if these are not too long."""
    rest, start, line = "", 0, 1
    for chunk in chunks:
        rest, place = rest + chunk, 0
        while len(rest) - place > PASSAGE_CHARS:
            end = _end(rest, place)
            text = rest[place:end]
            yield Cut(start, line, text)
            start, line, place = start + len(text), line + text.count("\n"), end
        rest = rest[place:]
    if rest:
        yield Cut(start, line, rest)


def why_unsearchable(text: str) -> str:
    """Return why a content with this beginning has no words to find: binary, base64; "" for a text."""
    sample = text[:_SAMPLE_CHARS]
    if encoding := encoding_of(sample):
        return f"too long to decode from {encoding.upper()}"
    return "binary content" if is_binary(sample) or _BASE64.fullmatch(sample) else ""


def _end(text: str, start: int) -> int:
    end = start + PASSAGE_CHARS
    newline = text.rfind("\n", start, end)
    if newline >= start:
        return newline + 1
    space = text.rfind(" ", end - _NEAR, end)
    return space + 1 if space >= 0 else end
