"""A cost at growing sizes: its exponent, its row in the table, its plot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import linear_regression

from _measure import Figure, duration

PLOTS = Path(__file__).resolve().parent / "plots"
# Points that lie on a line by eye; noise of the machine moves a slope by less.
_TOLERANCE = 0.15
_MANY = 10_000


@dataclass(frozen=True, slots=True)
class Curve:
    """Costs measured as a size grows.

    Attributes:
        name: what was measured.
        of: what grows: the name of the horizontal axis.
        points: size and seconds, in order of size.
        expected: the exponent that the design promises at most: 0 is flat, 1 proportional.
        since: the size from which on it is promised; below it a constant cost hides the growth.
    """

    name: str
    of: str
    points: Sequence[tuple[float, float]]
    expected: float
    since: float = 0

    @property
    def exponent(self) -> float:
        """Slope of the line through the points from `since` on, both axes logarithmic."""
        kept = [(log(x), log(y)) for x, y in self.points if x >= self.since]
        return linear_regression(*zip(*kept, strict=True)).slope

    @property
    def steepest(self) -> float:
        """The largest slope between two neighbours from `since` on: a line would hide a bend."""
        kept = [(log(x), log(y)) for x, y in self.points if x >= self.since]
        return max((d - b) / (c - a) for (a, b), (c, d) in pairwise(kept))

    def figures(self) -> Iterator[Figure]:
        """Yield the exponent, with the points as its detail; draw the plot where matplotlib is installed."""
        shown = ", ".join(f"{_count(x)}: {duration(y)}" for x, y in self.points)
        since = f" from {_count(self.since)} on" if self.since else ""
        yield Figure(
            f"{self.name}: exponent by {self.of}{since}, expected {self.expected:g}",
            round(self.exponent, 3),
            "",
            at_most=self.expected + _TOLERANCE,
            detail=f"steepest {self.steepest:.2f}; {shown}",
        )
        self._draw()

    def _draw(self) -> None:
        try:
            import matplotlib as mpl  # noqa: PLC0415 # only the dependency group `bench` has it
        except ImportError:
            return
        mpl.use("agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415 # only plots need it

        x, y = zip(*self.points, strict=True)
        begin = next(i for i, size in enumerate(x) if size >= self.since)
        figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
        axes.loglog(x, y, "o-", label=f"measured, exponent {self.exponent:.2f}")
        promised = [y[begin] * (size / x[begin]) ** self.expected for size in x[begin:]]
        axes.loglog(x[begin:], promised, "--", label=f"expected, exponent {self.expected:g}")
        axes.set(title=self.name, xlabel=self.of, ylabel="seconds")
        axes.legend()
        PLOTS.mkdir(exist_ok=True)
        figure.savefig(PLOTS / f"{self.name.replace(' ', '-')}.png", dpi=120)
        plt.close(figure)


def _count(size: float) -> str:
    return f"{size:,.0f}" if size < _MANY else f"{size:.3g}"
