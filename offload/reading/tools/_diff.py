"""context_diff: the lines in which two records differ, as a unified diff.

Lines are compared by their hashes, so memory depends on their number. Lines that occur once in both records
are matched first, as many as are in the same order, then the lines between them. The work is limited by a
number of steps and not by a clock, so that the pages of one diff fit together.
"""

from __future__ import annotations

import os.path
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from hashlib import blake2b
from itertools import islice, pairwise
from typing import Any, Literal, NamedTuple

from offload.base.threads.locks import Recent
from offload.errors import ConfigError
from offload.reading.tools.answers import FRAME_CHARS, fitting_rows, line_excerpt
from offload.reading.tools.budget import BUDGET, Budget, BudgetExceeded
from offload.records.codec.base import StoredRecord
from offload.records.codec.content import StoredContent

CONTEXT_LINES = 3
# The most lines of one record, and of those between the common beginning and the common end.
MAX_LINES, MAX_DIFFERENT_LINES = 2_000_000, 100_000
# A longer line is shown as a window that begins some characters before the first difference.
_LINE_CHARS, _CHARS_BEFORE = 400, 120
# Long lines are hashed and compared in pieces.
_PIECE = 64 * 1024
# A step takes about 0.1 microseconds. A line takes five in each part of the diff that has it.
_MAX_STEPS, _STEPS_OF_A_LINE = 10_000_000, 5
# Lines without a unique one among them are compared pair by pair, up to so many pairs.
_MAX_PAIRS = 2500

_HELD = 4
_MAX_ROWS = 200

Hashes = Sequence[int]


class ChangedLines(NamedTuple):
    """Lines of the old record, by index, and the lines of the new one that replace them; one may be empty."""

    old: range
    new: range


class DiffRow(NamedTuple):
    """A line of a record, by index, in a diff; `other_line` replaces it or is replaced by it."""

    mark: Literal[" ", "-", "+"]
    line: int
    other_line: int | None = None


class Diff:
    """The differences of two records.

    Attributes:
        changes: the differing lines, in order.

    Raises:
        ConfigError: the records are too large or too different.
        CorruptError: a record is damaged.
    """

    def __init__(self, old: StoredContent, new: StoredContent) -> None:
        budget = Budget()
        try:
            hashes = _hashes(old, budget), _hashes(new, budget)
        except BudgetExceeded:
            raise ConfigError(f"the items are too large to compare in one call ({BUDGET})") from None
        self._lines = len(hashes[0]), len(hashes[1])
        self.changes = changes(*hashes)

    def __str__(self) -> str:
        removed = sum(len(change.old) for change in self.changes)
        added = sum(len(change.new) for change in self.changes)
        count = len(self.changes)
        return f"{count} change{'s' * (count != 1)}, lines: {removed} removed, {added} added"

    def rows(self) -> Iterator[DiffRow | str]:
        """Yield the rows of the unified diff; a text is the heading of a hunk."""
        for hunk in self._hunks():
            first, last = hunk[0], hunk[-1]
            before = min(CONTEXT_LINES, first.old.start, first.new.start)
            after = min(CONTEXT_LINES, self._lines[0] - last.old.stop, self._lines[1] - last.new.stop)
            olds = range(first.old.start - before, last.old.stop + after)
            yield f"@@ -{_span(olds)} +{_span(range(first.new.start - before, last.new.stop + after))} @@"
            line = olds.start
            for old, new in hunk:
                yield from (DiffRow(" ", n) for n in range(line, old.start))
                yield from (DiffRow("-", n, _other_line(n, old, new)) for n in old)
                yield from (DiffRow("+", n, _other_line(n, new, old)) for n in new)
                line = old.stop
            yield from (DiffRow(" ", n) for n in range(line, olds.stop))

    def _hunks(self) -> Iterator[list[ChangedLines]]:
        """Yield changes with at most twice the context between them together."""
        hunk: list[ChangedLines] = []
        for change in self.changes:
            if hunk and change.old.start - hunk[-1].old.stop > 2 * CONTEXT_LINES:
                yield hunk
                hunk = []
            hunk.append(change)
        if hunk:
            yield hunk


