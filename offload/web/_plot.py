"""Tokens over time as SVG paths, and tokens by tool as bars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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


def bars(values: Iterable[tuple[str, int]]) -> list[dict[str, Any]]:
    """Return the sums of named values, the largest first, each with its length in percent of the largest.

    After the first eight, one bar without a name has the rest.
    """
    sums = Counter[str]()
    for name, value in values:
        sums[name] += value
    ordered: list[tuple[str, int]] = sorted(sums.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(value for _, value in ordered[_BARS:])
    shown = ordered[:_BARS] + [("", rest)] * (len(ordered) > _BARS)
    most = max((value for _, value in shown), default=0) or 1
    return [{"name": name, "value": value, "length": round(100 * value / most, 1)} for name, value in shown]
