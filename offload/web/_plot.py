"""Tokens over time, as the path of a plot that a template draws."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

WIDTH, HEIGHT = 240, 100
_ROWS = 12


class Plot(NamedTuple):
    """A sum that grows over time.

    Attributes:
        line: the path of its curve, in a box of `WIDTH` by `HEIGHT` whose y points down.
        area: the path of what lies under the curve.
        start: when it begins, in seconds since the epoch.
        end: when it ends.
        total: what it comes to.
        rows: times and what the sum was then, for who cannot see the curve.
    """

    line: str
    area: str
    start: float
    end: float
    total: int
    rows: list[tuple[float, int]]


def plot(points: Iterable[tuple[float, int]]) -> Plot | None:
    """Return the plot of the sum of what was added at each time; None where there is no curve to see."""
    ordered = sorted(points)
    total = sum(value for _, value in ordered)
    if not total or ordered[0][0] == ordered[-1][0]:
        return None
    start, end = ordered[0][0], ordered[-1][0]
    sums = _sums(ordered, start, end)
    steps = "".join(f"H{x}V{HEIGHT - HEIGHT * value / total:.1f}" for x, value in enumerate(sums))
    line = f"M0,{HEIGHT}{steps}H{WIDTH}"
    every = WIDTH // _ROWS
    times = [start + (end - start) * x / WIDTH for x in range(WIDTH + 1)]
    rows = list(zip(times, sums, strict=True))[every::every]
    return Plot(line, f"{line}V{HEIGHT}Z", start, end, total, rows)


def _sums(ordered: list[tuple[float, int]], start: float, end: float) -> list[int]:
    """Return the sum at each place from left to right."""
    added = [0] * (WIDTH + 1)
    for at, value in ordered:
        added[int((at - start) / (end - start) * WIDTH)] += value
    sums, so_far = [], 0
    for value in added:
        so_far += value
        sums.append(so_far)
    return sums
