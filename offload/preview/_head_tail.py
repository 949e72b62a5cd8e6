"""The plain preview: the beginning and the end of a text."""

from __future__ import annotations

from typing import NamedTuple

_HEAD_SHARE = 0.6
# A line is completed, or a broken one dropped, within this share of the budget.
_SLACK = 0.4


class Preview(NamedTuple):
    """An excerpt of a text.

    Attributes:
        text: what is shown.
        head_chars: how many characters from the beginning it shows without a gap: where to read on.
    """

    text: str
    head_chars: int


def head_tail(text: str, max_chars: int, *, left_out: int = 0) -> Preview:
    """Return the beginning and the end of `text` in at most `max_chars` characters.

    Cuts fall on line borders where one is near, and the gap says how much it leaves out. The end has
    its share because exit codes, errors and totals stand there. Work is bounded by `max_chars`.

    Args:
        text: the text, or of one that is too long to be held its two ends, each of `max_chars` or more.
        max_chars: the most that is shown.
        left_out: how many characters stand between the two ends.
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
