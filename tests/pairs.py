"""Combinations of parameters: `make test` runs some of them, the long run all."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

Pair = tuple[tuple[int, int], ...]


def every_pair(*dimensions: Sequence[Any]) -> list[Any]:
    """Return all combinations of one value of each dimension, most of them marked `slow`.

    The others hold every two values of two dimensions together at least once.
    """
    left = {
        pair: pairs_of(pair) for pair in itertools.product(*(range(len(values)) for values in dimensions))
    }
    now = set()
    uncovered = set().union(*left.values())
    while uncovered:
        most = max(left, key=lambda case: len(left[case] & uncovered))
        uncovered -= left[most]
        now.add(most)
    return [
        pytest.param(
            *(values[place] for values, place in zip(dimensions, case, strict=True)),
            marks=() if case in now else pytest.mark.slow,
            id="-".join(named(values[place], place) for values, place in zip(dimensions, case, strict=True)),
        )
        for case in left
    ]


def each_in_turn(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    """Return all combinations of two dimensions, two in three marked `slow`; the others hold each value."""
    return [
        pytest.param(
            a, b, marks=() if (i + j) % 3 == 0 else pytest.mark.slow, id=f"{named(a, i)}-{named(b, j)}"
        )
        for (i, a), (j, b) in itertools.product(enumerate(one), enumerate(other))
    ]


def pairs_of(case: tuple[int, ...]) -> set[Pair]:
    return set(itertools.combinations(enumerate(case), 2))


def named(value: Any, place: int) -> str:
    """Return the name of a value in the name of a test."""
    if hasattr(value, "__name__"):
        return str(value.__name__)
    return str(value) if isinstance(value, str | int | float | tuple) else str(place)
