"""The choice of lines and names for a preview: the most new information per character."""

from __future__ import annotations

import heapq
import math
import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from offload.base.patterns import lazy_pattern
from offload.base.text import encode_text
from offload.engine.preview.kinds import Kind
from offload.engine.preview.names import is_numeric, names_of
from offload.engine.preview.sample import SampledText

# The share of the characters for names that no shown line holds.
_NAMES_SHARE = 0.3
# Worth of a name or a line; a new name that occurs once is worth 1.
_PER_REPEAT = 0.5
_NUMERIC = 0.3
_QUERY_NAME = 0.1
_QUERY = 0.7
# Names that differ only in numbers are a series; the names of a longer series are worth less.
_SERIES = 4
_SHOWN_SERIES = 6
# A line with little text around its names adds little to the list of names.
_ALONE = 0.5
_LEAST_AROUND = 8
# Lines that differ only in numbers repeat each other: each is worth this share of the one before. In a log
# they are of one template, and the first that is shown counts the others.
_AGAIN = 0.4
_LEAST_ALIKE = 3
_CUT = "…".encode()
_LONGEST_END = 60
# The worth of a line with the highest number of its template, and how many times the next one that is.
_EXTREME, _FAR = 3.0, 2.0
_MOST_TEMPLATES, _LONGEST_LINES = 3, 8
_NUMBER, _COUNTED = lazy_pattern(r"[0-9]+(?:\.[0-9]+)?"), lazy_pattern(r"[0-9]+(?:\.[0-9]+)?[A-Z%]?[ \t]")
# A query word in more lines than this does not distinguish them.
_MANY_LINES = 8
_MANY_SHARE = 0.02
_MOST_TROUBLED = 200
# A bound on evaluations of lines, which texts of distinct lines never reach.
_MOST_LOOKS = 400
_LEAST_COST = 12
# Digits and bars become spaces, and other separators become characters that no line has, so that a split
# joins a number with the spaces that align it.
_DIGITS_APART = bytes.maketrans(b"\t\n0123456789#=", b"\2\3            ")
# A line that only closes something.
_CLOSING = lazy_pattern(r"[\0-/:-@\[-`{-\x7f]*|(?:end|fi|done|esac)[),;]*|</[A-Za-z0-9_.-]+>")


