"""Which lines and names a preview shows: as much that is new per character as the budget allows."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from offload.preview._kinds import Kind
from offload.preview._names import is_numeric, names_of
from offload.preview._trouble import error_words
from offload.preview._view import SampledText

# Of the characters, names that stand in no shown line get this share if there are that many.
_NAMES_SHARE = 0.3
# What showing a name, or a line, is worth; a new name that occurs once is worth 1.
_PER_REPEAT = 0.5
_NUMERIC = 0.3
_ASKED_NAME = 0.1
_ASKED = 1.0
_OPENING = 0.3
_LEAST_OPENING = 12
# Names that differ in numbers alone are a series: of a longer one each is worth a part.
_SERIES = 4
_SHOWN_SERIES = 12
# A line that is little more than its names says hardly more than the list of names does.
_ALONE = 0.5
_LEAST_AROUND = 8
# Lines that differ in numbers alone say the same: each one more is worth this much of the one before.
_AGAIN = 0.4
# A word that stands in more lines than these tells none of them apart.
_MANY_LINES = 8
_MANY_SHARE = 0.02
_MOST_TROUBLED = 200
# How often the worth of a line is told: more than lines that are told apart ever need.
_MOST_LOOKS = 1500
_SHAPE = re.compile(r"[0-9]+")


class Chosen(NamedTuple):
    """What a preview shows.

    Attributes:
        lines: indices of the lines, in order.
        names: names that stand in none of them, in the order of the text.
    """

    lines: list[int]
    names: list[str]


def choose(view: SampledText, kind: Kind, terms: Mapping[str, float], room: int) -> Chosen:
    """Choose first lines, last lines, the best of the others and the names that they leave out.

    Args:
        view: the lines to choose from.
        kind: what they are.
        terms: what was asked for: words and names with their weights.
        room: characters for all that is shown.
    """
    choice = _Choice(view, kind, terms, room)
    choice.take_run(range(len(view.lines)), room * kind.head)
    choice.take_run(range(len(view.lines) - 1, 0, -1), room * kind.tail)
    choice.take_best()
    names = choice.take_names()
    choice.take_run(range(len(view.lines)), room)
    return Chosen(sorted(choice.taken), names)


class _Choice:
    def __init__(self, view: SampledText, kind: Kind, terms: Mapping[str, float], room: int) -> None:
        self._lines = view.lines
        self._names = names_of(view.joined)
        counts = Counter(chain.from_iterable(self._names))
        self._series = dict(zip(counts, _shape("\n".join(counts)).split("\n"), strict=False))
        series = Counter(self._series.values())
        self._worth = {
            name: _name_worth(name, n, terms) * min(1, _SERIES / series[self._series[name]])
            for name, n in counts.items()
        }
        self._marks = _line_worths(view, kind, terms)
        self._shapes: Counter[str] = Counter()
        self._shown: set[str] = set()
        self._left = room
        self._room = room
        self.taken: set[int] = set()

    def take_run(self, indices: Iterable[int], most: float) -> None:
        """Take lines one after the other, at least one, while they fit `most` characters."""
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
        """Take the lines with the most worth per character, leaving room for names."""
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
                # What was taken meanwhile has made it worth less.
                heapq.heapreplace(heap, (now, i))
            else:
                heapq.heappop(heap)
                self._take(i)
                room -= self._lines[i].cost

    def take_names(self) -> list[str]:
        """Return the names that no line shows and that fit: those of most worth per character.

        Numbers say nothing without their line, and of a series its beginning says it all.
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
        line, shown = self._lines[i], self._shown
        new = [name for name in self._names[i] if name not in shown]
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
    # What was asked for is known; the lines that hold it have a worth of their own.
    return worth * _ASKED_NAME if name in terms else worth


def _line_worths(view: SampledText, kind: Kind, terms: Mapping[str, float]) -> dict[int, float]:
    worths = defaultdict(float)
    for i, line in enumerate(view.lines):
        is_opening = line.is_opening and len(line.text) > _LEAST_OPENING
        worths[i] = max(kind.worth(line.text), _OPENING * is_opening)
    for word in error_words(view.joined) if kind.trouble else ():
        for i in view.places(word, _MOST_TROUBLED):
            worths[i] = max(worths[i], kind.trouble)
    few = max(_MANY_LINES, int(len(view.lines) * _MANY_SHARE))
    for term, weight in terms.items():
        for i in view.places(term, few):
            worths[i] += _ASKED * weight
    return {i: worth for i, worth in worths.items() if worth}


def _shape(text: str) -> str:
    return _SHAPE.sub("0", text)
