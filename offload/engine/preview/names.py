"""The names in a text, which a model is likely to write again, and its words of failure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from offload.base.patterns import lazy_pattern
from offload.base.text import encode_text
from offload.base.threads.locks import NO_FORK, cached, renew_in_child

# Letters and digits of all scripts, for a character class. Python's own tables differ between versions, and
# a preview must not.
LETTERS = (
    r"A-Za-z0-9_\xaa\xb5\xba\xc0-\xd6\xd8-\xf6\xf8-\u02ff\u0370-\u0482\u048a-\u0556\u0561-\u0587\u05d0-\u05f2"
    r"\u0620-\u0669\u066e-\u06d3\u06d5-\u06fc\u0710-\u0963\u0966-\u135f\u1369-\u1fff\u2c00-\u2dff\u3040-\ud7ff"
    r"\uf900-\ufdff\ufe70-\ufefc\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uffdc\U00010000-\U0001efff"
    r"\U00020000-\U0003ffff"
)
# All characters that no name has become spaces, so that a split finds the names. A run with a letter beyond
# ASCII, or with the mark of a cut, is not a name, so these are kept: as characters, and as bytes of UTF-8.
_FOREIGN = rf"[^\x00-\x7f{LETTERS}…]"
_SPACED = re.sub(rb"[^\nA-Za-z0-9_./:\x80-\xff-]", b" ", bytes(range(256)))
# A path, a dotted or snake-case name, a name with a digit, or camelCase.
_MARK = lazy_pattern(r"[0-9_/.]")
_CAMEL = lazy_pattern(r"[a-z][A-Z]")
_NUMERIC = lazy_pattern(r"[0-9._:/-]+")
# In scripts without spaces, pairs of characters replace words.
_WORD = rf"[\u3040-\u30ff\u4e00-\u9fff]{{2}}|[{LETTERS}]{{4,40}}"
_SHORTEST = 6
_LONGEST = 120
_LONGEST_PLAIN = 40
_MOST_TOKENS = 400
# The output of `grep -n`.
_LINE_NUMBER = lazy_pattern(r"^[./:-]*[0-9]+:")
_ESCAPE = lazy_pattern(r"\\[nrt]")
MAX_QUERY_CHARS = 16_000
_MAX_TERMS = 16
_NAME_WEIGHT = 1.0
_WORD_WEIGHT = 0.5

# The spellings of common tools.
TROUBLE = (
    *("Error:", "ERROR", "error:", "error[", "--- FAIL", "FAILED", "FAIL\t", " failed", "failure", "Failure"),
    *("Exception", "Traceback", "FATAL", "fatal", "panic:", "denied", "not found", "✗", "✖", "错误", "失败"),
    *("exit code", "exit status", "exited with", "Exit code", "Warning:", "WARN ", "WARNING ", "warning:"),
    *(':"error"', ': "error"', "level=error", '"errors":[{', '"errors": [{', '"ename":', '"evalue":'),
    *('"status":40', '"status": 40', '"status":50', '"status": 50', '"error":{', '"error": {', '"error":"'),
    *('"error": "', '"failed"', '"ok":false', '"ok": false', '"success":false', '"success": false'),
)
_LONGEST_WORD = max(map(len, TROUBLE))
_PART_CHARS = 32 * 1024


def names_of(texts: Sequence[str], most: int = _MOST_TOKENS) -> tuple[list[list[str]], dict[str, list[int]]]:
    """Return the distinct names in each of the lines `texts`, and for each name the indices of its lines.

    A name is a path, a dotted name, an identifier of several parts. Each distinct token is judged once, and
    of those that may be one the first `most`.
    """
    joined = _unescaped("\n".join(texts))
    joined = joined if joined.isascii() else re.sub(_FOREIGN, " ", joined)
    rows = [row.split() for row in encode_text(joined).translate(_SPACED).split(b"\n")]
    unlike = (
        token
        for token in dict.fromkeys(chain.from_iterable(rows))
        if len(token) >= _SHORTEST and token.isascii() and not (token.isalpha() and token[1:].islower())
    )
    # A line border counts as one of the tokens.
    known = _known([*islice(unlike, most - (len(texts) > 1))])
    names: list[list[str]] = [[] for _ in texts]
    places: dict[str, list[int]] = {name: [] for name in known.values()}
    for line, row in enumerate(rows):
        for token in row:
            if token in known:
                name = known[token]
                lines = places[name]
                if not lines or lines[-1] != line:
                    lines.append(line)
                    names[line].append(name)
    return names, places


# Names that differ only in digits are a series, of which some say enough.
_DIGITS_ALIKE = str.maketrans("123456789", "000000000")
_SHOWN_OF_SERIES = 6


def further_names(text: str, shown: Sequence[str], max_chars: int) -> list[str]:
    """Return the names in `text` that are in none of `shown`, the shortest first, in `max_chars` characters.

    Only so many distinct names are looked at as could fit.
    """
    if max_chars <= 0:
        return []
    names, others = (
        names_of([" ".join(texts.splitlines())], max_chars)[1] for texts in (text, "\n".join(shown))
    )
    further, left, series = list[str](), max_chars, Counter[str]()
    for name in sorted(names.keys() - others.keys(), key=lambda name: (len(name), name)):
        shape = name.translate(_DIGITS_ALIKE)
        series[shape] += 1
        if series[shape] > _SHOWN_OF_SERIES:
            continue
        left -= len(name) + 1
        if left < 0:
            break
        further.append(name)
    return further


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


def _known(tokens: Sequence[bytes]) -> dict[bytes, str]:
    """Return the names of those tokens that hold one."""
    known = {}
    for token, text in zip(tokens, b"\n".join(tokens).decode().split("\n"), strict=False):
        has_number = ":" in text and text[0] < "A"
        name = (_LINE_NUMBER.sub("", text, count=1) if has_number else text).strip("./:-")
        is_name = _SHORTEST <= len(name) <= _LONGEST and (_MARK.search(name) or _CAMEL.search(name))
        is_plain = len(name) > _LONGEST_PLAIN and name.isalnum()
        # A line of underscores is not a name.
        if is_name and not is_plain and name.strip("_./:-"):
            known[token] = name
    return known


def error_words(text: str) -> list[str]:
    """Return the words of `TROUBLE` in `text`, from one pass over it."""
    return [TROUBLE[i] for i in sorted(_SEARCHER.words.Match(encode_text(text)) or ())]


def error_parts(text: str) -> dict[str, list[range]]:
    """Return the words of `TROUBLE` in `text`, each with the parts that have it, from one pass."""
    parts: dict[str, list[range]] = {}
    for start in range(0, len(text), _PART_CHARS):
        # Words across the border of two parts are in the first of them.
        part = range(start, start + _PART_CHARS + _LONGEST_WORD)
        for word in error_words(text[part.start : part.stop]):
            parts.setdefault(word, []).append(part)
    return {word: parts[word] for word in TROUBLE if word in parts}


class _Searcher:
    """Finds the words of `TROUBLE`."""

    def __init__(self) -> None:
        renew_in_child(self)

    def renew(self) -> None:
        """Forget the set of words: a parent's thread may have held a lock inside it."""
        self.__dict__.pop("words", None)

    @cached
    def words(self) -> Any:
        """The set of words, compiled."""
        with NO_FORK:
            import re2  # noqa: PLC0415 # 10 ms that only a preview pays

        words = re2.Set.SearchSet()
        for word in TROUBLE:
            words.Add(re2.escape(word))
        words.Compile()
        return words


_SEARCHER = _Searcher()
