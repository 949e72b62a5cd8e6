"""Tables in lines of text: CSV, tables drawn with rules or aligned with blanks, grep output, logs."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from offload.tables._columns import type_of_texts
from offload.tables._form import MAX_COLUMNS, Form, Head, NoTableError, Remarks, Row, lines_of, names_for

_SAMPLED_LINES = 60
# Lines before a table that do not belong to it.
_MOST_BEFORE = 8
_FITTING = 0.9
_LEAST_ROWS = 2
_NAME_CHARS = 50
_PAIR = 2
_DIGIT = re.compile(r"[0-9]")


def delimited_form(head: Head) -> Form | None:
    """Return the table of texts between commas, semicolons or tabs."""
    lines = [line for line in head.lines[:_SAMPLED_LINES] if line.strip()]
    found = (_delimited(lines, delimiter) for delimiter in "\t;,")
    return next((form for form in found if form is not None), None)


def _delimited(lines: Sequence[str], delimiter: str) -> Form | None:
    if 2 * sum(delimiter in line for line in lines) < len(lines):
        return None
    if max(line.count(delimiter) for line in lines) >= MAX_COLUMNS:
        raise NoTableError(f"it has more than {MAX_COLUMNS:,} columns")
    try:
        rows = [row for row in csv.reader([f"{line}\n" for line in lines], delimiter=delimiter) if row]
    except csv.Error:
        return None
    width = Counter(map(len, rows)).most_common(1)[0][0]
    first = next(at for at, row in enumerate(rows) if len(row) == width)
    table = rows[first:]
    fitting = sum(len(row) == width for row in table)
    if width < _PAIR or first > _MOST_BEFORE or fitting < max(_LEAST_ROWS, _FITTING * (len(table) - 1)):
        return None
    if _is_prose([row for row in table if len(row) == width], delimiter):
        return None
    header = _header_of(table)
    is_regular = first == 0 and fitting >= len(table) - 1 and fitting > _PAIR
    is_certain = is_regular and header is not None and _differs(header, table[1:])
    read = partial(_delimited_rows, delimiter=delimiter, width=width, has_header=header is not None)
    name = {"\t": "TSV", ",": "CSV"}.get(delimiter, "table")
    return Form(name, read, names_for(header or [""] * width), is_certain=is_certain)


def _is_prose(rows: Sequence[Sequence[str]], delimiter: str) -> bool:
    """Return whether the delimiter is only a part of sentences or code."""
    if delimiter == "\t":
        # Indented code, and lines after the numbers that a file reader prints.
        return not any(row[0].strip() for row in rows) or all(row[0][:1] == " " for row in rows)
    if not any(row[-1].strip() for row in rows):
        return True
    spaced = sum(cell.startswith(" ") for row in rows for cell in row[1:])
    return 2 * spaced > sum(len(row) - 1 for row in rows)


def _header_of(table: Sequence[Sequence[str]]) -> Sequence[str] | None:
    first = [cell.strip() for cell in table[0]]
    numbers = [type_of_texts([cell]).name in ("integer", "real") for cell in first]
    is_named = any(first) and all(len(cell) <= _NAME_CHARS for cell in first)
    return first if is_named and not any(numbers) and not any(map(_is_code, first)) else None


def _differs(header: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a column has digits in each cell and none in its name, so the first row has names."""
    columns = zip(*(row for row in rows if len(row) == len(header)), strict=True)
    return any(
        not _DIGIT.search(name) and all(_DIGIT.search(cell) for cell in filter(None, column)) and any(column)
        for name, column in zip(header, columns, strict=True)
    )


def _is_code(cell: str) -> bool:
    return any(mark in cell for mark in "{}=<>;\\")


