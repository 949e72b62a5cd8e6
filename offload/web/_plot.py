"""Tokens over time as SVG paths."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

WIDTH, HEIGHT = 240, 100
_ROWS = 12


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
