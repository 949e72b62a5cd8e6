"""Titles: the line that says what a record is of, such as a path or a command; the search for its words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offload.controls import escape_controls

MAX_CHARS = 80
# A line is looked for in so many characters.
_LOOKED_AT = 4_000
_CUT = "…"
# A line of content with fewer letters and digits, such as a bracket, says nothing.
_LEAST_TELLING = 2


def title_of(text: str, *, keeps_end: bool = False) -> str | None:
    """Return the first line of `text` that is not blank as a title, None if there is none.

    It has at most 80 characters, and control characters are escaped. `keeps_end` shortens it at its
    beginning, as is best for a path.
    """
    return _shortened(next(_lines(text), ""), keeps_end=keeps_end)


def first_line_of(content: str) -> str | None:
    """Return the first line of a record's content that has words as a title, None if there is none."""
    telling = (line for line in _lines(content) if sum(map(str.isalnum, line)) >= _LEAST_TELLING)
    return _shortened(next(telling, ""))


def checked(title: str) -> str:
    """Return a title that comes from a store, in the form that `title_of` gives; "" for none."""
    is_fine = len(title) <= MAX_CHARS and title.isprintable()
    return title if is_fine else title_of(title) or ""


def words_of_query(query: str | None) -> list[str]:
    """Return the words of a search for titles, for `has_words`."""
    return (query or "").casefold().split()


def has_words(title: str | None, words: Sequence[str]) -> bool:
    """Return whether a title has all `words`, in any order and case; None has none."""
    if title is None:
        return False
    folded = title.casefold()
    return all(word in folded for word in words)


def _lines(text: str) -> Iterator[str]:
    lines = (" ".join(line.split()) for line in text[:_LOOKED_AT].split("\n"))
    return filter(None, lines)


def _shortened(line: str, *, keeps_end: bool = False) -> str | None:
    line = escape_controls(line)
    if len(line) <= MAX_CHARS:
        return line or None
    kept = MAX_CHARS - len(_CUT)
    return _CUT + line[-kept:] if keeps_end else line[:kept] + _CUT
