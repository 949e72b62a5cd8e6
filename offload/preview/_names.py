"""Names: the tokens of a text that say what it is about, since a model writes them down again."""

from __future__ import annotations

import re

# Between 6 and 120 characters, and not cut at either end; what is longer is data.
_TOKEN = re.compile(r"(?<![\w…])[A-Za-z0-9_][A-Za-z0-9_./:-]{5,119}+(?![\w…])")
# A path, a dotted or snake-case name, one with a digit, or camelCase.
_MARKED = re.compile(r"[\d_/.]|[a-z][A-Z]")
_NUMERIC = re.compile(r"[\d._:/-]+")
# Scripts without spaces are asked for by pairs of characters.
_WORD = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]{2}|\w{4,40}")
_SHORTEST = 6
_LONGEST_PLAIN = 40
# As `grep -n` writes it.
_LINE_NUMBER = re.compile(r"^\d+:")
_ESCAPE = re.compile(r"\\[nrt\"]")
_MAX_ASKED_CHARS = 16_000
_MAX_TERMS = 48
_NAME_WEIGHT = 1.0
_WORD_WEIGHT = 0.5


class Names:
    """Finds the names of lines; each distinct token is judged once."""

    def __init__(self) -> None:
        self._known: dict[str, str | None] = {}

    def of(self, line: str) -> tuple[str, ...]:
        """Return the names in `line`, each once: paths, dotted names, identifiers of several parts."""
        known = self._known
        found: dict[str, None] = {}
        for token in _TOKEN.findall(_unescaped(line)):
            if token not in known:
                known[token] = _as_name(token)
            name = known[token]
            if name is not None:
                found[name] = None
        return tuple(found)


def is_numeric(name: str) -> bool:
    """Tell whether `name` is a number, a date, a time."""
    return _NUMERIC.fullmatch(name) is not None


def terms_of(asked: str) -> dict[str, float]:
    """Return what a question asks for: its names and words, with their weights. Names weigh more."""
    asked = _unescaped(asked[:_MAX_ASKED_CHARS])
    names = sorted(Names().of(asked), key=lambda name: (-len(name), name))
    words = dict.fromkeys(_WORD.findall(asked))
    terms = dict.fromkeys(names[:_MAX_TERMS], _NAME_WEIGHT)
    return terms | dict.fromkeys([word for word in words if word not in terms][:_MAX_TERMS], _WORD_WEIGHT)


def _unescaped(text: str) -> str:
    """Return `text` without the escapes of JSON: the `n` of one is no part of the name behind it."""
    return _ESCAPE.sub(" ", text) if "\\" in text else text


def _as_name(token: str) -> str | None:
    name = _LINE_NUMBER.sub("", token, count=1).strip("./:-")
    if len(name) < _SHORTEST or not _MARKED.search(name):
        return None
    is_data = len(name) > _LONGEST_PLAIN and name.isalnum()
    return None if is_data else name
