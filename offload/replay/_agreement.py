"""The agreement of replies with and without offloading, and the interval of the difference.

Of each pair there are three replies: one with offloading, two to the original request. A pair counts 1 if the
two originals agree with each other alone, -1/2 if the reply with offloading agrees with one of them alone,
else 0. The mean is how much less often offloading agrees with the original than the original with itself; the
order of the originals has no influence on it.

The interval is the score interval of T. Tango, "Equivalence test and confidence interval for the difference
in proportions for the paired-sample design", Statistics in Medicine 17 (1998) 891-908, with these three
values in place of 1, -1 and 0: a difference is in it unless a score test refutes it, with the variance that
is likeliest if it were true. It needs no minimum of pairs, and its width is not zero if all pairs agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import sqrt
from typing import NamedTuple

# Of the normal distribution, for 95 %.
_Z = 1.959964
_HALVINGS, _LEAST_VARIANCE = 50, 1e-12
# An interval of fewer pairs is too wide to show anything but a total loss.
LEAST_PAIRS = 20


class Same(NamedTuple):
    """Which of three replies have the same next action.

    Attributes:
        original: whether the one with offloading has that of the first original, and `again` of the second.
        itself: whether the two originals have the same.
    """

    original: bool
    again: bool
    itself: bool


class Agreement(NamedTuple):
    """The agreement of some pairs.

    Attributes:
        pairs: their number.
        itself: the share in which the original agrees with itself.
        offload: the share in which the reply with offloading agrees with an original.
        difference: `itself` - `offload`: positive if offloading changes actions.
        low: the lower end of its interval of 95 %, and `high` the upper one.
    """

    pairs: int
    itself: float
    offload: float
    difference: float
    low: float
    high: float

    @property
    def is_enough(self) -> bool:
        """Whether there are enough pairs to say something."""
        return self.pairs >= LEAST_PAIRS


def agreement_of(pairs: Iterable[Same]) -> Agreement:
    """Return the agreement of some pairs; without any, the interval is all that is possible."""
    found = [*pairs]
    total = len(found)
    if not total:
        return Agreement(0, 0.0, 0.0, 0.0, -0.5, 1.0)
    values = Counter(same.itself - (same.original + same.again) / 2 for same in found)
    itself = sum(same.itself for same in found) / total
    offload = sum(same.original + same.again for same in found) / (2 * total)
    low, high = (_end(values[1], values[-0.5], total, limit) for limit in (-0.5, 1.0))
    return Agreement(total, itself, offload, itself - offload, low, high)


def _end(alone: int, either: int, total: int, limit: float) -> float:
    """Return the mean, between the observed one and a limit, from which on the score test refutes."""
    inside, outside = (alone - either / 2) / total, limit
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        is_in = _score(alone, either, total, middle) <= _Z**2
        inside, outside = (middle, outside) if is_in else (inside, middle)
    return outside


def _score(alone: int, either: int, total: int, mean: float) -> float:
    """Return the squared score of a mean.

    The likeliest share of -1/2, given the mean, solves a quadratic equation; that of 1 follows from it.
    """
    left = 2 * (1 - mean)
    linear = (alone + either) * left - 6 * mean * (total - alone)
    root = sqrt(max(0.0, linear**2 + 24 * total * mean * left * either))
    half = min(max((linear + root) / (6 * total), 0.0, -2 * mean), left / 3)
    variance = mean + half / 2 + half / 4 - mean**2
    distance = (alone - either / 2) / total - mean
    return distance**2 * total / max(variance, _LEAST_VARIANCE)
