"""The exact values in a text: numbers, dates, paths, URLs, identifiers and quotes.

No repeat is within another one over the same characters, so that each match takes linear time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from offload.reading.evidence._results import ValueKind

MAX_VALUE_CHARS = 200
MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
# Signs between groups of three digits. A space may also separate two numbers.
SEPARATORS = ",_'\u2019\u00a0\u2009\u202f"
_LEAST_DIGITS, _LEAST_NAME, _LEAST_PARTS, _DEEP = 3, 4, 2, 3
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if name[3:] else name for name in MONTHS)
_TOKEN = re.compile(
    rf"""
    (?P<quote> "[^"\n]{{4,200}}" | “[^”\n]{{4,200}}” | „[^“”\n]{{4,200}}[“”] | «[^»\n]{{4,200}}»
        | 「[^」\n]{{2,200}}」 | `[^`\n]{{2,200}}` )
    | (?P<url> https?://[^\s"'<>()\[\]{{}}`|\\,;*]{{4,}} )
    | (?P<date> (?<![\w./-]) \d{{4}} (?: -\d\d-\d\d (?:(?![\w/-]|\.\d)|(?=T\d)) | /\d\d/\d\d (?![\w/-]) )
        | (?<![\w.,/-]) \d{{1,2}} [ ] (?:{_MONTH}) \.?,?[ ] \d{{4}} (?!\w)
        | (?<!\w) (?:{_MONTH}) \.?[ ] \d{{1,2}} ,?[ ] \d{{4}} (?!\w)
        | (?<![\w./-]) \d{{1,2}} [/-] (?:{_MONTH}) [/-] \d{{4}} (?! [\w/-])
        | (?:(?<![\w:.])|(?<=\dT)|(?<=/\d{{4}}:)) \d\d:\d\d:\d\d (?![\w:]*:) )
    | (?P<number> (?<![\w.]) (?: \d{{1,3}} (?:[{SEPARATORS}]\d{{3}})+ | \d{{1,40}} ) (?: \.\d{{1,40}} )?
        (?= [A-Za-zµ]{{0,3}} (?! \w | [/@\\][A-Za-z_.] | [.,:]\d | \.[A-Za-z] | -[A-Za-z]*\d+[A-Za-z]) ) )
    | (?P<name> --[A-Za-z][\w-]{{2,}} | (?!T\d\d:\d\d) (?:[A-Za-z]:)?[\w@~./\\][\w@~./\\:-]{{2,}} )
    """,
    re.VERBOSE | re.ASCII,
)
# Letters beyond ASCII: no punctuation, no symbols. Scripts from Thai on have no spaces between words.
_LETTERS = (
    r"\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u0300-\u037d\u037f-\u05bd\u05bf-\u060b\u060d-\u061a"
    r"\u0620-\u0963\u0966-\u1fff\u3005-\u3007\u3041-\u3096\u30a1-\u30fa\u30fc\u3400-\u4dbf\u4e00-\u9fff"
    r"\ua000-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(r"[\u0e00-\u0fff\u3005-\ufaff\U00020000-\U0003ffff]")
_WIDE = re.compile(
    rf"(?<![\w{_LETTERS}@~./\\:-])[\w@~./\\:-]{{0,200}}[{_LETTERS}][\w{_LETTERS}@~./\\:-]*", re.ASCII
)
# Signs before a path in a text without spaces.
_OPENING = frozenset(" \t`\"'([{<=|:\u3000\uff08\uff1a\u300c\u300e\u300a\u201c\u201e\u00ab")
_PERCENT = re.compile(r"[ \u00a0\u202f]?(?:%|percent\b|per cent\b)")
_LINE_NUMBER = re.compile(r":\d[\d:-]*\Z")
# After a path and a line number, more of them: `a.py:114,139,197`.
_MORE_LINES = re.compile(r"(?:, ?\d+(?:-\d+)?)+(?!\w)", re.ASCII)
_PATH_PART, _WORD = re.compile(r"[^/\\]+"), re.compile(r"[\w@~]+", re.ASCII)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)
_FILE_NAME = re.compile(rf"[\w{_LETTERS}@.-]*\.[A-Za-z][A-Za-z0-9]{{0,7}}", re.ASCII)
_SLASH = re.compile(r"[/\\]")
# A name that is not a word: an underscore, a hump, a letter at a digit, a dot or colons within it.
_MARKED = re.compile(
    rf"\w_\w|[a-z][A-Z]|[A-Za-z]-?\d|\d[A-Za-z]|[\w{_LETTERS}]\.\w|\w::\w|\w@\w|\A--", re.ASCII
)
_MARKED_PART = re.compile(r"[_.\d-]")
_SEVERAL_WORDS = re.compile(r"\w\W*\s\W*\w")
_EXTENSIONS = frozenset([
    "c", "cc", "cfg", "conf", "cpp", "cs", "css", "csv", "db", "env", "go", "h", "hpp", "html", "ini",
    "ipynb", "java", "jpg", "js", "json", "jsonl", "jsx", "kt", "lock", "log", "lua", "md", "mjs",
    "parquet", "pdf", "php", "png", "proto", "py", "pyi", "r", "rb", "rs", "rst", "scss", "sh", "sql",
    "sqlite", "svg", "swift", "tar", "tex", "toml", "ts", "tsv", "tsx", "txt", "vue", "xml", "yaml",
    "yml", "zip", "zst",
])  # fmt: skip # a list of words


class Stated(NamedTuple):
    """A value as a text states it; that a number is a percentage shows only behind it."""

    text: str
    start: int
    kind: ValueKind
    is_percent: bool = False


_NO_PATH: tuple[Stated | None, int] = None, 0


def values_of(text: str) -> Iterator[Stated]:
    """Yield the exact values in a text, in order, none within another."""
    fences = [match.start() for match in _FENCE.finditer(text)]
    yield from _values_in(text, 0, len(text), fences)


def _values_in(text: str, at: int, end: int, fences: Sequence[int] | None) -> Iterator[Stated]:
    """Yield the values in a part of a text; quotes only outside code, and none if `fences` is None."""
    paths = _wide_paths(text, at, end)
    path, until = next(paths, _NO_PATH)
    match = _TOKEN.search(text, at, end)
    while match is not None or path is not None:
        if path is not None and (match is None or path.start <= match.start()):
            yield path
            # A token within the path is none; any other one is found already.
            if match is not None and match.start() < until:
                match = _TOKEN.search(text, until, end)
        elif match is not None:
            yield from _values_at(match, text, fences)
            at = _end_of(match, text)
            match = _TOKEN.search(text, at, end)
            if path is None or at <= path.start:
                continue
        path, until = next(paths, _NO_PATH)


def _wide_paths(text: str, at: int, end: int) -> Iterator[tuple[Stated | None, int]]:
    """Yield the paths with letters beyond ASCII, and where the token of each ends."""
    for match in _WIDE.finditer(text, at, end):
        found = _name(match[0], match.start())
        if found is None or found.kind != "path" or len(match[0]) > MAX_VALUE_CHARS or "://" in match[0]:
            continue
        root = _SLASH.split(match[0])[0]
        if _UNSPACED.search(root) is None or _is_apart(match, text):
            yield found, _end_of(match, text)


def _is_apart(match: re.Match[str], text: str) -> bool:
    """Return whether a token is not part of a sentence without spaces."""
    before, behind = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
    return before in _OPENING or (before in ("", "\n") and behind in ("", "\r", "\n"))


def _values_at(match: re.Match[str], text: str, fences: Sequence[int] | None) -> Iterator[Stated]:
    """Yield the value that a token is, or else those within it."""
    if len(match[0]) > MAX_VALUE_CHARS + len('""'):
        return
    if match.lastgroup == "quote" and (fences is None or not _is_quote(match, fences)):
        yield from _values_in(text, match.start() + 1, match.end() - 1, None)
    elif (found := _value(match, text)) is not None:
        yield found
    elif match.lastgroup == "name":
        yield from _parts_of_name(match, text)


def _end_of(match: re.Match[str], text: str) -> int:
    """Return the end of a token; more line numbers behind a name are part of it."""
    is_numbered = match.lastgroup in ("name", None) and ":" in match[0]
    lines = _MORE_LINES.match(text, match.end()) if is_numbered else None
    return match.end() if lines is None else lines.end()


def _parts_of_name(match: re.Match[str], text: str) -> Iterator[Stated]:
    """Yield the values among the parts of a name that is none: those of a path, or else of a word."""
    part = _WORD if _SLASH.search(match[0]) is None else _PATH_PART
    for one in part.finditer(text, match.start(), match.end()):
        if one[0] != match[0]:
            yield from _values_in(text, one.start(), one.end(), None)


def _is_quote(match: re.Match[str], fences: Sequence[int]) -> bool:
    """Return whether several words are quoted; in code, quotes have another meaning."""
    is_in_fence = bisect_right(fences, match.start()) % 2 == 1
    return match[0][0] != "`" and not is_in_fence and _SEVERAL_WORDS.search(match[0]) is not None


def _value(match: re.Match[str], text: str) -> Stated | None:
    """Return the value that a token is, if it is one."""
    start, token = match.start(), match[0]
    if match.lastgroup == "quote":
        return Stated(token[1:-1], start + 1, "quote")
    if match.lastgroup == "name":
        return _name(token, start)
    if match.lastgroup == "url":
        return Stated(token.rstrip(".:!?_/"), start, "url")
    if match.lastgroup == "date":
        return Stated(token, start, "date")
    if len(re.sub(r"\D", "", token).lstrip("0")) < _LEAST_DIGITS:
        return None
    return Stated(token, start, "number", _PERCENT.match(text, match.end()) is not None)


def _name(token: str, start: int) -> Stated | None:
    """Return the path or the identifier that a token is, without a line number and signs around it."""
    if token.startswith("..."):
        shorter = token.lstrip(".").lstrip("/\\")
        start, token = start + len(token) - len(shorter), shorter
    token = _LINE_NUMBER.sub("", token.rstrip(".:-~")).rstrip("/\\:")
    parts = [part for part in _SLASH.split(token) if part not in ("", ".")]
    if _SLASH.search(token):
        is_file = bool(parts) and _FILE_NAME.fullmatch(parts[-1]) is not None
        is_rooted = len(parts) >= _LEAST_PARTS and (token[0] in "/~." or token[1:2] == ":")
        is_deep = len(parts) >= _DEEP and _MARKED_PART.search(token) is not None
        return Stated(token, start, "path") if is_file or is_rooted or is_deep else None
    if len(token) < _LEAST_NAME or not _MARKED.search(token):
        return None
    is_file = _FILE_NAME.fullmatch(token) is not None and token.rpartition(".")[2] in _EXTENSIONS
    return Stated(token, start, "path" if is_file else "identifier")
