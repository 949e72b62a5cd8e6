"""The sample of a text that a preview chooses from: bounded, as lines with numbers or offsets."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from offload.locks import cached

# The sample lies within this distance of either end.
END_CHARS = 64 * 1024
# A text up to this size is sampled whole; a larger one at its two ends and at places between.
_WHOLE_CHARS = 24 * 1024
_WHOLE_LINES = 1024
_HEAD_CHARS = 8 * 1024
_TAIL_CHARS = 4 * 1024
_SAMPLES = 4
_SAMPLE_CHARS = 3 * 512
# A part with lines shorter than this on average ends earlier.
_LINE_CHARS = 16
_HITS_PER_WORD = 3
# A part begins and ends on a line border if one is this near.
_REACH = 400

# A longer line is split into pieces, each cut at a space if one is near.
_PIECE_CHARS = 170
_CUT_BACK = 40
_CUT_AFTER = (" ", ",", ";", "。", "\N{FULLWIDTH COMMA}")
# Short JSON items are kept whole.
_BETWEEN_ITEMS = ("}, {", "},{")
_ITEM_BACK = 120
_MAX_CLUSTER = 8
_INDENT_STEP = 4
_MAX_INDENT = 3
_UNSEEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
# Characters that continue the one before: combining marks, variation selectors, joiners, low surrogates.
# Python's own table differs between versions.
_CONTINUING = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1-\u05c2\u05c4-\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7-\u06e8\u06ea-\u06ed\u0730-\u074a\u0897-\u089f\u08ca-\u08ff\u093c\u094d\u09bc\u09cd"
    "\u0a3c\u0a4d\u0abc\u0acd\u0b3c\u0b4d\u0bcd\u0c4d\u0cbc\u0ccd\u0d4d\u0dca\u0e38-\u0e3a\u0e48-\u0e4b\u0eb8-\u0eba"
    "\u0ec8-\u0ecb\u0f71-\u0f84\u1039-\u103a\u17d2\u1ab0-\u1aff\u1dc0-\u1dff\u200d\u20d0-\u20ff\u302a-\u302f\u3099-\u309a"
    "\ufe00-\ufe0f\ufe20-\ufe2f\U0001f3fb-\U0001f3ff\udc00-\udfff]"
)

# A line number printed by a tool, such as `cat -n`.
_GUTTER = re.compile(r" {0,9}([0-9]{1,9})(?:→|\t|: |:(?=\S)|\| ?)")
_GUTTER_SAMPLE = 24
_GUTTER_SHARE = 0.7


class Line(NamedTuple):
    """A line that may be shown, or a piece of a long one.

    Attributes:
        label: its number, from 1, or `@` and its character offset if it has no number or an unknown one.
        start: its beginning in the sampled text.
        end: its end there.
        text: its text in a preview.
        is_opening: whether it begins a paragraph: the first line, or one after an empty line.
        is_continued: whether it is a piece of a line that begins before it.
        cost: the characters it takes in a preview.
    """

    label: str
    start: int
    end: int
    text: str
    is_opening: bool
    is_continued: bool
    cost: int


class SampledText:
    """The sampled part of a text.

    Args:
        text: the whole text, or its two ends of `END_CHARS` each.
        wanted: words whose first and last occurrences in `text` are sampled.
        left_out: characters between the two ends.

    Attributes:
        lines: the lines that are not empty, in order.
        unbroken: how many of them, from the first, follow one another in the text.
        shift: the number printed in the text minus the line number, 0 if the text prints none. The printed
            numbers are not part of the lines.
    """

    def __init__(self, text: str, wanted: Sequence[str] = (), left_out: int = 0) -> None:
        parts = _parts(text, wanted, END_CHARS if left_out else len(text))
        raw = [line for part in parts for line in _split(text, part)]
        shift = _own_numbers(raw)
        self.shift = shift or 0
        self.lines = list(_pieces(text, raw, shift, left_out))
        self.unbroken = sum(1 for line in self.lines if line.start < parts[0].end)

    def places(self, word: str, at_most: int) -> list[int]:
        """Return the indices of the lines with `word`, none if there are more than `at_most`."""
        places: list[int] = []
        # Most words are absent, and a search from the end finds that out fastest.
        at = -1 if self.joined.rfind(word) < 0 else self.joined.find(word)
        while at >= 0:
            places.append(bisect_right(self._starts, at) - 1)
            if len(places) > at_most:
                return []
            at = self.joined.find(word, self._starts[places[-1] + 1])
        return places

    @cached
    def joined(self) -> str:
        """The lines as one text."""
        return "\n".join(line.text for line in self.lines)

    @cached
    def _starts(self) -> list[int]:
        return [0, *accumulate(len(line.text) + 1 for line in self.lines)]


class _Part(NamedTuple):
    start: int
    end: int
    number: int | None


class _Raw(NamedTuple):
    start: int
    number: int | None
    text: str


def _parts(text: str, wanted: Sequence[str], joint: int) -> list[_Part]:
    """Return the parts to sample, in order and without overlap, each with the number of its first line.

    Numbers are unknown after `joint`, where the first end of a longer text meets the last.
    """
    if len(text) <= _WHOLE_CHARS and text.count("\n") < _WHOLE_LINES:
        return [_Part(0, len(text), 1)]
    parts: list[_Part] = []
    number, counted = 1, 0
    for first, end in sorted(_on_borders(text, *span, joint) for span in _spans(text, wanted)):
        start = max(first, parts[-1].end if parts else 0)
        if start >= end:
            continue
        number, counted = number + text.count("\n", counted, start), start
        parts.append(_Part(start, end, number if start < joint else None))
    return parts


def _spans(text: str, wanted: Sequence[str]) -> Iterator[tuple[int, int]]:
    head = _first_lines(text, 0, min(_HEAD_CHARS, len(text) // 3))
    tail = _last_lines(text, min(_TAIL_CHARS, len(text) // 6))
    yield 0, head
    for n in range(1, _SAMPLES + 1):
        start = head + (tail - head) * n // (_SAMPLES + 1)
        yield start, _first_lines(text, start, _SAMPLE_CHARS)
    yield tail, len(text)
    for at in _hits(text, wanted, head, tail):
        yield at, at + 1


def _first_lines(text: str, start: int, chars: int) -> int:
    """Return the end of `chars` characters from `start`, or of the short lines that replace them."""
    most = chars // _LINE_CHARS
    lines = text[start : start + chars].split("\n", most)
    return start + chars - (len(lines[most]) if len(lines) > most else 0)


def _last_lines(text: str, chars: int) -> int:
    """Return the beginning of the last `chars` characters, or of the short lines that replace them."""
    most = chars // _LINE_CHARS
    lines = text[len(text) - chars :].rsplit("\n", most)
    return len(text) - chars + (len(lines[0]) + 1 if len(lines) > most else 0)


def _on_borders(text: str, start: int, end: int, joint: int) -> tuple[int, int]:
    low, high = (0, joint) if start < joint else (joint, len(text))
    begin = text.rfind("\n", max(low, start - _REACH), start) + 1 or start
    last = min(high, end + _REACH)
    border = text.find("\n", end, last)
    return begin, last if border < 0 else border


def _hits(text: str, words: Sequence[str], head: int, tail: int) -> Iterator[int]:
    """Yield the first places of the words after the head, and the last before the tail."""
    low = max(head, len(text) - END_CHARS)
    # Most words are absent, and a search from the end finds that out fastest.
    for word in (w for w in words if text.rfind(w, head) >= 0):
        first, last = head - 1, tail
        for _ in range(_HITS_PER_WORD):
            first = text.find(word, first + 1, END_CHARS)
            if first < 0:
                break
            yield first
        for _ in range(_HITS_PER_WORD):
            last = text.rfind(word, low, last)
            if last < 0:
                break
            yield last


def _split(text: str, part: _Part) -> Iterator[_Raw]:
    start, number = part.start, part.number
    for line in text[part.start : part.end].split("\n"):
        yield _Raw(start, number, line)
        start += len(line) + 1
        number = None if number is None else number + 1


def _own_numbers(raw: Sequence[_Raw]) -> int | None:
    """Return the shift of the numbers that a tool printed before the lines, None if it printed none."""
    sample = [line for line in raw[:_GUTTER_SAMPLE] if line.number is not None]
    found = ((_GUTTER.match(line.text), line.number) for line in sample)
    shifts = [int(match[1]) - number for match, number in found if match and number]
    common = max(shifts, key=shifts.count, default=None)
    return common if shifts.count(common or 0) >= _GUTTER_SHARE * len(sample) else None


def _pieces(text: str, raw: Sequence[_Raw], shift: int | None, left_out: int) -> Iterator[Line]:
    is_opening = True
    for line in raw:
        body = line.text if shift is None else _without_number(line, shift)
        bare = body.lstrip()
        if not bare:
            is_opening = True
            continue
        end = line.start + len(line.text)
        indent = " " * min((len(body) - len(bare) + _INDENT_STEP - 1) // _INDENT_STEP, _MAX_INDENT)
        is_start = text[line.start - 1 : line.start] in ("", "\n")
        skipped = left_out if line.number is None else 0
        label = str(line.number) if is_start and line.number is not None else f"@{line.start + skipped}"
        begin = end - len(bare)
        stop = _piece_end(text, begin, end)
        shown = indent + text[begin:stop]
        yield _shown(text, label, (line.start, stop), shown, is_opening=is_opening, is_continued=not is_start)
        while stop < end:
            begin, stop = stop, _piece_end(text, stop, end)
            yield _shown(text, f"@{begin + skipped}", (begin, stop), text[begin:stop], is_continued=True)
        is_opening = False


def _without_number(line: _Raw, shift: int) -> str:
    match = _GUTTER.match(line.text)
    is_own = match and line.number is not None and int(match[1]) == line.number + shift
    return line.text[match.end() :] if match and is_own else line.text


def _shown(
    text: str,
    label: str,
    span: tuple[int, int],
    content: str,
    *,
    is_opening: bool = False,
    is_continued: bool = False,
) -> Line:
    start, end = span
    # No version of Python calls any of these characters printable.
    if not content.isprintable():
        content = _UNSEEN.sub("", content)
    shown = f"{_mark(text, start)}{content.rstrip()}{_mark(text, end)[::-1]}"
    return Line(label, start, end, shown, is_opening, is_continued, len(label) + len(shown) + 2)


def _mark(text: str, at: int) -> str:
    """Return the mark of a cut, with a space if the word next to it is whole."""
    if at == 0 or text[at - 1] == "\n" or text[at : at + 1] in ("", "\n"):
        return ""
    return "… " if text[at - 1].isspace() else "…"


def _piece_end(text: str, begin: int, end: int) -> int:
    stop = begin + _PIECE_CHARS
    if stop >= end:
        return end
    item = max(text.rfind(mark, stop - _ITEM_BACK, stop) for mark in _BETWEEN_ITEMS)
    if item >= 0:
        return text.index("{", item)
    after = max(text.rfind(mark, stop - _CUT_BACK, stop) for mark in _CUT_AFTER)
    return after + 1 if after >= 0 else _cluster_start(text, stop)


def _cluster_start(text: str, at: int) -> int:
    """Return the beginning of the character that contains `text[at]`, within a few code points."""
    for place in range(at, at - _MAX_CLUSTER, -1):
        if not _continues(text[place]) and text[place - 1] != "\N{ZERO WIDTH JOINER}":
            return place
    return at


def _continues(char: str) -> bool:
    """Return whether `char` continues the one before it: an accent, a variation, half of a pair."""
    return _CONTINUING.match(char) is not None
