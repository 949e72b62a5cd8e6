"""The sample of a text that a preview chooses from: bounded, as lines with numbers or offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from offload.base.patterns import lazy_pattern
from offload.base.text import encode_text, show_controls

# The sample lies within this distance of either end.
END_CHARS = 64 * 1024
# Errors are looked for in so many characters after the first end, or a third of them in text beyond ASCII.
MIDDLE_CHARS = 896 * 1024
# A text up to this size is sampled whole; a larger one at its two ends and at places between.
_WHOLE_CHARS = 24 * 1024
_WHOLE_LINES = 768
_HEAD_CHARS = 8 * 1024
_TAIL_CHARS = 4 * 1024
_SAMPLES = 4
_SAMPLE_CHARS = 3 * 512
_HITS_PER_WORD = 3
_HIT_GAP = 200
_MOST_HITS = 24
# A part with lines shorter than this on average ends earlier.
_LINE_CHARS = 24
# A part begins and ends on a line border if one is this near.
REACH = 400
# Otherwise it begins so many characters earlier.
_BEFORE = 60

# A longer line is split into pieces, each cut at a space if one is near.
_PIECE_CHARS = 170
_AFTER_SPACE = lazy_pattern("(?s:.{130,})[\0 ,;。\N{FULLWIDTH COMMA}]")
# Short JSON items are kept whole, and lines of a JSON string.
_AFTER_ITEM = lazy_pattern(r"(?s:.{50,})\}, ?(?=\{)")
_LEAST_PIECE = 50
_MAX_CLUSTER = 8
# Colors, returns, bells and backspaces are left out; other controls are shown, and part words as they do.
_UNSEEN = lazy_pattern(r"\x1b\[[0-9;?]*[A-Za-z]|[\x07\x08\x0d\x1b]")
_CONTROLS = bytes([*range(0x09), *range(0x0B, 0x20), 0x7F])
# Characters that continue the one before: combining marks, variation selectors, joiners, low surrogates.
# Python's own table differs between versions.
_CONTINUING = lazy_pattern(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1-\u05c2\u05c4-\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e4\u06e7-\u06e8\u06ea-\u06ed\u0730-\u074a\u0897-\u089f\u08ca-\u08ff\u093c\u094d\u09bc\u09cd"
    "\u0a3c\u0a4d\u0abc\u0acd\u0b3c\u0b4d\u0bcd\u0c4d\u0cbc\u0ccd\u0d4d\u0dca\u0e38-\u0e3a\u0e48-\u0e4b\u0eb8-\u0eba"
    "\u0ec8-\u0ecb\u0f71-\u0f84\u1039-\u103a\u17d2\u1ab0-\u1aff\u1dc0-\u1dff\u200d\u20d0-\u20ff\u302a-\u302f\u3099-\u309a"
    "\ufe00-\ufe0f\ufe20-\ufe2f\U0001f3fb-\U0001f3ff\udc00-\udfff]"
)

# A line number printed by a tool, such as `cat -n`.
_GUTTER = lazy_pattern(r" {0,9}([0-9]{1,9})(?:→|\t|: |:(?=\S)|\| ?)")
_GUTTER_SAMPLE = 24
_GUTTER_SHARE = 0.7


_Part = tuple[int, int, int]
# Words to look for, each with the parts of the text that may have it.
Words = Sequence[tuple[str, Sequence[range]]]


class SampledText(NamedTuple):
    """The lines of a text that a preview may show, in order; a long line is several of them.

    Attributes:
        texts: each as a preview shows it, without indentation or the number that a tool printed before it.
        labels: for each its number, from 1, or `@` and its character offset if its number is unknown.
        ends: for each its end in the sampled text.
        unbroken: how many of them, from the first, follow one another in the text.
        shift: the number printed in the text minus the line number, 0 if the text prints none.
    """

    texts: list[str]
    labels: list[str]
    ends: list[int]
    unbroken: int = 0
    shift: int = 0


def sample_of(
    text: str,
    wanted: Words = (),
    left_out: int = 0,
    middle: str = "",
    hidden: Words = (),
    *,
    begin: int = END_CHARS,
) -> SampledText:
    """Return the sample of a text, or of its two ends of `END_CHARS` with `left_out` characters between.

    The first occurrences of the words `wanted` are sampled, and those of `hidden` in `middle`, which is the
    beginning of what is left out and begins at `begin`.
    """
    parts = _parts(text, wanted, END_CHARS if left_out else len(text))
    shift = _own_numbers(text[: parts[0][1]].split("\n", _GUTTER_SAMPLE)[:_GUTTER_SAMPLE])
    sample = SampledText([], [], [])
    ends = [part for part in parts if part[0] >= END_CHARS] if middle else []
    for part in parts[: len(parts) - len(ends)]:
        _add_part(sample, text, part, shift, left_out)
    unbroken = bisect_right(sample.ends, parts[0][1])
    for part in _lines_at(_places_of(hidden, middle, 0, len(middle)), middle):
        _add_part(sample, middle, part, shift, begin)
    for part in ends:
        _add_part(sample, text, part, shift, left_out)
    return sample._replace(unbroken=unbroken, shift=shift or 0)


def _parts(text: str, wanted: Words, joint: int) -> list[_Part]:
    """Return the parts to sample, in order and without overlap: start, end, number of the first line.

    The number is 0, unknown, after `joint`, where the first end of a longer text meets the last.
    """
    if len(text) <= _WHOLE_CHARS and text.count("\n") < _WHOLE_LINES:
        return [(0, len(text), 1)]
    parts: list[_Part] = []
    number, counted = 1, 0
    for start, end in sorted(_on_borders(text, *span, joint) for span in _spans(text, wanted)):
        if parts and start < parts[-1][1]:
            first, last, line = parts[-1]
            parts[-1] = first, max(last, end), line
            continue
        number, counted = number + text.count("\n", counted, start), start
        parts.append((start, end, number if start < joint else 0))
    return parts


def _spans(text: str, wanted: Words) -> Iterator[tuple[int, int]]:
    head = _first_lines(text, 0, min(_HEAD_CHARS, len(text) // 3))
    tail = _last_lines(text, min(_TAIL_CHARS, len(text) // 6))
    yield 0, head
    for n in range(1, _SAMPLES + 1):
        start = head + (tail - head) * n // (_SAMPLES + 1)
        yield start, _first_lines(text, start, _SAMPLE_CHARS)
    yield tail, len(text)
    yield from ((at, at + 1) for at in _places_of(wanted, text, head, tail))


def _places_of(words: Words, text: str, start: int, end: int) -> Iterator[int]:
    """Yield the first places of words in a part of a text."""

    def place(word: str, parts: Sequence[range], start: int) -> int:
        places = (text.find(word, max(start, part.start), min(end, part.stop)) for part in parts)
        return next((at for at in places if at >= 0), -1)

    left = _MOST_HITS
    hits = [(place(word, parts, start), word, parts) for word, parts in words]
    for _ in range(_HITS_PER_WORD):
        hits = [hit for hit in hits if hit[0] >= 0][:left]
        left -= len(hits)
        yield from (at for at, *_ in hits)
        hits = [(place(word, parts, at + _HIT_GAP), word, parts) for at, word, parts in hits]


def _lines_at(places: Iterable[int], text: str) -> Iterator[_Part]:
    """Yield the lines of a text at some places, in order and each once, without their numbers."""
    last = -1
    for at in sorted(places):
        start, end = _on_borders(text, at, at + 1, len(text))
        if start > last:
            yield start, end, 0
            last = end


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
    begin = text.rfind("\n", max(low, start - REACH), start) + 1 or max(low, start - _BEFORE)
    last = min(high, end + REACH)
    border = text.find("\n", end, last)
    return begin, last if border < 0 else border


def _own_numbers(lines: Sequence[str]) -> int | None:
    """Return the shift of the numbers that a tool printed before the first lines, None if it printed none."""
    matches = ((_GUTTER.match(line), number) for number, line in enumerate(lines, 1))
    shifts = [int(match[1]) - number for match, number in matches if match]
    common = max(shifts, key=shifts.count, default=None)
    return common if shifts.count(common or 0) >= _GUTTER_SHARE * len(lines) else None


def _add_part(sample: SampledText, text: str, part: _Part, shift: int | None, left_out: int) -> None:
    texts, labels, ends, *_ = sample
    start, stop, number = part
    chunk = text[start:stop]
    data = encode_text(chunk)
    # A translation takes a fortieth of the time of a search.
    is_clean = len(data.translate(None, _CONTROLS)) == len(data)
    # The first and the last line of a part may be incomplete.
    first_cut = start if _mark(text, start) else -1
    last_cut = stop if _mark(text, stop) else -1
    skipped = 0 if number else left_out
    for line in chunk.split("\n"):
        body = line if shift is None else _without_number(line, number + shift)
        end = start + len(line)
        seen = body if is_clean else _seen(body)
        if bare := seen.strip():
            has_frames = not is_clean and "\r" in body.rstrip("\r")
            if len(seen) > _PIECE_CHARS or has_frames or start == first_cut or end == last_cut:
                begin = end - len(body.lstrip())
                _add_pieces(sample, text, (start, begin, end), number, skipped, is_clean=is_clean)
            else:
                texts.append(bare)
                labels.append(str(number) if number else f"@{start + skipped}")
                ends.append(end)
        start = end + 1
        if number:
            number += 1


def _add_pieces(
    sample: SampledText, text: str, span: _Part, number: int, skipped: int, *, is_clean: bool
) -> None:
    """Add a long or incomplete line: its beginning, that of its content, and its end are `span`."""
    start, begin, end = span
    mark = _mark(text, start)
    label = f"@{start + skipped}" if mark or not number else str(number)
    while start < end:
        stop = _piece_end(text, begin, end)
        piece = text[begin:stop] if is_clean else _seen(text[begin:stop].replace("\r", " "))
        last_mark = _mark(text, stop)
        if piece := piece.strip():
            sample.texts.append(f"{mark}{piece}{last_mark[::-1]}")
            sample.labels.append(label)
            sample.ends.append(stop)
        start = begin = stop
        mark, label = last_mark, f"@{stop + skipped}"


def _seen(text: str) -> str:
    return show_controls(_UNSEEN.sub("", text))


def _without_number(line: str, number: int) -> str:
    match = _GUTTER.match(line)
    return line[match.end() :] if match and int(match[1]) == number else line


def _mark(text: str, at: int) -> str:
    """Return the mark of a cut, with a space if the word next to it is whole."""
    if at == 0 or text[at - 1] in "\r\n" or text[at : at + 1] in ("", "\n"):
        return ""
    return "… " if text[at - 1].isspace() else "…"


def _piece_end(text: str, begin: int, end: int) -> int:
    """Return the end of a piece: the return before the next frame of a progress bar, or a space."""
    stop = begin + _PIECE_CHARS
    frame = text.find("\r", begin + _LINE_CHARS, min(stop, end - 1))
    if frame >= 0:
        return frame + 1
    if stop >= end:
        return end
    line = text.rfind("\\n", begin + _LEAST_PIECE, stop)
    if line >= 0:
        return line + 2
    tag = text.find(">", text.rfind("</", begin + _LEAST_PIECE, stop), stop) + 1
    if tag > begin + _LEAST_PIECE:
        return tag
    cut = _AFTER_ITEM.match(text, begin, stop) or _AFTER_SPACE.match(text, begin, stop)
    return cut.end() if cut else _cluster_start(text, stop)


def _cluster_start(text: str, at: int) -> int:
    """Return the beginning of the character that contains `text[at]`, within a few code points."""
    for place in range(at, at - _MAX_CLUSTER, -1):
        if not _CONTINUING.match(text, place) and text[place - 1] != "\N{ZERO WIDTH JOINER}":
            return place
    return at