def _delimited_rows(
    chunks: Iterable[str], remarks: Remarks, *, delimiter: str, width: int, has_header: bool
) -> Iterator[Row]:
    reader = csv.reader((f"{line}\n" for line in lines_of(chunks, remarks)), delimiter=delimiter)
    has_begun = False
    try:
        for row in reader:
            if len(row) == width:
                if has_begun or not has_header:
                    yield row
                has_begun = True
            elif len(row) < _PAIR or not has_begun:
                if any(row):
                    remarks.add("lines that are no rows", reader.line_num)
            elif len(row) < width:
                remarks.add("short rows, filled with NULL", reader.line_num)
                yield [*row, *[None] * (width - len(row))]
            else:
                remarks.add("rows with more cells than columns, cut", reader.line_num)
                yield row[:width]
    except csv.Error as error:
        raise NoTableError(f"line {reader.line_num:,} cannot be read as CSV: {error}") from error


# A line between rows, or between the names and the rows, in any of the usual characters.
_RULE = re.compile(r"(?s:(?=[\s|+:=\-\u2500-\u257f]*+\Z).*?(?:[-:]-|[\u2500-\u257f]|={3}).*)")
_BARS = "|\u2502\u2503\u2551"
_BAR = re.compile(r"(?<!\\)[|\u2502\u2503\u2551]")


