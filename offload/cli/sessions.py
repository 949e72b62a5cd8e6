"""`offload ls`, `show`, `cat`, `grep`, `stats` and `verify`: a look at what a store holds."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer
from msgspec import to_builtins

from offload import Offloader
from offload.cli.stores import existing, holding, looking_in, opened_session, place_of
from offload.cli.terminal import (
    UNSOUND,
    JsonOption,
    SessionOption,
    StoreOption,
    count,
    out,
    print_answer,
    print_json,
    print_table,
    progress,
    say,
)
from offload.controls import visible
from offload.index import sessions
from offload.layout import is_link
from offload.store import OffloadStore


def list_(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """List the sessions of a store, or with --session the records of one."""
    held = existing(store)
    rows = list(_sessions(held) if session is None else _records(holding(held, session), session))
    if as_json:
        print_json(rows)
        return
    if rows:
        # The last line names the session.
        hidden = () if session is None else ("session",)
        print_table([{k: v for k, v in row.items() if k not in hidden} for row in rows], whole="ref")
    if session is None:
        records = sum(row["records"] for row in rows)
        say(f"{count(records, 'record')} in {count(len(rows), 'session')} of {place_of(held)}")
    else:
        say(f"{count(len(rows), 'record')} in session {session} of {place_of(held)}")


def show(
    ref: Annotated[str, typer.Argument(metavar="REF", show_default=False)],
    *,
    offset: Annotated[int, typer.Option(min=0, help="First character, from 0.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="Characters at most.")] = 8192,
    store: StoreOption = None,
    session: SessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a part of a record, as a model reads it."""
    off = opened_session(store, session)
    with looking_in(off):
        answer = off.tools.read(ref, offset=offset, limit=limit)
    print_answer(answer, as_json=as_json, store=off.store.url, session=off.session, ref=ref)


def tail(
    ref: Annotated[str, typer.Argument(metavar="REF", show_default=False)],
    *,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines at most.")] = 20,
    store: StoreOption = None,
    session: SessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last lines of a record, as a model reads them."""
    off = opened_session(store, session)
    with looking_in(off):
        answer = off.tools.tail(ref, lines=lines)
    print_answer(answer, as_json=as_json, store=off.store.url, session=off.session, ref=ref)


def grep(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", show_default=False)],
    *,
    ref: Annotated[str | None, typer.Option(metavar="REF", help="Search this record only.")] = None,
    is_regex: Annotated[bool, typer.Option("--regex", help="RE2 syntax, not plain text.")] = False,
    max_matches: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Matches at most.")] = 20,
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Where to go on, from the answer before.")
    ] = None,
    store: StoreOption = None,
    session: SessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search the records of a session, as a model does."""
    mode: Literal["literal", "regex"] = "regex" if is_regex else "literal"
    off = opened_session(store, session)
    with looking_in(off):
        answer = off.tools.grep(pattern, ref, mode=mode, max_matches=max_matches, cursor=cursor)
    print_answer(answer, as_json=as_json, store=off.store.url, session=off.session, ref=ref)
    if not as_json:
        records = count(len(off.records()), "record")
        say(f"session {off.session} of {place_of(off.store)} holds {records}")


def cat(
    ref: Annotated[str, typer.Argument(metavar="REF", show_default=False)],
    *,
    store: StoreOption = None,
    session: SessionOption = None,
) -> None:
    """Write the whole content of a record to standard output: byte for byte to a pipe or a file.

    A terminal is shown every control that would act on it as a visible sign.
    """
    off = opened_session(store, session)
    with looking_in(off):
        _write(off.content(ref))


def _write(chunks: Iterator[bytes]) -> None:
    if out.is_terminal:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for chunk in chunks:
            sys.stdout.write(visible(decoder.decode(chunk)))
    else:
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
    sys.stdout.flush()


def verify(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """Read every record and report each that is damaged; exit with 3 if there is one."""
    held = existing(store)
    names = list(sessions(held)) if session is None else [session]
    damaged: list[dict[str, Any]] = []
    checked = 0
    for name in progress(names, "sessions"):
        off = Offloader(holding(held, name), session=name)
        checked += sum(not is_link(info.key) for info in off.records())
        damaged += [
            {"session": name, "ref": d.info.ref, "fault": d.error.kind, "said": str(d.error)}
            for d in off.verify()
        ]
    if as_json:
        print_json(damaged)
    else:
        _print_verdict(damaged, checked, names, place_of(held))
    if damaged:
        raise typer.Exit(UNSOUND)


def _print_verdict(damaged: list[dict[str, Any]], checked: int, names: list[str], place: str) -> None:
    if damaged:
        print_table(damaged, whole="ref")
        verdict = f"{len(damaged):,} damaged of "
    else:
        verdict = "every record is whole: " if checked else "nothing to check: "
    say(f"{verdict}{count(checked, 'record')} in {count(len(names), 'session')} of {place}")


def stats(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """Count what a session holds, by type and by tool."""
    off = opened_session(store, session)
    counted = {"store": off.store.url, **to_builtins(off.stats())}
    # What was read back is known where it was read.
    del counted["reads"], counted["chars_read"]
    if as_json:
        print_json(counted)
    else:
        print_table([{"fact": name.replace("_", " "), "value": v} for name, v in counted.items()])


def _sessions(store: OffloadStore) -> Iterator[dict[str, Any]]:
    for name in sessions(store):
        counted = Offloader(store, session=name).stats()
        yield {
            "session": name,
            "records": counted.records,
            "chars": counted.chars,
            "tokens": counted.tokens,
            "stored_bytes": counted.stored_bytes,
        }


def _records(store: OffloadStore, session: str) -> Iterator[dict[str, Any]]:
    for info in Offloader(store, session=session).records():
        yield {
            "session": session,
            "ref": info.ref,
            "type": info.item_type,
            "tool": info.tool_name,
            "chars": info.chars,
            "tokens": info.tokens,
            "stored_bytes": info.stored_bytes,
            "stored_at": datetime.fromtimestamp(info.created_at, UTC),
        }
