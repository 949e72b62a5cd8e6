"""The names in texts (paths, identifiers, numbers), and which of them a placeholder hides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

_NAME = re.compile(r"\w[\w./:-]{5,80}", re.ASCII)
_MARKED = re.compile(r"[\d_/.]|[a-z][A-Z]")
_WORD = re.compile(r"\w{3,}")
_AROUND = 60
_MAX_OCCURRENCES = 50
_SHORTEST = 6


def names_in(*texts: str) -> frozenset[str]:
    """Return the names in texts: paths, identifiers, numbers."""
    tokens = (token.strip("./:-") for text in texts for token in _NAME.findall(text))
    return frozenset(name for name in tokens if len(name) >= _SHORTEST and _MARKED.search(name))


def hidden_names(text: str, names: frozenset[str], placeholder: str) -> set[str]:
    """Return which of the `names` in `text` are hidden when `placeholder` replaces it."""
    views: dict[str, list[set[str]]] = {}
    for line in placeholder.split("\n"):
        for name in names & names_in(line):
            views.setdefault(name, []).append(next(_words_around(line, name), set()))
    visible = {name for name, words in views.items() if _is_shown(text, name, words)}
    return set(names - visible)


def _is_shown(text: str, name: str, views: list[set[str]]) -> bool:
    places = islice(_words_around(text, name), _MAX_OCCURRENCES)
    return any(words and 2 * len(words & view) >= len(words) for words in places for view in views)


def _words_around(text: str, name: str) -> Iterator[set[str]]:
    """Yield the words around each occurrence of `name` on its line, without the words of the name."""
    own = set(_WORD.findall(name))
    for match in re.finditer(re.escape(name), text):
        before = text[max(0, match.start() - _AROUND) : match.start()].rpartition("\n")[2]
        after = text[match.end() : match.end() + _AROUND].partition("\n")[0]
        yield set(_WORD.findall(f"{before} {after}")) - own
