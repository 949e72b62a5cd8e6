"""Tables of lines that have one form each: logs, grep output, lists of files, pairs of names and values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from offload.reading.tables._form import (
    MAX_COLUMNS,
    Again,
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
        match = re.compile(self.pattern, re.ASCII).match
        row: list[Any] | None = None
        for number, line in enumerate(lines_of(chunks, remarks), 1):
            found = match(line.removesuffix("\r"))
            if found:
                if row is not None:
                    yield row
                row = [*found.group(*self.columns)]
            elif row is not None and self.continues and line.strip() and len(row[-1]) < _CONTINUED_CHARS:
                row[-1] = f"{row[-1]}\n{line}"
            elif line.strip("- "):
                remarks.add("lines that are not rows", number, is_misfit=row is not None)
        if row is not None:
            yield row


_CONTINUED_CHARS = 20_000
_LEVEL = (
    r"(?P<level>(?i:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERR(?:OR)?|FATAL|CRIT(?:ICAL)?|SEVERE|EMERG|ALERT))"
)
_CLOCK = r"\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?"
_TIME = (
    rf"\[?(?P<time>\d{{4}}[-/]\d\d[-/]\d\d[T ]{_CLOCK}(?:Z| ?[+-]\d\d:?\d\d| UTC)?"
    rf"|[A-Z][a-z]{{2}} [ \d]\d \d\d:\d\d:\d\d|{_CLOCK})\]?(?=[ |])"
)
_SOURCE = r"(?P<source>[\w.$/@-]{1,100}+(?:\[\d+\])?)"
_MESSAGE = r"[ |:-]*+(?P<message>.*)"
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
        "log",
        ("time", "level", "source", "message"),
        rf"{_TIME}(?:[ |]*+-?[ |]*+\[?{_LEVEL}\]?(?![\w-]):?)?(?:[ |]*+(?:\[(?=[^\] ]+\])|(?=[^ ]+(?::| - )))"
        rf"{_SOURCE}(?:\]|:| -))?{_MESSAGE}",
        _BY_PARTS,
        continues=True,
    ),
    _LinePattern(
        "grep output",
        ("path", "line", "text"),
        rf"(?P<path>{_PATH}):(?P<line>\d{{1,9}}):(?P<text>.*)",
        _BY_PARTS,
    ),
    _LinePattern(
        "grep output", ("path", "text"), r"(?P<path>[\w.@+-]*(?:/[\w.@+-]++)++):(?!:)(?P<text>.*)", _BY_PARTS
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
    for kind in _LINE_PATTERNS:
        fits = re.compile(kind.pattern, re.ASCII).match
        least = max(_LEAST_ROWS, (0.5 if kind.continues else _FITTING) * (len(lines) - 1))
        found = [*filter(None, map(fits, lines))] if may_fit(lines, least, fits) else []
        fitting = len(found)
        if fitting >= least:
            share = fitting / len(lines)
            is_certain = fitting > _PAIR and fitting >= _FITTING * (len(lines) - 1)
            has_parts = "level" not in kind.columns or any(
                match["level"] or match["source"] for match in found
            )
            score = kind.score if has_parts else _BY_TIME
            yield Form(
                kind.name,
                kind.rows,
                kind.columns,
                is_certain=is_certain,
                score=score * (1.0 if kind.continues else share),
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
        key: str | Again = found["key"]
        if key in pairs:
            key = Again(str(key), sum(str(other) == key for other in pairs))
        pairs[key] = value
        at = found.end()
    return pairs if at == len(line) else {}
