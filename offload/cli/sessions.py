"""`offload show`, `tail`, `grep`, `query`, `cat`, `stats`: a session, as a model reads it."""

from __future__ import annotations

import codecs
import sys
from typing import Annotated, Literal

import typer
from msgspec import to_builtins

from offload import Offloader
from offload.cli.stores import open_session, place_of, ref_named
from offload.cli.terminal import (
    IdArgument,
    JsonOption,
    OneSessionOption,
    StoreOption,
    count,
    out,
    print_json,
    print_table,
    say,
)
from offload.controls import escape_controls
from offload.session import SessionReader
from offload.tools import MAX_ANSWER_CHARS


def show(
    ref: IdArgument,
    *,
    offset: Annotated[int, typer.Option(min=0, metavar="N", help="Start at this character, from 0.")] = 0,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="Show at most N characters.")
    ] = MAX_ANSWER_CHARS,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a part of a record as a model reads it."""
    with open_session(store, session) as off:
        ref = ref_named(off, ref)
        answer = off.tools.read(ref, offset=offset, limit=limit)
    _print_answer(off, ref, answer, as_json=as_json)


def tail(
    ref: IdArgument,
    *,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, metavar="N", help="Show at most N lines.")
    ] = 20,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last lines of a record as a model reads them."""
    with open_session(store, session) as off:
        ref = ref_named(off, ref)
        answer = off.tools.tail(ref, lines=lines)
    _print_answer(off, ref, answer, as_json=as_json)


def grep(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", show_default=False)],
    *,
    ref: Annotated[str | None, typer.Option("--id", metavar="ID", help="Search only this record.")] = None,
    is_regex: Annotated[
        bool, typer.Option("--regex", help="Read PATTERN as a regular expression (RE2).")
    ] = False,
    max_matches: Annotated[
        int, typer.Option(min=1, max=100, metavar="N", help="Show at most N matches.")
    ] = 20,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue from the cursor of a previous answer.")
    ] = None,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search the records of a session as a model does."""
    mode: Literal["literal", "regex"] = "regex" if is_regex else "literal"
    with open_session(store, session) as off:
        ref = ref and ref_named(off, ref)
        answer = off.tools.grep(pattern, ref, mode=mode, max_matches=max_matches, cursor=cursor)
    _print_answer(off, ref, answer, as_json=as_json)
    if not as_json:
        say(f"{place_of(off.store, off.session)} has {count(len(off.records()), 'record')}")


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", show_default=False)],
    refs: Annotated[list[str], typer.Argument(metavar="ID...", show_default=False)],
    *,
    store: StoreOption = None,
    session: OneSessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run one SQL select over records, as a model does.

    The tables are `t` and `lines`; of several records `t1`, `lines1`, `t2` and so on.
    """
    with open_session(store, session) as off:
        refs = [ref_named(off, ref) for ref in refs]
        answer = off.tools.query(refs, sql)
    _print_answer(off, ",".join(refs), answer, as_json=as_json)


def _print_answer(off: Offloader, ref: str | None, answer: str, *, as_json: bool) -> None:
    """Print an answer after the title of the record that it is about, if that is one record."""
    title = None if ref is None else SessionReader(off.store, off.session).read(ref).title
    if as_json:
        facts = {"store": off.store.url, "session": off.session, "ref": ref, "title": title}
        print_json({**facts, "answer": answer})
        return
    if title is not None:
        say(f"{ref} is of: {title}")
    out.print(escape_controls(answer), soft_wrap=True)


def cat(ref: IdArgument, *, store: StoreOption = None, session: OneSessionOption = None) -> None:
    """Write a record's content to stdout, byte for byte when redirected.

    On a terminal, control characters are escaped.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with open_session(store, session) as off:
        for chunk in off.content(ref_named(off, ref)):
            if out.is_terminal:
                sys.stdout.write(escape_controls(decoder.decode(chunk)))
            else:
                sys.stdout.buffer.write(chunk)
    sys.stdout.flush()


def stats(
    *, store: StoreOption = None, session: OneSessionOption = None, as_json: JsonOption = False
) -> None:
    """Count the records of a session by type and by tool."""
    with open_session(store, session) as off:
        counts = {"store": off.store.url, **to_builtins(off.stats())}
    # Reads are counted in the process that made them.
    del counts["reads"], counts["chars_read"]
    if as_json:
        print_json(counts)
    else:
        print_table([{"fact": name.replace("_", " "), "value": value} for name, value in counts.items()])
