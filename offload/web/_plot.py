"""Tokens over time as SVG paths, and tokens by tool, offloaded and read back, as bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

WIDTH, HEIGHT = 240, 100
_ROWS = 12
_BARS = 8


def plot(points: Iterable[tuple[float, int]]) -> dict[str, Any] | None:
    """Return the cumulative sum of time and value pairs; None if all have one time or the sum is 0.

    It has SVG paths of the curve and its area in a box of `WIDTH` by `HEIGHT`, and rows of times and sums for
    screen readers.
    """
    ordered = sorted(points)
    total = sum(value for _, value in ordered)
    if not total or ordered[0][0] == ordered[-1][0]:
        return None
    start, end = ordered[0][0], ordered[-1][0]
    added = [0] * (WIDTH + 1)
    for at, value in ordered:
        added[int((at - start) / (end - start) * WIDTH)] += value
    sums = list(accumulate(added))
    steps = "".join(f"H{x}V{HEIGHT - HEIGHT * value / total:.1f}" for x, value in enumerate(sums))
    line = f"M0,{HEIGHT}{steps}H{WIDTH}"
    every = WIDTH // _ROWS
    rows = [(start + (end - start) * x / WIDTH, sums[x]) for x in range(every, WIDTH + 1, every)]
    area = f"{line}V{HEIGHT}Z"
    return {"line": line, "area": area, "start": start, "end": end, "total": total, "rows": rows}


def curves(values: Sequence[tuple[int, int]], marks: Sequence[int]) -> dict[str, Any] | None:
    """Return two curves over numbered requests: tokens that were sent, and tokens without offloading.

    Args:
        values: for each request, the tokens that were sent and those that were not.
        marks: the indexes of requests to mark.

    Returns:
        SVG paths in a box of `WIDTH` by `HEIGHT`, the places of the marks in it, and the largest value. Of
        several requests at one place, the largest is shown. None for less than two requests.
    """
    most = max((sent + left for sent, left in values), default=0)
    last = len(values) - 1
    if last < 1 or not most:
        return None
    columns: dict[int, tuple[int, int]] = {}
    for index, (sent, left) in enumerate(values):
        x = round(WIDTH * index / last)
        known = columns.get(x, (0, 0))
        columns[x] = max(known[0], sent), max(known[1], sent + left)

    def path(which: int) -> str:
        points = (f"{x},{HEIGHT - HEIGHT * pair[which] / most:.1f}" for x, pair in sorted(columns.items()))
        return "M" + "L".join(points)

    places = sorted({round(WIDTH * mark / last) for mark in marks})
    return {"sent": path(0), "whole": path(1), "marks": places, "most": most, "count": len(values)}


def bars(values: Iterable[tuple[str, int, int]]) -> list[dict[str, Any]]:
    """Return the sums of named pairs of tokens, offloaded and read back, the largest first.

    Each has its lengths in percent of the largest. After the first eight, a bar without a name has the rest.
    """
    out, back = Counter[str](), Counter[str]()
    for name, tokens, read in values:
        out[name] += tokens
        back[name] += read
    names = sorted(out, key=lambda name: (-out[name], name))
    shown = [(name, out[name], back[name]) for name in names[:_BARS]]
    if rest := names[_BARS:]:
        shown.append(("", sum(map(out.__getitem__, rest)), sum(map(back.__getitem__, rest))))
    most = max((max(tokens, read) for _, tokens, read in shown), default=0) or 1
    return [
        {
            "name": name,
            "value": tokens,
            "read": read,
            "length": round(100 * tokens / most, 1),
            "read_length": round(100 * read / most, 1),
        }
        for name, tokens, read in shown
    ]
