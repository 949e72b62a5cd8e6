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
from offload.cli.stores import opened, opened_session
from offload.cli.terminal import (
    UNSOUND,
    JsonOption,
    SessionOption,
    StoreOption,
    out,
    print_answer,
    print_json,
    print_table,
    progress,
)
from offload.controls import visible
from offload.index import sessions


def list_(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """List the sessions of a store, or with --session the records of one."""
    rows = list(_sessions(store) if session is None else _records(store, session))
    if as_json:
        print_json(rows)
    elif rows:
        print_table(rows, whole="ref")
    else:
        out.print("nothing is stored here")


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
    answer = opened_session(store, session).tools.read(ref, offset=offset, limit=limit)
    print_answer(answer, as_json=as_json)


def tail(
    ref: Annotated[str, typer.Argument(metavar="REF", show_default=False)],
    *,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines at most.")] = 20,
    store: StoreOption = None,
    session: SessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the last lines of a record, as a model reads them."""
    print_answer(opened_session(store, session).tools.tail(ref, lines=lines), as_json=as_json)


def grep(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", show_default=False)],
    *,
    ref: Annotated[str | None, typer.Option(metavar="REF", help="Search this record only.")] = None,
    is_regex: Annotated[bool, typer.Option("--regex", help="RE2 syntax, not plain text.")] = False,
    store: StoreOption = None,
    session: SessionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search the records of a session, as a model does."""
    mode: Literal["literal", "regex"] = "regex" if is_regex else "literal"
    answer = opened_session(store, session).tools.grep(pattern, ref, mode=mode)
    print_answer(answer, as_json=as_json)


def cat(
    ref: Annotated[str, typer.Argument(metavar="REF", show_default=False)],
    *,
    store: StoreOption = None,
    session: SessionOption = None,
) -> None:
    """Write the whole content of a record to standard output: byte for byte to a pipe or a file.

    A terminal is shown every control that would act on it as a visible sign.
    """
    chunks = opened_session(store, session).content(ref)
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
    offloaders = [opened_session(store, session)] if session is not None else list(_all(store))
    damaged = [
        {"session": off.session, "ref": d.info.ref, "fault": d.error.kind, "said": str(d.error)}
        for off in progress(offloaders, "sessions")
        for d in off.verify()
    ]
    if as_json:
        print_json(damaged)
    elif damaged:
        print_table(damaged, whole="ref")
    else:
        out.print("every record is whole")
    if damaged:
        raise typer.Exit(UNSOUND)


def stats(*, store: StoreOption = None, session: SessionOption = None, as_json: JsonOption = False) -> None:
    """Count what a session holds, by type and by tool."""
    counted = to_builtins(opened_session(store, session).stats())
    # What was read back is known where it was read.
    del counted["reads"], counted["chars_read"]
    if as_json:
        print_json(counted)
    else:
        print_table([{"fact": name.replace("_", " "), "value": v} for name, v in counted.items()])


def _all(store: str | None) -> Iterator[Offloader]:
    held = opened(store)
    return (Offloader(held, session=name) for name in sessions(held))


def _sessions(store: str | None) -> Iterator[dict[str, Any]]:
    for off in _all(store):
        counted = off.stats()
        yield {
            "session": off.session,
            "records": counted.records,
            "chars": counted.chars,
            "tokens": counted.tokens,
            "stored_bytes": counted.stored_bytes,
        }


def _records(store: str | None, session: str) -> Iterator[dict[str, Any]]:
    for info in opened_session(store, session).records():
        yield {
            "ref": info.ref,
            "type": info.item_type,
            "tool": info.tool_name,
            "chars": info.chars,
            "tokens": info.tokens,
            "stored_bytes": info.stored_bytes,
            "stored_at": datetime.fromtimestamp(info.created_at, UTC),
        }