class Choice:
    """Lines and names for a preview.

    Args:
        sample: the lines to choose from.
        kind: the kind of their content.
        terms: words and names of the query with their weights.
        trouble: the error words of the text.
        room: characters for the whole choice.

    Attributes:
        lines: indices of the chosen lines, each with a note: how many lines differ from it only in numbers.
        names: names that none of these lines holds, in the order of the text.
    """

    def __init__(
        self, sample: SampledText, kind: Kind, terms: Mapping[str, float], trouble: Sequence[str], room: int
    ) -> None:
        texts = self._texts = sample.texts
        every = range(len(texts))
        self.lines: dict[int, str] = {}
        self._left = self._room = room
        self._costs = [
            chars + more + 2 for chars, more in zip(map(len, texts), map(len, sample.labels), strict=True)
        ]
        self._names, self._places = names_of(texts)
        self._series = dict(zip(self._places, _shapes(self._places), strict=True))
        self._worth = _name_worths(self._places, self._series, terms)
        # The worth of the names of each line that no line shows yet.
        self._new = _sums(self._names, self._worth)
        self._marks = _line_worths(sample, kind, terms, trouble)
        # Only these may repeat each other.
        repeating = every if kind.trouble else self._marks
        self._shapes = dict(zip(repeating, _shapes([texts[i] for i in repeating]), strict=True))
        sizes = Counter(self._shapes.values())
        self._notes = _notes(sizes, sample) if kind.trouble else {}
        for i in _extremes(self._shapes, sizes, texts) if kind.trouble else ():
            self._marks[i] = max(self._marks.get(i, 0), _EXTREME)
        # How many lines of each shape are taken, and the templates of which one is.
        self._taken: dict[bytes, int] = {}
        self._known: set[bytes] = set()
        # The ends of code or a page may be long and say little.
        longest = _LONGEST_END if kind.marks and not kind.trouble else room
        self._take_run(every, 0, longest)
        self._take_run(reversed(every), room * kind.tail, longest, is_tail=True)
        self._take_best()
        names = self._take_names()
        self._take_run(every, room, room)
        self.names = [name for name in names if self.lines.keys().isdisjoint(self._places[name])]

    def _take_run(self, indices: Iterable[int], most: float, first: int, *, is_tail: bool = False) -> None:
        """Take a line of at most `first` characters, and successive lines while they fit in `most`.

        Lines that only close something are omitted, and in a log, but for its end, those of a known template.
        """
        spent = 0
        known = set() if is_tail else self._known
        for i in indices:
            if i in self.lines or self._shapes.get(i) in known or _CLOSING.fullmatch(self._texts[i]):
                continue
            cost = self._cost(i)
            if cost > self._left or spent + cost > max(most, 0 if spent else first):
                return
            self._take(i)
            spent += cost

    def _take_best(self) -> None:
        """Take the lines with the most worth per character, and keep room for names."""
        room = self._left - min(self._room * _NAMES_SHARE, sum(map(len, self._worth)) + len(self._worth))
        least = max(_LEAST_COST, min(self._costs, default=0))
        worths = self._new.copy()
        for i, worth in self._marks.items():
            worths[i] += worth
        gains = enumerate(map(operator.truediv, worths, self._costs))
        heap = [(-gain, i) for i, gain in gains if gain and i not in self.lines]
        heapq.heapify(heap)
        for _ in range(_MOST_LOOKS):
            if not heap or heap[0][0] >= 0 or room < least:
                return
            gain, i = heap[0]
            if (cost := self._cost(i)) > room:
                heapq.heappop(heap)
            elif (now := -self._gain(i)) > gain:
                # The lines taken since have lowered its worth.
                heapq.heapreplace(heap, (now, i))
            else:
                heapq.heappop(heap)
                self._take(i)
                room -= cost

    def _take_names(self) -> list[str]:
        """Return names that no line shows and that fit, those with the most worth per character.

        Numbers, which need their line, and all but the beginning of a series are omitted.
        """
        hidden = [name for name, worth in self._worth.items() if worth and not is_numeric(name)]
        least = min(map(len, hidden), default=0)
        fitting = set()
        shown = dict.fromkeys(self._series.values(), 0)
        # Sorts of one key each, the last the most important: pairs of keys take twice the time to compare.
        for name in sorted(sorted(hidden), key=lambda name: -self._worth[name] / (len(name) + 1)):
            if self._left <= least:
                break
            shape = self._series[name]
            if len(name) < self._left and shown[shape] < _SHOWN_SERIES:
                fitting.add(name)
                self._left -= len(name) + 1
            shown[shape] += 1
        return [name for name in hidden if name in fitting]

    def _note(self, i: int) -> str:
        """Return the note of a line, which only the first of a template has."""
        return self._notes.get(self._shapes.get(i, b""), "")

    def _cost(self, i: int) -> int:
        return self._costs[i] + (len(self._note(i)) if self._notes else 0)

    def _gain(self, i: int) -> float:
        """Return the worth of a line for each of its characters."""
        worth, mark = self._new[i], self._marks.get(i, 0)
        if (shape := self._shapes.get(i, b"")) in self._taken:
            worth = 0.0 if shape in self._known else worth
            mark *= _AGAIN ** self._taken[shape]
        if worth and len(self._texts[i]) - sum(map(len, self._names[i])) < _LEAST_AROUND:
            worth *= _ALONE
        return (worth + mark) / self._costs[i]

    def _take(self, i: int) -> None:
        self.lines[i] = self._note(i)
        self._left -= self._cost(i)
        shape = self._shapes.get(i, b"")
        if self._notes.pop(shape, None):
            self._known.add(shape)
        if i in self._marks or shape in self._known:
            self._taken[shape] = self._taken.get(shape, 0) + 1
        for name in self._names[i]:
            worth, self._worth[name] = self._worth[name], 0
            for line in self._places[name] if worth else ():
                self._new[line] -= worth


