"""Drawn tables of many kinds, as texts, whole and damaged, and what is read of them wrong in silence."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from offload.errors import ConfigError
from offload.reading.tables._query import Record, query

# A cell: its text, and its value.
Cell = tuple[str, Any]
WORDS = ("web", "cache", "redis", "São Paulo", "north west", "a b c", "naïve", "x-1", "Ünal", "data")
PLAIN = ("web", "cache", "redis", "db", "api", "queue", "auth", "mail", "proxy", "cron")


class Column(NamedTuple):
    name: str
    cells: list[Cell]


class Drawn(NamedTuple):
    """A table: its text, its columns, and how pandas reads it if it can."""

    text: str
    columns: list[Column]
    options: dict[str, Any] | None = None
    is_ragged: bool = False
    # Whether the text has other columns between these.
    is_part: bool = False
    # A first line that is not known to have the names must be said to be one.
    is_doubtful: bool = False


def read_as(value: Callable[[str], Any], text: str) -> Cell:
    return text, value(text)


def in_units(chance: random.Random, units: Sequence[tuple[str, float]], tenths: int = 1) -> Cell:
    unit, factor = chance.choice(units)
    number = chance.randrange(1, 999) / tenths
    return f"{number:g}{unit}", number * factor


def integers(chance: random.Random) -> Cell:
    return read_as(
        int, str(chance.randrange(-(10 ** chance.randrange(1, 12)), 10 ** chance.randrange(1, 12)))
    )


def thousands(chance: random.Random) -> Cell:
    number = chance.randrange(10 ** chance.randrange(3, 10))
    return f"{number:,}", number


def dollars(chance: random.Random) -> Cell:
    number = chance.randrange(10**7) / 100
    return f"${number:,.2f}", number


def percents(chance: random.Random) -> Cell:
    number = chance.randrange(1000) / 10
    return f"{number:g}%", number


BYTES = (("KiB", 2**10), ("MiB", 2**20), ("GiB", 2**30))
SECONDS = (("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("us", 1e-6))
NOTES = ('say "hi"', "a, b", "one\ntwo", "x;y", "plain", 'it is 5" wide, or so', "1|2")
# The texts of a column, each with its value; most are their own.
SOURCES: dict[str, Callable[[random.Random], Cell]] = {
    "id": integers,
    "price": lambda c: read_as(float, f"{c.randrange(900)}.{c.choice(('5', '25', '00', '10', '99'))}"),
    "rate": lambda c: read_as(float, f"{c.randrange(1, 99)}e{c.randrange(-3, 7)}"),
    "count": thousands,
    "cost": dollars,
    "share": percents,
    "memory": lambda c: in_units(c, BYTES, 10),
    "took": lambda c: in_units(c, SECONDS),
    "city": lambda c: read_as(str, c.choice(WORDS)),
    "host": lambda c: read_as(str, c.choice(PLAIN)),
    "status": lambda c: read_as(
        str, f"{c.choice(PLAIN)} {c.choice(('up', 'down for', 'is'))} {c.randrange(99)} h"
    ),
    "label": lambda c: read_as(str, c.choice(PLAIN)) if c.randrange(3) else ("", None),
    "left": lambda c: integers(c) if c.randrange(5) else ("N/A", None),
    "day": lambda c: read_as(str, f"2026-{c.randrange(1, 13):02}-{c.randrange(1, 29):02}"),
    "at": lambda c: read_as(str, f"{c.randrange(24):02}:{c.randrange(60):02}:{c.randrange(60):02}"),
    "address": lambda c: read_as(str, f"10.{c.randrange(256)}.0.{c.randrange(256)}:{c.randrange(1, 65536)}"),
    "version": lambda c: read_as(str, f"3.{c.randrange(1, 30)}"),
    "zip": lambda c: read_as(int, f"{c.randrange(100_000):05}"),
    "note": lambda c: read_as(str, c.choice(NOTES)),
}
SIMPLE = ("id", "price", "host", "day", "at", "address")
FORMS = ("count", "cost", "share", "memory", "took", "rate", "price", "left")


def columns(
    chance: random.Random, names: Sequence[str], first: str = "id", least: int = 3, most: int = 14
) -> list[Column]:
    others = [name for name in dict.fromkeys(names) if name != first]
    chosen = [first, *chance.sample(others, chance.randrange(1, min(4, len(others) + 1)))]
    count = chance.randrange(least, most)
    return [Column(name, [SOURCES[name](chance) for _ in range(count)]) for name in chosen]


def table(found: Sequence[Column]) -> list[list[str]]:
    return [
        [column.name for column in found],
        *map(list, zip(*([t for t, _ in c.cells] for c in found), strict=True)),
    ]


def separated(rows: Sequence[Sequence[str]], delimiter: str = ",", end: str = "\n", **options: Any) -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator=end, **options).writerows(rows)
    return out.getvalue()


def delimited(delimiter: str, names: Sequence[str], end: str = "\n", before: str = "", **options: Any) -> Any:
    def draw(chance: random.Random) -> Drawn:
        found = columns(chance, names)
        text = before + separated(table(found), delimiter, end, **options)
        skipped = before.count("\n")
        return Drawn(text, found, {"sep": delimiter, "skiprows": skipped})

    return draw


def headerless(chance: random.Random) -> Drawn:
    found = columns(chance, SIMPLE)
    named = [Column(f"column{number}", column.cells) for number, column in enumerate(found, 1)]
    return Drawn(separated(table(found)[1:]), named, {"header": None})


def spaced(chance: random.Random) -> Drawn:
    found = columns(chance, SIMPLE)
    text = "".join(f"{', '.join(row)}\n" for row in table(found))
    return Drawn(text, found, {"skipinitialspace": True})


def all_texts(chance: random.Random) -> Drawn:
    found = columns(chance, ("city", "host"), first="host")
    return Drawn(separated(table(found)), found, {}, is_doubtful=True)


def quoted_tsv(chance: random.Random) -> Drawn:
    count = chance.randrange(5, 20)
    found = [Column("hash", [(f"{chance.randrange(16**7):07x}x",) * 2 for _ in range(count)])]
    found.append(Column("day", [SOURCES["day"](chance) for _ in range(count)]))
    subjects = ('"Fix" it', 'Say "no', '"Begin', "Add it", 'Make 5" of it')
    found.append(Column("subject", [(chance.choice(subjects),) * 2 for _ in range(count)]))
    return Drawn(
        "".join("\t".join(row) + "\n" for row in table(found)),
        found,
        {"sep": "\t", "quoting": csv.QUOTE_NONE},
    )


def ragged(chance: random.Random) -> Drawn:
    found = columns(chance, SIMPLE, least=20, most=40)
    lines = separated(table(found)).splitlines()
    lines[chance.randrange(5, len(lines))] += ",extra"
    return Drawn("\n".join(lines) + "\n", found, None, is_ragged=True)


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def psql(chance: random.Random) -> Drawn:
    found = columns(chance, (*SIMPLE, "label", "city", "count"), first=chance.choice(("label", "id")))
    rows = table(found)
    wide = widths(rows)
    lines = [" " + " | ".join(cell.ljust(size) for cell, size in zip(row, wide, strict=True)) for row in rows]
    lines.insert(1, "+".join("-" * (size + 2) for size in wide))
    return Drawn("\n".join(lines) + f"\n({len(rows) - 1} rows)\n", found)


def boxed(corner: str, bar: str, dash: str, *, is_grid: bool = False, names: Sequence[str] = SIMPLE) -> Any:
    def draw(chance: random.Random) -> Drawn:
        found = columns(chance, names)
        rows = table(found)
        wide = widths(rows)
        rule = corner + corner.join(dash * (size + 2) for size in wide) + corner
        drawn = [
            bar + bar.join(f" {cell:<{size}} " for cell, size in zip(row, wide, strict=True)) + bar
            for row in rows
        ]
        body = [line for row in drawn[1:] for line in (row, rule)] if is_grid else [*drawn[1:], rule]
        return Drawn("\n".join([rule, drawn[0], rule, *body]) + "\n", found)

    return draw


def markdown(chance: random.Random) -> Drawn:
    found = columns(chance, (*SIMPLE, "city", "label", *FORMS))
    head, *rows = table(found)
    lines = [head, ["---"] * len(head), *rows]
    return Drawn("".join(f"| {' | '.join(line)} |\n" for line in lines), found)


def aligned(
    names: Sequence[str], *, is_right: bool = False, gap: int = 3, is_upper: bool = True, most: int = 14
) -> Any:
    def draw(chance: random.Random) -> Drawn:
        found = columns(chance, names, first="host", least=max(4, most // 2), most=most)
        found = [column._replace(name=column.name.upper()) for column in found] if is_upper else found
        rows = table(found)
        wide = widths(rows)
        side = str.rjust if is_right else str.ljust
        lines = [
            (" " * gap).join(side(cell, size) for cell, size in zip(row, wide, strict=True)).rstrip()
            for row in rows
        ]
        return Drawn("\n".join(lines) + "\n", found)

    return draw


def printed_by_pandas(chance: random.Random) -> Drawn:
    found = columns(chance, ("id", "host", "day"), least=4)
    found = [Column("column1", [(str(at), at) for at in range(len(found[0].cells))]), *found]
    rows = table(found)
    rows[0][0] = ""
    wide = widths(rows)
    lines = [
        row[0].ljust(wide[0])
        + "".join(f"  {cell:>{size}}" for cell, size in zip(row[1:], wide[1:], strict=True))
        for row in rows
    ]
    return Drawn("\n".join(lines) + "\n", found)


LEVELS = ("INFO", "INFO", "DEBUG", "WARN", "ERROR")
# The forms of lines of logs and of lists, with the columns that they have in this order.
LINES = {
    "log": "{time} {level:<5} {source}: {message}",
    "log of Java": "{time} [{source}] {level:<5} {message}",
    "log in brackets": "[{time}] [{level}] {message}",
    "log of bars": "{time} | {level:<8} | {message}",
    "syslog": "Nov  5 {clock} {message}",
    "access log": '{host} - - [05/Nov/2026:{clock} +0000] "GET {path} HTTP/1.1" {status} {bytes}',
    "grep output": "{path}:{line}:{text}",
    "list of files": "-rw-r--r-- 1 {owner:<5} staff {size:>8} Nov 22 10:00 {name}",
}
PARTS: dict[str, Callable[[random.Random], Any]] = {
    "time": lambda c: f"2026-11-{c.randrange(1, 29):02} 10:{c.randrange(60):02}:{c.randrange(60):02}",
    "clock": lambda c: f"10:{c.randrange(60):02}:{c.randrange(60):02}",
    "level": lambda c: c.choice(LEVELS),
    "source": lambda c: f"app.{c.choice(PLAIN)}",
    "message": lambda c: f"request {c.randrange(999)} of {c.choice(PLAIN)} took {c.randrange(90)} ms",
    "host": lambda c: f"10.0.0.{c.randrange(256)}",
    "path": lambda c: f"/src/{c.choice(PLAIN)}.py",
    "status": lambda c: c.choice((200, 200, 404, 500)),
    "bytes": lambda c: c.randrange(10**5),
    "line": lambda c: c.randrange(1, 999),
    "text": lambda c: f"def {c.choice(PLAIN)}(x):",
    "owner": lambda c: c.choice(("root", "ann")),
    "size": lambda c: c.randrange(10**6),
    "name": lambda c: f"{c.choice(PLAIN)} {c.randrange(99)}.txt",
}


def lines_of(form: str) -> Any:
    """Return what draws lines of a form; the columns whose form is not that of a part are not compared."""
    names = re.findall(r"{(\w+)", form)

    def draw(chance: random.Random) -> Drawn:
        rows = [{name: PARTS[name](chance) for name in names} for _ in range(chance.randrange(20, 40))]
        found = [
            Column(name, [(str(row[name]), row[name]) for row in rows]) for name in names if name != "clock"
        ]
        return Drawn("".join(f"{form.format(**row)}\n" for row in rows), found, is_part=True)

    return draw


def pages(rows: list[dict[str, Any]]) -> str:
    parts = [rows[at : at + 4] for at in range(0, len(rows), 4)]
    return "\n".join(json.dumps({"page": at, "items": part}, indent=1) for at, part in enumerate(parts))


def with_rule(chance: random.Random) -> Drawn:
    found = columns(chance, ("host", "version", "city", "at"), first="host")
    rows = table(found)
    wide = widths(rows)
    lines = [" ".join(cell.ljust(size) for cell, size in zip(row, wide, strict=True)) for row in rows]
    lines.insert(1, " ".join("-" * size for size in wide))
    return Drawn("\n".join(lines) + "\n", found)


def as_json(shape: Callable[[list[dict[str, Any]]], str]) -> Any:
    def draw(chance: random.Random) -> Drawn:
        found = columns(chance, ("id", "price", "city", "at", "label", "cost", "note"), least=2)
        names = [column.name for column in found]
        values = [[v if c.name in ("id", "price") else t for t, v in c.cells] for c in found]
        return Drawn(shape([dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]), found)

    return draw


def logfmt(chance: random.Random) -> Drawn:
    found = columns(chance, ("id", "host", "at", "took", "address"))
    head, *rows = table(found)
    return Drawn(
        "".join(" ".join(f"{n}={c}" for n, c in zip(head, row, strict=True)) + "\n" for row in rows), found
    )


KINDS: dict[str, Callable[[random.Random], Drawn]] = {
    "CSV": delimited(",", SIMPLE),
    "CSV of times": delimited(",", ("at", "day", "address")),
    "CSV with quotes": delimited(",", (*SIMPLE, "note", "city")),
    "CSV, all quoted": delimited(",", (*SIMPLE, "note"), quoting=csv.QUOTE_ALL),
    "CSV with CRLF": delimited(",", SIMPLE, end="\r\n"),
    "CSV with forms of numbers": delimited(",", FORMS),
    "CSV with empty cells": delimited(",", ("label", "left", "price")),
    "CSV with codes": delimited(",", ("version", "zip", "host")),
    "CSV after comments": delimited(",", SIMPLE, before="# made here, now\n# with care\n"),
    "CSV after blank lines": delimited(",", SIMPLE, before="\n" * 70),
    "CSV after a mark": delimited(",", SIMPLE, before="\ufeff"),
    "CSV without names": headerless,
    "CSV with blanks": spaced,
    "CSV of words": all_texts,
    "CSV with a long row": ragged,
    "semicolons": delimited(";", (*SIMPLE, "city", "note")),
    "semicolons with a directive": delimited(";", SIMPLE, before="sep=;\n"),
    "TSV": delimited("\t", (*SIMPLE, "city", *FORMS)),
    "TSV with quotes as text": quoted_tsv,
    "bars": delimited("|", (*SIMPLE, "city")),
    "psql": psql,
    "mysql": boxed("+", "|", "-", names=(*SIMPLE, "city", "count")),
    "grid": boxed("+", "|", "-", is_grid=True),
    "box": boxed("\u253c", "\u2502", "\u2500", names=(*SIMPLE, "city", "cost")),
    "Markdown": markdown,
    "aligned": aligned(("status", "label", "city", "took", "at")),
    "aligned, long": aligned(("status", "label", "city", "took", "at"), most=200),
    "aligned to the right, long": aligned(("count", "share", "id"), is_right=True, gap=2, most=200),
    "aligned with thousands": aligned(("count", "price", "id"), gap=2),
    "aligned to the right": aligned(("count", "share", "id"), is_right=True, gap=2),
    "aligned under words": aligned(("id", "day", "memory"), is_upper=False),
    "aligned under a rule": with_rule,
    "printed by pandas": printed_by_pandas,
    "JSON": as_json(json.dumps),
    "indented JSON": as_json(lambda rows: json.dumps(rows, indent=2)),
    "JSON lines": as_json(lambda rows: "".join(f"{json.dumps(row)}\n" for row in rows)),
    "JSON in an object": as_json(lambda rows: json.dumps({"page": 1, "few": [1], "items": rows})),
    "JSON pages": as_json(pages),
    "pairs": logfmt,
    **{name: lines_of(form) for name, form in LINES.items()},
}


def ours(text: str) -> tuple[tuple[str, ...], list[tuple[Any, ...]], list[str]]:
    found = query([Record(object(), len(text), [text])], "select * from t", 10**6)
    return found.columns, found.rows, found.notes


def is_same(value: Any, text: str, expected: Any) -> bool:
    """Return whether a value is the expected one, or the text that was written."""
    if expected is None:
        return value in (None, "", text)
    if isinstance(expected, int | float) and isinstance(value, int | float):
        return math.isclose(value, expected, rel_tol=1e-9)
    return isinstance(value, str) and value.strip() == text.strip()


def mistakes(drawn: Drawn) -> list[str]:
    """Return all that is wrong in silence."""
    names, rows, said = ours(drawn.text)
    expected = [column.name for column in drawn.columns]
    if drawn.is_part:
        places = [names.index(name) for name in expected if name in names]
        names, rows = tuple(names[at] for at in places), [tuple(row[at] for at in places) for row in rows]
    if list(names[: len(expected)]) != expected:
        return [f"names {names}, not {expected}"]
    if drawn.is_doubtful and not any("may be a row" in note for note in said):
        return ["a doubtful line of names is not said"]
    if drawn.is_ragged:
        return [] if any("more cells than columns" in note for note in said) else ["a long row is not said"]
    columns = drawn.columns
    if any("lines that are not rows" in note for note in said):
        columns = without_words_alone(columns)
    if len(rows) != len(columns[0].cells):
        return [f"{len(rows)} rows, not {len(columns[0].cells)}"]
    found = [
        f"{column.name}: {value!r} for {text!r}"
        for at, column in enumerate(columns)
        for (text, expected), value in zip(column.cells, (row[at] for row in rows), strict=True)
        if not is_same(value, text, expected)
    ]
    found += [
        f"{column.name} is text, which is not said"
        for at, column in enumerate(columns)
        if all(isinstance(value, int | float) for _, value in column.cells)
        and any(isinstance(row[at], str) for row in rows)
        and not any(f"{column.name} is text" in note for note in said)
    ]
    spelled = {name.removesuffix("_text"): at for at, name in enumerate(names) if at >= len(expected)}
    found += [
        f"{column.name} loses how {text!r} is written"
        for column in columns
        if column.name in spelled
        for (text, _), row in zip(column.cells, rows, strict=True)
        if text and row[spelled[column.name]] not in (text, json.loads(text) if text.isdigit() else text)
    ]
    return found


def without_words_alone(columns: Sequence[Column]) -> list[Column]:
    """Return the columns without the rows of a first cell alone: such a line may be anything."""
    rows = [
        row for row in zip(*(column.cells for column in columns), strict=True) if any(t for t, _ in row[1:])
    ]
    return [Column(column.name, [row[at] for row in rows]) for at, column in enumerate(columns)]


def draw(kind: str, number: int) -> Drawn:
    return KINDS[kind](random.Random(f"{kind} {number}"))  # noqa: S311 # tables to read


def damages(kind: str, number: int) -> Iterator[tuple[str, str, bool]]:
    """Yield for each damage to a table that is read: its name, the text, whether it is misread in silence."""
    drawn = draw(kind, number)
    try:
        sound = ours(drawn.text)
    except ConfigError:
        return
    chance = random.Random(f"{kind} {number}")  # noqa: S311 # damage to tables
    for damage, text in damaged(kind, drawn, draw(kind, number + 1000).text, chance):
        yield damage, text, is_silent(damage, text, sound)


FOREIGN = ("npm WARN deprecated x@1", "WARNING: it took long, so I stop (3 times)", "Done.")
DELIMITERS = {"CSV": ",", "semicolons": ";", "TSV": "\t", "bars": "|"}
# Kinds of which several texts one after the other are one table, and in which no reader can tell two apart.
JOINED, ALIKE = ("JSON lines", "JSON pages", "pairs", *LINES), ("CSV of words", "CSV without names")


def damaged(kind: str, drawn: Drawn, other: str, chance: random.Random) -> Iterator[tuple[str, str]]:
    """Yield a text with one damage each, after the name of the damage."""
    lines = drawn.text.split("\n")
    first, end = max(3, len(lines) // 2 - 1), max(4, len(lines) - 2)
    # A line within quotes would be a part of a cell.
    places = [at for at in range(first, min(end, len(lines))) if "\n".join(lines[:at]).count('"') % 2 == 0]
    at = chance.choice(places or [len(lines) - 1])
    for foreign in FOREIGN if kind != "CSV of words" else FOREIGN[:1]:
        yield "foreign line", "\n".join([*lines[:at], foreign, *lines[at:]])
    yield "cut end", "\n".join([*lines[:at], lines[at][: max(1, len(lines[at]) // 2)]])
    delimiter = next((DELIMITERS[name] for name in DELIMITERS if kind.startswith(name)), "")
    cells = lines[at].split(delimiter) if delimiter and '"' not in lines[at] else []
    if len(cells) > 1 and not drawn.is_ragged:
        del cells[chance.randrange(len(cells))]
        yield "missing cell", "\n".join([*lines[:at], delimiter.join(cells), *lines[at + 1 :]])
    if any(level in lines[at] for level in LEVELS):
        line = re.sub("|".join(LEVELS), "", lines[at], count=1)
        yield "missing cell", "\n".join([*lines[:at], line, *lines[at + 1 :]])
    word = next(iter(re.finditer(r"[^\s,;|\u2502+]{3,}", lines[at])), None)
    if word is not None and "JSON" not in kind:
        line = f"{lines[at][: word.end() - 2]}|{lines[at][word.end() - 1 :]}"
        yield "bar in a cell", "\n".join([*lines[:at], line, *lines[at + 1 :]])
    yield "mixed line ends", "".join(f"{line}{chr(13) * (n % 3 == 1)}\n" for n, line in enumerate(lines))[:-1]
    if kind not in JOINED:
        yield "second table", f"{drawn.text}\n{other}"
        if kind not in ALIKE:
            yield "second table at once", drawn.text + other


def is_silent(damage: str, text: str, sound: Any) -> bool:
    """Return whether a damaged text is read in another way, and nothing says so."""
    try:
        names, rows, notes = ours(text)
    except ConfigError:
        return False
    if {re.sub(r"\d+", "0", note) for note in notes} - {re.sub(r"\d+", "0", note) for note in sound[2]}:
        return False
    width = min(len(names), len(sound[0]))
    expected, found = ([[*map(written, row[:width])] for row in each] for each in (sound[1], rows))
    if damage == "cut end":
        # If the cut is in the last cell, the cell is another one.
        found, expected = found[:-1], expected[: len(found[:-1])]
    elif damage == "bar in a cell" and len(found) == len(expected):
        differing = [at for at, row in enumerate(found) if row != expected[at]]
        return names != sound[0] or len(differing) > 1
    return (names[:width], found) != (sound[0][:width], expected)


def written(cell: Any) -> Any:
    """Return a cell in the form in which it is compared, whatever the type of its column is."""
    text = str(cell).replace("\r", "")
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else {"N/A": "None"}.get(text, text)
