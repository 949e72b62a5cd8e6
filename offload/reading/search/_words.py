"""Words of texts and queries, for the `unicode61` tokenizer of SQLite's FTS5.

The tokenizer splits at everything but letters and digits, and folds case and accents, so `read_file` and
`src/a.py` need nothing else. A passage gets more words for what it does not split: `readFile`, text without
spaces, and words after an escaped newline in JSON. Both are composed, since some systems write accents and
Korean syllables as several characters.
"""

from __future__ import annotations

import re
from unicodedata import normalize

from offload.base.text import words_without_colors

MAX_QUERY_CHARS, MAX_QUERY_WORDS = 4_000, 64
# A word is matched from its start only, so that each takes linear time.
_HUMPED = re.compile(r"\b\w*?[a-z0-9][A-Z]\w*", re.ASCII)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", re.ASCII)
_ESCAPED = re.compile(r"\\[nrt](\w+)")
# Chinese characters, Japanese kana, Korean syllables.
_UNSPACED = re.compile(
    "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0002ffff]+"
)
_PART = re.compile(r"[^\W_]+")
# Where a word may begin or end, also within `readFile`.
_EDGE = rf"(?:(?<![^\W_])|(?![^\W_])|{_HUMP.pattern})"
_SURROGATES = re.compile("[\ud800-\udfff]")


def indexed_text(text: str) -> str:
    """Return a passage without colors, followed by the words that the tokenizer would not find in it."""
    text = words_without_colors(text)
    more = [_HUMP.sub(" ", word) for word in _HUMPED.findall(text)]
    if "\\" in text:
        more += _ESCAPED.findall(text)
    if not text.isascii():
        text = normalize("NFC", _SURROGATES.sub(" ", text))
        more += [pair for run in _UNSPACED.findall(text) for pair in _pairs(run)]
    return f"{text}\n{' '.join(more)}" if more else text


def match_expression(query: str) -> str:
    """Return the FTS5 expression of a query: any of its words, and each path or identifier as a phrase.

    It is "" for a query without a word. At most 4,000 characters and 64 words count.
    """
    text = normalize("NFC", _SURROGATES.sub(" ", query[:MAX_QUERY_CHARS]))
    terms: dict[str, None] = {}
    for chunk in text.split():
        if len(terms) >= MAX_QUERY_WORDS:
            break
        parts = [word for part in _PART.findall(chunk) for word in _words(part)]
        if len(parts) > 1:
            terms[_quoted(" ".join(parts))] = None
        terms |= dict.fromkeys(map(_quoted, [*parts, *_PART.findall(chunk)]))
        terms |= {f"{_quoted(run)} *": None for run in _UNSPACED.findall(chunk) if len(run) == 1}
    return " OR ".join([*terms][: 2 * MAX_QUERY_WORDS])


def split_at_words(text: str, query: str) -> list[str]:
    """Return the parts of a text; those at odd places are words of a query, as a search finds them.

    A word that differs by an accent is found, but it is not a part.
    """
    words = [word for word in re.findall('"([^"]+)"', match_expression(query)) if " " not in word]
    forms = "|".join(
        re.escape(word) if _UNSPACED.fullmatch(word) else f"{_EDGE}(?i:{re.escape(word)}){_EDGE}"
        for word in sorted(words, key=len, reverse=True)
    )
    return re.split(f"({forms})", text) if forms else [text]


def _words(part: str) -> list[str]:
    spaced = _UNSPACED.sub(" ", part)
    pairs = [pair for run in _UNSPACED.findall(part) for pair in _pairs(run)]
    return _HUMP.sub(" ", spaced).split() + pairs


def _pairs(run: str) -> list[str]:
    return [run[i : i + 2] for i in range(len(run) - 1)]


def _quoted(words: str) -> str:
    # Of letters, digits and spaces, so that there is no quote to escape.
    return f'"{words}"'