class Diffs:
    """Answers with a page of a diff, of at most `max_chars` characters; the last diffs are cached."""

    def __init__(self, max_chars: int) -> None:
        self._room = max_chars - FRAME_CHARS
        self._held: Recent[tuple[bytes, bytes], Diff] = Recent(_HELD)

    def page(self, old: StoredRecord, new: StoredRecord, start_row: int) -> str:
        """Return the rows from `start_row`, from 1. Raises the errors of `Tools.diff`."""
        contents = old.content, new.content
        if old.counts.sha256 == new.counts.sha256:
            return f"[{old.ref} and {new.ref} have the same content]"
        key = old.counts.sha256, new.counts.sha256
        diff = self._held.get(key) or Diff(*contents)
        self._held.put(key, diff)
        if not diff.changes:
            return f"[{old.ref} and {new.ref} differ only in the newline at the end]"
        rows = islice(diff.rows(), start_row - 1, start_row - 1 + _MAX_ROWS)
        texts = fitting_rows((row_text(row, *contents)[: self._room - 1] for row in rows), self._room)
        if not texts:
            raise ConfigError(f"past the end: the diff has {sum(1 for _ in diff.rows())} rows")
        call = f'context_diff(old="{old.ref}", new="{new.ref}", start_row={start_row + len(texts)})'
        is_more = next(islice(diff.rows(), start_row - 1 + len(texts), None), None) is not None
        last = f"[more: {call}]" if is_more else "[end of diff]"
        return "\n".join([f"[{old.ref} to {new.ref}: {diff}]", *texts, last])


def _span(lines: range) -> str:
    """Return lines in the heading of a hunk: the first, from 1, and how many; before the first if none."""
    return f"{lines.start + bool(lines)},{len(lines)}"


def _other_line(line: int, own: range, others: range) -> int | None:
    place = line - own.start
    return others[place] if place < len(others) else None


# Text


def row_text(row: DiffRow | str, old: StoredContent, new: StoredContent) -> str:
    """Return a row of the diff of two records as a model sees it; of a long line, its first difference."""
    if isinstance(row, str):
        return row
    content, other = (new, old) if row.mark == "+" else (old, new)
    start, end = _place(content, row.line)
    if end - start <= _LINE_CHARS:
        return row.mark + line_excerpt(content, start, end)
    same = 0
    if row.other_line is not None:
        same = _common_chars(content, (start, end), other, _place(other, row.other_line))
    at = start + max(0, min(same - _CHARS_BEFORE, end - start - _LINE_CHARS))
    stop = at + _LINE_CHARS
    window = f"{'…' * (at > start)}{line_excerpt(content, at, stop)}{'…' * (stop < end)}"
    return f"{row.mark}[characters {at}-{stop} of the item] {window}"


def _place(content: StoredContent, line: int) -> tuple[int, int]:
    """Return the offsets of a line's first character and of its end, before the newline."""
    return content.line_start(line + 1), content.line_start(line + 2) - (line < content.newlines)


def _common_chars(
    content: StoredContent, place: tuple[int, int], other: StoredContent, other_place: tuple[int, int]
) -> int:
    """Return how many characters two lines have in common at the beginning."""
    most = min(place[1] - place[0], other_place[1] - other_place[0])
    for start in range(0, most, _PIECE):
        end = min(start + _PIECE, most)
        pieces = [c.text(p[0] + start, p[0] + end) for c, p in ((content, place), (other, other_place))]
        if pieces[0] != pieces[1]:
            return start + len(os.path.commonprefix(pieces))  # noqa: RUF071 # compares characters
    return most


# Differences


def changes(old: Hashes, new: Hashes) -> list[ChangedLines]:
    """Return the differing lines of two records. Raises `ConfigError` if there are too many to compare."""
    inner = _without_common_ends(old, new, ChangedLines(range(len(old)), range(len(new))))
    if all(inner) and max(map(len, inner)) > MAX_DIFFERENT_LINES:
        raise ConfigError(
            f"too different to compare in one call: after {inner.old.start} equal lines, {len(inner.old)} "
            f"lines of the old item and {len(inner.new)} of the new one differ (at most "
            f"{MAX_DIFFERENT_LINES}); use context_grep or context_read"
        )
    differing = []
    i, j = inner.old.start, inner.new.start
    for a, b, count in [*sorted(_matches(old, new, inner)), (inner.old.stop, inner.new.stop, 0)]:
        if a > i or b > j:
            differing.append(ChangedLines(range(i, a), range(j, b)))
        i, j = a + count, b + count
    return differing


