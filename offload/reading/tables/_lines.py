"""Tables of lines that have one form each: logs, grep output, lists of files, pairs of names and values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from offload.reading.tables._form import (
    MAX_COLUMNS,
    Form,
    LineReader,
    Remarks,
    Row,
    Sample,
    lines_of,
    may_fit,
)

_FITTING = 0.9
_LEAST_ROWS = 2
_PAIR = 2
# How well a table is known: by a form that nothing else has, by one with a level or a path, by a time alone.
_BY_FORM, _BY_PARTS, _BY_TIME = 0.95, 0.9, 0.7


class _LinePattern(NamedTuple):
    """A kind of text whose lines have one form.

    Attributes:
        name: the kind.
        columns: the columns, the groups of the pattern.
        pattern: the form of a line.
        score: how well a text is known by it.
        continues: whether another line continues the last column of the row before it.
    """

    name: str
    columns: tuple[str, ...]
    pattern: str
    score: float = _BY_FORM
    continues: bool = False

    def fits(self, lines: Sequence[str]) -> float:
        """Return the share of lines that are rows, or parts of one."""
        match = re.compile(self.pattern, re.ASCII).match
        filled = [line for line in lines if line.strip("- ")]
        share = len([*filter(match, filled)]) / len(filled) if filled else 1.0
        return min(1.0, 2 * share) if self.continues else share

    def rows(self, chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
        """Yield the rows, each with the lines that continue it."""
        match, row = re.compile(self.pattern, re.ASCII).match, list[Any]()
        log = _LogRows(self.columns, remarks, is_counted=self.continues)
        for number, line in enumerate(lines_of(chunks, remarks), 1):
            if found := match(text := line.removesuffix("\r")):
                if row:
                    yield row
                row = log.row(found.group(*self.columns), number)
            elif row and self.continues and text.strip() and len(row[-1] or "") < _CONTINUED_CHARS:
                row[-1] = f"{row[-1] or ''}\n{text}"
                remarks.add("lines without a time, in the message before", number)
            elif text.strip("- ") and not _TOTAL.fullmatch(text):
                remarks.add("lines that are not rows", number, is_misfit=bool(row))
        if row:
            yield row
        log.note_levels()


class _LogRows:
    """Makes rows of the parts of lines: a source without the marks around it, None for what is absent."""

    def __init__(self, columns: Sequence[str], remarks: Remarks, *, is_counted: bool) -> None:
        self._columns, self._remarks, self._is_counted = columns, remarks, is_counted
        places = (columns.index(name) if name in columns else None for name in ("source", "level"))
        self._source, self._level = places
        self._levels = set[str]()

    def row(self, cells: Sequence[str | None], number: int) -> list[Any]:
        """Return the row of a line; count the parts that it does not have."""
        row = [*cells]
        if self._source is not None:
            row[self._source] = _without_marks(row[self._source])
        if self._level is not None:
            self._levels.add(row[self._level] or "")
        if self._is_counted and not all(row):
            row = [cell or None for cell in row]
            for name in (name for name, cell in zip(self._columns, row, strict=True) if cell is None):
                self._remarks.add(f"lines without a {name}", number)
        return row

    def note_levels(self) -> None:
        if not self._levels <= _PLAIN_LEVELS:
            self._remarks.notes.append(f"level is {', '.join(sorted(self._levels - {''}))}")


@lru_cache(maxsize=1000)
def _without_marks(source: str | None) -> str:
    """Return the source of a line in a log without the marks around it."""
    bare = (source or "").strip()
    return bare.strip(" \t|:.-") if " " in bare else bare.strip(" \t|:.-[](<")


_TOTAL = re.compile(r"total [\d.,]+[KMGTP]?")
_CONTINUED_CHARS = 20_000
_CLOCK = r"\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?"
_ZONE = r"(?:Z| ?[+-]\d\d:?\d\d| (?:UTC|GMT|[A-Z]{1,3}T))?"
_TIME = (
    rf"(?P<time>(?:\d\d)?\d\d[-/.]\d\d[-/.]\d\d[T ]{_CLOCK}{_ZONE}"
    rf"|\d\d[-/][A-Z][a-z]{{2}}[-/]\d{{4}}[ :]{_CLOCK}{_ZONE}"
    rf"|(?:[A-Z][a-z]{{2}} )?[A-Z][a-z]{{2}} [ \d]\d {_CLOCK}(?: \d{{4}})?|\d\d-?\d\d {_CLOCK}"
    rf"|{_CLOCK}{_ZONE})"
    r"(?=[ \t\]:])"
)
_WORD = (
    "(?i:TRACE|DEBUG|INFO|INFORMATION|NOTICE|WARN|WARNING|ERR|ERROR|CRIT|CRITICAL|FATAL|SEVERE|ALERT|EMERG"
    "|VRB|DBG|INF|WRN|FTL)|FINE|PANIC|LOG|DETAIL|HINT|CONTEXT|STATEMENT"
)
_LETTER = "[VDIWEF]"
# Other spellings of a level are said in answers.
_PLAIN_LEVELS = frozenset(
    ("", "TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL")
)
# Before a level: some texts in brackets or words, and the name before its colon or point.
_PART = r"(?:\[[^\]]*+\]|\([^)]*+\)|[^\s|]++)[ \t|:-]++"
_MOST_PARTS = 5
_BEGIN = r"(?:[A-Z], )?\[?"
# Marks between a level and the message, each between blanks.
_MARKS = r"(?:[ \t]*+[\])>])?:?(?:[ \t]++(?:--?|\||:)(?=[ \t]))*+[ \t]*+"
_SOURCE = (
    r"(?:(?:\[(?=[^\] ]+\])|(?=[^ ]+(?::| - )))(?P<source>[\w.$/@-]{1,100}+(?:\[\d+\])?)"
    r"(?:\]|:(?= )| -(?= ))[ \t]*+)"
)
_MESSAGE = r"(?P<message>.*)"
_OPENING, _CLOSING = frozenset("[]|(<:.-"), frozenset("])>:|-")


def _log_patterns() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the forms of lines of logs, those with most columns first."""
    time = rf"{_BEGIN}{_TIME}[ \t|\],:-]*+"
    for level in (_WORD, _LETTER):
        found = rf"[\[(<]?(?P<level>{level})(?![\w.-])"
        yield ("time", "level", "source", "message"), rf"{time}(?:{found}{_MARKS}{_SOURCE}?)?{_MESSAGE}"
        yield ("time", "level", "message"), rf"{time}(?:{found}{_MARKS})?{_MESSAGE}"
        for parts in range(_MOST_PARTS):
            source = rf"(?P<source>(?:{_PART}){{{parts}}}(?:[\[(<]?[\w-]{{1,40}}[:.])?)"
            yield ("time", "source", "level", "message"), rf"{time}(?:{source}{found}{_MARKS})?{_MESSAGE}"
    yield ("level", "time", "message"), rf"(?P<level>{_LETTER})(?=\d{{4}} ){_TIME}[ \t|\],:-]*+{_MESSAGE}"
    yield ("time", "source", "message"), rf"{time}{_SOURCE}?{_MESSAGE}"
    yield ("time", "message"), rf"{time}{_MESSAGE}"
    yield (
        ("level", "message"),
        rf"(?:\[(?=[A-Za-z]+\])|(?=[A-Za-z]+:))(?P<level>{_WORD})[\]:]+[ \t]*+{_MESSAGE}",
    )


