"""What a preview looks at: a bounded part of a text, as lines with the numbers by which they are read."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from offload.locks import cached

# Nothing is looked at that lies further than this from both ends.
END_CHARS = 64 * 1024
# Of a text up to this size every line is looked at; of a larger one its two ends and samples between.
_WHOLE_CHARS = 24 * 1024
_WHOLE_LINES = 1024
_HEAD_CHARS = 8 * 1024
_TAIL_CHARS = 4 * 1024
_SAMPLES = 4
_SAMPLE_CHARS = 3 * 512
# Each of them ends earlier where its lines are shorter than this.
_LINE_CHARS = 16
_HITS_PER_WORD = 3
# A part begins and ends on a border of lines if there is one as near as this.
_REACH = 400

# A longer line is shown in pieces, each cut at a space if there is one near.
_PIECE_CHARS = 170
_CUT_BACK = 40
_CUT_AFTER = (" ", ",", ";", "。", "\N{FULLWIDTH COMMA}")
# The items of a JSON are kept whole where they are short.
_BETWEEN_ITEMS = ("}, {", "},{")
_ITEM_BACK = 120
_MAX_CLUSTER = 8
_INDENT_STEP = 4
_MAX_INDENT = 3
_UNSEEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
# What belongs to the character before it: marks of the scripts that have them, signs that choose its form,
# joiners, the second halves of surrogate pairs. Python's own table differs from version to version.
_CONTINUING = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1-\u05c2\u05c4-\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7-\u06e8\u06ea-\u06ed\u0730-\u074a\u0897-\u089f\u08ca-\u08ff\u093c\u094d\u09bc\u09cd"
    "\u0a3c\u0a4d\u0abc\u0acd\u0b3c\u0b4d\u0bcd\u0c4d\u0cbc\u0ccd\u0d4d\u0dca\u0e38-\u0e3a\u0e48-\u0e4b\u0eb8-\u0eba"
    "\u0ec8-\u0ecb\u0f71-\u0f84\u1039-\u103a\u17d2\u1ab0-\u1aff\u1dc0-\u1dff\u200d\u20d0-\u20ff\u302a-\u302f\u3099-\u309a"
    "\ufe00-\ufe0f\ufe20-\ufe2f\U0001f3fb-\U0001f3ff\udc00-\udfff]"
)

# A number that a tool wrote before a line, as `cat -n` does.
_GUTTER = re.compile(r" {0,9}([0-9]{1,9})(?:→|\t|: |:(?=\S)|\| ?)")
_GUTTER_SAMPLE = 24
_GUTTER_SHARE = 0.7


class Line(NamedTuple):
    """A line that may be shown, or a piece of a long one.

    Attributes:
        label: its number, from 1; `@` and an offset in characters where it has none, or it is not known.
        start: where it begins in what the view was made of.
        end: where it ends there.
        text: what is shown of it.
        is_opening: whether it begins a paragraph: the first line, or one after an empty line.
        is_continued: whether it is a piece of a line that begins before it.
        cost: characters that it takes to show it.
    """

    label: str
    start: int
    end: int
    text: str
    is_opening: bool
    is_continued: bool
    cost: int


class SampledText:
    """The part of a text that is looked at.

    Args:
        text: the whole text, or its two ends of `END_CHARS` each.
        wanted: words of which the first and the last in all of `text` are looked at.
        left_out: how many characters stand between the two ends.

    Attributes:
        lines: the lines that are not empty, in order.
        unbroken: how many of them, from the first, follow one another in the text.
        shift: what is to be added to a line's number for the number that the text gives it itself, 0 where
            it numbers no lines. Those numbers are not part of the lines.
    """

    def __init__(self, text: str, wanted: Sequence[str] = (), left_out: int = 0) -> None:
        parts = _parts(text, wanted, END_CHARS if left_out else len(text))
        raw = [line for part in parts for line in _split(text, part)]
        shift = _own_numbers(raw)
        self.shift = shift or 0
        self.lines = list(_pieces(text, raw, shift, left_out))
        self.unbroken = sum(1 for line in self.lines if line.start < parts[0].end)

    def places(self, word: str, at_most: int) -> list[int]:
        """Return the indices of the lines with `word` in them, none if there are more than `at_most`."""
        found: list[int] = []
        # Most words stand nowhere, and a search from behind tells that soonest.
        at = -1 if self.joined.rfind(word) < 0 else self.joined.find(word)
        while at >= 0:
            found.append(bisect_right(self._starts, at) - 1)
            if len(found) > at_most:
                return []
            at = self.joined.find(word, self._starts[found[-1] + 1])
        return found

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
    """Return what to look at, in order and apart, with the number of the first line where it is known.

    Nothing is known of the numbers behind `joint`, where the first end of a longer text meets the last.
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
    """Return where so many characters from `start` on end, or the lines that have their place."""
    most = chars // _LINE_CHARS
    lines = text[start : start + chars].split("\n", most)
    return start + chars - (len(lines[most]) if len(lines) > most else 0)


def _last_lines(text: str, chars: int) -> int:
    """Return where the last so many characters begin, or the lines that have their place."""
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
    """Yield where the words stand first behind the head, and last before the tail."""
    low = max(head, len(text) - END_CHARS)
    # Most words stand nowhere, and a search from behind tells that soonest.
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
    """Return how far the numbers that a tool wrote before the lines lie from ours, None if there are none."""
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
    # No version of Python takes for printable what is cut out here.
    if not content.isprintable():
        content = _UNSEEN.sub("", content)
    shown = f"{_mark(text, start)}{content.rstrip()}{_mark(text, end)[::-1]}"
    return Line(label, start, end, shown, is_opening, is_continued, len(label) + len(shown) + 2)


def _mark(text: str, at: int) -> str:
    """Return the mark of a cut: it stands close to a word that is cut itself, apart from a whole one."""
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
    """Return where the character that `text[at]` is a part of begins, as far as that is cheap to see."""
    for place in range(at, at - _MAX_CLUSTER, -1):
        if not _continues(text[place]) and text[place - 1] != "\N{ZERO WIDTH JOINER}":
            return place
    return at


def _continues(char: str) -> bool:
    """Tell whether `char` belongs to the one before it: an accent, a variation, the rest of a pair."""
    return _CONTINUING.match(char) is not None
