"""Titles of records, such as a path or a command, and their words; names of agents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from unicodedata import normalize

from offload.base.patterns import lazy_pattern
from offload.base.text import escape_controls, without_colors
from offload.errors import ConfigError

MAX_TITLE_CHARS = 80
# A line is looked for in so many characters.
_LOOKED_AT = 4_000
_CUT = "…"
# A line of content with fewer letters and digits says nothing, such as a bracket; nor does a lone tag, or
# the announcement of what follows.
_LEAST_TELLING = 2
_EMPTY = lazy_pattern(r"</?[\w:-]+>|.*[:\uff1a]")
# The beginnings of commands that say nothing of them, and those that say the least.
_COMMENT = lazy_pattern(r"#(?!!)|set -|export \w+=[^;&]*$")
_FOLDER = lazy_pattern(r"cd (?:[^\s'\"]+|'[^']*'|\"[^\"]*\") ?(?:&&|;) ?(?=\S)")


def title_of(text: str, kind: str = "text") -> str | None:
    """Return the first line of `text` that is not blank as a title, None if there is none.

    It has at most 80 characters, and control characters are escaped. A "path" is shortened at its beginning,
    and so is a "command" if it begins with a `cd`; comments before a command are skipped.
    """
    lines = list(_lines(text))
    if kind == "command":
        lines = [line for line in lines if not _COMMENT.match(line)] or lines
    return _shortened(lines[0], kind) if lines else None


def first_line_of(content: str) -> str | None:
    """Return the first line of a record's content that has words, without colors, as a title; or None."""
    first = None
    for line in _lines(without_colors(content[:_LOOKED_AT])):
        if sum(map(str.isalnum, line)) < _LEAST_TELLING:
            continue
        if not _EMPTY.fullmatch(line):
            return _shortened(line)
        first = first or line
    return _shortened(first) if first else None


def checked_title(title: str) -> str:
    """Return a title that comes from a store, in the form that `title_of` gives; "" for none."""
    is_fine = len(title) <= MAX_TITLE_CHARS and title.isprintable()
    return title if is_fine else title_of(title) or ""


def words_of_query(query: str | None) -> list[str]:
    """Return the words of a search for titles, for `has_words`."""
    return _folded(query or "").split()


def has_words(title: str | None, words: Sequence[str]) -> bool:
    """Return whether a title has all `words`, in any order and case; None has none."""
    if title is None:
        return False
    folded = _folded(title)
    return all(word in folded for word in words)


def _folded(text: str) -> str:
    """Return a text to compare: without case, an accented letter as one character."""
    return normalize("NFC", text.casefold())


def _lines(text: str) -> Iterator[str]:
    lines = (" ".join(line.split()) for line in text[:_LOOKED_AT].split("\n"))
    return filter(None, lines)


def _shortened(line: str, kind: str = "text") -> str:
    line = escape_controls(line)
    if len(line) > MAX_TITLE_CHARS and kind == "command":
        line = _FOLDER.sub("", line, count=1) if line.startswith("cd ") else line
    if len(line) <= MAX_TITLE_CHARS:
        return line
    kept = MAX_TITLE_CHARS - len(_CUT)
    return _CUT + line[-kept:] if kind == "path" else line[:kept] + _CUT


class Label(NamedTuple):
    """Facts of a record in lists that its key lacks: its title and the agent that stored it; "" for none."""

    title: str = ""
    agent: str = ""

    @classmethod
    def of(cls, title: str | None, agent: str | None) -> Label:
        """Return the label of a record that comes from a store."""
        return cls(checked_title(title or ""), checked_title(agent or ""))


def checked_agent(agent: object) -> str | None:
    """Return a name of an agent, or None. Raises `ConfigError` unless it is a line of 1 to 80 characters."""
    is_name = isinstance(agent, str) and 1 <= len(agent) <= MAX_TITLE_CHARS and agent.isprintable()
    if agent is not None and not is_name:
        raise ConfigError(
            f"agent_name must be one line of 1 to {MAX_TITLE_CHARS} characters, got {agent!r:.60}"
        )
    return agent if isinstance(agent, str) else None
