"""The choice of lines and names for a preview: the most new information per character."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from offload.preview._kinds import Kind
from offload.preview._names import error_words, is_numeric, names_of
from offload.preview._sample import SampledText

# The share of the characters for names that no shown line holds.
_NAMES_SHARE = 0.3
# Worth of a name or a line; a new name that occurs once is worth 1.
_PER_REPEAT = 0.5
_NUMERIC = 0.3
_QUERY_NAME = 0.1
_QUERY = 1.0
_OPENING = 0.3
_LEAST_OPENING = 12
# Names that differ only in numbers are a series; the names of a longer series are worth less.
_SERIES = 4
_SHOWN_SERIES = 12
# A line with little text around its names adds little to the list of names.
_ALONE = 0.5
_LEAST_AROUND = 8
# Lines that differ only in numbers repeat each other: each is worth this share of the one before.
_AGAIN = 0.4
# A query word in more lines than this does not distinguish them.
_MANY_LINES = 8
_MANY_SHARE = 0.02
_MOST_TROUBLED = 200
# A bound on evaluations of lines, which texts of distinct lines never reach.
_MOST_LOOKS = 1500
_SHAPE = re.compile(r"[0-9]+")


class Chosen(NamedTuple):
    """The choice for a preview.

    Attributes:
        lines: indices of the lines, in order.
        names: names that none of these lines holds, in the order of the text.
    """

    lines: list[int]
    names: list[str]


def choose(sample: SampledText, kind: Kind, terms: Mapping[str, float], room: int) -> Chosen:
    """Choose first lines, last lines, the best of the others, and names that no chosen line holds.

    Args:
        sample: the lines to choose from.
        kind: their kind of content.
        terms: words and names of the query with their weights.
        room: characters for the whole choice.
    """
    choice = _Choice(sample, kind, terms, room)
    choice.take_run(range(len(sample.lines)), room * kind.head)
    choice.take_run(range(len(sample.lines) - 1, 0, -1), room * kind.tail)
    choice.take_best()
    names = choice.take_names()
    choice.take_run(range(len(sample.lines)), room)
    return Chosen(sorted(choice.taken), names)


class _Choice:
    def __init__(self, sample: SampledText, kind: Kind, terms: Mapping[str, float], room: int) -> None:
        self._lines = sample.lines
        self._names = names_of(sample.joined)
        counts = Counter(chain.from_iterable(self._names))
        self._series = dict(zip(counts, _shape("\n".join(counts)).split("\n"), strict=False))
        series = Counter(self._series.values())
        self._worth = {
            name: _name_worth(name, n, terms) * min(1, _SERIES / series[self._series[name]])
            for name, n in counts.items()
        }
        self._marks = _line_worths(sample, kind, terms)
        self._shapes: Counter[str] = Counter()
        self._shown: set[str] = set()
        self._left = room
        self._room = room
        self.taken: set[int] = set()

    def take_run(self, indices: Iterable[int], most: float) -> None:
        """Take successive lines, at least one, while they fit in `most` characters."""
        spent = 0
        for i in indices:
            cost = self._lines[i].cost
            if i in self.taken:
                continue
            if cost > self._left or (spent and spent + cost > most):
                return
            self._take(i)
            spent += cost

    def take_best(self) -> None:
        """Take the lines with the most worth per character, and keep room for names."""
        room = self._left - min(self._room * _NAMES_SHARE, sum(len(name) + 2 for name in self._worth))
        worthy = (i for i, names in enumerate(self._names) if names or i in self._marks)
        heap = [(-self._gain(i), i) for i in worthy if i not in self.taken]
        heapq.heapify(heap)
        for _ in range(_MOST_LOOKS):
            if not heap or heap[0][0] >= 0:
                return
            gain, i = heap[0]
            if self._lines[i].cost > room:
                heapq.heappop(heap)
            elif (now := -self._gain(i)) > gain:
                # Lines taken since have lowered its worth.
                heapq.heapreplace(heap, (now, i))
            else:
                heapq.heappop(heap)
                self._take(i)
                room -= self._lines[i].cost

    def take_names(self) -> list[str]:
        """Return names that no line shows and that fit, those with the most worth per character.

        Numbers, which need their line, and all but the beginning of a series are omitted.
        """
        hidden = [name for name in self._worth if name not in self._shown and not is_numeric(name)]
        best = sorted(hidden, key=lambda name: (-self._worth[name] / (len(name) + 2), name))
        fitting = set()
        series: Counter[str] = Counter()
        for name in best:
            shape = self._series[name]
            series[shape] += 1
            if len(name) + 2 <= self._left and series[shape] <= _SHOWN_SERIES:
                fitting.add(name)
                self._left -= len(name) + 2
        self._shown |= fitting
        return [name for name in hidden if name in fitting]

    def _gain(self, i: int) -> float:
        line = self._lines[i]
        new = [name for name in self._names[i] if name not in self._shown]
        worth = sum(map(self._worth.__getitem__, new), 0.0)
        if worth and len(line.text) - sum(map(len, new)) < _LEAST_AROUND:
            worth *= _ALONE
        mark = self._marks.get(i)
        if mark:
            again = self._shapes and self._shapes[_shape(line.text)]
            worth += mark * _AGAIN**again if again else mark
        return worth / line.cost

    def _take(self, i: int) -> None:
        self.taken.add(i)
        self._left -= self._lines[i].cost
        self._shown.update(self._names[i])
        if i in self._marks:
            self._shapes[_shape(self._lines[i].text)] += 1


def _name_worth(name: str, occurrences: int, terms: Mapping[str, float]) -> float:
    worth = 1 + _PER_REPEAT * math.log(occurrences)
    if is_numeric(name):
        worth *= _NUMERIC
    # The model knows the names of its query; their lines have a worth of their own.
    return worth * _QUERY_NAME if name in terms else worth


def _line_worths(sample: SampledText, kind: Kind, terms: Mapping[str, float]) -> dict[int, float]:
    worths = defaultdict(float)
    for i, line in enumerate(sample.lines):
        is_opening = line.is_opening and len(line.text) > _LEAST_OPENING
        worths[i] = max(kind.worth(line.text), _OPENING * is_opening)
    for word in error_words(sample.joined) if kind.trouble else ():
        for i in sample.places(word, _MOST_TROUBLED):
            worths[i] = max(worths[i], kind.trouble)
    few = max(_MANY_LINES, int(len(sample.lines) * _MANY_SHARE))
    for term, weight in terms.items():
        for i in sample.places(term, few):
            worths[i] += _QUERY * weight
    return {i: worth for i, worth in worths.items() if worth}


def _shape(text: str) -> str:
    return _SHAPE.sub("0", text)
