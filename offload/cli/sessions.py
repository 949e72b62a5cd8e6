"""`offload show`, `diff`, `query`, `cat`: records as people and programs read them.

Content is printed to stdout, and a line about it to stderr.
"""

from __future__ import annotations

import codecs
import csv
import re
import sys
from itertools import takewhile
from typing import Annotated, Any

import typer

from offload import ConfigError
from offload.base.text import escape_controls, printed_bytes
from offload.cli.options import IdArgument, JsonOption, OneSessionOption, StoreOption
from offload.cli.parts import part_of, rows_of
from offload.cli.shell import quoted
from offload.cli.stores import full_ref, open_record
from offload.cli.tables import print_rows
from offload.cli.terminal import count, note, out, page, print_json, visible
from offload.records.codec.base import StoredRecord
from offload.records.session.reader import SessionReader

_LINES = re.compile(r"([0-9]{0,15})(:([0-9]{0,15}))?", re.ASCII)
_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def show(
    ref: IdArgument,
    *,
    offset: Annotated[int, typer.Option(min=0, metavar="N", help="Start at this character, from 0.")] = 0,
    limit: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Show at most N characters [default: from settings]."),
    ] = None,
    lines: Annotated[
        str | None,
        typer.Option(
            "--lines",
            metavar="FIRST:LAST",
            help="Show these lines, from 1, in place of --offset and --limit.",
        ),
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Show the last N lines, in place of all these.")
    ] = None,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a part of a record. If there is more, stderr has the command that shows it.

    Example: offload show kqzmwpxhva --offset 8192
    """
    span = None if lines is None else _span(lines)
    if ((offset, limit) != (0, None)) + (span is not None) + (tail is not None) > 1:
        raise ConfigError("use --lines, or --tail, or --offset and --limit, one of these")
    with open_record(store, session, ref) as (off, found):
        record = SessionReader(off.store, off.session).read(found)
        if tail is not None:
            span = max(1, record.content.lines - tail + 1), None
        start, end = _chars(record, span, offset, limit)
        most = off.options.max_answer_chars if limit is None else limit
        begin = start if tail is None else max(start, end - most)
        part = part_of(off, record, begin, min(end, begin + most))
    _print_part(part, start, end, store, as_json=as_json)


def _span(text: str) -> tuple[int, int | None]:
    """Return the first and the last line that a text names: "120:160", "120:", ":160" or "120"."""
    match = _LINES.fullmatch(text)
    first = int(match[1] or 1) if match else 0
    last = None if match is None or match[3] == "" else int(match[3] or first)
    if match is None or not text.strip(":") or first < 1 or (last is not None and last < first):
        raise ConfigError(f"--lines must be FIRST:LAST, such as 120:160, got {text!r:.40}")
    return first, last


def _chars(
    record: StoredRecord, span: tuple[int, int | None] | None, offset: int, limit: int | None
) -> tuple[int, int]:
    """Return the characters that are asked for, from and to."""
    content = record.content
    if span is None:
        start, end = offset, content.chars if limit is None else offset + limit
    else:
        start = content.line_start(span[0])
        end = content.chars if span[1] is None else content.line_start(span[1] + 1)
    if start >= content.chars > 0:
        raise ConfigError(f"past the end: {record.ref} has {content.chars:,} characters")
    return start, min(end, content.chars)


def _print_part(part: dict[str, Any], start: int, end: int, store: str | None, *, as_json: bool) -> None:
    """Print the text of a part; to stderr the command for the rest of the characters that were asked for."""
    if as_json:
        print_json(part)
        return
    page(visible(part["text"]).removesuffix("\n"))
    title = f" ({part['title']})" if part["title"] else ""
    place = f"{part['ref']}{title}: characters {part['start']:,} to {part['end']:,} of {part['chars']:,}"
    rest = start if part["start"] > start else part["end"] if part["end"] < end else None
    if rest is not None:
        where = f"--session {quoted(part['session'])}{f' --store {quoted(store)}' if store else ''}"
        note(f"{place}; more: offload show {part['ref']} --offset {rest} {where}")
    elif out.is_terminal:
        note(place)


def diff(
    old: IdArgument,
    new: IdArgument,
    *,
    start_row: Annotated[
        int, typer.Option(min=1, metavar="N", help="Start at this row of the diff, from 1.")
    ] = 1,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the lines in which two records of a session differ.

    Example: offload diff kqzmwpxhva ejwntwgzte
    """
    with open_record(store, session, old) as (off, first):
        second = full_ref(off, new)
        head, *rows = off.tools.diff(first, second, start_row=start_row).split("\n")
    shown = [*takewhile(lambda row: not row.startswith("["), rows)]
    if as_json:
        place = {"store": off.store.url, "session": off.session}
        print_json({**place, "old": first, "new": second, "rows": shown})
        return
    for row in shown:
        out.print(visible(row), style=_STYLES.get(row[:1]), soft_wrap=True)
    more = any(row.startswith("[more") for row in rows)
    rest = f"; more: offload diff {first} {second} --start-row {start_row + len(shown)}" if more else ""
    note(f"{head.strip('[]')}{rest}")


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL")],
    refs: Annotated[list[str], typer.Argument(metavar="ID...")],
    *,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV on a terminal too.")] = False,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run one SQL select over records.

    The tables are `t` and `lines`; of several records `t1`, `lines1`, `t2` and so on. A pipe gets CSV.

    Example: offload query 'select level, count(*) from t group by 1' kqzmwpxhva
    """
    with open_record(store, session, refs[0]) as (off, first):
        found = rows_of(off, [first, *(full_ref(off, ref) for ref in refs[1:])], sql)
    if as_json:
        print_json(found)
    elif as_csv or not out.is_terminal:
        csv.writer(sys.stdout, lineterminator="\n").writerows([found["columns"], *found["rows"]])
    else:
        print_rows(found["columns"], found["rows"])
    rest = f" of {found['total']:,}" if found["is_more"] else ""
    if not as_json:
        note("; ".join([f"{count(len(found['rows']), 'row')}{rest}", *found["notes"]]))


def cat(ref: IdArgument, *, store: StoreOption = None, session: OneSessionOption = None) -> None:
    """Write a record's content to stdout, byte for byte when redirected.

    Output of `offload exec` is then as the command printed it. On a terminal, control characters are escaped.

    Example: offload cat kqzmwpxhva > output.txt
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with open_record(store, session, ref) as (off, found):
        content = off.content(found)
        if out.is_terminal:
            sys.stdout.writelines(escape_controls(decoder.decode(chunk)) for chunk in content)
        else:
            sys.stdout.buffer.writelines(printed_bytes(content))
    sys.stdout.flush()
