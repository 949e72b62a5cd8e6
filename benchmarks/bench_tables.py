"""Drawn tables of many kinds: how many are read, and how many damaged ones are misread in silence.

A table of each kind is drawn, and is read right, or refused. One that is read is damaged: a foreign line,
a cut end, a missing cell, a bar in a cell, mixed line ends, a second table behind the first. The damaged text
is read as before, or the answer says what was not, or there is no table: else it is misread in silence.
"""

from __future__ import annotations

from collections.abc import Iterator

from _measure import Figure, run
from _tables import KINDS, damages, draw, mistakes

from offload.errors import ConfigError

_DRAWN, _QUICK_DRAWN = 100, 10
_READ = 0.9


def figures(is_quick: bool) -> Iterator[Figure]:
    """Yield the figures."""
    count = _QUICK_DRAWN if is_quick else _DRAWN
    found = {kind: _of(kind, count) for kind in KINDS}
    read, wrong, silent, damaged = map(sum, zip(*found.values(), strict=True))
    drawn = f"of {count * len(found):,} tables of {len(found)} kinds"
    yield Figure("read", read / (count * len(found)), "", at_least=_READ, detail=drawn)
    yield Figure("read wrong in silence", wrong, "", at_most=0, detail=drawn)
    yield Figure("damaged, misread in silence", silent, "", at_most=0, detail=f"of {damaged:,} texts")
    for kind, (read, wrong, silent, damaged) in found.items():
        detail = f"{wrong + silent} of {count + damaged:,} whole and damaged texts misread in silence"
        yield Figure(f"  {kind}", read / count, "", detail=detail)


def _of(kind: str, count: int) -> tuple[int, int, int, int]:
    """Return how many of a kind are read, wrong, misread after a damage, and how many were damaged."""
    read = wrong = silent = damaged = 0
    for number in range(count):
        try:
            wrong += bool(mistakes(draw(kind, number)))
            read += 1
        except ConfigError:
            continue
        for _, _, is_silent in damages(kind, number):
            damaged += 1
            silent += is_silent
    return read, wrong, silent, damaged


if __name__ == "__main__":
    run(__doc__, figures)
