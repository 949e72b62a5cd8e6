"""The names in a text, which a model is likely to write again, and its words of failure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import islice
from typing import Any

from offload.record import encode_text

# Letters and digits of all scripts, for a character class. Python's own tables differ between versions, and
# a preview must not.
LETTERS = (
    r"A-Za-z0-9_\xaa\xb5\xba\xc0-\xd6\xd8-\xf6\xf8-\u02ff\u0370-\u0482\u048a-\u0556\u0561-\u0587\u05d0-\u05f2"
    r"\u0620-\u0669\u066e-\u06d3\u06d5-\u06fc\u0710-\u0963\u0966-\u135f\u1369-\u1fff\u2c00-\u2dff\u3040-\ud7ff"
    r"\uf900-\ufdff\ufe70-\ufefc\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uffdc\U00010000-\U0001efff"
    r"\U00020000-\U0003ffff"
)
# A run with a letter that is not ASCII, or with the mark of a cut, holds no name.
_RUN_OR_END = rf"\n|[{LETTERS}./:…-]{{6,}}"
# A path, a dotted or snake-case name, a name with a digit, or camelCase.
_MARKED = re.compile(r"[0-9_/.]|[a-z][A-Z]")
_NUMERIC = re.compile(r"[0-9._:/-]+")
# In scripts without spaces, pairs of characters replace words.
_WORD = rf"[\u3040-\u30ff\u4e00-\u9fff]{{2}}|[{LETTERS}]{{4,40}}"
_SHORTEST = 6
_LONGEST = 120
_LONGEST_PLAIN = 40
_MOST_TOKENS = 400
# The output of `grep -n`.
_LINE_NUMBER = re.compile(r"^[./:-]*[0-9]+:")
_ESCAPE = re.compile(r"\\[nrt\"]")
MAX_QUERY_CHARS = 16_000
_MAX_TERMS = 16
_NAME_WEIGHT = 1.0
_WORD_WEIGHT = 0.5

# The spellings of common tools.
TROUBLE = (
    *("Error:", "ERROR", "error:", "error[", "--- FAIL", "FAILED", "FAIL\t", " failed", "failure", "Failure"),
    *("Exception", "Traceback", "FATAL", "fatal", "panic:", "denied", "not found", "✗", "✖", "错误", "失败"),
    *("exit code", "exit status", "exited with", "Exit code", "Warning:", "WARN ", "WARNING ", "warning:"),
)


def names_of(texts: Sequence[str]) -> tuple[list[list[str]], dict[str, list[int]]]:
    """Return the distinct names in each of the lines `texts`, and for each name the indices of its lines.

    A name is a path, a dotted name, an identifier of several parts. Each distinct token is judged once.
    """
    tokens = re.findall(_RUN_OR_END, _unescaped("\n".join(texts)))
    unlike = (token for token in dict.fromkeys(tokens) if token.isascii() and not _is_word(token))
    known = {token: _as_name(token) for token in islice(unlike, _MOST_TOKENS)}
    names: list[list[str]] = [[] for _ in texts]
    places: dict[str, list[int]] = {name: [] for name in known.values() if name}
    line = 0
    for each in tokens:
        if each == "\n":
            line += 1
        elif (name := known.get(each)) and places[name][-1:] != [line]:
            places[name].append(line)
            names[line].append(name)
    return names, places


def is_numeric(name: str) -> bool:
    """Return whether `name` is a number, a date or a time."""
    return name[0] < "A" and _NUMERIC.fullmatch(name) is not None


@lru_cache(maxsize=8)
def terms_of(query: str) -> dict[str, float]:
    """Return the names and words of a query with their weights; names weigh more."""
    query = _unescaped(query)
    names = sorted(names_of([query.replace("\n", " ")])[1], key=lambda name: (-len(name), name))
    words = dict.fromkeys(re.findall(_WORD, query))
    terms = dict.fromkeys(names[:_MAX_TERMS], _NAME_WEIGHT)
    return terms | dict.fromkeys([word for word in words if word not in terms][:_MAX_TERMS], _WORD_WEIGHT)


def _unescaped(text: str) -> str:
    """Return `text` without JSON escapes, so that the `n` of one does not join the name after it."""
    return _ESCAPE.sub(" ", text) if "\\" in text else text


def _is_word(token: str) -> bool:
    return token.isalpha() and token[1:].islower()


def _as_name(token: str) -> str | None:
    if ":" in token and token[0] < "A":
        token = _LINE_NUMBER.sub("", token, count=1)
    name = token.strip("./:-")
    if not _SHORTEST <= len(name) <= _LONGEST or not _MARKED.search(name):
        return None
    is_data = len(name) > _LONGEST_PLAIN and name.isalnum()
    return None if is_data else name


def error_words(text: str) -> list[str]:
    """Return the words of `TROUBLE` in `text`, from one pass over it."""
    return [TROUBLE[i] for i in sorted(_searcher().Match(encode_text(text)) or ())]


@cache
def _searcher() -> Any:
    import re2  # noqa: PLC0415 # 10 ms that only a preview pays

    words = re2.Set.SearchSet()
    for word in TROUBLE:
        words.Add(re2.escape(word))
    words.Compile()
    return words