def ruled_form(head: Head) -> Form | None:
    """Return the longest table whose cells are between bars: Markdown, psql, mysql, boxes."""
    blocks = [*_blocks(head.lines)] if any(bar in head.text for bar in _BARS) else []
    if not blocks:
        return None
    start, header, count = max(blocks, key=lambda block: block[2])
    others = sum(not _is_rule(line) for line in head.lines if line.strip()) - count - 1
    read = partial(_ruled_rows, start=start, width=len(header))
    is_certain = count >= _LEAST_ROWS and others <= max(_PAIR, count // 10)
    return Form("table", read, names_for(header), is_certain=is_certain)


def _blocks(lines: Sequence[str]) -> Iterator[tuple[int, list[str], int]]:
    """Yield for each table the index of its first row, its header and the number of its rows."""
    end = 0
    for at, rule in enumerate(map(_RULE.fullmatch, lines)):
        if rule is None or at <= end:
            continue
        cells = _cells(lines[at - 1])
        if len(cells) < _PAIR:
            continue
        end = start = at + 1
        while end < len(lines) and (_is_rule(lines[end]) or len(_cells(lines[end])) >= _PAIR):
            end += 1
        yield start, cells, sum(not _is_rule(line) for line in lines[start:end])


def _is_rule(line: str) -> bool:
    return _RULE.fullmatch(line) is not None


def _cells(line: str) -> list[str]:
    """Return the cells between the bars of a line, none if it has no bars."""
    bare = line.strip()
    if not any(bar in bare for bar in _BARS) or _is_rule(line):
        return []
    bare = bare[bare[0] in _BARS :]
    cells = _BAR.split(bare[:-1] if bare[-1:] in _BARS and bare[-2:-1] != "\\" and bare else bare)
    return [cell.strip().replace("\\|", "|") for cell in cells[:MAX_COLUMNS]]


def _ruled_rows(chunks: Iterable[str], remarks: Remarks, *, start: int, width: int) -> Iterator[Row]:
    is_over = False
    for number, line in enumerate(lines_of(chunks, remarks)):
        cells = [] if is_over or number < start else _cells(line)
        if len(cells) >= _PAIR:
            yield [*cells[:width], *[None] * (width - len(cells))]
        elif number >= start and not is_over:
            is_over = not _is_rule(line)
        if not cells and line.strip() and number != start - 2 and not _is_rule(line):
            remarks.add("lines that are no rows", number + 1)


_WORD = re.compile(r"\S+(?: \S+)*")
_HEADING = re.compile(r"[#%A-Za-z][^=:;{}<>\"]*")
_DASHES = re.compile(r"[-=]+(?: +[-=]+)+\s*")
_MEASURE = re.compile(r"-?\d[\d.,]*(?:[KMGTP]i?B?|[kmg]?B|%|[smhd])?")


def aligned_form(head: Head) -> Form | None:
    """Return the table of columns that are aligned with blanks, as many commands print it."""
    lines = head.lines[:_SAMPLED_LINES]
    for at, line in enumerate(lines[: _PAIR + 1]):
        body = lines[at + 1 :]
        is_ruled = bool(body) and _DASHES.fullmatch(body[0]) is not None
        rows = [row for row in body[is_ruled:] if row.strip()]
        if len(rows) < _LEAST_ROWS or not _HEADING.fullmatch(line.strip()):
            continue
        form = _aligned(line, rows, at + 1 + is_ruled, is_ruled=is_ruled) or _spaced(line, rows, at + 1)
        if form is not None:
            return form
    return None


def _aligned(header: str, rows: Sequence[str], first: int, *, is_ruled: bool) -> Form | None:
    """Return the table if each column begins where its name does, after a blank."""
    names = [*_WORD.finditer(header)]
    starts = [0, *(name.start() for name in names[1:])]
    if not _PAIR <= len(names) <= MAX_COLUMNS:
        return None
    fitting = [row for row in rows if all(row[start - 1 : start] in ("", " ") for start in starts[1:])]
    full = sum(all(row[start : start + 1].strip() for start in starts[1:]) for row in fitting)
    least = _FITTING * (len(rows) - 1)
    if len(fitting) < max(_LEAST_ROWS, least) or full < len(fitting) / _PAIR:
        return None
    is_certain = len(fitting) > _PAIR and (is_ruled or header.upper() == header)
    read = partial(_aligned_rows, first=first, starts=tuple(starts))
    return Form("table", read, names_for(name[0] for name in names), is_certain=is_certain)


def _aligned_rows(
    chunks: Iterable[str], remarks: Remarks, *, first: int, starts: Sequence[int]
) -> Iterator[Row]:
    ends = [*starts[1:], None]
    for number, line in enumerate(lines_of(chunks, remarks)):
        if number < first:
            continue
        if all(line[start - 1 : start] in ("", " ") for start in starts[1:]) and len(line) > starts[1]:
            yield [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        elif line.strip():
            remarks.add("lines that are no rows", number + 1)


def _spaced(header: str, rows: Sequence[str], first: int) -> Form | None:
    """Return the table if the cells are single words, but for the last, and one column has numbers."""
    names = header.split()
    widths = Counter(len(row.split(None, len(names) - 1)) for row in rows)
    if widths.most_common(1)[0][0] == len(names) - 1:
        # Two words name the last column, such as `Mounted on`.
        names[-2:] = [" ".join(names[-2:])]
    width = len(names)
    cells = [row.split(None, width - 1) for row in rows]
    fitting = [row for row in cells if len(row) == width]
    if width <= _PAIR or len(fitting) < max(_LEAST_ROWS, _FITTING * (len(rows) - 1)):
        return None
    measured = sum(all(map(_MEASURE.fullmatch, column)) for column in list(zip(*fitting, strict=True))[:-1])
    if not measured or any(map(_MEASURE.fullmatch, names)):
        return None
    read = partial(_spaced_rows, first=first, width=width)
    return Form("table", read, names_for(names), is_certain=len(fitting) == len(rows) > _PAIR)


def _spaced_rows(chunks: Iterable[str], remarks: Remarks, *, first: int, width: int) -> Iterator[Row]:
    for number, line in enumerate(lines_of(chunks, remarks)):
        cells = line.split(None, width - 1) if number >= first else []
        if len(cells) == width:
            yield cells
        elif cells:
            remarks.add("lines that are no rows", number + 1)


class _LinePattern(NamedTuple):
    """A kind of text whose lines have one form.

    Attributes:
        name: the kind.
        columns: the columns, the groups of the pattern.
        pattern: the form of a line.
        continues: whether another line continues the last column of the row before it.
        is_certain: whether a placeholder may show the columns.
    """

    name: str
    columns: tuple[str, ...]
    pattern: str
    continues: bool = False
    is_certain: bool = True

    def rows(self, chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
        match = re.compile(self.pattern, re.ASCII).match
        row: list[Any] | None = None
        for number, line in enumerate(lines_of(chunks, remarks), 1):
            found = match(line)
            if found:
                if row is not None:
                    yield row
                row = [*found.group(*self.columns)]
            elif row is not None and self.continues and line.strip() and len(row[-1]) < _CONTINUED_CHARS:
                row[-1] = f"{row[-1]}\n{line}"
            elif line.strip("- "):
                remarks.add("lines that are no rows", number)
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
        continues=True,
    ),
    _LinePattern(
        "grep output", ("path", "line", "text"), r"(?P<path>[^:\s][^:]{0,299}):(?P<line>\d{1,9}):(?P<text>.*)"
    ),
    _LinePattern("grep output", ("path", "text"), r"(?P<path>[\w.@+-]*(?:/[\w.@+-]++)++):(?!:)(?P<text>.*)"),
    _LinePattern(
        "compiler output",
        ("path", "line", "text"),
        r"(?P<path>[^\s:(]++)\((?P<line>\d{1,9}),\d+\): ?(?P<text>.*)",
    ),
    _LinePattern(
        "list of files",
        ("mode", "links", "owner", "group", "size", "modified", "name"),
        r"(?P<mode>[-dlbcps][-rwxsStT]{9}[.+@]?) +(?P<links>\d+) (?P<owner>\S+) +(?P<group>\S+) +"
        r"(?P<size>[\d.,]+[KMGTP]?) (?P<modified>[A-Z][a-z]{2} +\d+ +[\d:]+"
        r"|\d{4}-\d\d-\d\d \d\d:\d\d(?::[\d.]+ [+-]\d{4})?) (?P<name>.+)",
    ),
)


def pattern_form(head: Head) -> Form | None:
    """Return the table of lines of one form: logs, access logs, grep output, `ls -l`."""
    lines = [line for line in head.lines[:_SAMPLED_LINES] if line.strip("- ")]
    for kind in _LINE_PATTERNS:
        match = re.compile(kind.pattern, re.ASCII).match
        fitting = len([*filter(match, lines)])
        if fitting >= max(_LEAST_ROWS, (0.5 if kind.continues else _FITTING) * (len(lines) - 1)):
            is_certain = fitting > _PAIR and fitting >= _FITTING * (len(lines) - 1)
            return Form(kind.name, kind.rows, kind.columns, is_certain=is_certain)
    return None


_PAIRS = re.compile(
    r'(?P<key>[A-Za-z_][\w.-]{0,60})=(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"|(?P<plain>[^\s"]*+))(?:\s+|$)',
    re.ASCII,
)


def pairs_form(head: Head) -> Form | None:
    """Return the table of lines of `key=value`."""
    lines = [line for line in head.lines[:_SAMPLED_LINES] if line.strip()]
    fitting = sum(len(_pairs(line)) >= _PAIR for line in lines)
    if fitting < max(_LEAST_ROWS, _FITTING * len(lines)):
        return None
    return Form("pairs", _pairs_rows, is_certain=fitting == len(lines) > _PAIR)


def _pairs(line: str) -> dict[str, str]:
    """Return the pairs of a line that has nothing else."""
    pairs: dict[str, str] = {}
    at = 0
    while (found := _PAIRS.match(line, at)) is not None and len(pairs) < MAX_COLUMNS:
        pairs.setdefault(
            found["key"], found["plain"] if found["quoted"] is None else found["quoted"].replace('\\"', '"')
        )
        at = found.end()
    return pairs if at == len(line) else {}


def _pairs_rows(chunks: Iterable[str], remarks: Remarks) -> Iterator[Row]:
    for number, line in enumerate(lines_of(chunks, remarks), 1):
        pairs = _pairs(line)
        if pairs:
            yield pairs
        elif line.strip():
            remarks.add("lines that are no rows", number)
