"""Shared by all benchmarks: figures with budgets, paired timing, peak memory, tables.

A benchmark is a program with one function `figures(is_quick)` that yields what it measured, and
`run(__doc__, figures)` at its end.
"""

from __future__ import annotations

import argparse
import json
import operator
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
# The high-water mark of this address space: ru_maxrss would begin at that of the parent process.
_PRINT_PEAK = """
import re
print("\\npeak", re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """One result.

    Attributes:
        name: what was measured.
        value: the figure.
        unit: its unit; "x" is a ratio.
        at_most: the budget, where less is better.
        at_least: the budget, where more is better.
        detail: what the figure was made from, for a person.
    """

    name: str
    value: float
    unit: str = "x"
    at_most: float | None = None
    at_least: float | None = None
    detail: str = ""

    @property
    def verdict(self) -> str:
        """Return "ok" within the budget, "over" beyond it, "" without one."""
        if self.at_most is None and self.at_least is None:
            return ""
        is_high = self.at_most is not None and self.value > self.at_most
        is_low = self.at_least is not None and self.value < self.at_least
        return "over" if is_high or is_low else "ok"

    @property
    def budget(self) -> str:
        """Return the budget as it is printed."""
        if self.at_most is not None and self.at_most == self.at_least:
            return f"= {self.at_most:g}"
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return "" if self.at_least is None else f">= {self.at_least:g}"


@dataclass(frozen=True, slots=True)
class Paired:
    """Times of two candidates for the same work, round by round.

    Attributes:
        ours: seconds of the candidate.
        raw: seconds of the reference.
        cpu: median seconds of this process's CPU, of both.
    """

    ours: Sequence[float]
    raw: Sequence[float]
    cpu: tuple[float, float]

    @property
    def ratio(self) -> float:
        """The ratio of the median times."""
        return median(self.ours) / median(self.raw)

    @property
    def detail(self) -> str:
        """Both medians, and the quartiles of the ratio over the rounds."""
        quotients = list(map(operator.truediv, self.ours, self.raw))
        low, _, high = quantiles(quotients, n=4)
        return (
            f"{duration(median(self.ours))} to {duration(median(self.raw))}, quartiles {low:.2f}-{high:.2f}"
        )

    @property
    def cpu_detail(self) -> str:
        """The detail, and the CPU of both: what is left of a ratio where the disk or the server is slow."""
        return f"{self.detail}, CPU {' to '.join(map(duration, self.cpu))}"


def compare(
    ours: Callable[[T], object], raw: Callable[[T], object], rounds: int, make: Callable[[int], T]
) -> Paired:
    """Time two candidates in turn on the same work.

    They alternate within one process, and so does which of them goes first: what the machine does
    meanwhile falls on both. One round more than asked for runs first and is not counted.

    Args:
        ours: the candidate.
        raw: the reference.
        rounds: how often each is timed, at least 2.
        make: returns the work of a round, outside the time.
    """
    times: dict[Callable[[T], object], list[float]] = {ours: [], raw: []}
    cpu: dict[Callable[[T], object], list[float]] = {ours: [], raw: []}
    for number in range(rounds + 1):
        work = make(number)
        for candidate in (ours, raw) if number % 2 else (raw, ours):
            before = time.process_time()
            times[candidate].append(seconds(candidate, work))
            cpu[candidate].append(time.process_time() - before)
    return Paired(times[ours][1:], times[raw][1:], (median(cpu[ours][1:]), median(cpu[raw][1:])))


def seconds(function: Callable[..., object], *args: Any) -> float:
    """Return how long `function(*args)` takes."""
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start


def repeat(function: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of a call, after one that is not counted."""
    function()
    return median(seconds(function) for _ in range(rounds))


def peak_memory(program: str, *args: str) -> int:
    """Return the peak resident memory in bytes of a Python process that runs `program`."""
    return numbers_of(program, *args)["peak"]


def numbers_of(program: str, *args: str) -> dict[str, int]:
    """Return the numbers that a Python process prints after their names, and its "peak" memory in bytes.

    Args:
        program: the source; `sys.argv[1:]` are `args`.
        args: arguments.
    """
    command = [sys.executable, "-c", program + _PRINT_PEAK, *args]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = (line.split() for line in done.stdout.splitlines())
    numbers = {line[0]: int(line[-1]) for line in lines if line and line[-1].isdecimal()}
    return numbers | {"peak": numbers["peak"] * 1024}


def require(is_so: bool, otherwise: str) -> None:
    """Raise `RuntimeError(otherwise)` unless `is_so`: a benchmark of work that was not done is worthless."""
    if not is_so:
        raise RuntimeError(otherwise)


def duration(value: float) -> str:
    """Return seconds as a person reads them."""
    scale, unit = next((u for u in _UNITS if value >= u[0]), _UNITS[-1])
    return f"{value / scale:.3g} {unit}"


def size(count: int) -> str:
    """Return bytes or characters as a person reads them: 1 KB is 1,000."""
    scale, unit = next((u for u in ((10**9, "GB"), (10**6, "MB"), (1000, "KB")) if count >= u[0]), (1, "B"))
    return f"{count / scale:g} {unit}"


def run(about: str | None, figures: Callable[..., Iterable[Figure]], **flags: str) -> None:
    """Run one benchmark as a program: `[--quick] [--json FILE]`; prints each figure as it comes.

    Args:
        about: the program's docstring; its first line heads the table.
        figures: yields the figures; its argument says whether to take fewer rounds and smaller sizes.
        flags: more options that `figures` takes by keyword, with their help.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    for name, meaning in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=meaning)
    options = parser.parse_args()
    print(f"\n{(about or '').partition(chr(10))[0]}\n")
    found = []
    for figure in figures(options.quick, **{name: getattr(options, name) for name in flags}):
        found.append(figure)
        print_figure(figure)
    if options.json:
        rows = [asdict(f) | {"verdict": f.verdict} for f in found]
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def print_figure(figure: Figure) -> None:
    """Print one row of the table."""
    value = f"{figure.value:,.4g}" if figure.value < 10**4 else f"{figure.value:,.0f}"
    shown = f"{value} {figure.unit}"
    print(f"{figure.name:<72} {shown:>12} {figure.budget:>8} {figure.verdict:<4} {figure.detail}", flush=True)