def _matches(old: Hashes, new: Hashes, whole: ChangedLines) -> Iterator[tuple[int, int, int]]:
    """Yield equal lines, in no particular order: the first in each record, and how many, at least one."""
    todo, steps = [whole], _MAX_STEPS
    while todo and steps > 0:
        part = todo.pop()
        olds, news = inner = _without_common_ends(old, new, part)
        steps -= _STEPS_OF_A_LINE * (len(part.old) + len(part.new))
        found = [(part.old.start, part.new.start, olds.start - part.old.start)]
        found.append((olds.stop, news.stop, part.old.stop - olds.stop))
        anchors = _anchors(old, new, inner) if len(olds) * len(news) > 1 else []
        if anchors:
            # Of anchors in a row the last divides; the part before it has them as its common end.
            after = [(i + 1, j + 1) for i, j in anchors]
            ends = [a for a, b in zip(after, [*anchors[1:], None], strict=True) if a != b]
            places = pairwise([(olds.start, news.start), *ends, (olds.stop, news.stop)])
            todo += [ChangedLines(range(a, c), range(b, d)) for (a, b), (c, d) in places][::-1]
        elif 1 < len(olds) * len(news) <= _MAX_PAIRS:
            steps -= len(olds) * len(news) * min(len(olds), len(news))
            matcher = SequenceMatcher(None, _lines(old, olds), _lines(new, news), autojunk=False)
            found += [(olds.start + i, news.start + j, n) for i, j, n in matcher.get_matching_blocks()]
        yield from (match for match in found if match[2])


def _without_common_ends(old: Hashes, new: Hashes, part: ChangedLines) -> ChangedLines:
    """Return a part without the equal lines at its beginning and at its end."""
    (a, b), (c, d) = (part.old.start, part.new.start), (part.old.stop, part.new.stop)
    most = min(len(part.old), len(part.new))
    first = next((n for n in range(most) if old[a + n] != new[b + n]), most)
    last = next((n for n in range(most - first) if old[c - 1 - n] != new[d - 1 - n]), most - first)
    return ChangedLines(range(a + first, c - last), range(b + first, d - last))


def _anchors(old: Hashes, new: Hashes, part: ChangedLines) -> list[tuple[int, int]]:
    """Return the lines that are unique in both records, as many as are in the same order in both."""
    counts_old, counts_new = Counter(_lines(old, part.old)), Counter(_lines(new, part.new))
    places = {new[j]: j for j in part.new if counts_new[new[j]] == 1}
    pairs = [(i, places[old[i]]) for i in part.old if counts_old[old[i]] == 1 and old[i] in places]
    return _increasing(pairs)


def _increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return as many of `pairs` as possible whose second numbers increase."""
    # By length: the least last number, and the index of its pair. By pair: the index of the one before it.
    tails, ends, before = list[int](), list[int](), list[int]()
    for index, (_, place) in enumerate(pairs):
        length = bisect_left(tails, place)
        before.append(ends[length - 1] if length else -1)
        tails[length : length + 1], ends[length : length + 1] = [place], [index]
    chosen, index = [], ends[-1] if ends else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = before[index]
    return chosen[::-1]


def _lines(hashes: Hashes, lines: range) -> Hashes:
    return hashes[lines.start : lines.stop]


# Hashes


def _hashes(content: StoredContent, budget: Budget) -> Hashes:
    """Return a hash of each line; equal lines of two records have equal hashes in this process."""
    if content.newlines > MAX_LINES:
        raise ConfigError(f"an item of {content.newlines} lines is too long to compare (at most {MAX_LINES})")
    hashes, begun, digest = array("q"), b"", None
    for chunk in budget.metered(content.chunks_from(0)[1]):
        first, *lines = chunk.split(b"\n")
        begun += first
        if lines:
            hashes.append(_hash(begun, digest))
            hashes.extend(map(_hash, lines[:-1]))
            begun, digest = lines[-1], None
        if len(begun) > _PIECE:
            digest = digest or blake2b(digest_size=8)
            digest.update(begun)
            begun = b""
    if begun or digest:
        hashes.append(_hash(begun, digest))
    return hashes


def _hash(line: bytes, digest: Any = None) -> int:
    """Return the hash of a line, whose beginning is in `digest` if it came in pieces."""
    if digest is None and len(line) <= _PIECE:
        return hash(line)
    digest = digest or blake2b(digest_size=8)
    digest.update(line)
    return int.from_bytes(digest.digest(), signed=True)
