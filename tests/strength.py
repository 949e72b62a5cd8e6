"""How much of what is drawn a run tries: all of it where slow tests run too, a sixth of it otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")

_PART = 6
_is_full = False


def set_by(options: Any) -> None:
    """Choose by the expression of `-m`; called before any module of tests is imported."""
    global _is_full  # noqa: PLW0603 # a module of tests reads it when it is imported
    _is_full = options.markexpr != "not slow"
    if _is_full and options.timeout is None:
        options.timeout = 600
    settings.register_profile("offload", max_examples=_examples(100), deadline=None)
    settings.load_profile("offload")


def examples(most: int, *of: settings, **options: Any) -> settings:
    """Return settings with at most so many examples in the full run."""
    return settings(*of, max_examples=_examples(most), **options)


def thinned(cases: Iterable[Any], every: int) -> list[Any]:
    """Return the cases of a parameter: each `every`-th runs always, the others are slow."""
    return [
        case if number % every == 0 else pytest.param(*_values(case), marks=pytest.mark.slow)
        for number, case in enumerate(cases)
    ]


def some(cases: Iterable[T], every: int) -> Iterable[T]:
    """Return all cases of a loop in the full run, each `every`-th otherwise."""
    return cases if _is_full else itertools.islice(cases, None, None, every)


def _examples(most: int) -> int:
    return most if _is_full else max(2, most // _PART)


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
