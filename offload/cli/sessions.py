"""`offload ls`, `show`, `tail`, `grep`, `cat`, `stats`, `verify` and `reindex`: the contents of a store."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer
from msgspec import to_builtins

from offload import Offloader, index
from offload.cli.stores import existing_store, open_session, place_of, session_names
from offload.cli.terminal import (
    PROBLEMS,
    IdArgument,
    JsonOption,
    OneSessionOption,
    SessionOption,
    StoreOption,
    count,
    out,
    print_json,
    print_report,
    print_table,
    progress,
    say,
)
from offload.controls import escape_controls
from offload.layout import is_link
from offload.store import OffloadStore
from offload.tools import MAX_ANSWER_CHARS


def list_(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """List the sessions of a store, or the records of one session."""
    opened = existing_store(store, session)
    if session is None:
        rows = list(_sessions(opened))
        print_report(rows, _summary(rows, opened), as_json=as_json)
    else:
        rows = list(_records(opened, session))
        summary = f"{count(len(rows), 'record')} in {place_of(opened, session)}"
        document = [{"session": session, **row} for row in rows]
        print_report(rows, summary, as_json=as_json, document=document)


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
        answer = off.tools.grep(pattern, ref, mode=mode, max_matches=max_matches, cursor=cursor)
    _print_answer(off, ref, answer, as_json=as_json)
    if not as_json:
        say(f"{place_of(off.store, off.session)} has {count(len(off.records()), 'record')}")


def _print_answer(off: Offloader, ref: str | None, answer: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"store": off.store.url, "session": off.session, "ref": ref, "answer": answer})
    else:
        out.print(escape_controls(answer), soft_wrap=True)


def cat(ref: IdArgument, *, store: StoreOption = None, session: OneSessionOption = None) -> None:
    """Write a record's content to stdout, byte for byte when redirected.

    On a terminal, control characters are escaped.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with open_session(store, session) as off:
        for chunk in off.content(ref):
            if out.is_terminal:
                sys.stdout.write(escape_controls(decoder.decode(chunk)))
            else:
                sys.stdout.buffer.write(chunk)
    sys.stdout.flush()


def verify(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """Check every record and list damaged ones; exit with 3 if there are any."""
    opened = existing_store(store, session)
    names = session_names(opened, session)
    damaged: list[dict[str, Any]] = []
    checked = 0
    for name in progress(names, "sessions"):
        off = Offloader(opened, session=name)
        checked += sum(not is_link(info.key) for info in off.records())
        damaged += [
            {"session": name, "ref": d.info.ref, "fault": d.error.kind, "message": str(d.error)}
            for d in off.verify()
        ]
    if damaged:
        verdict = f"{len(damaged):,} damaged of "
    else:
        verdict = "all records are intact: " if checked else "nothing to check: "
    summary = f"{verdict}{count(checked, 'record')} in {count(len(names), 'session')} of {place_of(opened)}"
    print_report(damaged, summary, as_json=as_json)
    if damaged:
        raise typer.Exit(PROBLEMS)


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


def reindex(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """Rebuild the index of one session, or of all sessions, from their records.

    Needed only if a listing seems wrong: the index is a cache, and records are not changed.
    """
    opened = existing_store(store, session)
    names = progress(session_names(opened, session), "sessions")
    rows = [{"session": name, "records": index.reindex(opened, name)} for name in names]
    print_report(rows, f"indexed: {_summary(rows, opened)}", as_json=as_json)


def _summary(rows: list[dict[str, Any]], store: OffloadStore) -> str:
    records = sum(row["records"] for row in rows)
    return f"{count(records, 'record')} in {count(len(rows), 'session')} of {place_of(store)}"


def _sessions(store: OffloadStore) -> Iterator[dict[str, Any]]:
    for name in index.sessions(store):
        stats = to_builtins(Offloader(store, session=name).stats())
        yield {field: stats[field] for field in ("session", "records", "chars", "tokens", "stored_bytes")}


def _records(store: OffloadStore, session: str) -> Iterator[dict[str, Any]]:
    for info in Offloader(store, session=session).records():
        yield {
            "ref": info.ref,
            "type": info.item_type,
            "tool": info.tool_name,
            "chars": info.chars,
            "tokens": info.tokens,
            "stored_bytes": info.stored_bytes,
            "stored_at": datetime.fromtimestamp(info.created_at, UTC),
        }