def _notes(sizes: Counter[bytes], sample: SampledText) -> dict[bytes, str]:
    """Return for each common template the note of a line: how many others there are."""
    more = "" if sample.unbroken == sizes.total() else " or more"
    return {
        shape: f" (+{size - 1}{more} alike)"
        for shape, size in sizes.items()
        if size > _LEAST_ALIKE and not (shape.startswith(_CUT) or shape.endswith(_CUT))
    }


def _extremes(shapes: Mapping[int, bytes], sizes: Counter[bytes], texts: Sequence[str]) -> Iterator[int]:
    """Yield the lines of common templates whose numbers say most.

    These are the highest of an unsorted count, and a line with a number far above the others, which is among
    the longest.
    """
    for shape, size in sizes.most_common(_MOST_TEMPLATES):
        if size <= _LEAST_ALIKE:
            return
        lines = [i for i in shapes if shapes[i] == shape]
        if _COUNTED.match(texts[lines[0]]):
            counts = [float(_NUMBER.findall(texts[i])[0]) for i in lines]
            if counts not in (sorted(counts), sorted(counts, reverse=True)):
                yield lines[counts.index(max(counts))]
        longest = heapq.nlargest(_LONGEST_LINES, lines, key=lambda i: len(texts[i]))
        for column in zip(*(map(float, _NUMBER.findall(texts[i])) for i in longest), strict=False):
            *_, second, highest = sorted(column)
            if highest > _FAR * second:
                yield longest[column.index(highest)]


def _sums(names: Sequence[Sequence[str]], worths: Mapping[str, float]) -> list[float]:
    """Return the worth of the names of each line, added in order: `sum` rounds differently since 3.12."""
    sums = []
    for each in names:
        total = 0.0
        for name in each:
            total += worths[name]
        sums.append(total)
    return sums


def _name_worths(
    places: Mapping[str, list[int]], series: Mapping[str, bytes], terms: Mapping[str, float]
) -> dict[str, float]:
    shares = {shape: min(1, _SERIES / size) for shape, size in Counter(series.values()).items()}
    worths = {}
    for name, lines in places.items():
        worth = shares[series[name]]
        if len(lines) > 1:
            worth *= 1 + _PER_REPEAT * math.log(len(lines))
        if is_numeric(name):
            worth *= _NUMERIC
        worths[name] = worth
    # The model knows the names of its query; their lines have a worth of their own.
    return worths | {name: worths[name] * _QUERY_NAME for name in terms if name in worths}


def _line_worths(
    sample: SampledText, kind: Kind, terms: Mapping[str, float], trouble: Sequence[str]
) -> dict[int, float]:
    texts = sample.texts
    worths = kind.worths_of(texts)
    joined = "\n".join(texts)
    starts = [0, *accumulate(len(text) + 1 for text in texts)]
    for word in trouble if kind.trouble else ():
        found = _places(word, joined, starts, _MOST_TROUBLED)
        worths |= {i: max(worths.get(i, 0), kind.trouble) for i in found}
    few = max(_MANY_LINES, int(len(texts) * _MANY_SHARE))
    for term, weight in terms.items():
        places = [*_places(term, joined, starts, few + 1)]
        if len(places) <= few:
            worths |= {i: worths.get(i, 0) + _QUERY * weight * (1 + 1 / len(places)) for i in places}
    return worths


def _places(word: str, joined: str, starts: Sequence[int], at_most: int) -> Iterator[int]:
    """Yield the indices of the first lines with `word`."""
    at = joined.find(word)
    while at >= 0 and at_most:
        line = bisect_right(starts, at) - 1
        yield line
        at_most -= 1
        at = joined.find(word, starts[line + 1])


def _shapes(texts: Iterable[str]) -> list[bytes]:
    """Return the texts, none of which has a line break, as bytes with each number and space as 0."""
    parts = encode_text("\n".join(["", *texts, ""])).translate(_DIGITS_APART).split()
    return b"0".join(parts).split(b"\3")[1:-1]