def _log_of(lines: Sequence[str]) -> _LinePattern | None:
    """Return the form of a log whose columns all, or nearly all, of its lines have."""
    first = re.compile(rf"(?:{_BEGIN}|{_LETTER}){_TIME}|\[?(?:{_WORD})[\]:]", re.ASCII).match
    timed = [line for line in lines if first(line)]
    if 2 * len(timed) < len(lines):
        return None
    for columns, pattern in _log_patterns():
        match = re.compile(pattern, re.ASCII).match
        found = [*filter(None, map(match, timed))]
        most = _FITTING * len(timed)
        are_found = all(sum(map(bool, map(itemgetter(name), found))) >= most for name in columns)
        # A line of several names before times is that of another table.
        if columns == ("time", "message") and lines[0] != timed[0] and "  " in lines[0].strip():
            return None
        if are_found and (columns[1] != "source" or "level" not in columns or _are_levels(found)):
            score = _BY_PARTS if len(columns) > _PAIR else _BY_TIME
            return _LinePattern("log", columns, pattern, score, "time" in columns)
    return None


def _are_levels(found: Sequence[re.Match[str]]) -> bool:
    """Return whether words after others are levels: with marks around them, or several different ones."""
    marked = (
        found.string[: found.start("level")].rstrip()[-1:] in _OPENING
        or found.string[found.end("level") :].lstrip()[:1] in _CLOSING
        for found in filter(itemgetter("level"), found)
    )
    return len({found["level"] for found in found if found["level"]}) > 1 or all(marked)


