"""Previews of a text: its beginning and end, or the lines and names that a model needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from offload.base.binary import unreadable_kind
from offload.base.patterns import lazy_pattern
from offload.engine.preview._choose import Choice
from offload.engine.preview._json import json_shape
from offload.engine.preview.kinds import PATHS, Kind, kind_of
from offload.engine.preview.names import MAX_QUERY_CHARS, TROUBLE, error_parts, further_names, terms_of
from offload.engine.preview.sample import END_CHARS, MIDDLE_CHARS, REACH, SampledText, sample_of

_HEAD_SHARE = 0.6
# A cut moves to a line border within this share of the budget.
_SLACK = 0.4
# With less room, single lines without their context say nothing.
_LEAST_CHARS = 200
# A page, its parts that no reader sees, and images within a text.
_PAGE = lazy_pattern(r"(?i)<(?:!doctype html|html)\b")
_UNSEEN = lazy_pattern(r"(?is)<(style|script)\b.*?(?:</\1\s*>|\Z)")
_PAGE_HEAD = 2000
_IMAGE = lazy_pattern(r"[A-Za-z0-9+/]{400,}={0,2}")
_REMINDER = ("<system-reminder>", "</system-reminder>")
_MOST_REMINDERS = 3
# A common folder of paths is shown once if its length is between these.
_LEAST_FOLDER = 8
_MOST_FOLDER = 80
_MAX_WANTED = 8


class Preview(NamedTuple):
    """An excerpt; `head_chars` of the beginning are in it without a gap, so a read continues there."""

    text: str
    head_chars: int


def preview_of(
    text: str,
    max_chars: int,
    *,
    query: str = "",
    left_out: int = 0,
    middle: str = "",
    names_chars: int = 0,
) -> Preview:
    """Return the parts of `text` that a model needs, in at most `max_chars` characters.

    It shows the first and the last line; lines that carry the structure of their kind of content
    (definitions, headings, files of a diff, errors), match the query, or hold many names that no other line
    holds; and names of hidden lines. Each line follows its number, from 1, or `@` and its offset in
    characters, as `context_read` takes them. Log lines that differ only in numbers and spaces are shown once,
    with the count of the others. Binary content and base64 are named, not shown.

    Pure and deterministic. Work is bounded: only samples of the two ends of a long text are examined.

    Args:
        text: the text; for one too long to hold, its two ends, each of 65,536 characters.
        max_chars: the most characters of the excerpt; with fewer than 200 it is the beginning and the end.
        query: the text that lines are ranked against: the tool-call arguments, the last messages.
        left_out: the number of characters between the two ends.
        middle: the first of these, up to 917,504, in which errors are looked for.
        names_chars: the most characters of further names, which a search finds; they follow the excerpt.
    """
    if len(text) <= max_chars or max_chars < _LEAST_CHARS:
        return head_tail(text, max_chars, left_out=left_out)
    if hidden_kind := unreadable_kind(text):
        return Preview(f"[Preview: {hidden_kind}, not shown]", 0)
    if len(text) > 2 * END_CHARS:
        left_out += len(text) - 2 * END_CHARS
        text = text[:END_CHARS] + text[-END_CHARS:]
    sampled = _without_unseen(_without_reminders(text))
    terms = terms_of(query[:MAX_QUERY_CHARS])
    found = error_parts(sampled)
    middle = middle if middle.isascii() else middle[: MIDDLE_CHARS // 3]
    middle, begin = _with_borders(text, middle, left_out)
    hidden = dict(islice(error_parts(middle).items(), _MAX_WANTED)) if left_out else {}
    wanted = [*found.items(), *((term, [range(len(sampled))]) for term in [*terms][:_MAX_WANTED])]
    sample = sample_of(sampled, wanted, left_out, middle, [*hidden.items()], begin=begin)
    trouble = [*(found | hidden)]
    kind = kind_of(sample.texts)
    folder = _common_folder(sample.texts) if kind is PATHS else ""
    sample = sample._replace(texts=[path[len(folder) :] for path in sample.texts]) if folder else sample
    intro = _intro(kind, sample, folder, json_shape(text, max_chars // 4) if kind.name == "JSON" else "")
    room = max_chars - len(intro) - len(_names_line([""]))
    chosen = Choice(sample, kind, terms, trouble, room)
    if not chosen.lines:
        return head_tail(text, max_chars, left_out=left_out)
    lines = [f"{sample.labels[i]} {sample.texts[i]}{note}" for i, note in sorted(chosen.lines.items())]
    names = [
        *chosen.names,
        *further_names(_apart(sampled, left_out), [*lines, *chosen.names], names_chars),
    ]
    shown = "\n".join([intro, *lines, *[_names_line(names)] * bool(names)])
    return Preview(shown, _head_chars(sample, sorted(chosen.lines)))


def head_tail(text: str, max_chars: int, *, left_out: int = 0) -> Preview:
    """Return the beginning and the end of `text` in at most `max_chars` characters; see `preview_of`.

    Cuts fall on line borders if one is near, and the gap gives its size. The end gets a share because it has
    exit codes, errors and totals. Work is bounded by `max_chars`.
    """
    if len(text) <= max_chars:
        return Preview(text, len(text))
    chars = len(text) + left_out
    room = max_chars - len(_gap(chars))
    if room <= 0:
        return Preview("", 0)
    head = _cut_head(text, int(room * _HEAD_SHARE))
    tail = _cut_tail(text, room - len(head))
    return Preview(head + _gap(chars - len(head) - len(tail)) + tail, len(head))


def _with_borders(text: str, middle: str, left_out: int) -> tuple[str, int]:
    """Return the middle of a text and its offset, with what is beyond a border that an error word crosses."""
    before, after = text[END_CHARS - REACH : END_CHARS], text[END_CHARS : END_CHARS + REACH]
    if middle and len(middle) == left_out and _has_word_across(middle, after):
        middle += after
    if middle and _has_word_across(before, middle):
        return before + middle, END_CHARS - REACH
    return middle, END_CHARS


def _has_word_across(left: str, right: str) -> bool:
    return any(word in left[1 - len(word) :] + right[: len(word) - 1] for word in TROUBLE)


def _intro(kind: Kind, sample: SampledText, folder: str, shape: str) -> str:
    numbers = "Line or @character numbers" if "@" in "".join(sample.labels) else "Line numbers"
    direction = "higher" if sample.shift > 0 else "lower"
    own = f"; numbers printed in the text are {abs(sample.shift)} {direction}" if sample.shift else ""
    under = f"; each path below begins with {folder}" if folder else ""
    return f"[Preview: {kind.name}{shape and ' '}{shape}. {numbers} at left{own}{under}]"


def _common_folder(paths: Sequence[str]) -> str:
    """Return the folder that all of the paths are in, "" if it is too short to be worth a mention."""
    first, last = min(paths), max(paths)
    alike = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), 0)
    folder = first[: first.rfind("/", 0, alike) + 1]
    return folder if _LEAST_FOLDER <= len(folder) <= _MOST_FOLDER else ""


def _without_reminders(text: str) -> str:
    """Return `text` without the notes that a harness appended to it."""
    for _ in range(_MOST_REMINDERS):
        start = text.rfind(_REMINDER[0]) if text.rstrip().endswith(_REMINDER[1]) else -1
        text = text if start < 0 else text[:start]
    return text


def _without_unseen(text: str) -> str:
    """Return `text` with spaces in place of the styles and scripts of a page, and of images."""
    if _PAGE.search(text, 0, _PAGE_HEAD):
        text = _UNSEEN.sub(_spaces, text)
    return _IMAGE.sub(_spaces, text) if "image/" in text else text


def _spaces(match: re.Match[str]) -> str:
    return "\n".join(" " * len(line) for line in match[0].split("\n"))


def _apart(text: str, left_out: int) -> str:
    """Return `text` with a border between the ends of a longer one, which have no name in common."""
    return f"{text[:END_CHARS]}\n{text[END_CHARS:]}" if left_out else text


def _names_line(names: list[str]) -> str:
    return f"[Names within it: {' '.join(names)}]"


def _head_chars(sample: SampledText, lines: Sequence[int]) -> int:
    """Return how many characters of the beginning are shown without a gap."""
    run = [line for i, line in enumerate(lines[: sample.unbroken]) if i == line]
    return sample.ends[run[-1]] if run else 0


def _gap(chars: int) -> str:
    return f"\n[… {chars} characters left out …]\n"


def _cut_head(text: str, room: int) -> str:
    border = text.rfind("\n", int(room * (1 - _SLACK)), room)
    return text[: room if border < 0 else border]


def _cut_tail(text: str, room: int) -> str:
    if room <= 0:
        return ""
    start = len(text) - room
    border = text.find("\n", start - 1, start + int(room * _SLACK))
    return text[start if border < 0 else border + 1 :]
