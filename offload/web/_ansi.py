"""Colors of a terminal in a text: its SGR sequences as classes of the style sheet, all others dropped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from offload.web._color import ColorRun

_SEQUENCE = re.compile(
    r"\x1b(?:"
    r"\[(?P<sgr>[0-9;:]{0,64})m"
    r"|\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # another control sequence
    r"|[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"  # a string for the terminal: a title, a link
    r"|[ -/]{1,3}[0-~]|[0-OQ-WYZ\\a-z]"
    r")"
)
_ON = {1: "bold", 2: "dim", 3: "italic", 4: "under", 7: "swap"}
_OFF = {22: ("bold", "dim"), 23: ("italic",), 24: ("under",), 27: ("swap",)}
_FRONT, _BACK = ({*range(30, 38), *range(90, 98)}, {*range(40, 48), *range(100, 108)})
_GROUNDS = {38: "fg", 48: "bg"}
_BY_NUMBER, _BY_LIGHT = 5, 2
_CUBE, _GREYS, _COLORS = 16, 232, 256
# A color whose parts differ less is a grey.
_LEAST_SPREAD = 40


def has_colors(text: str) -> bool:
    """Return whether a text has a sequence that sets the style of a terminal."""
    return any(found["sgr"] is not None for found in _SEQUENCE.finditer(text))


def styled(text: str) -> Iterator[ColorRun]:
    """Yield runs of classes and text, without the sequences; the time is linear in the text."""
    style: dict[str, str] = {}
    end = 0
    for found in _SEQUENCE.finditer(text):
        if found.start() > end:
            yield _class_of(style), text[end : found.start()]
        end = found.end()
        if found["sgr"] is not None:
            _apply(style, found["sgr"])
    if end < len(text):
        yield _class_of(style), text[end:]


def _apply(style: dict[str, str], parameters: str) -> None:
    codes = iter([int(each[-4:] or 0) for each in re.split("[;:]", parameters)])
    for code in codes:
        if code == 0:
            style.clear()
        elif code in _ON:
            style[_ON[code]] = _ON[code]
        elif code in _OFF:
            for name in _OFF[code]:
                style.pop(name, None)
        elif code in _GROUNDS:
            style[_GROUNDS[code]] = _extended(codes)
        else:
            _set_ground(style, code)


def _set_ground(style: dict[str, str], code: int) -> None:
    for ground, colors, default in (("fg", _FRONT, 39), ("bg", _BACK, 49)):
        if code in colors:
            style[ground] = str(code % 10)
        elif code == default:
            style.pop(ground, None)


def _extended(codes: Iterator[int]) -> str:
    """Return the nearest of the eight colors to one that is given by its number or its light."""
    kind = next(codes, 0)
    if kind == _BY_LIGHT:
        return _nearest([next(codes, 0) for _ in range(3)])
    number = next(codes, 0) if kind == _BY_NUMBER else _COLORS
    if number < _CUBE:
        return str(number % 8)
    if number < _GREYS:
        return _nearest((number - _CUBE) // place % 6 * 51 for place in (36, 6, 1))
    return ""


def _nearest(lights: Iterable[int]) -> str:
    lights = list(lights)
    low, high = min(lights), max(lights)
    if high - low < _LEAST_SPREAD:
        return ""
    return str(sum((2 * light > low + high) << place for place, light in enumerate(lights)))


def _class_of(style: dict[str, str]) -> str:
    front, back = style.get("fg", ""), style.get("bg", "")
    if "swap" in style:
        front, back = back, front or "7"
    # A single color has enough contrast with any background.
    color = f"on on-{back}" if back else f"fg-{front}" if front else ""
    names = [color, *(name for name in ("bold", "dim", "italic", "under") if name in style)]
    return " ".join(name for name in names if name)