# A name with a folder or an extension, or one that many projects have: a time or an address does not match.
_PATH = (
    r"(?=[^:]{0,300}(?:/|\.[A-Za-z_]\w{0,15}(?::|$))|\.?[A-Z][A-Za-z-]{2,40}:\d)[^:\s,;|\"'\[\](){}]{1,300}"
)
_LINE_PATTERNS = (
    _LinePattern(
        "access log",
        ("host", "time", "method", "path", "status", "bytes", "referrer", "agent"),
        r'(?P<host>\S{1,200}+) \S++ \S++ \[(?P<time>[^\]]{10,40})\] "(?P<method>[A-Z]{1,20}) '
        r'(?P<path>[^" ]*+)[^"]*+" (?P<status>\d{3}) (?P<bytes>\d+|-)'
        r'(?: "(?P<referrer>[^"]*+)" "(?P<agent>[^"]*+)")?.*',
    ),
    _LinePattern(
        "grep output",
        ("path", "line", "text"),
        rf"(?P<path>{_PATH}):(?P<line>\d{{1,9}}):(?P<text>.*)",
        _BY_PARTS,
    ),
    _LinePattern(
        "compiler output",
        ("path", "line", "text"),
        r"(?P<path>[^\s:(]++)\((?P<line>\d{1,9}),\d+\): ?(?P<text>.*)",
        _BY_PARTS,
    ),
    _LinePattern(
        "list of files",
        ("mode", "links", "owner", "group", "size", "modified", "name"),
        r"(?P<mode>[-dlbcps][-rwxsStT]{9}[.+@]?) +(?P<links>\d+) (?P<owner>\S+) +(?P<group>\S+) +"
        r"(?P<size>[\d.,]+[KMGTP]?) (?P<modified>[A-Z][a-z]{2} +\d+ +[\d:]+"
        r"|\d{4}-\d\d-\d\d \d\d:\d\d(?::[\d.]+ [+-]\d{4})?) (?P<name>.+)",
    ),
)


def pattern_forms(sample: Sample) -> Iterator[Form]:
    """Yield the table of lines of one form: logs, access logs, grep output, `ls -l`."""
    lines = [line for line in sample.filled if line.strip("- ")]
    log = _log_of(lines)
    for kind in (*_LINE_PATTERNS, *([log] if log else [])):
        fits = re.compile(kind.pattern, re.ASCII).match
        least = max(_LEAST_ROWS, (0.5 if kind.continues else _FITTING) * (len(lines) - 1))
        fitting = sum(map(bool, map(fits, lines))) if may_fit(lines, least, fits) else 0
        if fitting >= least:
            is_certain = fitting > _PAIR and fitting >= _FITTING * (len(lines) - 1)
            share = 1.0 if kind.continues else fitting / len(lines)
            yield Form(
                kind.name,
                kind.rows,
                kind.columns,
                is_certain=is_certain,
                score=kind.score * share,
                fits=kind.fits,
            )
            return


_PAIRS = re.compile(
    r'(?P<key>[A-Za-z_][\w.-]{0,60})=(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"|(?P<plain>[^\s"]*+))(?:\s+|$)',
    re.ASCII,
)


def pairs_forms(sample: Sample) -> Iterator[Form]:
    """Yield the table of lines of `key=value`."""
    lines = sample.filled
    least = max(_LEAST_ROWS, _FITTING * len(lines))
    if not may_fit(lines, least, _PAIRS.match):
        return
    rows = [pairs for line in lines if len(pairs := _pairs(line)) >= _PAIR]
    if len(rows) < least:
        return
    commonest = Counter(key for pairs in rows for key in pairs).most_common(1)[0][1]
    share = min(len(rows) / len(lines), commonest / len(rows))
    is_certain = len(rows) == len(lines) > _PAIR and share > _FITTING
    reader = LineReader(_pairs)
    yield Form("pairs", reader.rows, is_certain=is_certain, score=_BY_FORM * share, fits=reader.fits)


def _pairs(line: str) -> dict[Any, str]:
    """Return the pairs of a line that has nothing else, and is not code."""
    pairs: dict[Any, str] = {}
    at = 0
    while (found := _PAIRS.match(line, at)) is not None and len(pairs) < MAX_COLUMNS:
        plain = found["plain"]
        if plain and plain[-1] in ";,{":
            return {}
        value = found["quoted"].replace('\\"', '"') if plain is None else plain
        if found["key"] in pairs:
            return {}
        pairs[found["key"]] = value
        at = found.end()
    return pairs if at == len(line) else {}
